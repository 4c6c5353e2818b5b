"""Meter: what a report says of the iterations since the last one, added up over all ranks."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from ..distributed import Sync
from ..learning.bonus import Metrics
from ..learning.learner import Learner
from ..processes.hardware import Usage
from ..rollout import Array, Episode, Rollout
from ..samplers import Sampler
from .budget import Progress
from .report import Report
from .topology import Topology

MEANS = ("t_rollout", "t_learn", "t_sync", "t_wait", "lag_mean")
"""Of iterations that ranks make together each tells its share, so that a sum is their mean."""
LASTING = ("restarts", "env_restarts", "memory", "cpu")
"""What is read off: ranks tell by how much it has changed."""
SUMS = ("iters", "time", "steps", "agent_steps", "stop", *MEANS, *LASTING)
"""What ranks tell each other of an iteration, before the learner's metrics."""


class Meter:
    def __init__(
        self,
        progress: Progress,
        learner: Learner,
        sync: Sync,
        waited: float = 0.0,
        topology: Topology | None = None,
    ) -> None:
        self._progress, self._learner, self._sync = progress, learner, sync
        topology = topology or Topology()
        self._usage = Usage(launchers=topology.launchers)
        self._kinds = learner.metrics
        self._names = (*SUMS, *(name for name, kind in self._kinds.items() if kind != "max"))
        """what is added up; of the rest the largest is kept"""
        self._told: tuple[float, ...] = (0.0,) * len(LASTING)
        self._total = dict.fromkeys(self._names, 0.0) | {"restarts": float(topology.restarts)}
        self._reported = self._mark = self._clock = time.perf_counter()
        self._rollout = 0.0
        self._synced, self._waited = learner.t_sync, waited
        self._talked = 0.0
        """seconds that the latest news took"""
        self._agents = 1
        """columns of one environment"""
        self._behind = 0
        """updates that others made during the iteration before this one"""
        self._clear()

    def _clear(self) -> None:
        for name in self._names:
            if name not in LASTING:
                self._total[name] = 0.0
        self._peaks = {name: -math.inf for name, kind in self._kinds.items() if kind == "max"}
        self._lag_max = 0
        self._returns: list[float] = []
        self._lengths: list[int] = []

    @property
    def iters(self) -> int:
        """Iterations since the last report."""
        return round(self._total["iters"])

    def begin(self) -> None:
        """An iteration begins."""
        self._mark = time.perf_counter()

    def collected(self) -> None:
        """A rollout has come in; learning begins."""
        now = time.perf_counter()
        self._rollout, self._mark = now - self._mark, now

    def learned(
        self, rollout: Rollout, lag: Array, metrics: Metrics, sampler: Sampler, stop: bool
    ) -> bool:
        """An update has been made with weights `lag[B]` old; whether any rank is to stop."""
        share = 1.0 / self._sync.size
        waited, self._waited = sampler.t_wait - self._waited, sampler.t_wait
        synced, self._synced = self._learner.t_sync - self._synced, self._learner.t_sync
        lag = lag + self._behind
        self._lag_max = max(self._lag_max, int(lag.max()))
        memory, cpu = self._usage.read()
        self._agents = rollout.columns_per_env
        for name in self._peaks:
            self._peaks[name] = max(self._peaks[name], metrics[name])
        learnt = time.perf_counter() - self._mark - synced
        means = (self._rollout, learnt, synced + self._talked, waited, float(lag.mean()))
        told = {
            "iters": share,
            "steps": int(rollout.env_stepped.sum()),
            "agent_steps": int(rollout.valid.sum()),
            "stop": stop,
            **{name: share * value for name, value in zip(MEANS, means, strict=True)},
            **self._changed(sampler.restarts, sampler.env_restarts, memory, cpu),
        }
        for name, kind in self._kinds.items():
            if kind != "max":
                told[name] = metrics[name] * (share if kind == "mean" else 1)
        return self._hear(told, rollout.episodes)

    def listened(self, stop: bool) -> bool:
        """Hear what others have done meanwhile; whether any of them is to stop."""
        return self._hear({"stop": stop, **self._changed(0, 0, *self._usage.read())}, [])

    def _changed(self, *now: float | None) -> dict[str, float]:
        """By how much what lasts has changed since it was last told."""
        read = tuple(value or 0.0 for value in now)
        if read == self._told:
            return {}
        before, self._told = self._told, read
        return {name: read[k] - before[k] for k, name in enumerate(LASTING)}

    def _hear(self, own: dict[str, float], episodes: list[Episode]) -> bool:
        progress, now = self._progress, time.perf_counter()
        passed, self._clock = now - self._clock, now
        # Ranks go by the first one's clock. Learners that wait for nobody go each by its own, and
        # who watches them by their mean.
        alone = self._sync.world_size > self._sync.size
        mine = self._sync.rank > 0 if alone else self._sync.rank == 0
        own["time"] = passed / (self._sync.world_size if alone else 1) if mine else 0.0
        heard = own
        if self._sync.path:  # there is somebody to talk to
            sums = np.array([own.get(name, 0.0) for name in self._names])
            total, episodes = self._sync.news(sums, episodes)
            self._talked = time.perf_counter() - now
            heard = dict(zip(self._names, total.tolist(), strict=True))
        for name, value in heard.items():
            self._total[name] += value
        for episode in episodes:
            self._returns.append(episode.total)
            self._lengths.append(episode.length)
            progress.ended(episode.total)
        made = round(heard["iters"])
        self._behind = max(0, made - 1)
        progress.iter += made
        progress.steps += round(heard["steps"])
        progress.time += passed if alone and mine else heard["time"]
        return heard["stop"] > 0

    def report(self, fraction: float, stop: bool) -> Report:
        """All since the last report; what the caller does with it counts to the next."""
        now, progress, total = time.perf_counter(), self._progress, self._total
        n = max(1, self.iters)
        wall = now - self._reported
        mean: dict[str, Any] = {name: total[name] / n for name in MEANS}
        # Learners that do not wait for each other do more than one iteration at a time.
        each = wall / n * (self._sync.world_size // self._sync.size)
        busy = mean["t_rollout"] + mean["t_learn"] + mean["t_sync"]
        report = Report(
            time=progress.time,
            iter=progress.iter,
            steps=progress.steps,
            steps_global=round(total["steps"]),
            world_size=self._sync.world_size,
            fps=total["steps"] / wall,
            t_iter=wall / n,
            **mean,
            t_other=max(0.0, each - busy),
            restarts=round(total["restarts"]),
            env_restarts=round(total["env_restarts"]),
            lag_max=int(self._sync.peak(self._lag_max)) if total["lag_mean"] else 0,
            episodes=len(self._returns),
            episode_return=_mean(self._returns),
            episode_length=_mean(self._lengths),
            memory_mb=total["memory"],
            cpu_percent=total["cpu"] or None,
            recent_return=_mean(list(progress.recent)),
            fraction=fraction,
            stopping=stop,
            metrics=self._metrics(n),
        )
        self._reported = now
        self._clear()
        return report

    def _metrics(self, iters: int) -> dict[str, float]:
        """The learner's, of all iterations since the last report; and those of teams."""
        total = self._total
        found = {
            name: self._sync.peak(self._peaks[name])
            if kind == "max"
            else total[name] / (iters if kind == "mean" else 1)
            for name, kind in self._kinds.items()
        }
        if self._agents > 1:
            found["agent_steps"] = round(total["agent_steps"])
            if self._returns:
                found["team_return"] = self._agents * sum(self._returns) / len(self._returns)
        return found


def _mean(values: list[Any]) -> float | None:
    return sum(values) / len(values) if values else None
