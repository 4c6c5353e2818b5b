"""Bursts: short real trainings, one after another within a budget of time."""

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

from ...config.schema import Config
from ...envs.source import EnvInfo
from ...rollout import Array, Rollout
from .metrics import Lines, measure, read_metrics
from .runs import Cell, RunFailed, run_cell
from .tune_model import Shape

WARMUP = 0.15
"""Share of a burst's time that is not counted."""
SHORT = 90
"""Parts of the budget that a short burst takes."""
LEAST, MOST = 0.4, 5.0
"""Seconds of a short burst."""
STARTING = 4.0
"""Seconds that a burst is taken to need around it, before one is known."""
LONGEST_ROLLOUT = 32
"""Steps after which actions are drawn anew, when environments are stepped alone."""


@dataclass(frozen=True, kw_only=True)
class Stepping:
    """Environments stepped alone, with random actions: seconds of one step and of one reset."""

    step: float
    reset: float

    def of(self, steps: float, episodes: float) -> float:
        """Seconds that these take in one process."""
        return steps * self.step + episodes * self.reset


@dataclass(frozen=True, kw_only=True)
class Burst:
    """What one short training measured; times are those of an iteration."""

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
    episodes: float = 0.0
    """of an iteration"""
    memory_mb: float = 0.0
    around: float = 0.0
    """seconds that it took beyond those of its budget: to start, to compile, to end"""
    compiled: bool = False

    def had_it(self, t_learn: float, t_sync: float) -> Burst:
        """The same burst, had its learning taken so long."""
        t_iter = self.t_iter - self.t_learn - self.t_sync + t_learn + t_sync
        rate = self.fps * self.t_iter / t_iter
        return replace(self, t_learn=t_learn, t_sync=t_sync, t_iter=t_iter, fps=rate)


def burst(options: Mapping[str, str], shape: Shape, scratch: Path) -> Burst:
    """Train with these options, to the end of their budget."""
    began = time.monotonic()
    folder = scratch / "run"
    run_cell(Cell(name=str(shape), options=options, folder=folder))
    took, compiled = time.monotonic() - began, options["compile"] == "on"
    return replace(found_in(read_metrics(folder), shape), around=took, compiled=compiled)


def found_in(lines: Lines, shape: Shape) -> Burst:
    """What the metrics of a training say, its first moments left out."""
    early = [line for line in lines[:-1] if line["time"] <= WARMUP * lines[-1]["time"]]
    begin = early[-1] if early else lines[0] if len(lines) > 1 else {"iter": 0}
    found = measure(lines, begin["iter"])
    # Learners that wait for nobody make several iterations at a time.
    each = found["t_iter"] * (shape.learners if shape.way == "apart" else 1)
    times = {name: found[f"share_{name}"] * each for name in ("rollout", "wait", "learn", "sync")}
    kept = [line for line in lines if line["iter"] > begin["iter"]]
    return Burst(
        shape=shape,
        fps=found["fps"],
        t_iter=each,
        t_rollout=times["rollout"] + times["wait"],
        t_learn=times["learn"],
        t_sync=times["sync"],
        t_other=max(0.0, each - sum(times.values())),
        steps=found["steps"] / found["iters"],
        episodes=sum(line["episodes"] for line in kept) / found["iters"],
        memory_mb=found["memory_mb"],
    )


