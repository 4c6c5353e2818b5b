"""What the suites of environments cost and what convolutions allow.

    python benchmarks/suites.py step                  # stepping alone, against each suite's own way
    python benchmarks/suites.py procgen --rounds 4    # training, against the same in a plain loop
    python benchmarks/suites.py limit                 # Pong's share of what its convolutions allow

Sides take turns, and a round's ratio is between neighbors; a plain loop has a process of its own.
Writes benchmarks/results/suites-<name>.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from paceline.processes.hardware import available_cpus, cpu_name

NUM_ENVS = 16
Steps = Callable[[int], int]
"""Makes so many rows; returns the environment steps in them."""


def rate(steps: Steps, rows: int) -> float:
    began = time.perf_counter()
    made = steps(rows)
    return made / (time.perf_counter() - began)


def compared(sides: dict[str, Steps], rows: int, rounds: int) -> dict[str, Any]:
    """Steps per second of `ours` and `theirs`, round by round, and the ratio."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, steps in sides.items():
            found = rate(steps, rows)
            if number:  # the first round warms up
                rates[name].append(found)
    ratios = [one / other for one, other in zip(rates["ours"], rates["theirs"], strict=True)]
    ends = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return {"rates": rates, "ratio": ends, "cpu": cpu_name(), "cpus": available_cpus()}


# Stepping alone


