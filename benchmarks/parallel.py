"""What worker processes gain, against the machine's own ceiling, interleaved.

    python benchmarks/parallel.py rollout --env-id LunarLander-v3    # 2 workers against 1, sampling
    python benchmarks/parallel.py train --algo ppo                   # 2 workers against serial
    python benchmarks/parallel.py train --algo impala                # a stream against serial
    python benchmarks/parallel.py async                              # against AsyncVectorEnv
    python benchmarks/parallel.py worker                             # memory and start of a worker

Every round first lets two independent processes and then one step the environment, which says how
much two workers can gain at that moment at most; then the contestants take turns. Ratios are
between neighbors of a round. Writes benchmarks/results/parallel-<what>.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from paceline.processes.hardware import available_cpus, cpu_name, limit_threads

limit_threads(1)

Rate = Callable[[], float]
"""Runs for a while; returns how much it did per second."""
SECONDS = 4.0


def burn(pipe: Any, env_id: str) -> None:
    """Step an environment at random, or multiply plain floats, for as long as each message says.

    Both, since cores that share their inner parts gain less from the one than from the other.
    """
    import gymnasium as gym

    env = gym.make(env_id).unwrapped
    env.reset(seed=0)
    while request := pipe.recv():
        what, seconds = request
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            count += 1
            if what == "floats":
                x = 0.5
                for _ in range(1000):
                    x = x * x - 0.3
            elif any(env.step(env.action_space.sample())[2:4]):
                env.reset()
        pipe.send(count)


@contextmanager
def ceiling(env_id: str, what: str) -> Iterator[Rate]:
    """How much more two processes get done than one, each time it is asked."""
    context = mp.get_context("spawn")
    pipes = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        context.Process(target=burn, args=(theirs, env_id), daemon=True).start()
        pipes.append(ours)

    def done(together: list[Any]) -> int:
        for pipe in together:
            pipe.send((what, 1.5))
        return sum(pipe.recv() for pipe in together)

    try:
        yield lambda: done(pipes) / done(pipes[:1])
    finally:
        for pipe in pipes:
            pipe.send(None)


@contextmanager
def sampling(**options: Any) -> Iterator[Rate]:
    """`collect()` alone, with the weights that a run begins with."""
    from paceline import Config
    from paceline.run.build import build

    with build(Config(preset="none", compile="off", threads=1, **options)) as parts:
        parts.sampler.collect()

        def rate() -> float:
            steps, began = 0, time.perf_counter()
            while time.perf_counter() - began < SECONDS:
                steps += int(parts.sampler.collect().valid.sum())
            return steps / (time.perf_counter() - began)

        yield rate


@contextmanager
def training(shares: list[float], **options: Any) -> Iterator[Rate]:
    """The ring itself; the learner's waiting, as a share of the time, is appended to `shares`."""
    from paceline import Config
    from paceline.ring import ring
    from paceline.run.budget import Budget, Progress
    from paceline.run.build import build

    config = Config(threads=1, **options)
    with build(config) as parts:
        reports = ring(parts, Budget(steps=10**12), Progress())

        def rate() -> float:
            for _ in range(8):  # what a stream has made meanwhile is not counted
                next(reports)
            steps, waited, began = 0, 0.0, time.perf_counter()
            while time.perf_counter() - began < SECONDS:
                report = next(reports)
                steps += report.steps_global
                waited += report.t_wait
            seconds = time.perf_counter() - began
            shares.append(waited / seconds)
            return steps / seconds

        yield rate


@contextmanager
def gymnasium_async(num_envs: int) -> Iterator[Rate]:
    """Gymnasium's own worker processes, with random actions that were drawn before."""
    import gymnasium as gym

    env = gym.make_vec("CartPole-v1", num_envs, vectorization_mode="async")
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(1000)]

    def rate() -> float:
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            for action in actions[:100]:
                env.step(action)
            steps += 100 * num_envs
        return steps / (time.perf_counter() - began)

    try:
        yield rate
    finally:
        env.close()


