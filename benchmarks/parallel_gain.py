"""What the parallel forms gain over one process when the user gives no sizes.

    python benchmarks/parallel_gain.py speed --env-id CartPole-v1
    python benchmarks/parallel_gain.py speed --env-id LunarLander-v3
    python benchmarks/parallel_gain.py score --env-id CartPole-v1 --seeds 10
    python benchmarks/parallel_gain.py score --env-id LunarLander-v3 --algos ppo,impala --seeds 5
    python benchmarks/parallel_gain.py auto --env-id HalfCheetah-v5

`speed`: steps per second of the sequential form, of two independent copies of it at once (the
ceiling of this machine at that moment), of the parallel form, and of the sequential form with as
many environments as the parallel one has over all its processes. All take turns; ratios are within
a round. `score`: the time from the first environment step until the mean return of the last 100
episodes reaches a score, and the evaluation at the end, on seeds that the rule for sizes was not
chosen with. `auto`: what `--parallel auto` chooses against every layout of a small grid. Every run
is the command itself, in a process of its own; run it on an otherwise idle machine. Writes
benchmarks/results/parallel_gain-<what>-<env>.json.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.processes.hardware import available_cpus, cpu_name

RESULTS = Path(__file__).parent / "results"
ALGOS = ("ppo", "a2c", "a3c", "impala")
AUTO, WORKERS = ("--parallel", "auto"), ("--num-workers", "2")
PARALLEL = {"ppo": AUTO, "a2c": AUTO, "a3c": WORKERS, "impala": WORKERS}
"""Flags of the parallel form; `--way` replaces them."""
SEQUENTIAL = {"a3c": ("--num-workers", "1")}
COMPILED = {"LunarLander-v3": ("ppo", "a2c", "a3c"), "HalfCheetah-v5": ("ppo",)}
"""Where the default budget is long enough for the step to be compiled; a short `speed` is told."""
SHORTER = {"procgen:coinrun": ("--rollout-steps", "16")}
"""Of the preset's rollouts one takes half a minute, and a run of some seconds needs several."""
SCORES = {
    ("CartPole-v1", "ppo"): (475, "100k"),
    ("CartPole-v1", "a2c"): (475, "500k"),
    ("CartPole-v1", "a3c"): (475, "500k"),
    ("CartPole-v1", "impala"): (475, "500k"),
    ("LunarLander-v3", "ppo"): (200, "2M"),
    ("LunarLander-v3", "impala"): (150, "2M"),
}
"""What is to be reached, and within how many steps: the preset's budget, or 2 M."""
GRID: tuple[tuple[str, ...], ...] = (
    ("--num-workers", "0"),
    ("--num-workers", "2"),
    ("--ranks", "2"),
)
WARMUP = 0.25
"""Share of a run's time that is not counted."""

Run = dict[str, Any]
Ways = Mapping[str, Sequence[str]]
"""Flags of each algorithm's parallel form."""


