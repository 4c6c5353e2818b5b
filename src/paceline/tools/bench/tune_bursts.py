"""Bursts: short real trainings, one after another within a time budget."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...cli.console import clock
from ...envs.source import EnvInfo
from ...rollout import Rollout
from ..check.player import random_actions
from .metrics import Lines, measure, read_metrics
from .runs import Cell, RunFailed, run_cell
from .tune_model import Shape

WARMUP = 0.15
"""Share of a burst's time that is not counted."""
BURSTS = 90
"""Short bursts that the budget would have time for, if starting them took none."""
SHORTEST, LONGEST = 0.4, 5.0
"""Seconds of a short burst."""
STARTUP = 4.0
"""Seconds that a burst is expected to take beyond its own, until one has been timed."""


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
    steps: float
    """of an iteration, over all ranks"""
    memory_mb: float = 0.0
    overhead: float = 0.0
    """seconds beyond its budget: to start, to compile, to end"""
    compiled: bool = False

    def with_update(self, t_learn: float, t_sync: float) -> Burst:
        """The same burst, had its update taken this long."""
        t_iter = self.t_iter - self.t_learn - self.t_sync + t_learn + t_sync
        rate = self.fps * self.t_iter / t_iter
        return replace(self, t_learn=t_learn, t_sync=t_sync, t_iter=t_iter, fps=rate)


def run_burst(options: Mapping[str, str], shape: Shape, folder: Path) -> Burst:
    """Train with these options to the end of their duration."""
    began = time.monotonic()
    run_cell(Cell(name=str(shape), options=options, folder=folder))
    overhead = time.monotonic() - began - float(options["duration"].removesuffix("s"))
    found = burst_from(read_metrics(folder), shape)
    return replace(found, overhead=max(0.0, overhead), compiled=options["compile"] == "on")


def burst_from(lines: Lines, shape: Shape) -> Burst:
    """The metrics of a training, without its first moments."""
    early = [line for line in lines[:-1] if line["time"] <= WARMUP * lines[-1]["time"]]
    warmup = early[-1]["iter"] if early else lines[0]["iter"] if len(lines) > 1 else 0
    found = measure(lines, warmup)
    # Iterations of a3c's learners overlap.
    t_iter = found["t_iter"] * (shape.learners if shape.schedule == "hogwild" else 1)
    times = {name: found[f"share_{name}"] * t_iter for name in ("rollout", "wait", "learn", "sync")}
    return Burst(
        shape=shape,
        fps=found["fps"],
        t_iter=t_iter,
        t_rollout=times["rollout"] + times["wait"],
        t_learn=times["learn"],
        t_sync=times["sync"],
        t_other=max(0.0, t_iter - sum(times.values())),
        steps=found["steps"] / found["iters"],
        memory_mb=found["memory_mb"],
    )


def time_env_row(env_info: EnvInfo, seed: int, num_envs: int, seconds: float) -> float:
    """Seconds of one row of one environment, stepped in this process with random actions."""
    draw, obs_spec = np.random.default_rng(seed), env_info.obs_spec
    rows, spent = 0, 0.0
    with closing(env_info.columns(num_envs, seed)) as columns:
        out = Rollout.allocate(1, num_envs, obs_spec.stored, env_info.act_spec.stored)
        columns.reset(out.obs[-1])
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or not rows:
            out.start_next()
            mask = obs_spec.split(out.obs[0])["mask"] if obs_spec.mask else None
            actions = columns.adapt(random_actions(draw, env_info.act_spec, mask, num_envs))
            began = time.perf_counter()
            columns.step(0, actions, out)
            spent += time.perf_counter() - began
            rows += num_envs
    return spent / rows


class BurstRunner:
    """The bursts so far, the shapes that failed, and the time that is left.

    `options(shape, compiled, seconds)` are the flags of a burst.
    """

    def __init__(
        self,
        options: Callable[[Shape, bool, float], Mapping[str, str]],
        budget: float,
        compiled: bool,
        scratch: Path,
    ) -> None:
        self._options, self._scratch = options, scratch
        self._until = time.monotonic() + budget
        self.seconds = min(LONGEST, max(SHORTEST, budget / BURSTS))
        """of a short burst; a long one takes twice as many"""
        self.compiled = compiled
        """whether the training itself compiles"""
        self.bursts: dict[Shape, list[Burst]] = {}
        self.failed: dict[Shape, str] = {}

    @property
    def left(self) -> float:
        """Seconds."""
        return self._until - time.monotonic()

    def _compiles(self, shape: Shape, trial: bool) -> bool:
        """A trial takes eager steps, since compiling would take most of it and changes only the
        update, which the model knows; where learning and sampling overlap it changes more."""
        return self.compiled and not (trial and shape.schedule == "alternate")

    def cost(self, shape: Shape, seconds: float, trial: bool = False) -> float:
        """Seconds from the start to the end of such a burst, judged by those before it."""
        compiled = self._compiles(shape, trial)
        bursts = [burst for found in self.bursts.values() for burst in found]
        alike = [burst for burst in bursts if burst.compiled == compiled] or bursts
        same = [burst for burst in alike if burst.shape.kind == shape.kind] or alike
        overhead = statistics.median(burst.overhead for burst in same) if same else STARTUP
        return overhead + seconds

    def measure(self, shape: Shape, seconds: float, trial: bool = False) -> Burst | None:
        """One more burst of this shape; None if it fails, which is noted in `failed`."""
        if shape in self.failed:
            return None
        options = self._options(shape, self._compiles(shape, trial), seconds)
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            try:
                found = run_burst(options, shape, Path(folder) / "run")
            except RunFailed as error:
                if not self.bursts:
                    raise  # the simplest shape of all: there is nothing to search
                self.failed[shape] = error.reason
                print(f"{shape!s:<44} failed: {error.reason}", flush=True)
                return None
        self.bursts.setdefault(shape, []).append(found)
        eager = ", eager" if self.compiled and not found.compiled else ""
        left = f"{clock(max(0.0, self.left))} left" if math.isfinite(self.left) else ""
        line = f"{f'{shape}{eager}':<44} {found.fps:>10,.0f} steps/s  {left}"
        print(line.rstrip(), flush=True)
        return found