def stepped_alone(env_info: EnvInfo, config: Config, num_envs: int, seconds: float) -> Stepping:
    """Step environments in this process for a while, with actions that are valid but random."""
    draw = np.random.default_rng(config.seed)
    plain, resetting = [0.0, 0], [0.0, 0.0, 0]
    with closing(env_info.columns(num_envs, config.seed)) as columns:
        out = Rollout.allocate(
            LONGEST_ROLLOUT, num_envs, env_info.obs_spec.stored, env_info.act_spec.stored
        )
        columns.reset(out.obs[-1])
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or not plain[1]:
            out.start_next()
            for t in range(out.steps):
                resets = int(np.sum(columns.ended))
                actions = columns.adapt(_random_actions(draw, env_info, out.obs[t]))
                began = time.perf_counter()
                columns.step(t, actions, out)
                took = time.perf_counter() - began
                if resets:
                    resetting = [resetting[0] + took, resetting[1] + resets, resetting[2] + 1]
                else:
                    plain = [plain[0] + took, plain[1] + 1]
    step = plain[0] / plain[1] / num_envs
    if not resetting[2]:
        return Stepping(step=step, reset=step)
    others = resetting[2] * num_envs - resetting[1]
    return Stepping(step=step, reset=max(0.0, resetting[0] - others * step) / resetting[1])


def _random_actions(draw: np.random.Generator, env_info: EnvInfo, obs: Array) -> Array:
    """[B, ...] as a policy gives them, and none that a mask forbids."""
    act, columns = env_info.act_spec, len(obs)
    if act.kind == "box":
        return draw.uniform(-1, 1, (columns, act.size)).astype(np.float32)
    scores = draw.random((columns, sum(act.choices)))
    if env_info.obs_spec.mask:
        scores *= env_info.obs_spec.split(obs)["mask"]
    ends = np.cumsum(act.choices)[:-1]
    chosen = np.stack([part.argmax(1) for part in np.split(scores, ends, 1)], 1)
    return chosen if act.kind == "multi" else chosen[:, 0]


class Runs:
    """Bursts so far, those that failed, and the time that is left for more.

    `options` are those of a burst in a shape, compiled or not, of so many seconds.
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
        self.seconds = min(MOST, max(LEAST, budget / SHORT))
        """of a short burst; a long one takes twice as many"""
        self.compiled = compiled
        """whether the training itself is"""
        self.bursts: dict[Shape, list[Burst]] = {}
        self.failed: dict[Shape, str] = {}

    @property
    def left(self) -> float:
        """Seconds."""
        return self._until - time.monotonic()

    def _compiles(self, shape: Shape, trial: bool) -> bool:
        """Compiling takes most of a burst, and changes the learning alone, which the model knows;
        but not where learning and sampling overlap."""
        return self.compiled and not (trial and shape.way == "turns")

    def cost(self, shape: Shape, seconds: float, trial: bool = False) -> float:
        """Seconds from the start to the end of such a burst, by those before it."""
        compiled = self._compiles(shape, trial)
        bursts = [burst for found in self.bursts.values() for burst in found]
        alike = [burst for burst in bursts if burst.compiled == compiled] or bursts
        same = [burst for burst in alike if burst.shape.kind == shape.kind] or alike
        return (statistics.median(burst.around for burst in same) if same else STARTING) + seconds

    def once(self, shape: Shape, seconds: float, trial: bool = False) -> Burst | None:
        """One more of this shape; None if it fails, which is noted."""
        if shape in self.failed:
            return None
        options = self._options(shape, self._compiles(shape, trial), seconds)
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            try:
                found = burst(options, shape, Path(folder))
            except RunFailed as error:
                self.failed[shape] = error.reason
                if not self.bursts:
                    raise  # the simplest of all fails: there is nothing to search
                print(f"{shape!s:<44} failed: {self.failed[shape]}", flush=True)
                return None
        found = replace(found, around=max(0.0, found.around - seconds))
        self.bursts.setdefault(shape, []).append(found)
        eager = ", eager" if self.compiled and not found.compiled else ""
        line = f"{f'{shape}{eager}':<44} {found.fps:>10,.0f} steps/s  {self._clock()}"
        print(line.rstrip(), flush=True)
        return found

    def _clock(self) -> str:
        if math.isinf(self.left):
            return ""
        left = round(self.left)
        return f"{left // 60}:{left % 60:02d} left" if left > 0 else "nearly done"
