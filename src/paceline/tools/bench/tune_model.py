"""A model of the time of one iteration, for any layout over processes. Pure; seconds throughout.

The time of an iteration is the sum of its phases, each a few constants times rows, calls or steps;
`tune_fit` solves the same sums for the constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...config.text import several

Schedule = Literal["alternate", "stream", "hogwild"]
"""Sampling and learning alternate; overlap (impala with workers); or run in each a3c learner."""
PHASE_NAMES = ("env", "inference", "update", "sync", "waiting", "other")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What tune decides: how the rows of an update are laid out over processes."""

    envs: int
    """of each rank; of each learner of a3c"""
    steps: int
    minibatches: int = 1
    workers: int = 0
    """of each rank; the learners of a3c"""
    ranks: int = 1
    threads: int = 1
    """of each learner"""
    pinned: bool = False
    schedule: Schedule = "alternate"

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
        return self.workers if self.schedule == "hogwild" else self.ranks

    @property
    def processes(self) -> int:
        return self.workers if self.schedule == "hogwild" else self.ranks * (1 + self.workers)

    @property
    def envs_per_sampler(self) -> int:
        return self.envs if self.schedule == "hogwild" else self.envs // max(1, self.workers)

    @property
    def kind(self) -> str:
        """Which processes it has, whatever their number."""
        if self.schedule == "hogwild":
            return "learners"
        names = ["ranks"] * (self.ranks > 1) + ["workers"] * (self.workers > 0)
        return " × ".join(names) or "serial"

    def __str__(self) -> str:
        """16 envs × 256 steps, 2 workers."""
        text = f"{several(self.envs, 'env')} × {self.steps} steps"
        if self.ranks > 1:
            text = f"{self.ranks} ranks × {text}"
        if self.schedule == "hogwild":
            text += f", {several(self.workers, 'learner')}"
        elif self.workers:
            text += f", {several(self.workers, 'worker')}{' each' if self.ranks > 1 else ''}"
        elif self.ranks == 1:
            text += ", one process"
        if self.threads > 1:
            text += f", {self.threads} threads"
        return text + (", pinned" if self.pinned else "")


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
    """share of the learning that threads divide"""
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


def slowdown(processes: int, cpus: int, together: float) -> float:
    """Of each of so many processes against one alone; more than `cpus` of them take turns."""
    busy = min(1.0, (processes - 1) / (cpus - 1)) if cpus > 1 else 0.0
    return (1.0 + (together - 1.0) * busy) * max(1.0, processes / cpus)


def rollout_time(shape: Shape, known: Constants) -> tuple[float, float]:
    """Of a sampler that is alone: its environments', and its policy's."""
    rows = shape.steps * shape.envs_per_sampler
    return rows * known.env, shape.steps * known.call + rows * known.act


def update_time(shape: Shape, known: Constants) -> float:
    """Of a learner that is alone, with its share of every minibatch."""
    rows = shape.envs * shape.steps / shape.minibatches
    divided = 1.0 - known.threaded + known.threaded / shape.threads
    return known.epochs * shape.minibatches * (known.step + rows * known.row) * divided


def sync_time(shape: Shape, known: Constants) -> float:
    """Of an update's gradient exchanges; it grows with the logarithm of the ranks."""
    if shape.learners < 2:
        return 0.0
    growth = 1.0 if shape.schedule == "hogwild" else (1.0 + math.log2(shape.learners)) / 2
    return known.epochs * shape.minibatches * known.sync * growth


def predict(shape: Shape, known: Constants, cpus: int) -> Phases:
    """An iteration in this shape on a machine with so many CPUs."""
    env, inference = rollout_time(shape, known)
    update, waiting = update_time(shape, known), 0.0
    if shape.schedule == "stream" and shape.workers:
        # Sampling and learning overlap: the slower decides, or all the work there is for the CPUs.
        busy = min(cpus, shape.ranks * (shape.workers + shape.threads))
        slow = slowdown(busy, cpus, known.together)
        sample, update = slow * (env + inference), slow * update
        work = shape.ranks * (shape.workers * sample + shape.threads * update)
        scale = (max(sample, update, work / cpus) - update) / (env + inference)
        waiting = known.wake
    else:
        scale = slowdown(shape.samplers, cpus, known.together)
        update *= slowdown(shape.learners * shape.threads, cpus, known.together)
        if shape.schedule != "hogwild":
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
    rows = shape.rows * (shape.learners if shape.schedule == "hogwild" else 1)
    return rows * known.valid / predict(shape, known, cpus).seconds
