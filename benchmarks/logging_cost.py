"""What `run.log` and numbers from `info` cost: CartPole 8 x 128, compiled, on an idle machine.

    python benchmarks/logging_cost.py [--rounds 5] [--iters 600]

The environment puts three numbers into its last `info`. Two runs of it go on in turns, ten
iterations at a time, in one process: one logs nothing of it, the other all of them and three more
numbers of the loop's own at every iteration. Both learn the same, to the bit, so that what differs
is the logging. The ratio is of steps per second: the time of the first run over that of the second.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import paceline

BLOCK = 10
"""Iterations of a run before it is the other's turn."""


class Scored(CartPoleEnv):
    def reset(self, **options):
        self.steps = 0
        return super().reset(**options)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        if terminated:
            info = {"success": self.steps >= 195, "score": self.steps / 500, "x": float(obs[0])}
        return obs, reward, terminated, truncated, info


def blocks(folder: Path, logs: bool, iters: int) -> Iterator[float]:
    """Train; the seconds of each block of iterations."""
    config = paceline.Config(
        env_id=Scored,
        env={"time_limit": 500},
        preset="none",
        num_envs=8,
        rollout_steps=128,
        epochs=4,
        minibatches=4,
        compile="on",
        track="tensorboard",
        eval_episodes=0,
        seed=3,
        total_iters=iters,
        log_info="auto" if logs else "none",
        output_dir=str(folder / ("on" if logs else "off")),
    )
    with closing(paceline.train(config)) as run:
        next(run)
        while True:
            began = time.perf_counter()
            for _ in range(BLOCK):
                report = next(run, None)
                if report is None:
                    return
                if logs:
                    run.log(one=report.iter, two=report.steps / 2, three=report.fps)
            yield time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iters", type=int, default=600)
    options = parser.parse_args()
    ratios = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            off, on = (blocks(Path(folder), logs, options.iters) for logs in (False, True))
            pairs = list(zip(off, on, strict=True))[1:]
        whole = sum(one for one, _ in pairs) / sum(other for _, other in pairs)
        ratios.append(median(one / other for one, other in pairs))
        steps = 1024 * BLOCK / median(other for _, other in pairs)
        print(
            f"{len(pairs)} blocks, {steps:,.0f} steps/s: ratio {ratios[-1]:.3f} (median of "
            f"blocks), {whole:.3f} (whole time)",
            flush=True,
        )
    print(f"median {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