def train(flags: list[str], folder: Path, copies: int = 1) -> list[Run]:
    """Train `copies` at once, as a user would; what each of them has written."""
    command = [sys.executable, "-m", "paceline", "train", "--track", "none", *flags]
    running = [
        subprocess.Popen(
            [*command, "--output-dir", str(folder / str(n))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for n in range(copies)
    ]
    said = [process.communicate()[0] for process in running]
    for process, text in zip(running, said, strict=True):
        if process.returncode:
            sys.exit(f"{' '.join(command)}\n{text}")
    return [read(folder / str(n), text) for n, text in enumerate(said)]


def read(folder: Path, said: str) -> Run:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["time"] >= WARMUP * lines[-1]["time"])
    last, facts = lines[-1], json.loads((folder / "run.json").read_text())
    evaluation = folder / "eval.json"
    return {
        "fps": (last["steps"] - first["steps"]) / max(1e-9, last["time"] - first["time"]),
        "time": last["time"],
        "steps": last["steps"],
        "startup": facts.get("startup"),
        "eval": json.loads(evaluation.read_text())["mean"] if evaluation.exists() else None,
        "reached": "reached" in said and "was not reached" not in said,
        "said": next((line for line in said.splitlines() if "× sequential" in line), ""),
        "config": (folder / "config.yaml").read_text(),
    }


def once(flags: list[str], copies: int = 1) -> list[Run]:
    with tempfile.TemporaryDirectory(prefix="paceline-gain-") as folder:
        return train(flags, Path(folder), copies)


def timed(env_id: str, algo: str, seconds: float) -> list[str]:
    """Flags of a run of which only the speed counts, in the form that the default budget has."""
    compiled = "on" if algo in COMPILED.get(env_id, ()) else "off"
    flags = ["--env-id", env_id, "--algo", algo, "--compile", compiled, *SHORTER.get(env_id, ())]
    return [*flags, "--duration", f"{seconds}s", "--stop-at-return", "none", "--eval-episodes", "0"]


def middle(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def speed(env_id: str, ways: Ways, rounds: int, seconds: float) -> Run:
    """Steps per second of every form of every algorithm, in turns."""
    found: Run = {}
    for algo in ways:
        common = timed(env_id, algo, seconds)
        alone, parallel = list(SEQUENTIAL.get(algo, ())), list(ways[algo])
        # Once, for the compiler's cache and to see how many environments there are in all.
        (tried,) = once([*common, *parallel])
        envs = processes_and_envs(tried["config"])[1]
        cells = {
            "sequential": (alone, 1),
            "two at once": (alone, 2),
            "parallel": (parallel, 1),
            "sequential, as many envs": ([*alone, "--num-envs", str(envs)], 1),
        }
        rates: dict[str, list[float]] = {name: [] for name in cells}
        for number in range(rounds):
            for name, (way, copies) in list(cells.items())[:: -1 if number % 2 else 1]:
                runs = once([*common, *way], copies)
                rates[name].append(sum(run["fps"] for run in runs))
        ratios = {
            name: [one / base for one, base in zip(rates[name], rates["sequential"], strict=True)]
            for name in cells
        }
        share = [a / b for a, b in zip(rates["parallel"], rates["two at once"], strict=True)]
        found[algo] = {"rates": rates, "ratios": ratios, "share of ceiling": share}
        print(f"{algo} on {env_id}: {tried['said'] or ' '.join(parallel)}")
        for name in cells:
            middle_rate = statistics.median(rates[name])
            print(f"  {name:26s}{middle_rate:>10,.0f} steps/s   × {middle(ratios[name])}")
        print(f"  parallel over the ceiling: {middle(share)}", flush=True)
    return found


def processes_and_envs(config: str) -> tuple[dict[str, int], int]:
    """Workers and ranks of a config.yaml, and the environments over all learners."""
    import yaml

    values = yaml.safe_load(config)
    learners = values["num_workers"] if values["sync"] == "hogwild" else values["ranks"]
    shape = {name: values[name] for name in ("num_workers", "ranks", "num_envs")}
    return shape, learners * values["num_envs"]


def score(env_id: str, ways: Ways, seeds: int, first_seed: int) -> Run:
    """Time to the score of the sequential and the parallel form, seed by seed."""
    found: Run = {}
    for algo in ways:
        wanted, budget = SCORES[env_id, algo]
        common = ["--env-id", env_id, "--algo", algo, "--stop-at-return", str(wanted)]
        common += ["--total-steps", budget]
        both = {"sequential": SEQUENTIAL.get(algo, ()), "parallel": ways[algo]}
        runs: dict[str, list[Run]] = {name: [] for name in both}
        for seed in range(first_seed, first_seed + seeds):
            for name, way in list(both.items())[:: -1 if seed % 2 else 1]:
                (run,) = once([*common, *way, "--seed", str(seed)])
                runs[name].append({k: v for k, v in run.items() if k != "config"})
        found[algo] = runs
        print(f"{algo} on {env_id} to {wanted} within {budget} steps:")
        medians = []
        for name, made in runs.items():
            times = [run["time"] if run["reached"] else math.inf for run in made]
            steps = [run["steps"] if run["reached"] else math.inf for run in made]
            medians.append(statistics.median(times))
            missed, startup = times.count(math.inf), statistics.median(map(startup_of, made))
            evals = [run["eval"] for run in made]
            print(
                f"  {name:12s}time {medians[-1]:.2f} s, steps {statistics.median(steps):,.0f}, "
                f"missed {missed} of {seeds}; evaluation {statistics.mean(evals):.1f} "
                f"± {statistics.stdev(evals) / math.sqrt(seeds):.1f}; startup {startup:.1f} s"
            )
        print(f"  ratio of medians {medians[1] / medians[0]:.2f}", flush=True)
    return found


def startup_of(run: Run) -> float:
    """Seconds before the first step, compiling included."""
    return float((run["startup"] or {}).get("seconds", 0.0))


def auto(env_id: str, algos: Iterable[str], rounds: int, seconds: float) -> Run:
    """The choice of --parallel auto among the layouts of a small grid, all in turns."""
    found: Run = {}
    for algo in algos:
        common = timed(env_id, algo, seconds)
        rates: dict[str, list[float]] = {}
        said = []
        for number in range(rounds):
            for way in [AUTO, *GRID][:: -1 if number % 2 else 1]:
                (run,) = once([*common, *way])
                rates.setdefault(" ".join(way), []).append(run["fps"])
                said += [run["said"]] if way is AUTO else []
        best = max((" ".join(way) for way in GRID), key=lambda w: statistics.median(rates[w]))
        ratio = [a / b for a, b in zip(rates[" ".join(AUTO)], rates[best], strict=True)]
        found[algo] = {"rates": rates, "best": best, "ratio": ratio, "said": said}
        print(f"{algo} on {env_id}: {'; '.join(dict.fromkeys(said))}")
        for name, values in rates.items():
            print(f"  {name:26s}{statistics.median(values):>10,.0f} steps/s")
        print(f"  over the best ({best}): {middle(ratio)}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("speed", "score", "auto"))
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--algos")
    parser.add_argument("--way", help="flags of the parallel form, such as '--ranks 2'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    given = parser.parse_args()
    default = "ppo" if given.what == "auto" else ",".join(ALGOS)
    algos = (given.algos or default).split(",")
    ways = {algo: tuple((given.way or shlex.join(PARALLEL[algo])).split()) for algo in algos}
    if given.what == "score":
        found = score(given.env_id, ways, given.seeds, given.first_seed)
    else:
        measure = {"speed": speed, "auto": auto}[given.what]
        found = measure(given.env_id, ways, given.rounds, given.seconds)
    # Of each algorithm, since they may be measured at different times.
    facts = {"cpu": cpu_name(), "cpus": available_cpus(), "arguments": sys.argv[1:]}
    suffix = f" {given.way}" if given.way else ""
    found = {algo + suffix: facts | values for algo, values in found.items()}
    name = f"parallel_gain-{given.what}-{given.env_id.replace(':', '-')}.json"
    path, earlier = RESULTS / name, {}
    if path.exists():  # algorithms that were measured at another time
        earlier = json.loads(path.read_text())
    path.write_text(json.dumps(earlier | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
