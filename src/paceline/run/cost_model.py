"""A model of the time of one iteration, for any layout over processes. Pure; seconds throughout.

The time of an iteration is the sum of its phases, each a few constants times rows, calls or steps;
`predict` is these sums, and `fit` solves them for the constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ..config.registry import entry
from ..config.text import several

if TYPE_CHECKING:
    from ..config.schema import Config

Schedule = Literal["alternate", "stream", "hogwild"]
"""Sampling and learning alternate; overlap (a stream); or run in each a3c learner."""
PHASE_NAMES = ("env", "inference", "update", "sync", "waiting", "other")
MAX_SLOWDOWN = 4.0
"""Of processes that run at the same time; a larger one is noise."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How the rows of an update are laid out over processes."""

    envs: int
    """of each learner"""
    steps: int
    minibatches: int = 1
    learners: int = 1
    """ranks, which share an update; of a3c, each of which makes its own"""
    workers: int = 0
    """of each learner"""
    threads: int = 1
    """of each learner"""
    pinned: bool = False
    schedule: Schedule = "alternate"

    @property
    def rows(self) -> int:
        """Of one update."""
        return self.envs * self.steps * (1 if self.schedule == "hogwild" else self.learners)

    @property
    def batch(self) -> int:
        """Rows of one minibatch, over all ranks."""
        return self.rows // self.minibatches

    @property
    def share(self) -> int:
        """Rows of one minibatch, of each learner."""
        return self.envs * self.steps // self.minibatches

    @property
    def samplers(self) -> int:
        """Processes that step environments."""
        return self.learners * max(1, self.workers)

    @property
    def processes(self) -> int:
        return self.learners * (1 + self.workers)

    @property
    def kind(self) -> tuple[bool, bool]:
        """Which processes it has, whatever their number: several learners, workers."""
        return self.learners > 1, self.workers > 0

    def __str__(self) -> str:
        """16 envs × 256 steps, 2 workers."""
        text = f"{several(self.envs, 'env')} × {self.steps} steps"
        if self.schedule == "hogwild":
            text += f", {several(self.learners, 'learner')}"
        elif self.learners > 1:
            text = f"{self.learners} ranks × {text}"
        elif not self.workers:
            text += ", one process"
        if self.workers:
            text += f", {several(self.workers, 'worker')}{' each' if self.learners > 1 else ''}"
        if self.threads > 1:
            text += f", {self.threads} threads"
        return text + (", pinned" if self.pinned else "")


def shape_of(config: Config) -> Shape:
    """How a training is laid out by its configuration."""
    overlaps = entry("sampler", config.workers_sampler).runs_ahead
    lockstep = config.entry("sync").lockstep
    return Shape(
        envs=config.num_envs,
        steps=config.rollout_steps,
        minibatches=config.minibatch_count,
        learners=config.ranks if lockstep else config.num_workers,
        workers=config.num_workers if lockstep else 0,
        pinned=config.pin,
        schedule="hogwild" if not lockstep else "stream" if overlaps else "alternate",
    )


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What a training costs on one machine; the fields of --save-constants."""

    env: float
    """one row of one environment, resets included"""
    call: float
    """one call of the policy, whatever its rows"""
    act: float
    """each row of such a call"""
    step: float
    """one optimizer step, whatever its rows"""
    row: float
    """each row of such a step"""
    other: float = 0.0
    """logs and checkpoints, per iteration"""
    wake: float = 0.0
    """waking and waiting for each worker, per rollout; in a stream, receiving a batch"""
    sync: float = 0.0
    """gradient exchange of two learners, per optimizer step"""
    together: float = 1.0
    """slowdown of every process when all CPUs are busy"""
    threaded: float = 0.0
    """share of the network's time that threads divide"""
    valid: float = 1.0
    """share of the rows that are steps, not resets"""
    epochs: int = 1


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The time of one iteration, as its learner sees it."""

    env: float
    inference: float
    update: float
    sync: float = 0.0
    waiting: float = 0.0
    """for workers to wake, and for the slowest of them"""
    other: float = 0.0

    @property
    def seconds(self) -> float:
        return sum(vars(self).values())

    @property
    def shares(self) -> dict[str, float]:
        return {name: getattr(self, name) / (self.seconds or 1.0) for name in PHASE_NAMES}

    @property
    def bound(self) -> str:
        """The longest phase; `other` does not count."""
        return max(PHASE_NAMES[:-1], key=lambda name: getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Burst:
    """What one short training measured; times are per iteration."""

    shape: Shape
    fps: float
    t_iter: float
    t_rollout: float
    """waiting for workers included"""
    t_learn: float
    t_sync: float = 0.0
    t_other: float = 0.0
    valid: float = 1.0
    """share of the rows that are steps, not resets"""
    memory_mb: float = 0.0
    overhead: float = 0.0
    """seconds beyond its budget: to start, to compile, to end"""


def slowdown(processes: int, cpus: int, together: float) -> float:
    """Of each of so many processes against one alone; more than `cpus` of them take turns."""
    return (1.0 + (together - 1.0) * _busy(processes, cpus)) * max(1.0, processes / cpus)


def _busy(processes: int, cpus: int) -> float:
    """Share of the other CPUs that are at work beside a process."""
    return min(1.0, (processes - 1) / (cpus - 1)) if cpus > 1 else 0.0


def rollout_time(shape: Shape, known: Constants) -> tuple[float, float]:
    """Of a sampler that is alone: its environments', and its policy's."""
    rows = shape.steps * (shape.envs // max(1, shape.workers))
    divided = 1.0 if shape.workers else _divided(shape, known)
    return rows * known.env, (shape.steps * known.call + rows * known.act) * divided


def update_time(shape: Shape, known: Constants) -> float:
    """Of a learner that is alone, with its share of every minibatch."""
    rows = shape.envs * shape.steps / shape.minibatches
    steps = known.epochs * shape.minibatches
    return steps * (known.step + rows * known.row) * _divided(shape, known)


def _divided(shape: Shape, known: Constants) -> float:
    """Time of the network with the learner's threads, as a share of that with one."""
    return 1.0 - known.threaded + known.threaded / shape.threads


