"""How fast it is, and how large: the columns of a run, stepped alone with random actions."""

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

from ...config.text import several
from ...rollout import Rollout
from ..findings import MB, Bytes
from .acting import drawn
from .finding import Finding
from .request import CALLS
from .subject import Subject

ENVS = 8
SLOW_TO_MAKE = 0.5
"""Seconds from which fewer are made."""
SAMPLES, ENOUGH = 10, 7
"""Times that memory is looked at, and how many tell whether it grows."""
LONGER = 3.0
"""Times as long as asked for, at most, until there are enough of them."""
LEAST_GROWTH = 2 * MB
SLOW = 300.0
"""Steps per second that make even a short training a matter of hours."""

OWN_THREADS = 1.5
"""CPU time per time that tells of threads."""
SLOW_RESET = 1.0
"""Milliseconds from which it is worth a thought."""
BUSY = 0.2
"""Share of the time that others may take without notice."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one process on one core."""

    envs: int
    steps: int
    episodes: int
    steps_per_second: float
    """resets included, as they come with random actions"""
    step_us: float
    """of a step without resets"""
    reset_ms: float
    """0 for a batch, whose resets can't be told from its steps"""
    memory_mb: float
    """of each environment, beside what they share"""
    growth_mb: float
    """of the process while it only stepped, if it never stopped growing"""
    cpu_share: float
    """CPU time per time in which it could run: above 1 it has threads, below 1 it waits"""
    queued_share: float
    """of the time, in which it could have run but others had the CPU; not counted above"""
    failures: int
    pictures: bool = False
    """whether it shows images, which take long to learn from"""

    @property
    def reset_share(self) -> float:
        """Of the time, in resets."""
        resets = self.episodes * self.reset_ms / 1e3
        return resets / (resets + self.steps * self.step_us / 1e6)


def measured(subject: Subject, seconds: float) -> Measured:
    """Step for so long; how much is made of it depends on how slow it is."""
    subject.heartbeat.call = CALLS.index("measure")
    began = time.perf_counter()
    with closing(Stepping(subject, 1)) as first:
        took = time.perf_counter() - began
        first.row()  # so that libraries are loaded
    envs = ENVS if took < SLOW_TO_MAKE else 2
    before = _memory()
    with closing(Stepping(subject, envs)) as stepping:
        each = max(0.0, _memory() - before) / envs
        stepping.row()
        return stepping.measured(seconds, each)


class Stepping:
    """Columns, one row of a rollout that is filled again and again, and what was counted."""

    def __init__(self, subject: Subject, envs: int, seed: int | None = None) -> None:
        self.columns = columns = subject.columns(envs, seed)
        self._batch = subject.batch
        obs, act = columns.obs_spec, columns.act_spec
        self.out = Rollout.allocate(1, envs, obs.stored, act.stored)
        self._draw = np.random.default_rng(subject.request.seed)
        self._steps = self._resets = 0
        self._seconds = 0.0
        self.close = columns.close
        try:
            columns.reset(self.out.obs[-1])
        except BaseException:
            self.close()
            raise
        self.out.first[-1] = True

    def row(self) -> None:
        """Every column once; the time to choose actions is not counted."""
        columns, out, obs = self.columns, self.out, self.columns.obs_spec
        columns.heartbeat.row += 1
        out.start_next()
        mask = obs.split(out.obs[0])["mask"] if obs.mask else None
        chosen = drawn(self._draw, columns.act_spec, mask, columns.num_envs)
        began = time.perf_counter()
        actions: Any = columns.adapt(chosen)
        columns.step(0, actions, out)
        self._seconds += time.perf_counter() - began
        valid = int(out.valid.sum())
        self._steps += valid
        self._resets += columns.num_envs - valid

    def measured(self, seconds: float, memory: float) -> Measured:
        self._steps = self._resets = 0
        self._seconds = 0.0
        samples = [_memory()]
        wall, cpu, queued = time.perf_counter(), _cpu(), _queued()
        now = looked = wall
        until, last = wall + seconds, wall + LONGER * seconds
        while now < until or not self._steps or (len(samples) < ENOUGH and now < last):
            self.row()
            now = time.perf_counter()
            if now - looked >= seconds / SAMPLES:
                samples.append(_memory())
                looked = time.perf_counter()
                until += looked - now  # looking is not measured
        wall, cpu, queued = time.perf_counter() - wall, _cpu() - cpu, _queued() - queued
        own = max(0.05, 1 - queued / wall)
        reset = 0.0 if self._batch else self._reset_seconds(seconds / 5)
        stepping = max(1e-9, own * self._seconds - self._resets * reset)
        return Measured(
            envs=self.columns.num_envs,
            steps=self._steps,
            episodes=self._resets,
            steps_per_second=self._steps / (own * self._seconds),
            step_us=1e6 * stepping / self._steps,
            reset_ms=1e3 * reset,
            memory_mb=memory / MB,
            growth_mb=_growth(samples) / MB,
            cpu_share=cpu / (own * wall),
            queued_share=1 - own,
            failures=self.columns.failures,
            pictures=bool(self.columns.obs_spec.images),
        )

    def _reset_seconds(self, seconds: float) -> float:
        """Of one reset; at least one of each column is made."""
        began, queued, times = time.perf_counter(), _queued(), 0
        while not times or time.perf_counter() - began < seconds:
            self.columns.heartbeat.row += 1
            self.columns.reset(self.out.obs[-1])
            times += 1
        took = time.perf_counter() - began - (_queued() - queued)
        return max(1e-9, took) / times / self.columns.num_envs


