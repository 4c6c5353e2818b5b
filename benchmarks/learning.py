"""Final scores over seeds, with the preset: trains, then evaluates the saved policy.

    python benchmarks/learning.py --algo ppo --env-id CartPole-v1 --seeds 5
    python benchmarks/learning.py --algo a2c --env-id CartPole-v1 --seeds 5
    python benchmarks/learning.py --algo impala --num-workers 2
    python benchmarks/learning.py --algo a3c --num-workers 2
    python benchmarks/learning.py --env-id minigrid:DoorKey-5x5 --total-steps 100k --seeds 3
    python benchmarks/learning.py --ranks 3 --num-envs 12             # 12 over all ranks

Seeds are 0, 1, 2, …; none is left out. Writes
benchmarks/results/learning-<env>-<algo>[-<n>-workers][-<n>-ranks].json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from paceline.processes.hardware import limit_threads

limit_threads(1)


def main() -> None:
    import paceline
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
    options = parser.parse_args()
    more: dict[str, Any] = {"ranks": options.ranks} if options.ranks > 1 else {}
    if options.num_envs:
        more["num_envs"] = options.num_envs // options.ranks
    if options.total_steps:
        more["total_steps"] = options.total_steps
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            config = paceline.Config(
                algo=options.algo,
                env_id=options.env_id,
                seed=seed,
                num_workers=options.num_workers,
                output_dir=f"{folder}/run",
                **more,
            )
            for report in paceline.train(config):
                last = report
            result = evaluate_saved(Path(folder) / "run", Evaluation(episodes=options.episodes))
        row = {"seed": seed, "mean": result.mean, "steps": last.steps, "seconds": last.time}
        rows.append(row)
        print(
            f"seed {seed}: {row['mean']:.4g} over {options.episodes} episodes "
            f"after {row['steps']:,} steps in {row['seconds']:.1f} s",
            flush=True,
        )
    means = [row["mean"] for row in rows]
    print(f"mean {sum(means) / len(means):.4g}, worst {min(means):.4g}")
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    workers = f"-{options.num_workers}-workers" if options.num_workers else ""
    ranks = f"-{options.ranks}-ranks" if options.num_envs or options.ranks > 1 else ""
    env = options.env_id.replace(":", "-")
    file = folder / f"learning-{env}-{options.algo}{workers}{ranks}.json"
    file.write_text(json.dumps({"options": vars(options), "runs": rows}, indent=1))


if __name__ == "__main__":
    main()
