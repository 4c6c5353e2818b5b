"""What a memory costs over the same network without one, and what segments of each length cost.

    python benchmarks/memory.py cells                       # each in its best form, against the MLP
    python benchmarks/memory.py segments --memory lstm

PPO on CartPole-v1, 64 environments × 128 steps, 4 epochs × 4 minibatches, layers of 64 and 64, a
cell of 64 for policy and value each; one thread. The contestants live side by side in this process
and take turns; ratios are within a round. Run it on an otherwise idle machine. Writes
benchmarks/results/memory-<what>.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paceline.processes.hardware import cpu_name, limit_threads

limit_threads(1)

LENGTHS = (128, 64, 32, 16, 8)
BEST = {"lstm": 32, "gru": 16, "mingru": 8}
"""Steps of a segment with which a cell is fastest without getting shorter than is useful."""


def config_of(memory: str | None, segment: int, num_envs: int, compiled: bool) -> Any:
    import paceline

    more = {} if memory is None else {"memory": memory, "memory_segment": segment}
    return paceline.Config(
        env_id="CartPole-v1",
        preset="none",
        num_envs=num_envs,
        rollout_steps=128,
        minibatches=4,
        threads=1,
        device="cpu",
        compile="on" if compiled else "off",
        **more,
    )


def main() -> None:
    from paceline.run.build import build

    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("cells", "segments"))
    parser.add_argument("--memory", default="lstm")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=5)
    given = parser.parse_args()
    if given.what == "cells":
        sides = {"none": (None, 1)} | {cell: (cell, length) for cell, length in BEST.items()}
    else:
        sides = {f"{length} steps": (given.memory, length) for length in LENGTHS}
    with ExitStack() as stack:
        parts = {}
        for name, (memory, segment) in sides.items():
            compiled = memory in (None, "mingru")
            config = config_of(memory, segment, given.num_envs, compiled)
            parts[name] = stack.enter_context(build(config))
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(given.rounds + 1):
            for name, one in list(parts.items())[:: -1 if number % 2 else 1]:
                steps, began = 0, time.perf_counter()
                for _ in range(given.iterations):
                    rollout = one.sampler.collect()
                    steps += int(rollout.valid.sum())
                    one.learner.update(rollout)
                    one.publish()
                if number:  # the first round warms up
                    seconds[name].append((time.perf_counter() - began) / steps)
    base = next(iter(sides))
    found = {}
    for name, each in seconds.items():
        ratios = [one / other for one, other in zip(each, seconds[base], strict=True)]
        found[name] = {"seconds per step": each, "ratio": ratios}
        print(
            f"{name:10s}{1 / statistics.median(each):>10,.0f} steps/s   "
            f"× {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    facts = {"options": vars(given), "cpu": cpu_name(), "found": found}
    suffix = f"-{given.memory}" if given.what == "segments" else ""
    file = Path(__file__).parent / "results" / f"memory-{given.what}{suffix}.json"
    file.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
