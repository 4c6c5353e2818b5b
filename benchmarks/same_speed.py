"""Whether a change cost speed: the same trainings at two commits, in turns, on an idle machine.

    python benchmarks/same_speed.py --base COMMIT [--rounds 5] [--only workers]

Steps per second are those of a whole run's metrics after its first fifth, everything included. The
ratio is of the medians; the spread is that of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from same_runs import Tree, both_trees

COMMON = "--seed 3 --track none --eval-episodes 1 "
SIZES = "--preset none --rollout-steps 128 --epochs 4 --minibatches 4 "
CASES = {
    "CartPole 8 x 128, eager": SIZES
    + "--env-id CartPole-v1 --num-envs 8 --compile off --duration 8s",
    "CartPole 8 x 128, compiled": SIZES
    + "--env-id CartPole-v1 --num-envs 8 --compile on --duration 8s",
    "CartPole 64 x 128, vector entry point": SIZES
    + "--env-id CartPole-v1 --num-envs 64 --env.vector --compile off --duration 8s",
    "LunarLander 16 x 128, 2 workers": SIZES
    + "--env-id LunarLander-v3 --num-envs 16 --num-workers 2 --compile off --duration 8s",
    "HalfCheetah 16 x 128, 2 ranks": SIZES
    + "--env-id HalfCheetah-v5 --num-envs 8 --ranks 2 --compile off --duration 8s",
    "Pong 8 x 128": SIZES + "--env-id atari:Pong --num-envs 8 --threads 2 --duration 16s",
    "A2C CartPole 8 x 5": "--algo a2c --env-id CartPole-v1 --compile off --duration 8s",
    "A2C CartPole 4 x 5, 2 ranks": "--algo a2c --env-id CartPole-v1 --compile off --duration 8s "
    "--ranks 2 --num-envs 4",
    "A2C CartPole 8 x 5, 2 workers": "--algo a2c --env-id CartPole-v1 --compile off --duration 8s "
    "--num-workers 2 --num-envs 8",
    "IMPALA CartPole 8 x 20": "--algo impala --env-id CartPole-v1 --compile off --duration 8s",
}


def speed(tree: Tree, name: str, flags: str) -> float:
    run = tree.train(name, COMMON + flags)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["time"] > lines[-1]["time"] / 5]
    before = next(line for line in reversed(lines) if line["time"] <= lines[-1]["time"] / 5)
    steps = kept[-1]["steps"] - before["steps"]
    return float(steps / (kept[-1]["time"] - before["time"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases that have this in their name")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="same-speed-") as scratch,
        both_trees(given.base, Path(scratch)) as trees,
    ):
        for name, flags in CASES.items():
            if given.only not in name:
                continue
            rounds = []
            for number in range(given.rounds):
                turn = trees if number % 2 == 0 else trees[::-1]
                found = {tree: speed(tree, f"{name} {number}", flags) for tree in turn}
                rounds.append([found[tree] for tree in trees])
            before, after = (median(each) for each in zip(*rounds, strict=True))
            ratios = sorted(new / old for old, new in rounds)
            print(
                f"  {name}: {before:,.0f} -> {after:,.0f} steps/s, {after / before:.3f} "
                f"(rounds {ratios[0]:.3f} to {ratios[-1]:.3f}, median {median(ratios):.3f})",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
