"""Speed and memory of the columns of a run, stepped alone with random actions; what suits them."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ...envs.env_columns import EnvColumns
from ...envs.native import NativeColumns
from ...envs.spaces import random_actions
from ...rollout import Rollout
from ..findings import MB, Bytes, Finding, Level
from .environment import CALLS, EnvFactory
from .rules import found

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
CHEAP_US = 25.0
"""Microseconds of a step below which waking another process takes longer than it saves."""
SLOW_US = 2_000.0
PER_WORKER, PER_SLOW_WORKER, ALONE = 8, 4, 16
"""Environments of a worker, of one whose steps are slow, and of a process without workers."""
WAITING = 0.6
"""CPU time per time below which it mostly waits for something else."""
MAX_PER_CPU = 4
"""Workers per CPU, where they wait."""
WORKER_MB = 50.0
MEMORY_SHARE = 0.5
"""Of the memory that is free, for environments and workers."""


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
    with factory.columns(1) as columns:
        first = Stepper(columns, factory.request.seed)
        envs = ENVS if time.perf_counter() - start < SLOW_TO_MAKE else FEW_ENVS
        first.step()  # loads libraries
    before = _memory()
    with factory.columns(envs) as columns:
        stepper = Stepper(columns, factory.request.seed)
        memory = max(0.0, _memory() - before) / envs
        stepper.step()
        return stepper.measure(seconds, memory)


class Stepper:
    """Columns stepped with random actions into a rollout of one row, and what was counted."""

    def __init__(self, columns: EnvColumns | NativeColumns, seed: int) -> None:
        stored = columns.obs_spec.stored, columns.act_spec.stored
        self.columns, self.out = columns, Rollout.allocate(1, columns.num_envs, *stored)
        self._generator = np.random.default_rng(seed)
        self._steps = self._resets = 0
        self._seconds = 0.0
        columns.reset(self.out.obs[-1])

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


def about_speed(measured: Measured) -> Iterator[Finding]:
    steps, rate = measured.steps, measured.steps_per_second
    if measured.failures:
        yield found("step-side-by-side", count=measured.failures, steps=steps, envs=measured.envs)
    if measured.growth_mb * MB > MIN_GROWTH:
        grown = Bytes(measured.growth_mb * MB)
        batch = measured.reset_ms == 0  # not the user's code, and it may fill a cache
        level: Level = "note" if batch else "risky"
        projected = Bytes(grown / steps * 1e7)
        yield found("memory-grows", level, grown=grown, steps=steps, projected=projected)
    if measured.reset_share > 0.5 and measured.reset_ms > SLOW_RESET_MS:
        times = {"reset_ms": measured.reset_ms, "step_ms": measured.step_us / 1e3}
        yield found("speed-resets", share=measured.reset_share, **times)
    if rate < SLOW:
        yield found("speed-slow", rate=rate, hours=1e6 / rate / 3600)
    if measured.queued_share > BUSY:
        yield found("speed-busy", share=measured.queued_share)
    if measured.cpu_share > OWN_THREADS:
        yield found("speed-threads", cpus=measured.cpu_share)


@dataclass(frozen=True)
class Suggestion:
    workers: int
    envs: int
    reason: str

    @property
    def flags(self) -> str:
        return f"--num-workers {self.workers} --num-envs {self.envs}"


def suggest(measured: Measured, cpus: int, free_mb: float) -> Suggestion:
    """What to start with; `paceline tune` measures it."""
    workers, each, reason = _choose(measured, cpus)
    left = MEMORY_SHARE * free_mb - WORKER_MB * workers
    most = max(1, int(left / max(measured.memory_mb, 1e-3)))
    if max(1, workers) * each > most:
        workers = min(workers, most)
        each = max(1, most // max(1, workers))
        reason += (
            f"; more would not fit into half of the {free_mb:,.0f} MB that are free, at "
            f"{measured.memory_mb:,.0f} MB each"
        )
    return Suggestion(workers, each * max(1, workers), reason)


def _choose(measured: Measured, cpus: int) -> tuple[int, int, str]:
    """Workers, environments of each (or of the one process), and why."""
    step = 1e6 / measured.steps_per_second
    shown = f"{step:.0f} µs" if step < 1e3 else f"{step / 1e3:.3g} ms"
    each = PER_SLOW_WORKER if step >= SLOW_US else PER_WORKER
    if measured.cpu_share < WAITING and step >= CHEAP_US:
        workers = max(2, min(MAX_PER_CPU * cpus, round(cpus / max(measured.cpu_share, 0.01))))
        waits = f"it waits for something else {1 - measured.cpu_share:.0%} of the time"
        return workers, each, f"{waits}, so that more workers than CPUs pay"
    if measured.cpu_share > OWN_THREADS:
        busy = f"it keeps {measured.cpu_share:.1f} CPUs busy by itself"
        return 0, ALONE, f"{busy}, and workers would only wait"
    if step < CHEAP_US:
        cheap = f"a step takes {shown}, less than it takes to wake another process"
        return 0, ALONE, f"{cheap}: workers would gain nothing"
    if measured.pictures and step < SLOW_US:
        images = f"a step takes {shown}, and convolutions over its images longer"
        return 0, ALONE, f"{images}: the learner needs the CPUs itself"
    if cpus == 1:
        return 0, each, "there is one CPU, which the learner needs too"
    return cpus, each, f"a step takes {shown}, so that stepping, which {cpus} CPUs share, dominates"
