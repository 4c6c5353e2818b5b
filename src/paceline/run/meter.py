"""Meter: sums up the iterations since the last report, over all ranks."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from ..config.text import several
from ..learning.bonus import Metrics
from ..processes.hardware import Usage
from ..rollout import Episode, Rollout
from .budget import Progress
from .build import Parts
from .info_means import InfoMeans
from .report import CORE, FinishedEpisode, Report

log = logging.getLogger("paceline")

MEANS = ("t_rollout", "t_learn", "t_sync", "t_wait", "lag_mean")
"""Reported as means over iterations; of an iteration that ranks make together, over ranks too."""
GAUGES = ("restarts", "env_restarts", "memory", "cpu")
"""Current values, summed over ranks, which exchange changes; a report does not reset them."""
SUMS = ("iters", "time", "steps", "agent_steps", "stop", *MEANS, *GAUGES)
"""What ranks exchange after an iteration, before the learner's metrics."""


class Meter:
    def __init__(self, parts: Parts, progress: Progress) -> None:
        self._learner, self._sampler, self._sync = parts.learner, parts.sampler, parts.sync
        self._progress, self._topology = progress, parts.topology
        self._usage = Usage(launchers=parts.topology.launchers)
        self._kinds = parts.learner.metrics
        self._summed = (*SUMS, *(name for name, kind in self._kinds.items() if kind != "max"))
        self._total = dict.fromkeys(self._summed, 0.0)
        self._total["restarts"] = float(parts.topology.restarts)
        self._gauges: tuple[float, ...] = (0.0,) * len(GAUGES)
        self._reported = self._mark = self._clock = time.perf_counter()
        self._t_rollout = self._t_reduce = 0.0
        self._t_sync = parts.learner.t_sync
        self._t_wait = self._sampler.t_wait if self._sampler is not None else 0.0
        self._columns_per_env = 1
        self._info = InfoMeans(parts.log_info, progress.info_names, {*CORE, *self._kinds})
        self._others_updates = 0
        """updates by other learners during the previous iteration"""
        self._reset()

    def _reset(self) -> None:
        for name in self._summed:
            if name not in GAUGES:
                self._total[name] = 0.0
        self._peaks = {name: -math.inf for name, kind in self._kinds.items() if kind == "max"}
        self._lag_max = 0
        self._finished: list[FinishedEpisode] = []

    @property
    def iters(self) -> int:
        """Iterations since the last report."""
        return round(self._total["iters"])

    def start_rollout(self) -> None:
        self._mark = time.perf_counter()

    def start_update(self, rollout: Rollout) -> None:
        now = time.perf_counter()
        self._t_rollout, self._mark = now - self._mark, now
        self._lag = self._learner.version - rollout.version + self._others_updates  # [B]

    def end_update(self, rollout: Rollout, metrics: Metrics, stop: bool) -> bool:
        """Count an iteration, here and on the other ranks; whether any rank wants to stop."""
        sampler, learner, share = self._sampler, self._learner, 1.0 / self._sync.size
        assert sampler is not None
        t_wait, self._t_wait = sampler.t_wait - self._t_wait, sampler.t_wait
        t_sync, self._t_sync = learner.t_sync - self._t_sync, learner.t_sync
        self._lag_max = max(self._lag_max, int(self._lag.max()))
        self._columns_per_env = rollout.columns_per_env
        for name in self._peaks:
            self._peaks[name] = max(self._peaks[name], metrics[name])
        usage = self._usage.read()
        t_learn = time.perf_counter() - self._mark - t_sync
        lag_mean = float(self._lag.mean())
        means = (self._t_rollout, t_learn, t_sync + self._t_reduce, t_wait, lag_mean)
        own = {
            "iters": share,
            "steps": int(rollout.env_stepped.sum()),
            "agent_steps": int(rollout.valid.sum()),
            "stop": stop,
            **{name: share * value for name, value in zip(MEANS, means, strict=True)},
            **self._gauge_changes(sampler.restarts, sampler.env_restarts, *usage),
        }
        for name, kind in self._kinds.items():
            if kind != "max":
                own[name] = metrics[name] * (share if kind == "mean" else 1)
        return self._reduce(own, rollout.episodes)

    def poll(self, stop: bool) -> bool:
        """Count what other ranks have done, without an iteration here; as `end_update`."""
        return self._reduce({"stop": stop, **self._gauge_changes(0, 0, *self._usage.read())}, [])

    def _gauge_changes(self, *values: float | None) -> dict[str, float]:
        """By how much each gauge has changed since the last exchange; empty if none has."""
        now = tuple(value or 0.0 for value in values)
        if now == self._gauges:
            return {}
        before, self._gauges = self._gauges, now
        return {name: now[k] - before[k] for k, name in enumerate(GAUGES)}

    def _reduce(self, own: dict[str, float], episodes: list[Episode]) -> bool:
        """Add up the numbers and episodes of all ranks; whether any of them wants to stop."""
        progress, now = self._progress, time.perf_counter()
        elapsed, self._clock = now - self._clock, now
        # Ranks in lockstep go by rank 0's clock. Asynchronous learners go by their own, and the
        # process that watches them by the mean of theirs.
        own_clock = not self._topology.lockstep and self._topology.learns
        if own_clock:
            own["time"] = elapsed / self._sync.world_size
        elif self._topology.lockstep and self._sync.rank == 0:
            own["time"] = elapsed
        total = own
        if self._sync.path:  # there are other ranks
            sums = np.array([own.get(name, 0.0) for name in self._summed])
            reduced, episodes = self._sync.reduce_metrics(sums, episodes)
            self._t_reduce = time.perf_counter() - now
            total = dict(zip(self._summed, reduced.tolist(), strict=True))
        for name, value in total.items():
            self._total[name] += value
        iters = round(total["iters"])
        self._others_updates = max(0, iters - 1)
        progress.iter += iters
        progress.steps += round(total["steps"])
        progress.time += elapsed if own_clock else total["time"]
        for episode in episodes:
            self._finished.append(FinishedEpisode(progress.time, progress.steps, episode))
            self._info.add(episode.info)
            progress.add_episode(episode.total)
        return total["stop"] > 0

    def report(self, fraction: float, stopping: bool) -> Report:
        """Everything since the last report; what the caller does with it counts to the next."""
        now, progress, total = time.perf_counter(), self._progress, self._total
        n, wall = max(1, self.iters), now - self._reported
        mean: dict[str, Any] = {name: total[name] / n for name in MEANS}
        # Asynchronous learners make several iterations at a time.
        each = wall / n * (self._sync.world_size // self._sync.size)
        busy = mean["t_rollout"] + mean["t_learn"] + mean["t_sync"]
        episodes = [finished.episode for finished in self._finished]
        if self._sync.rank == 0:
            self._info.log_missing()
            if total["env_restarts"] and (fraction >= 1.0 or stopping):
                times = several(round(total["env_restarts"]), "time")
                log.warning(f"environments raised and were rebuilt {times} in this session")
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
            lag_max=int(self._sync.max(self._lag_max)) if total["lag_mean"] else 0,
            episodes=len(episodes),
            episode_return=_mean([episode.total for episode in episodes]),
            episode_length=_mean([episode.length for episode in episodes]),
            memory_mb=total["memory"],
            cpu_percent=total["cpu"] or None,
            recent_return=_mean(list(progress.recent)),
            fraction=fraction,
            stopping=stopping,
            metrics=self._metrics(n, episodes) | self._info.take(),
            finished=self._without_unlogged_info(),
        )
        self._reported = now
        self._reset()
        return report

    def _without_unlogged_info(self) -> tuple[FinishedEpisode, ...]:
        """The episodes, without numbers that are too many to be logged."""
        if not self._info.too_many:
            return tuple(self._finished)
        return tuple(replace(one, episode=replace(one.episode, info={})) for one in self._finished)

    def _metrics(self, iters: int, episodes: list[Episode]) -> dict[str, Any]:
        """The learner's metrics since the last report, and those of teams."""
        metrics: dict[str, Any] = {}
        for name, kind in self._kinds.items():
            if kind == "max":
                metrics[name] = self._sync.max(self._peaks[name])
            else:
                metrics[name] = self._total[name] / (iters if kind == "mean" else 1)
        if self._columns_per_env > 1:
            metrics["agent_steps"] = round(self._total["agent_steps"])
            if episodes:
                returns = [episode.total for episode in episodes]
                metrics["team_return"] = self._columns_per_env * sum(returns) / len(returns)
        return metrics


def _mean(values: list[Any]) -> float | None:
    return sum(values) / len(values) if values else None
