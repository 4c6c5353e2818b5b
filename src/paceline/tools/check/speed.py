"""Speed and memory: the columns of a run, stepped alone with random actions."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ...envs.env_columns import EnvColumns
from ...rollout import Rollout
from ..findings import MB, Bytes, Finding
from .environment import EnvFactory
from .player import random_actions
from .request import CALLS
from .rules import RULES

ENVS, FEW_ENVS = 8, 2
SLOW_TO_MAKE = 0.5
"""Seconds to make one from which few are measured."""
SAMPLES, ENOUGH = 10, 7
"""Readings of memory, and how many tell whether it grows."""
LONGER = 3.0
"""Times the time asked for, at most, until there are enough of them."""
MIN_GROWTH = 2 * MB
SLOW = 300.0
"""Steps per second with which even a short training takes hours."""
OWN_THREADS = 1.5
"""CPU time per time from which it must have threads."""
SLOW_RESET_MS = 1.0
BUSY = 0.2
"""Share of the time that other programs may take without a note."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one process on one core."""

    envs: int
    steps: int
    episodes: int
    steps_per_second: float
    """with the resets that come with random actions"""
    step_us: float
    """of a step without resets"""
    reset_ms: float
    """0 for a batch, whose resets can't be told from its steps"""
    memory_mb: float
    """that each environment adds"""
    growth_mb: float
    """of the process while it only stepped, if it never stopped growing"""
    cpu_share: float
    """CPU time per time in which it could run: above 1 it has threads, below 1 it waits"""
    queued_share: float
    """share of the time in which others had the CPU; not counted above"""
    failures: int
    pictures: bool = False
    """whether observations have images, which take long to learn from"""

    @property
    def reset_share(self) -> float:
        resets = self.episodes * self.reset_ms / 1e3
        return resets / (resets + self.steps * self.step_us / 1e6)


def measure(factory: EnvFactory, seconds: float) -> Measured:
    factory.heartbeat.call = CALLS.index("measure")
    start = time.perf_counter()
    with closing(ColumnStepper(factory, 1)) as first:
        envs = ENVS if time.perf_counter() - start < SLOW_TO_MAKE else FEW_ENVS
        first.step()  # loads libraries
    before = _memory()
    with closing(ColumnStepper(factory, envs)) as stepper:
        memory = max(0.0, _memory() - before) / envs
        stepper.step()
        return stepper.measure(seconds, memory)


class ColumnStepper:
    """Columns stepped with random actions into a rollout of one row, and what was counted."""

    def __init__(self, factory: EnvFactory, envs: int, seed: int | None = None) -> None:
        self.columns = columns = factory.columns(envs, seed)
        self.out = Rollout.allocate(1, envs, columns.obs_spec.stored, columns.act_spec.stored)
        self._generator = np.random.default_rng(factory.request.seed)
        self._steps = self._resets = 0
        self._seconds = 0.0
        self.close = columns.close
        try:
            columns.reset(self.out.obs[-1])
        except BaseException:
            self.close()
            raise
        self.out.first[-1] = True

    def step(self) -> None:
        """One step of every column; the time to choose actions is not counted."""
        columns, out, obs = self.columns, self.out, self.columns.obs_spec
        columns.heartbeat.row += 1
        out.start_next()
        mask = obs.split(out.obs[0])["mask"] if obs.mask else None
        chosen = random_actions(self._generator, columns.act_spec, mask, columns.num_envs)
        start = time.perf_counter()
        actions: Any = columns.adapt(chosen)
        columns.step(0, actions, out)
        self._seconds += time.perf_counter() - start
        valid = int(out.valid.sum())
        self._steps += valid
        self._resets += columns.num_envs - valid

    def measure(self, seconds: float, memory: float) -> Measured:
        """`memory` is what each environment has taken, in bytes."""
        self._steps = self._resets = 0
        self._seconds = 0.0
        samples = [_memory()]
        wall, cpu, queued = time.perf_counter(), _cpu(), _queued()
        now = sampled = wall
        until, last = wall + seconds, wall + LONGER * seconds
        while now < until or not self._steps or (len(samples) < ENOUGH and now < last):
            self.step()
            now = time.perf_counter()
            if now - sampled >= seconds / SAMPLES:
                samples.append(_memory())
                sampled = time.perf_counter()
                until += sampled - now  # reading memory is not measured
        wall, cpu, queued = time.perf_counter() - wall, _cpu() - cpu, _queued() - queued
        running = max(0.05, 1 - queued / wall)
        reset = self._reset_seconds(seconds / 5) if isinstance(self.columns, EnvColumns) else 0.0
        stepping = max(1e-9, running * self._seconds - self._resets * reset)
        return Measured(
            envs=self.columns.num_envs,
            steps=self._steps,
            episodes=self._resets,
            steps_per_second=self._steps / (running * self._seconds),
            step_us=1e6 * stepping / self._steps,
            reset_ms=1e3 * reset,
            memory_mb=memory / MB,
            growth_mb=growth(samples) / MB,
            cpu_share=cpu / (running * wall),
            queued_share=1 - running,
            failures=self.columns.failures,
            pictures=bool(self.columns.obs_spec.images),
        )

    def _reset_seconds(self, seconds: float) -> float:
        """Of one reset; every column is reset at least once."""
        start, queued, times = time.perf_counter(), _queued(), 0
        while not times or time.perf_counter() - start < seconds:
            self.columns.heartbeat.row += 1
            self.columns.reset(self.out.obs[-1])
            times += 1
        took = time.perf_counter() - start - (_queued() - queued)
        return max(1e-9, took) / times / self.columns.num_envs


def _cpu() -> float:
    """Seconds of CPU time of this process and its children."""
    total = time.process_time()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _queued() -> float:
    """Seconds that this process has waited for a CPU; 0 where that is unknown."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _memory() -> float:
    """Bytes that this process has in memory, garbage collected."""
    gc.collect()
    return float(psutil.Process().memory_info().rss)


def growth(samples: list[float]) -> float:
    """Bytes by which memory grew after the first third, if it grew between nearly all samples."""
    later = samples[len(samples) // 3 :]
    steps = np.diff(later)
    if len(steps) < 4 or (steps <= 0).sum() > len(steps) // 5:
        return 0.0
    return later[-1] - later[0]


def about_speed(found: Measured) -> Iterator[Finding]:
    if found.failures:
        facts = {"count": found.failures, "steps": found.steps, "envs": found.envs}
        yield RULES.found("step-side-by-side", **facts)
    if found.growth_mb * MB > MIN_GROWTH:
        grown = Bytes(found.growth_mb * MB)
        projected = Bytes(grown / found.steps * 1e7)
        batch = found.reset_ms == 0  # not the user's code, and it may fill a cache
        level: Any = "note" if batch else "risky"
        facts = {"grown": grown, "steps": found.steps, "projected": projected}
        yield RULES.found("memory-grows", level, **facts)
    if found.reset_share > 0.5 and found.reset_ms > SLOW_RESET_MS:
        times = {"reset_ms": found.reset_ms, "step_ms": found.step_us / 1e3}
        yield RULES.found("speed-resets", share=found.reset_share, **times)
    if found.steps_per_second < SLOW:
        hours = 1e6 / found.steps_per_second / 3600
        yield RULES.found("speed-slow", rate=found.steps_per_second, hours=hours)
    if found.queued_share > BUSY:
        yield RULES.found("speed-busy", share=found.queued_share)
    if found.cpu_share > OWN_THREADS:
        yield RULES.found("speed-threads", cpus=found.cpu_share)
