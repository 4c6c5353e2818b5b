"""Paceline's best way of using the whole machine against Stable-Baselines3's, as each is run.

    python benchmarks/both_cores.py --case cartpole
    python benchmarks/both_cores.py --case halfcheetah
    python benchmarks/both_cores.py --case pong --rounds 5
    python benchmarks/both_cores.py --case pong --precision bf16      # where the CPU has it

Paceline's side is the command itself, anew in every round, on the clock: steps per second from the
first environment step on, files and all. The peers' are processes that stay alive and wait, with as
many threads as there are CPUs; one steps its environments itself, the other in processes. A round's
ratio is to the faster of them. Writes benchmarks/results/both_cores-<case>[-bf16].json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from cases import Setting
from run import ROOT, Side

from paceline.processes.hardware import available_cpus, cpu_name

CASES: dict[str, tuple[Setting, int, list[list[str]]]] = {
    "cartpole": (
        Setting(),
        24,
        [
            ["--num-envs", "8"],
            ["--ranks", "2", "--num-envs", "4"],
        ],
    ),
    "halfcheetah": (
        Setting(env_id="HalfCheetah-v5", steps=256, epochs=10, minibatches=32, normalize=True),
        8,
        [
            ["--ranks", "2", "--num-envs", "4"],
            ["--num-workers", "2", "--num-envs", "8"],
        ],
    ),
    "pong": (
        Setting(env_id="atari:Pong", lr=2.5e-4, clip=0.1),
        2,
        [
            ["--num-envs", "8"],
            ["--ranks", "2", "--num-envs", "4"],
        ],
    ),
}
"""The work; iterations of the peers in a round; Paceline's ways of doing it on two CPUs."""


def command(setting: Setting, way: list[str], precision: str, seconds: int, out: str) -> list[str]:
    """What a user would write."""
    normalize = ["--normalize-obs", "--normalize-return"] if setting.normalize else []
    image = ["--clip-reward"] if setting.env_id.startswith("atari:") else ["--compile", "on"]
    return [
        *(sys.executable, "-m", "paceline", "train", "--preset", "none"),
        *("--env-id", setting.env_id, "--rollout-steps", str(setting.steps)),
        *("--epochs", str(setting.epochs), "--minibatches", str(setting.minibatches)),
        *("--lr", str(setting.lr), "--ppo.clip", str(setting.clip)),
        *("--ppo.entropy-coef", str(setting.entropy_coef), "--ppo.normalize-advantage"),
        *("minibatch", "--duration", f"{seconds}s", "--track", "none", "--eval-episodes", "1"),
        *("--precision", precision, "--output-dir", out, "--overwrite"),
        *normalize,
        *image,
        *way,
    ]


def ours(setting: Setting, way: list[str], precision: str, seconds: int) -> float:
    """Steps per second of one run."""
    with tempfile.TemporaryDirectory() as folder:
        asked = command(setting, way, precision, seconds, f"{folder}/run")
        done = subprocess.run(asked, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    return last["steps"] / last["time"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--peers-python", type=Path, default=ROOT / ".venv-peers/bin/python")
    options = parser.parse_args()
    setting, iterations, ways = CASES[options.case]
    setting = replace(setting, threads=available_cpus())
    names = [" ".join(way) for way in ways]
    rates: dict[str, list[float]] = {name: [] for name in (*names, "sb3", "subproc")}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        python = str(options.peers_python.absolute())
        peers = {
            name: stack.enter_context(Side(name, python, setting, folder))
            for name in ("sb3", "subproc")
        }
        for side in peers.values():
            side.answer()
        for _ in range(options.rounds):
            for name, way in zip(names, ways, strict=True):
                rates[name].append(ours(setting, way, options.precision, options.seconds))
            for name, side in peers.items():
                rates[name].append(side.rate(iterations))
            print("  ".join(f"{name}: {found[-1]:,.0f}/s" for name, found in rates.items()))
            sys.stdout.flush()
    write(options, setting, names, rates)


def write(
    options: argparse.Namespace, setting: Setting, names: list[str], rates: dict[str, list[float]]
) -> None:
    best = max(names, key=lambda name: statistics.median(rates[name]))
    theirs = [max(pair) for pair in zip(rates["sb3"], rates["subproc"], strict=True)]
    ratios = [one / other for one, other in zip(rates[best], theirs, strict=True)]
    found: dict[str, Any] = {
        "setting": asdict(setting),
        "precision": options.precision,
        "rates": rates,
        "best": best,
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "cpu": cpu_name(),
        "cpus": available_cpus(),
    }
    print(f"{best}: {found['ratio']}")
    suffix = "-bf16" if options.precision == "bf16" else ""
    file = Path(__file__).parent / "results" / f"both_cores-{options.case}{suffix}.json"
    file.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
