"""How long an iteration takes in any shape of running, from a few measured constants. Pure.

Seconds throughout. A shape is how an iteration is laid out over processes; the model adds up its
phases, and constants are fitted to bursts of training by solving the same sums backwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Way = Literal["turns", "stream", "apart"]
"""Sampling and learning in turns; both at once (impala with workers); or learners that wait for
nobody (a3c)."""
BOUNDS = ("env", "inference", "update", "sync", "waiting", "other")
WORST = 4.0
"""Times that processes side by side may be slower than one alone; more is noise."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What tune decides: how the rows of an update are made, and by whom."""

    envs: int
    """of each rank; of a3c, of each learner"""
    steps: int
    minibatches: int = 1
    workers: int = 0
    """of each rank; of a3c, its learners"""
    ranks: int = 1
    threads: int = 1
    """of each learner"""
    pinned: bool = False
    way: Way = "turns"

    @property
    def rows(self) -> int:
        """Of one update, over all ranks."""
        return self.ranks * self.envs * self.steps

    @property
    def batch(self) -> int:
        """Rows of one minibatch, over all ranks."""
        return self.rows // self.minibatches

    @property
    def samplers(self) -> int:
        """Processes that step environments."""
        return self.ranks * max(1, self.workers)

    @property
    def learners(self) -> int:
        return self.workers if self.way == "apart" else self.ranks

    @property
    def processes(self) -> int:
        return self.learners if self.way == "apart" else self.ranks * (1 + self.workers)

    @property
    def columns(self) -> int:
        """Environments of each process that steps them."""
        return self.envs if self.way == "apart" else self.envs // max(1, self.workers)

    @property
    def kind(self) -> str:
        if self.way == "apart":
            return "learners"
        if self.ranks > 1:
            return "ranks" if not self.workers else "ranks × workers"
        return "workers" if self.workers else "serial"

    def __str__(self) -> str:
        """16 envs × 256 steps, 2 workers."""
        text = f"{self.envs} env{'s' if self.envs > 1 else ''} × {self.steps} steps"
        if self.ranks > 1:
            text = f"{self.ranks} ranks × {text}"
        if self.way == "apart":
            text += f", {self.workers} learner{'s' if self.workers > 1 else ''}"
        elif self.workers:
            plural = "s" if self.workers > 1 else ""
            text += f", {self.workers} worker{plural}{' each' if self.ranks > 1 else ''}"
        elif self.ranks == 1:
            text += ", one process"
        if self.threads > 1:
            text += f", {self.threads} threads"
        return text + (", pinned" if self.pinned else "")


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What a training costs on one machine."""

    env: float
    """one row of one environment, resets included"""
    call: float
    """one call of the policy, whatever its rows"""
    act: float
    """each row of such a call"""
    step: float
    """one optimiser step, whatever its rows"""
    row: float
    """each row of such a step"""
    other: float = 0.0
    """logs and checkpoints, for each iteration"""
    wake: float = 0.0
    """waking each worker, and waiting for it, for each rollout; of a stream, taking in a batch"""
    sync: float = 0.0
    """agreeing on one optimiser step, of two learners"""
    together: float = 1.0
    """how much slower every process is when all CPUs are at work"""
    threaded: float = 0.0
    """share of the learning that threads divide"""
    valid: float = 1.0
    """share of the rows that are steps, and not resets"""
    epochs: int = 1


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Where the time of one iteration goes, as its learner sees it."""

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
        return {name: getattr(self, name) / (self.seconds or 1.0) for name in BOUNDS}

    @property
    def bound(self) -> str:
        """What takes most of the time; what only surrounds it never does."""
        return max(BOUNDS[:-1], key=lambda name: getattr(self, name))


def crowding(processes: int, cpus: int, together: float) -> float:
    """How much slower each of them is than one alone; more than there are CPUs take turns."""
    busy = min(1.0, (processes - 1) / (cpus - 1)) if cpus > 1 else 0.0
    return (1.0 + (together - 1.0) * busy) * max(1.0, processes / cpus)


def sampling(shape: Shape, known: Constants) -> tuple[float, float]:
    """Seconds of a rollout in one process alone: its environments', and its policy's."""
    rows = shape.steps * shape.columns
    return rows * known.env, shape.steps * known.call + rows * known.act


def learning(shape: Shape, known: Constants) -> float:
    """Seconds of an update on one learner alone, its share of every minibatch."""
    rows = shape.envs * shape.steps / shape.minibatches
    each = known.step + rows * known.row
    divided = 1.0 - known.threaded + known.threaded / shape.threads
    return known.epochs * shape.minibatches * each * divided


def agreeing(shape: Shape, known: Constants) -> float:
    """Seconds of an update for learners to agree; the slowest of more is waited for longer."""
    if shape.learners < 2:
        return 0.0
    growth = 1.0 if shape.way == "apart" else (1.0 + math.log2(shape.learners)) / 2
    return known.epochs * shape.minibatches * known.sync * growth


def predicted(shape: Shape, known: Constants, cpus: int) -> Phases:
    """An iteration in this shape on a machine with so many CPUs."""
    if shape.way == "stream" and shape.workers:
        return _streamed(shape, known, cpus)
    env, inference = sampling(shape, known)
    slow = crowding(shape.samplers, cpus, known.together)
    learners = crowding(shape.learners * shape.threads, cpus, known.together)
    waking = 0.0 if shape.way == "apart" else known.wake * shape.workers
    return Phases(
        env=slow * env,
        inference=slow * inference,
        update=learners * learning(shape, known),
        sync=agreeing(shape, known),
        waiting=waking,
        other=known.other,
    )


def _streamed(shape: Shape, known: Constants, cpus: int) -> Phases:
    """The slower of sampling and learning decides, or all the work there is for the CPUs."""
    env, inference = sampling(shape, known)
    busy = min(cpus, shape.ranks * (shape.workers + shape.threads))
    slow = crowding(busy, cpus, known.together)
    sample, update = slow * (env + inference), slow * learning(shape, known)
    work = shape.ranks * (shape.workers * sample + shape.threads * update)
    idle = max(sample, update, work / cpus) - update
    return Phases(
        env=idle * env / (env + inference),
        inference=idle * inference / (env + inference),
        update=update,
        sync=agreeing(shape, known),
        waiting=known.wake,
        other=known.other,
    )


def rate(shape: Shape, seconds: float, known: Constants) -> float:
    """Steps per second where an iteration takes so long."""
    rows = shape.rows * (shape.learners if shape.way == "apart" else 1)
    return rows * known.valid / seconds


def fps(shape: Shape, known: Constants, cpus: int) -> float:
    """Steps per second that the model expects."""
    return rate(shape, predicted(shape, known, cpus).seconds, known)
