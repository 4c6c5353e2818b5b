"""Environment steps per second of PPO against the textbook loop, interleaved.

    python benchmarks/ppo_speed.py                          # CartPole-v1, 8 × 128, 4 × 4
    python benchmarks/ppo_speed.py --env-id LunarLander-v3 --num-envs 16

Each round runs every contestant for a few seconds, one after the other, in processes of their own
that wait in between; the ratio of a round is between neighbors, so that a machine whose speed
drifts does not decide it. One thread each. Writes benchmarks/results/ppo_speed-<env>.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import statistics
import time
from pathlib import Path
from typing import Any


def contestant(name: str, options: dict[str, Any], pipe: Any) -> None:
    """Set up, then measure once per request, for as many seconds as it says."""
    import torch

    from paceline.processes.hardware import limit_threads

    limit_threads(1)
    torch.set_num_threads(1)
    iteration, close = (textbook if name == "textbook" else paceline)(name, options)
    for _ in range(3):
        iteration()
    pipe.send("ready")
    while seconds := pipe.recv():
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            steps += iteration()
        pipe.send(steps / (time.perf_counter() - began))
    close()


def textbook(name: str, options: dict[str, Any]) -> Any:
    from textbook import Textbook

    loop = Textbook(options["env_id"], options["num_envs"], options["steps"], 4, 4)
    return loop.iteration, loop.close


def paceline(name: str, options: dict[str, Any]) -> Any:
    """The ring itself, as `paceline train` runs it, without files."""
    from paceline import Config
    from paceline.ring import ring
    from paceline.run.budget import Budget, Progress
    from paceline.run.build import build

    config = Config(
        env_id=options["env_id"],
        preset="none",
        num_envs=options["num_envs"],
        rollout_steps=options["steps"],
        epochs=4,
        minibatches=4,
        ppo={"entropy_coef": 0.01},  # type: ignore[arg-type]
        compile="on" if name == "compiled" else "off",
        threads=1,
    )
    context = build(config)
    parts = context.__enter__()
    reports = ring(parts, Budget(steps=10**12), Progress(), config.log_every)
    return lambda: next(reports).steps_global, lambda: context.__exit__(None, None, None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = vars(parser.parse_args())
    names = ["textbook", "eager", "compiled"]
    context = mp.get_context("spawn")
    pipes, processes = {}, []
    for name in names:
        pipes[name], theirs = context.Pipe()
        process = context.Process(target=contestant, args=(name, options, theirs), daemon=True)
        process.start()
        processes.append(process)
        pipes[name].recv()
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options["rounds"] + 1):
        for name in names:
            pipes[name].send(options["seconds"])
            rate = pipes[name].recv()
            if number > 0:  # the first round warms up
                rates[name].append(rate)
        if number > 0:
            print("  ".join(f"{name} {rates[name][-1]:,.0f}/s" for name in names), flush=True)
    for name, process in zip(names, processes, strict=True):
        pipes[name].send(0)
        process.join(30)
    result: dict[str, Any] = {"options": options, "rates": rates, "ratios": {}}
    for name in names[1:]:
        ratios = [
            ours / theirs for ours, theirs in zip(rates[name], rates["textbook"], strict=True)
        ]
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        result["ratios"][name] = {"median": middle, "min": low, "max": high}
        print(f"{name}: {middle:.2f}× the textbook loop ({low:.2f} to {high:.2f})")
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    file = folder / f"ppo_speed-{options['env_id']}-{options['num_envs']}.json"
    file.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