def _cpu() -> float:
    """Seconds of CPU time that this process and those it has started have used."""
    total = time.process_time()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _queued() -> float:
    """Seconds that this process has waited for a CPU which others had; 0 where that is unknown."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _memory() -> float:
    """Bytes that this process has in memory, with what nobody needs any more thrown away."""
    gc.collect()
    return float(psutil.Process().memory_info().rss)


def _growth(samples: list[float]) -> float:
    """Bytes by which memory grew after the first look, if it grew between all later ones."""
    later = samples[len(samples) // 3 :]
    steps = np.diff(later)
    if len(steps) < 4 or (steps <= 0).sum() > len(steps) // 5:
        return 0.0
    return later[-1] - later[0]


def judged(found: Measured) -> Iterator[Finding]:
    """What of it is worth mending."""
    if found.failures:
        yield Finding(
            "wrong",
            "step",
            f"it raised {several(found.failures, 'time')} in {found.steps:,} steps side by side",
            "each time the episode is lost and the environment made anew",
            "see what it raises with paceline train, which shows the first traceback",
        )
    if found.growth_mb * MB > LEAST_GROWTH:
        each = found.growth_mb * MB / found.steps
        batch = found.reset_ms == 0  # whose code is not the user's, and may fill a cache
        yield Finding(
            "note" if batch else "risky",
            "memory",
            f"memory grew by {found.growth_mb:.0f} MB while {found.steps:,} steps were made, and "
            "never stopped growing",
            f"ten million steps would take about {Bytes(each * 1e7)} more",
            "look for a list that only grows, such as a history that reset() does not empty; a "
            "cache that fills up stops some time: see with --seconds 60",
        )
    if found.reset_share > 0.5 and found.reset_ms > SLOW_RESET:
        yield Finding(
            "note",
            "speed",
            f"{found.reset_share:.0%} of the time goes into resets, {found.reset_ms:.3g} ms each, "
            f"against {found.step_us / 1e3:.3g} ms for a step",
            "with random actions episodes are short; the share falls as they get longer",
            "load files and build what never changes in __init__, not in reset()",
        )
    if found.steps_per_second < SLOW:
        hours = 1e6 / found.steps_per_second / 3600
        yield Finding(
            "note",
            "speed",
            f"{found.steps_per_second:,.3g} steps/s on one core",
            f"a million steps take {hours:.0f} hours on one core",
            "profile step(); draw pictures only if render_mode asks for them",
        )
    if found.queued_share > BUSY:
        yield Finding(
            "note",
            "speed",
            f"other programs had the CPU for {found.queued_share:.0%} of the measurement",
            "that time was left out, but what is said of speed is less certain",
            "measure again when the machine is idle",
        )
    if found.cpu_share > OWN_THREADS:
        yield Finding(
            "note",
            "speed",
            f"it keeps {found.cpu_share:.1f} CPUs busy: it has threads of its own",
            "workers beside each other would then wait for CPUs",
            "give it one thread, and leave the other CPUs to workers",
        )
