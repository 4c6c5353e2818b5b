"""The ring: collect, update, publish; a generator of reports."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .config import Config, seconds
from .learner import Learner
from .machine import Usage
from .metrics import Report
from .rollout import Array, Rollout
from .samplers import Sampler
from .sync import Sync

RECENT = 100


@dataclass
class Progress:
    """How far a run has come, over all its sessions."""

    iter: int = 0
    steps: int = 0
    time: float = 0.0
    """seconds up to now"""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """returns of the latest episodes"""
    best: float | None = None
    """mean return of the best evaluation"""


@dataclass(frozen=True)
class Budget:
    """The first limit that is reached ends the run."""

    steps: int | None = None
    iters: int | None = None
    seconds: float | None = None
    score: float | None = None
    """mean return of the latest episodes, once there are enough of them"""

    @staticmethod
    def of(config: Config) -> Budget:
        limit = seconds(config.duration) if config.duration else None
        return Budget(config.total_steps, config.total_iters, limit, config.stop_at_return)

    def fraction(self, progress: Progress) -> float:
        """Share that is spent, from 0 to 1."""
        spent = [
            done / limit
            for done, limit in (
                (progress.steps, self.steps),
                (progress.iter, self.iters),
                (progress.time, self.seconds),
            )
            if limit is not None
        ]
        return 1.0 if self.scored(progress.recent) else min(1.0, max(spent))

    def scored(self, recent: deque[float]) -> bool:
        """Whether the latest episodes are good enough to stop."""
        if self.score is None or len(recent) < RECENT:
            return False
        return sum(recent) / len(recent) >= self.score


def ring(
    sampler: Sampler,
    learner: Learner,
    sync: Sync,
    budget: Budget,
    progress: Progress,
    log_every: int,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[Report]:
    """Train until the budget is spent; `progress` is kept up to date in place.

    When `stopping()`, the report comes at once instead of after `log_every` iterations.
    """
    meter = Meter(progress, learner, sampler)
    while (spent := budget.fraction(progress)) < 1.0:
        meter.begin()
        rollout = sampler.collect()
        meter.collected()
        lag = learner.version - rollout.version
        metrics = learner.update(rollout, 1.0 - spent)
        sampler.publish(learner.weights, learner.version)
        meter.learned(rollout, lag, metrics, sum(sync.gather(int(rollout.valid.sum()))))
        fraction = budget.fraction(progress)
        if progress.iter % log_every == 0 or fraction >= 1.0 or stopping():
            yield meter.report(fraction, sync.size)


class Meter:
    """Times the ring's phases and gathers what a report says about the iterations it covers."""

    def __init__(self, progress: Progress, learner: Learner, sampler: Sampler) -> None:
        self._progress, self._learner, self._sampler = progress, learner, sampler
        self._usage = Usage()
        self._began = time.perf_counter() - progress.time
        self._reported = self._mark = time.perf_counter()
        self._clear()

    def _clear(self) -> None:
        self._iters = self._steps = 0
        self._rollout = self._learn = 0.0
        self._sync_before, self._wait_before = self._learner.t_sync, self._sampler.t_wait
        self._lag_sum, self._lag_max = 0.0, 0
        self._metrics: dict[str, float] = {}
        self._returns: list[float] = []
        self._lengths: list[int] = []

    def begin(self) -> None:
        """An iteration begins."""
        self._mark = time.perf_counter()

    def collected(self) -> None:
        """A rollout has come in; learning begins."""
        now = time.perf_counter()
        self._rollout += now - self._mark
        self._mark = now

    def learned(self, rollout: Rollout, lag: Array, metrics: dict[str, float], steps: int) -> None:
        """An update has been made from `steps` steps over all ranks, with weights `lag[B]` old."""
        now, progress = time.perf_counter(), self._progress
        self._learn += now - self._mark
        for name, value in metrics.items():
            self._metrics[name] = self._metrics.get(name, 0.0) + value
        for episode in rollout.episodes:
            self._returns.append(episode.total)
            self._lengths.append(episode.length)
            progress.recent.append(episode.total)
        self._lag_sum += float(lag.mean())
        self._lag_max = max(self._lag_max, int(lag.max()))
        self._iters += 1
        self._steps += steps
        progress.iter += 1
        progress.steps += steps
        progress.time = now - self._began

    def report(self, fraction: float, world_size: int) -> Report:
        """All since the last report; what the caller does with it counts to the next."""
        now, n, progress = time.perf_counter(), self._iters, self._progress
        wall = now - self._reported
        synced = self._learner.t_sync - self._sync_before
        memory, cpu = self._usage.read()
        values: dict[str, Any] = {name: total / n for name, total in self._metrics.items()}
        report = Report(
            time=progress.time,
            iter=progress.iter,
            steps=progress.steps,
            steps_global=self._steps,
            world_size=world_size,
            fps=self._steps / wall,
            t_iter=wall / n,
            t_rollout=self._rollout / n,
            t_learn=(self._learn - synced) / n,
            t_sync=synced / n,
            t_other=max(0.0, wall - self._rollout - self._learn) / n,
            t_wait=(self._sampler.t_wait - self._wait_before) / n,
            restarts=self._sampler.restarts,
            env_restarts=self._sampler.env_restarts,
            lag_mean=self._lag_sum / n,
            lag_max=self._lag_max,
            episodes=len(self._returns),
            episode_return=_mean(self._returns),
            episode_length=_mean(self._lengths),
            memory_mb=memory,
            cpu_percent=cpu,
            recent_return=_mean(list(progress.recent)),
            fraction=fraction,
            **values,
        )
        self._reported = now
        self._clear()
        return report


def _mean(values: list[Any]) -> float | None:
    return sum(values) / len(values) if values else None