def worker_facts() -> dict[str, Any]:
    """Start workers on CartPole and look at them while they sample."""
    import psutil

    from paceline import Config
    from paceline.distributed import Local
    from paceline.policy.actor_critic import Policy
    from paceline.run.build import env_info_of, make_sampler, network_for, rollout_spec
    from paceline.run.topology import topology_of

    facts: dict[str, Any] = {}
    for workers in (1, 2, 16):
        config = Config(preset="none", num_workers=workers, num_envs=16, sampler="workers")
        info = env_info_of(config)
        network = network_for(config, info.obs_spec.seen, info.act_spec)
        spec = rollout_spec(config, info, network, carry=0)
        weights = sum(parameter.numel() for parameter in Policy(network).parameters())
        began = time.perf_counter()
        given = config, info, network, spec, weights, [[]] * workers
        sampler = make_sampler(*given, Local(), topology_of(config))
        sampler.collect()
        first = time.perf_counter() - began
        for _ in range(20):
            sampler.collect()
        server = next(
            child
            for child in psutil.Process().children()
            if "forkserver" in " ".join(child.cmdline())
        )
        found = server.children()
        maps = [Path(f"/proc/{child.pid}/maps").read_text() for child in found]
        facts[str(workers)] = {
            "seconds_to_first_rollout": first,
            "unique_mb": [child.memory_full_info().uss / 2**20 for child in found],
            "server_unique_mb": server.memory_full_info().uss / 2**20,
            "torch_mapped": any("torch" in text for text in maps),
        }
        sampler.close()
        print(
            f"{workers} workers: first rollout after {first:.2f} s, unique memory "
            f"{max(facts[str(workers)]['unique_mb']):.1f} MB each, server "
            f"{facts[str(workers)]['server_unique_mb']:.1f} MB, torch mapped: "
            f"{facts[str(workers)]['torch_mapped']}",
            flush=True,
        )
    return facts


def contestants(options: argparse.Namespace, shares: dict[str, list[float]]) -> dict[str, Any]:
    """Name → context of a rate; the first is what the others are measured against."""
    world = {"env_id": options.env_id, "num_envs": 16}
    if options.what == "rollout":
        common = world | {"rollout_steps": 128, "sampler": "workers"}
        return {f"{n} workers": sampling(num_workers=n, **common) for n in (1, 2)}
    if options.what == "async":
        ours = {"env_id": "CartPole-v1", "num_envs": 8, "rollout_steps": 128, "hidden": ()}
        return {
            "AsyncVectorEnv": gymnasium_async(8),
            "2 workers": sampling(num_workers=2, sampler="workers", **ours),
        }
    common = world | {"algo": options.algo, "compile": "on"}
    if options.algo == "ppo":
        # At a learning rate of 0 both sides stay in the same world: what a lander does decides
        # how long its step takes.
        common |= {"preset": "none", "rollout_steps": 128, "epochs": 4, "minibatches": 4, "lr": 0.0}
    return {
        "serial": training(shares["serial"], **common),
        "2 workers": training(shares["2 workers"], num_workers=2, **common),
    }


def compare(options: argparse.Namespace) -> dict[str, Any]:
    rates: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {"serial": [], "2 workers": []}
    ceilings: list[float] = []
    floats: list[float] = []
    env_id = "CartPole-v1" if options.what == "async" else options.env_id
    with ExitStack() as stack:
        burnt = stack.enter_context(ceiling(env_id, "steps"))
        plain = stack.enter_context(ceiling(env_id, "floats"))
        sides = {
            name: stack.enter_context(context)
            for name, context in contestants(options, shares).items()
        }
        for number in range(options.rounds + 1):
            gain, other = burnt(), plain()
            now = {name: rate() for name, rate in sides.items()}
            if number == 0:  # warms up
                continue
            ceilings.append(gain)
            floats.append(other)
            for name, rate in now.items():
                rates.setdefault(name, []).append(rate)
            shown = "  ".join(f"{name} {rate:,.0f}/s" for name, rate in now.items())
            print(f"ceiling {gain:.2f} (floats {other:.2f})  {shown}", flush=True)
    base, faster = rates
    ratios = [b / a for a, b in zip(rates[base], rates[faster], strict=True)]
    of_ceiling = [ratio / gain for ratio, gain in zip(ratios, ceilings, strict=True)]
    print(
        f"{faster} against {base}: {_spread(ratios)}×, of the ceiling {_spread(ceilings)}×: "
        f"{_spread(of_ceiling)}"
    )
    if shares["2 workers"]:
        print(f"the learner waits {_spread(shares['2 workers'])} of its time")
    return {
        "rates": rates,
        "ratios": ratios,
        "ceilings": ceilings,
        "ceilings_of_floats": floats,
        "of_ceiling": of_ceiling,
        "waits": {name: values for name, values in shares.items() if values},
    }


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["rollout", "train", "async", "worker"])
    parser.add_argument("--env-id", default="LunarLander-v3")
    parser.add_argument("--algo", default="ppo", choices=["ppo", "a2c", "impala"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    found = worker_facts() if options.what == "worker" else compare(options)
    parts = {
        "rollout": ["rollout", options.env_id],
        "train": ["train", options.algo, options.env_id],
    }.get(options.what, [options.what])
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    machine = {"cpu": cpu_name(), "cpus": available_cpus(), "load": os.getloadavg()[0]}
    text = json.dumps({"options": vars(options), "machine": machine, **found}, indent=1)
    (folder / f"parallel-{'-'.join(parts)}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