def ours(stack: ExitStack, env_id: str, threads: int, **options: Any) -> Steps:
    """Rows of a rollout, as a sampler has them made."""
    from paceline.envs.source import make_columns
    from paceline.rollout import Rollout

    columns = stack.enter_context(make_columns(env_id, NUM_ENVS, threads=threads, **options))
    obs, act = columns.obs_spec, columns.act_spec
    out = Rollout.allocate(64, NUM_ENVS, obs.stored, act.stored, history=obs.history)
    columns.reset(out.obs[-1])
    draw = np.random.default_rng(0)
    if act.kind == "box":
        actions = draw.normal(size=(64, NUM_ENVS, act.size)).astype(np.float32)
    else:
        actions = draw.integers(act.size, size=(64, NUM_ENVS))

    def steps(rows: int) -> int:
        for _ in range(rows // 64):
            out.start_next()
            for t in range(64):
                columns.step(t, columns.adapt(actions[t]), out)
        return rows * NUM_ENVS  # with those that only reset, as on the other side

    return steps


def alone(step: Callable[[Any], Any], actions: Any) -> Steps:
    """The suite's own call with its own arrays, and nothing else."""

    def steps(rows: int) -> int:
        for t in range(rows):
            step(actions[t % 64])
        return rows * NUM_ENVS

    return steps


def of_ale(stack: ExitStack, threads: int) -> Steps:
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv("pong", NUM_ENVS, num_threads=threads, reward_clipping=False)
    env.reset(seed=0)
    return alone(env.step, np.random.default_rng(0).integers(6, size=(64, NUM_ENVS)))


def of_procgen(stack: ExitStack, threads: int) -> Steps:
    from paceline.envs.suites.procgen import import_procgen

    env = import_procgen().ProcgenGym3Env(NUM_ENVS, "coinrun", num_threads=threads, rand_seed=0)

    def step(actions: Any) -> None:
        env.act(actions)
        env.observe()

    return alone(step, np.random.default_rng(0).integers(15, size=(64, NUM_ENVS)))


def of_envpool(task: str) -> Callable[[ExitStack, int], Steps]:
    def made(stack: ExitStack, threads: int) -> Steps:
        import envpool

        env = envpool.make_gymnasium(task, num_envs=NUM_ENVS, num_threads=threads, seed=0)
        env.reset()
        space = env.action_space
        if hasattr(space, "n"):
            actions = np.random.default_rng(0).integers(space.n, size=(64, NUM_ENVS))
        else:
            shape = (64, NUM_ENVS, *space.shape)
            actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(space.dtype)
        return alone(env.step, actions)

    return made


STEPPING: dict[str, tuple[Callable[[ExitStack, int], Steps], int]] = {
    "atari:Pong": (of_ale, 256),
    "procgen:coinrun": (of_procgen, 1024),
    "envpool:Pong-v5": (of_envpool("Pong-v5"), 256),
    "envpool:HalfCheetah-v5": (of_envpool("HalfCheetah-v5"), 1024),
    "envpool:CartPole-v1": (of_envpool("CartPole-v1"), 8192),
    "envpool:MiniGrid-DoorKey-5x5-v0": (of_envpool("MiniGrid-DoorKey-5x5-v0"), 4096),
}


def step(options: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for env_id, (theirs, rows) in STEPPING.items():
        with ExitStack() as stack:
            sides = {
                "ours": ours(stack, env_id, options.threads),
                "theirs": theirs(stack, options.threads),
            }
            found[env_id] = compared(sides, rows, options.rounds)
        median = statistics.median(found[env_id]["rates"]["ours"])
        print(f"{env_id}: {told(found[env_id]['ratio'])}; {median:,.0f} steps/s", flush=True)
    return found


# Training on Procgen


@contextmanager
def paceline_training(precision: str) -> Iterator[Steps]:
    from paceline import Config
    from paceline.run.build import build

    config = Config(
        env_id="procgen:coinrun",
        num_envs=NUM_ENVS,
        rollout_steps=128,
        precision=precision,  # type: ignore[arg-type]
        total_steps=10**9,
        device="cpu",
    )
    with build(config) as parts:
        sampler, learner = parts.sampler, parts.learner
        assert sampler is not None
        sampler.begin()

        def steps(iterations: int) -> int:
            made = 0
            for _ in range(iterations):
                rollout = sampler.collect()
                made += int(rollout.valid.sum())
                learner.update(rollout, 1.0)
                sampler.publish(learner.weights, learner.version)
            return made

        yield steps


def plainly(line: Connection, threads: int) -> None:
    """In a process of its own: the plain loop, for as many iterations as are asked for."""
    from plain_procgen import plain_training

    steps = plain_training(NUM_ENVS, 128, threads)
    while iterations := line.recv():
        line.send(steps(iterations))


@contextmanager
def plain_training_apart(threads: int) -> Iterator[Steps]:
    """Its memory is its own: what Paceline asks of the allocator does not serve it too."""
    context = multiprocessing.get_context("spawn")
    line, theirs = context.Pipe()
    process = context.Process(target=plainly, args=(theirs, threads), daemon=True)
    process.start()

    def steps(iterations: int) -> int:
        line.send(iterations)
        return line.recv()

    yield steps
    line.send(0)
    process.join()


def procgen(options: argparse.Namespace) -> dict[str, Any]:
    with paceline_training(options.precision) as ours, plain_training_apart(options.threads) as one:
        found = compared({"ours": ours, "theirs": one}, 1, options.rounds)
    rates = {name: statistics.median(rates) for name, rates in found["rates"].items()}
    print(f"{told(found['ratio'])}; {rates['ours']:,.0f} against {rates['theirs']:,.0f} steps/s")
    return found | {"precision": options.precision}


# What convolutions allow


def limit(options: argparse.Namespace) -> dict[str, Any]:
    """Steps per second, if acting and learning on Pong were nothing but the network's passes."""
    import torch

    from paceline import Config
    from paceline.policy.actor_critic import ActorCritic
    from paceline.run.build import build, env_info_of, network_for

    torch.set_num_threads(options.threads)
    config = Config(env_id="atari:Pong", device="cpu", precision=options.precision)
    info = env_info_of(config)
    module = ActorCritic(network_for(config, info.obs_spec.seen, info.act_spec))
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    layers = torch.nn.Sequential(*list(module.policy.trunk)[1:])
    frames = torch.rand(256, 4, 84, 84).contiguous(memory_format=torch.channels_last)

    def once(learn: bool) -> float:
        began = time.perf_counter()
        with (
            torch.set_grad_enabled(learn),
            torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"),
        ):
            features = layers(frames)
            if learn:
                features.sum().backward()
        return (time.perf_counter() - began) / len(frames)

    with build(config) as parts:
        sampler, learner = parts.sampler, parts.learner
        assert sampler is not None
        sampler.begin()
        rates, limits = [], []
        for number in range(options.rounds + 1):
            passes = [config.epochs * once(True) + once(False) for _ in range(3)]
            began = time.perf_counter()
            rollout = sampler.collect()
            learner.update(rollout, 1.0)
            sampler.publish(learner.weights, learner.version)
            if number:
                rates.append(float(rollout.valid.sum()) / (time.perf_counter() - began))
                limits.append(1 / statistics.median(passes))
    shares = [one / other for one, other in zip(rates, limits, strict=True)]
    print(
        f"{statistics.median(rates):,.0f} of {statistics.median(limits):,.0f} steps/s that the "
        f"network's passes allow: {statistics.median(shares):.2f} ({min(shares):.2f} to "
        f"{max(shares):.2f})"
    )
    return {"rates": rates, "limits": limits, "shares": shares, "precision": options.precision}


def told(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f}× ({ratio['min']:.2f} to {ratio['max']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("step", "procgen", "limit"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    found = {"step": step, "procgen": procgen, "limit": limit}[options.what](options)
    suffix = "-bf16" if options.precision == "bf16" else ""
    file = Path(__file__).parent / "results" / f"suites-{options.what}{suffix}.json"
    file.write_text(json.dumps({"options": vars(options), "found": found}, indent=1))


if __name__ == "__main__":
    main()
