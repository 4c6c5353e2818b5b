"""Final scores over seeds, with the preset: trains, then evaluates the saved policy.

    python benchmarks/learning.py --algo ppo --env-id CartPole-v1 --seeds 5
    python benchmarks/learning.py --algo a2c --env-id CartPole-v1 --seeds 5
    python benchmarks/learning.py --algo impala --num-workers 2
    python benchmarks/learning.py --algo a3c --num-workers 2
    python benchmarks/learning.py --env-id minigrid:DoorKey-5x5 --total-steps 100k --seeds 3
    python benchmarks/learning.py --ranks 3 --num-envs 12             # 12 over all ranks
    python benchmarks/learning.py --env-id popgym:RepeatFirstEasy --seeds 3 --memory gru

Seeds are 0, 1, 2, …; none is left out. Whatever else `paceline train` takes goes to it. Writes
benchmarks/results/learning-<env>-<algo>[-<n>-workers][-<n>-ranks][-<other flags>].json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from paceline.processes.hardware import limit_threads

limit_threads(1)

from curves import binned  # noqa: E402

LAST = 100
"""Rollouts whose episodes make the score in training."""


def main() -> None:
    import paceline
    from paceline.config.flags import parse_config
    from paceline.run.evaluation import Evaluation
    from paceline.session import evaluate_saved

    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--num-envs", type=int, default=0, help="over all ranks")
    parser.add_argument("--total-steps", default=None, help="instead of the preset's")
    options, others = parser.parse_known_args()
    flags = ["--algo", options.algo, "--env-id", options.env_id]
    if options.num_workers:
        flags += ["--num-workers", str(options.num_workers)]
    if options.ranks > 1:
        flags += ["--ranks", str(options.ranks)]
    if options.num_envs:
        flags += ["--num-envs", str(options.num_envs // options.ranks)]
    if options.total_steps:
        flags += ["--total-steps", options.total_steps]
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            where = ["--seed", str(seed), "--output-dir", f"{folder}/run"]
            for report in paceline.train(parse_config([*flags, *others, *where])):
                last = report
            result = evaluate_saved(Path(folder) / "run", Evaluation(episodes=options.episodes))
            training, curve = in_training(Path(folder) / "run" / "metrics.jsonl")
        row = {
            "seed": seed,
            "mean": result.mean,
            "training": training,
            "steps": last.steps,
            "seconds": last.time,
            "curve": curve,
        }
        rows.append(row)
        print(
            f"seed {seed}: {row['mean']:.4g} over {options.episodes} episodes "
            f"after {row['steps']:,} steps in {row['seconds']:.1f} s; "
            f"{training:.4g} in the last {LAST} rollouts",
            flush=True,
        )
    for name in ("mean", "training"):
        scores = [row[name] for row in rows]
        print(f"{name}: mean {sum(scores) / len(scores):.4g}, worst {min(scores):.4g}")
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    workers = f"-{options.num_workers}-workers" if options.num_workers else ""
    ranks = f"-{options.ranks}-ranks" if options.num_envs or options.ranks > 1 else ""
    env = options.env_id.replace(":", "-")
    also = "".join(f"-{word.lstrip('-').replace(',', '-')}" for word in others)
    file = folder / f"learning-{env}-{options.algo}{workers}{ranks}{also}.json"
    saved = {"options": vars(options), "others": others, "runs": rows}
    file.write_text(json.dumps(saved, indent=1))


def in_training(metrics: Path) -> tuple[float, list[list[float]]]:
    """The mean return of the episodes that ended in the last `LAST` rollouts; and the learning
    curve: steps, and the mean return of the episodes that ended around them."""
    reports = [json.loads(line) for line in metrics.read_text().splitlines()]
    ended = [
        (report["episodes"], report["episode_return"])
        for report in reports
        if report["iter"] > reports[-1]["iter"] - LAST and report["episodes"]
    ]
    every = [
        (report["steps"], report["episodes"], report["episode_return"])
        for report in reports
        if report["episodes"]
    ]
    curve = [part.round(4).tolist() for part in binned(every, reports[-1]["steps"])]
    return sum(count * mean for count, mean in ended) / sum(count for count, _ in ended), curve


if __name__ == "__main__":
    main()
