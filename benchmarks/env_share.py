"""How much of a rollout's time is the environments' own `step` and `reset`.

    python benchmarks/env_share.py --env-id CartPole-v1 --num-envs 8
    python benchmarks/env_share.py --env-id LunarLander-v3 --num-envs 16

Rollouts are made as in training. Then the same episodes are played again, from the same seeds with
the same actions, by a bare loop that does nothing but call `step` and `reset`. Both alternate, and
the share is the bare loop's time over the rollout's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from paceline.processes.hardware import limit_threads

limit_threads(1)


def bare(envs: list[Any], script: list[list[Any]]) -> float:
    """Seconds for the calls alone: an entry is an action, or a seed to reset with."""
    rows = [
        [
            (env.reset, {"seed": entry[1]}) if type(entry) is tuple else (env.step, entry)
            for env, entry in zip(envs, row, strict=True)
        ]
        for row in script
    ]
    began = time.perf_counter()
    for row in rows:
        for call, argument in row:
            if type(argument) is dict:
                call(**argument)
            else:
                call(argument)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    from paceline import Config
    from paceline.envs.adapters import ActionAdapter
    from paceline.envs.columns import episode_seed
    from paceline.run.build import build

    config = Config(
        env_id=options.env_id,
        preset="none",
        num_envs=options.num_envs,
        rollout_steps=options.steps,
        compile="off",
        seed=1,
    )
    shares = []
    with build(config) as parts, parts.env_info.columns(options.num_envs, 1) as again:
        adapt = ActionAdapter(again.act_spec)
        sampler, learner = parts.sampler, parts.learner
        for number in range(options.rounds + 5):
            if number == 0:
                sampler.begin()
                for i, env in enumerate(again._envs):
                    env.reset(seed=episode_seed(1, i, 0))
                episode = [0] * options.num_envs
            began = time.perf_counter()
            rollout = sampler.collect()
            ours = time.perf_counter() - began
            script: list[list[Any]] = []
            for t in range(rollout.steps):
                row: list[Any] = adapt(rollout.action[t])
                for i in range(options.num_envs):
                    if not rollout.valid[t, i]:
                        episode[i] += 1
                        row[i] = ("seed", episode_seed(1, i, episode[i]))
                script.append(row)
            theirs = bare(again._envs, script)
            if number >= 5:
                shares.append(theirs / ours)
            learner.update(rollout, 1.0)
            sampler.publish(learner.weights, learner.version)
    middle, low, high = statistics.median(shares), min(shares), max(shares)
    print(
        f"{options.env_id}, {options.num_envs} envs: share {middle:.3f} ({low:.3f} to {high:.3f})"
    )
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    file = folder / f"env_share-{options.env_id}-{options.num_envs}.json"
    file.write_text(json.dumps({"options": vars(options), "shares": shares}, indent=1))


if __name__ == "__main__":
    main()
