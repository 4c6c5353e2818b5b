"""Calibration of `--parallel`: the constants of the cost model, in at most three seconds.

Parts of the training are timed in this process, as one learner that is alone, and rollouts in as
many worker processes as CPUs. Compiling and starting processes do not count.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from ..config.schema import Config
from ..distributed import Local
from ..envs.source import EnvInfo
from ..envs.spaces import random_actions
from ..rollout import Rollout
from ..samplers.pool import TICK, PoolSpec, WorkerPool
from .build import Parts, build
from .choices import Choices
from .cost_model import Constants, line, shape_of
from .topology import Topology

SECONDS = {"env": 0.1, "probe": 0.25, "pool": 0.4, "whole": 0.6, "more": 0.4, "fewer": 0.2}
"""Of each measurement, or one repetition; the rest of the three is for making its parts."""
PROBE_ROWS, PROBE_IMAGES = 64, 32
"""Rows of the first update, by which it is decided how much of an iteration is timed."""
LONGEST = 0.15
"""Seconds that a timed part of an iteration may take."""
SHORT = 5e-3
"""Seconds of a worker's rollout: short, to see the cost of waking it, and yet many times that."""
SHORTEST_WAKE, LONGEST_WAKE = 100e-6, 1e-3
"""Seconds of waking a worker, within which the difference of two measurements is believed."""
EXCHANGE, BANDWIDTH, SKEW = 60e-6, 2e9, 0.05
"""Of an exchange of gradients: seconds, bytes per second, and how much longer than the others the
slowest rank takes. Assumed, not fitted: a sum of 9,155 floats by 2 ranks takes 16 to 34 µs when
both are ready (`benchmarks/ranks.py allreduce`), and ranks that train are seldom ready together."""