def sync_time(shape: Shape, known: Constants) -> float:
    """Of an update's gradient exchanges; it grows with the logarithm of the learners."""
    if shape.learners < 2:
        return 0.0
    growth = (1.0 + math.log2(shape.learners)) / 2
    return known.epochs * shape.minibatches * known.sync * growth


def predict(shape: Shape, known: Constants, cpus: int) -> Phases:
    """An iteration in this shape on a machine with so many CPUs."""
    env, inference = rollout_time(shape, known)
    update = update_time(shape, known)
    if shape.schedule == "stream" and shape.workers:
        # Sampling and learning overlap: the slower decides, or all the work there is for the CPUs.
        busy = min(cpus, shape.learners * (shape.workers + shape.threads))
        slow = slowdown(busy, cpus, known.together)
        sample, update = slow * (env + inference), slow * update
        work = shape.learners * (shape.workers * sample + shape.threads * update)
        scale = (max(sample, update, work / cpus) - update) / (env + inference)
        waiting = known.wake
    else:
        scale = slowdown(shape.samplers, cpus, known.together)
        update *= slowdown(shape.learners * shape.threads, cpus, known.together)
        waiting = known.wake * shape.workers
    return Phases(
        env=scale * env,
        inference=scale * inference,
        update=update,
        sync=sync_time(shape, known),
        waiting=waiting,
        other=known.other,
    )


def fps(shape: Shape, known: Constants, cpus: int) -> float:
    """Steps per second that the model expects."""
    rows = shape.learners * shape.envs * shape.steps
    return rows * known.valid / predict(shape, known, cpus).seconds


def fit(
    env: float,
    base: Burst,
    other: Burst,
    epochs: int,
    cpus: int,
    workers: Burst | None = None,
    learners: Burst | None = None,
    threads: Burst | None = None,
) -> Constants:
    """The constants with which the model predicts these bursts.

    `env` is the time of one row of an environment that is stepped alone. `base` and `other` have
    one learner, no workers, and different numbers of environments and rows of a minibatch; the
    rest differ from `base` in what they are named after.
    """
    one, two = base.shape, other.shape
    call, each = line(
        (one.envs, base.t_rollout / one.steps), (two.envs, other.t_rollout / two.steps)
    )
    step, row = line(
        (one.batch, base.t_learn / (epochs * one.minibatches)),
        (two.batch, other.t_learn / (epochs * two.minibatches)),
    )
    known = Constants(
        env=min(each, env),
        call=call,
        act=each - min(each, env),
        step=step,
        row=row,
        other=base.t_other,
        valid=base.valid,
        epochs=epochs,
    )
    if threads is not None:
        number, alone = threads.shape.threads, update_time(replace(threads.shape, threads=1), known)
        share = (1.0 - threads.t_learn / alone) / (1.0 - 1.0 / number)
        known = replace(known, threaded=min(1.0, max(0.0, share)))
    if learners is not None:
        shape = learners.shape
        alone = slowdown(shape.samplers, cpus, 1.0) * sum(rollout_time(shape, known))
        slower = max(0.0, learners.t_rollout / alone - 1.0) / _busy(shape.samplers, cpus)
        known = replace(known, together=min(MAX_SLOWDOWN, 1.0 + slower))
        alone = slowdown(shape.learners, cpus, known.together) * update_time(shape, known)
        exchanged = max(0.0, learners.t_sync + learners.t_learn - alone)
        known = replace(known, sync=exchanged / sync_time(shape, replace(known, sync=1.0)))
    if workers is not None:
        phases = predict(workers.shape, known, cpus)
        spent = (workers.t_rollout - phases.env - phases.inference) / workers.shape.workers
        if workers.shape.schedule == "stream":
            spent = workers.t_iter - phases.seconds
        known = replace(known, wake=max(0.0, spent))
    return known


def line(one: tuple[float, float], two: tuple[float, float]) -> tuple[float, float]:
    """Intercept and slope of a line through the first point; neither is negative."""
    (x, y), (other, height) = one, two
    steepest = y / x
    slope = steepest if other == x else min(max(0.0, (height - y) / (other - x)), steepest)
    return y - slope * x, slope


def split_phases(burst: Burst, known: Constants, cpus: int) -> Phases:
    """The phases of a measured iteration: its rollout is split in the model's proportions.

    What workers took longer than expected is waiting. A learner that waits for a stream waits for
    environments and policies.
    """
    shape, waiting = burst.shape, 0.0
    if shape.schedule == "alternate" and shape.workers:
        expected = predict(shape, known, cpus)
        waiting = max(0.0, burst.t_rollout - expected.env - expected.inference)
    env, inference = rollout_time(shape, known)
    scale = (burst.t_rollout - waiting) / ((env + inference) or 1.0)
    return Phases(
        env=scale * env,
        inference=scale * inference,
        update=burst.t_learn,
        sync=burst.t_sync,
        waiting=waiting,
        other=burst.t_other,
    )
