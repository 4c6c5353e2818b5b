"""Whether comparisons can be believed, how long they take, and how punctual timed runs are.

    python benchmarks/comparing.py draws     # false alarms and coverage, 200 draws of 2 × 5 runs
    python benchmarks/comparing.py large     # `paceline compare` of 200 runs of 5,000 reports
    python benchmarks/comparing.py timed     # ten runs of 20 s, in five ways: how late they end

`draws` compares groups through the function that the command calls, with the draws of seeds
0 … 199, once; the scores are normal with a deviation of 20, and then also a known difference of 30.
`large` and `timed` start real `paceline` processes, one after another.
Writes benchmarks/results/comparing-<what>.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from paceline import Config
from paceline.processes.hardware import available_cpus, cpu_name
from paceline.tools.bench.compare.command import compare
from paceline.tools.bench.compare.history import FIELDS, History, flat

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DRAWS, RUNS, DEVIATION, DIFFERENCE = 200, 5, 20.0, 30.0
LARGE_RUNS, LARGE_REPORTS, REPEATS = 200, 5000, 3
SECONDS = 20.0
MODES = {
    "ppo sequential": ("--algo", "ppo"),
    "ppo 2 workers": ("--algo", "ppo", "--num-workers", "2"),
    "ppo 2 ranks": ("--algo", "ppo", "--ranks", "2"),
    "a3c 2 learners": ("--algo", "a3c", "--num-workers", "2"),
    "impala 2 workers": ("--algo", "impala", "--num-workers", "2"),
}
SEEDS = (0, 1)


# draws


def history(config: Config, name: str, score: float) -> tuple[Path, History]:
    """A run whose last 100 episodes have this mean return, as if it had been read."""
    columns = {field: np.full(2, np.nan) for field in FIELDS}
    reported = {"iter": 1.0, "time": 10.0, "steps": 10_000.0}
    columns |= {field: each * np.array([1.0, 2.0]) for field, each in reported.items()}
    columns |= {"episodes": np.full(2, 100.0), "episode_return": np.array([0.0, score])}
    path = Path(name)
    return path, History(path, config, {}, "done", columns, values=flat(config.as_dict()))


def draw(configs: list[list[Config]], seed: int, more: float) -> dict[str, bool]:
    """Two groups of which the second is better by `more`, compared."""
    scores = np.random.default_rng(seed).normal([[100], [100 + more]], DEVIATION, (2, RUNS))
    given = [
        history(config, f"{group}-{config.seed}", score)
        for group, row in enumerate(scores)
        for config, score in zip(configs[group], row, strict=True)
    ]
    made = compare(given)
    (pair,) = made.pairs
    sign = 1 if pair.better.key == 1 else -1  # the difference is that of the better one
    low, high = pair.difference.low, pair.difference.high
    assert low is not None and high is not None
    return {"clear": pair.clear, "covers": low <= sign * more <= high}


def draws() -> dict[str, Any]:
    configs = [
        [Config(lr=lr, seed=seed, total_steps=20_000) for seed in range(RUNS)] for lr in (0.1, 0.2)
    ]
    found: dict[str, Any] = {"draws": DRAWS, "runs_of_each_group": RUNS}
    for name, more in (("identical", 0.0), ("known_difference", DIFFERENCE)):
        made = [draw(configs, seed, more) for seed in range(DRAWS)]
        found[name] = {
            "difference": more,
            "called_clear": statistics.mean(each["clear"] for each in made),
            "interval_covers": statistics.mean(each["covers"] for each in made),
        }
        print(name, found[name], flush=True)
    return found


# large


def large() -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "tests"))
    from histories import curve, write_run

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        groups = 4
        for number in range(LARGE_RUNS):
            group, seed = number % groups, number // groups
            returns = curve(100.0 + 5 * group, lines=LARGE_REPORTS, seed=number)
            write_run(folder / "h" / str(number), returns, lr=(group + 1) / 100, seed=seed)
        size = sum(path.stat().st_size for path in folder.rglob("metrics.jsonl"))
        took = []
        for repeat in range(REPEATS):
            command = ["compare", str(folder / "h"), "--output-dir", str(folder / str(repeat))]
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "paceline", *command], check=True, stdout=subprocess.DEVNULL
            )
            took.append(round(time.perf_counter() - began, 3))
            print(f"{took[-1]:.2f} s", flush=True)
    return {
        "runs": LARGE_RUNS,
        "reports_of_each": LARGE_REPORTS,
        "megabytes": round(size / 1e6, 1),
        "groups": groups,
        "seconds": took,
    }


# timed


def timed() -> dict[str, Any]:
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in SEEDS:
            for name, flags in MODES.items():
                folder = Path(scratch) / f"{name.replace(' ', '-')}-{seed}"
                found.append(late(name, seed, [*flags, "--seed", str(seed)], folder))
                print(found[-1], flush=True)
    return {"seconds": SECONDS, "runs": found}


def late(name: str, seed: int, flags: list[str], folder: Path) -> dict[str, Any]:
    """How long after its budget a run ended, also in iterations of one learner."""
    budget = ["--duration", f"{SECONDS:g}s", "--log-every", "1", "--track", "none"]
    command = ["train", "--output-dir", str(folder), *flags, *budget]
    subprocess.run(
        [sys.executable, "-m", "paceline", *command],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    learners = 2 if "learners" in name else 1
    iteration = learners * statistics.median(line["t_iter"] for line in lines)
    over = lines[-1]["time"] - SECONDS
    return {
        "way": name,
        "seed": seed,
        "over_seconds": round(over, 4),
        "iteration_seconds": round(iteration, 4),
        "over_iterations": round(over / iteration, 2),
        "startup_seconds": json.loads((folder / "run.json").read_text())["startup"]["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("draws", "large", "timed"))
    what = parser.parse_args().what
    found = {"draws": draws, "large": large, "timed": timed}[what]()
    text = {"cpu": cpu_name(), "cpus": available_cpus(), **found}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"comparing-{what}.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