@dataclass
class Stopwatch:
    """Seconds since it was made, without those that are left out."""

    began: float
    left_out: float = 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began - self.left_out

    @contextmanager
    def paused(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.left_out += time.perf_counter() - began


@dataclass(frozen=True)
class Timing:
    """Seconds of a part of a training. The fastest of all repetitions: disturbance only slows."""

    envs: int
    rows: int
    """of a minibatch"""
    act: float
    """one step of all environments, with the policy's choice of their actions"""
    step: float
    """one optimizer step, with its share of what precedes it"""


@dataclass(frozen=True)
class Workers:
    """Seconds of the rollouts of worker processes; the fastest."""

    envs: int
    """of each"""
    steps: int
    """of a rollout"""
    alone: float
    """of one, while the others wait"""
    together: float
    """of all, at the same time"""


class Calibration:
    """Measures trainings as one learner; `choices` are those that the run will have."""

    def __init__(self, env_info: EnvInfo, choices: Choices, cpus: int, large: bool) -> None:
        """`large`: the network gains from threads, and its minibatches are slow."""
        self._env_info, self._choices, self._cpus = env_info, choices, cpus
        self.large, self.gpu = large, choices.device == "cuda"
        self._watch = Stopwatch(time.perf_counter())

    @property
    def seconds(self) -> float:
        return self._watch.seconds

    def constants(self, one: Config, others: Sequence[Config]) -> Constants:
        """Of the training `one`, to predict `others`: the same in other processes."""
        shape, slow = shape_of(one), replace(self._choices, threads=1, compiled=False)
        env = time_env_row(self._env_info, one.seed, min(shape.envs, 16), SECONDS["env"])
        # Short rollouts and a small minibatch, eager: bounds for what comes next.
        part = _probe(one, env, PROBE_IMAGES if self.large else PROBE_ROWS)
        with self._parts(part, slow) as parts:
            base = second = measure(parts, part, SECONDS["probe"])
            gradient = 4 * len(parts.learner.flat.weights)
            workers = self._time_workers(parts, one, base)
        threaded = base.step
        if self.large:
            threaded = self._timed(part, replace(slow, threads=self._cpus), "more").step
        elif whole := _largest_part(one, base):
            part = whole
            base = second = self._timed(whole, self._choices, "whole")
            # Minibatches of another size tell a step's fixed time from that of its rows.
            far = max(others, key=lambda c: abs(math.log(shape_of(c).share / shape.share)))
            other = _largest_part(far, base)
            if other is not None and shape_of(other).share != base.rows:
                second = self._timed(other, self._choices, "more")
        part = dataclasses.replace(part, num_envs=workers.envs)
        fewer = self._timed(part, slow, "fewer", learn=False)
        wake = min(LONGEST_WAKE, max(SHORTEST_WAKE, workers.alone - workers.steps * fewer.act))
        # At worst they take turns on one CPU.
        together = (workers.together - wake * self._cpus) / (workers.alone - wake)
        together = min(self._cpus, max(1.0, together))
        gained = 1.0 - threaded / (together * base.step) if self.large else 0.0
        call, each = line((base.envs, base.act), (fewer.envs, fewer.act))
        step, row = line((base.rows, base.step), (second.rows, second.step))
        skew = SKEW if shape.schedule != "hogwild" else 0.0
        return Constants(
            env=min(each, env),
            call=call,
            act=each - min(each, env),
            step=step,
            row=row,
            wake=wake,
            sync=EXCHANGE + gradient / BANDWIDTH + skew * (step + row * shape.share),
            together=together,
            threaded=min(1.0, max(0.0, gained / (1.0 - 1.0 / self._cpus))),
            epochs=one.epochs,
        )

    def _timed(self, part: Config, choices: Choices, name: str, learn: bool = True) -> Timing:
        with self._parts(part, choices) as parts:
            return measure(parts, part, SECONDS[name], learn)

    @contextmanager
    def _parts(self, config: Config, choices: Choices) -> Iterator[Parts]:
        """Of one learner of this run, as if there were no others."""
        with build(config, choices, self._env_info, Local(), Topology()) as parts:
            self._watch.left_out += parts.learner.t_compile
            assert parts.sampler is not None
            parts.sampler.begin()
            yield parts

    def _time_workers(self, parts: Parts, one: Config, base: Timing) -> Workers:
        """As many as CPUs, which share the environments of `base`."""
        share, segment = max(1, base.envs // self._cpus), one.memory_segment or 1
        steps = max(1, int(SHORT * base.envs / (base.act * share)) // segment) * segment
        columns = self._cpus * share * self._env_info.columns_per_env
        spec = PoolSpec(
            env_info=self._env_info,
            network=parts.network,
            weights=len(parts.learner.weights),
            workers=self._cpus,
            rollout=replace(parts.spec, steps=steps, columns=columns),
            seed=one.seed,
            cpus=[[]] * self._cpus,
        )
        with self._started(one, spec) as pool:
            pool.publish(parts.learner.weights, 0)
            with self._watch.paused():
                pool.begin()
            fill(pool, range(self._cpus))
            single, all_of_them = list[float](), list[float]()
            until = time.perf_counter() + SECONDS["pool"]
            while not single or time.perf_counter() < until:
                single.append(fill(pool, [len(single) % self._cpus]))
                all_of_them.append(fill(pool, range(self._cpus)))
        return Workers(share, steps, min(single), min(all_of_them))

    @contextmanager
    def _started(self, config: Config, spec: PoolSpec) -> Iterator[WorkerPool]:
        with self._watch.paused():
            pool = config.make_entry("pool", spec)
        try:
            yield pool
        finally:
            with self._watch.paused():
                pool.close()


def measure(parts: Parts, config: Config, seconds: float, learn: bool = True) -> Timing:
    """Iterations within so many seconds, or one."""
    sampler, learner, acts, updates = parts.sampler, parts.learner, list[float](), list[float]()
    assert sampler is not None
    until = time.perf_counter() + seconds
    while not acts or time.perf_counter() < until:
        began = time.perf_counter()
        rollout = sampler.collect()
        acts.append(time.perf_counter() - began)
        if learn:
            learner.update(rollout)
        parts.publish()
        updates.append(time.perf_counter() - began - acts[-1])
    shape, steps = shape_of(config), config.epochs * config.minibatch_count
    return Timing(
        envs=shape.envs,
        rows=shape.share,
        act=min(acts) / shape.steps,
        step=min(updates) / steps,
    )


def fill(pool: WorkerPool, workers: Sequence[int]) -> float:
    """Seconds of one rollout of each of these workers, at the same time."""
    began, arrived = time.perf_counter(), 0
    for worker in workers:
        pool.fill(worker, 0)
    while arrived < len(workers):
        arrived += len(pool.arrivals(TICK))
    return time.perf_counter() - began


def _probe(one: Config, env: float, rows: int) -> Config:
    """A few steps, one minibatch, one epoch."""
    shape, segment = shape_of(one), one.memory_segment or 1
    envs = max(1, min(shape.envs, rows, int(LONGEST / env)))
    steps = max(1, min(math.ceil(rows / envs), int(LONGEST / (envs * env))))
    return dataclasses.replace(
        one,
        num_envs=envs,
        rollout_steps=-(-steps // segment) * segment,
        epochs=1,
        minibatches=1,
        batch_size=None,
    )


def _largest_part(config: Config, base: Timing) -> Config | None:
    """The largest part of an iteration that is short enough, with minibatches as they are.

    The time is estimated from `base`. None if a single minibatch takes too long.
    """
    shape, segment = shape_of(config), config.memory_segment or 1
    step = base.step * max(1.0, shape.share / base.rows)
    for minibatches in range(shape.minibatches, 0, -1):
        steps, rest = divmod(shape.steps * minibatches, shape.minibatches)
        if rest or steps % segment:
            continue
        for epochs in (config.epochs, 1):
            acting = steps * base.act * shape.envs / base.envs
            if acting + epochs * minibatches * step <= LONGEST:
                return dataclasses.replace(
                    config,
                    rollout_steps=steps,
                    epochs=epochs,
                    minibatches=minibatches,
                    batch_size=None,
                )
    return None


def time_env_row(env_info: EnvInfo, seed: int, num_envs: int, seconds: float) -> float:
    """Seconds of one row of one environment, stepped in this process with random actions."""
    draw, obs_spec = np.random.default_rng(seed), env_info.obs_spec
    rows, spent, each = 0, 0.0, env_info.columns_per_env
    with closing(env_info.columns(num_envs, seed)) as columns:
        specs = obs_spec.stored, env_info.act_spec.stored
        out = Rollout.allocate(1, each * num_envs, *specs, columns_per_env=each)
        columns.reset(out.obs[-1])
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or not rows:
            out.start_next()
            mask = obs_spec.split(out.obs[0])["mask"] if obs_spec.mask else None
            actions = columns.adapt(random_actions(draw, env_info.act_spec, mask, out.columns))
            began = time.perf_counter()
            columns.step(0, actions, out)
            spent += time.perf_counter() - began
            rows += num_envs
    return spent / rows
