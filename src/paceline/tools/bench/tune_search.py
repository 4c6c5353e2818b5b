"""The search of `paceline tune`: bursts of the likeliest shapes, round by round, within a time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...cli.console import clock
from ...errors import PacelineError
from ...processes.hardware import available_cpus
from ...run.build import network_for
from ...run.calibration import time_env_row
from ...run.choices import choose
from ...run.cost_model import Burst, Constants, Shape, fit
from ...run.topology import topology_of
from .metrics import Lines, measure, read_metrics
from .runs import Cell, RunFailed, scratch_runs
from .tune_plan import TunePlan
from .tune_space import candidates, shortlist, simplest

WARMUP = 0.15
"""Share of a burst's time that is not counted."""
BURSTS = 60
"""Bursts that the budget would have time for, if starting them took none."""
SHORTEST, LONGEST = 0.5, 6.0
"""Seconds of a burst."""
STARTUP = 4.0
"""Seconds that a burst is expected to take beyond its own, until one has been timed."""
FINALISTS = 3
"""Shapes that stay to the last round, beside the present one."""
MAX_ROUNDS = 6
MIN_LISTED, MAX_LISTED = 5, 12
"""Shapes of the first round: the present one, the best of each kind, one pinned, and more."""
GROWN = 4
"""Factor of environments between two bursts that tell the cost of a call from that of its rows."""


class NothingMeasured(PacelineError):
    """Every shape failed."""

    exit_code = 3


def run_burst(options: Mapping[str, str], shape: Shape, parent: Path) -> Burst:
    """Train with these options to the end of their duration."""
    began = time.monotonic()
    with scratch_runs(Cell(name=str(shape), options=options, folder=parent / "run")) as (folder,):
        overhead = time.monotonic() - began - float(options["duration"].removesuffix("s"))
        return replace(burst_from(read_metrics(folder), shape), overhead=max(0.0, overhead))


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
        valid=min(1.0, found["steps"] / found["iters"] / shape.rows),
        memory_mb=found["memory_mb"],
    )


class Search:
    """From the training as it is configured to the fastest shape for it."""

    def __init__(self, plan: TunePlan, scratch: Path) -> None:
        network = network_for(plan.base, plan.env_info.obs_spec.seen, plan.env_info.act_spec)
        choices = choose(plan.base, network, topology_of(plan.base))
        self._plan, self._scratch, self.cpus = plan, scratch, available_cpus()
        self.compiled = choices.compiled
        self.base = replace(plan.shape, threads=choices.threads)
        self._until = time.monotonic() + plan.budget
        self._seconds = min(LONGEST, max(SHORTEST, plan.budget / BURSTS))
        """of a burst"""
        self.bursts: dict[Shape, list[Burst]] = {}
        self.failed: dict[Shape, str] = {}
        """causes"""
        self.rounds: list[dict[Shape, float]] = []
        """rates of the shapes that took part, round by round"""

    @property
    def left(self) -> float:
        """Seconds."""
        return self._until - time.monotonic()

    def cost(self, shapes: list[Shape]) -> float:
        """Seconds of a burst of each, expecting the overhead of those of the same kind so far."""
        overheads: dict[tuple[bool, bool], list[float]] = {}
        for shape, bursts in self.bursts.items():
            overheads.setdefault(shape.kind, []).extend(burst.overhead for burst in bursts)
        everything = [value for values in overheads.values() for value in values] or [STARTUP]
        return sum(
            self._seconds + statistics.median(overheads.get(shape.kind, everything))
            for shape in shapes
        )

    def measure(self, shape: Shape, seconds: float | None = None) -> Burst | None:
        """One more burst of this shape; None if it fails, which is noted in `failed`."""
        if shape in self.failed:
            return None
        try:
            options = self._plan.options(shape, self.compiled, seconds or self._seconds)
            found = run_burst(options, shape, self._scratch)
        except RunFailed as error:
            if not self.bursts:
                raise  # the simplest shape of all: there is nothing to search
            self.failed[shape] = error.reason
            print(f"{shape!s:<44} failed: {error.reason}", flush=True)
            return None
        self.bursts.setdefault(shape, []).append(found)
        left = f"{clock(max(0.0, self.left))} left" if math.isfinite(self.left) else ""
        print(f"{shape!s:<44} {found.fps:>10,.0f} steps/s  {left}".rstrip(), flush=True)
        return found

    def constants(self, rounds: int = 1) -> Constants:
        """Of the model, from up to `rounds` bursts of each shape that shows one of them."""
        one = replace(self.base, workers=0, learners=1, threads=1, pinned=False)
        if one.schedule != "hogwild":
            one = replace(one, envs=self.base.learners * self.base.envs)
        roles = {
            "base": one,
            "other": _other(one, self._plan.limits.segment),
            **self._parallel(one),
        }
        seconds = min(1.0, self._seconds)
        env = time_env_row(self._plan.env_info, self._plan.base.seed, min(one.envs, 16), seconds)
        found: dict[str, list[Burst]] = {}
        for number in range(rounds):
            for role, shape in roles.items():
                required = number == 0 and (role == "base" or (role == "other" and rounds > 1))
                if not required and self.left < self.cost([shape]):
                    continue
                if burst := self.measure(shape):
                    found.setdefault(role, []).append(burst)
        self.bursts.pop(roles["other"], None)  # which is no candidate
        best = {role: _undisturbed(bursts) for role, bursts in found.items()}
        best.setdefault("other", best["base"])
        return fit(env, epochs=self._plan.base.epochs, cpus=self.cpus, **best)

    def _parallel(self, one: Shape) -> dict[str, Shape]:
        """With as many workers, learners and threads as CPUs, where they divide the rows."""
        cpus, found = self.cpus, dict[str, Shape]()
        if cpus == 1:
            return {}
        if one.schedule == "hogwild":
            found["learners"] = replace(one, learners=cpus)
        else:
            most, least = (cpus - 1, 1) if one.schedule == "stream" else (cpus, 2)
            workers = [n for n in range(least, most + 1) if one.envs % n == 0]
            ranks = max(n for n in range(1, cpus + 1) if one.envs % n == one.batch % n == 0)
            if workers:
                found["workers"] = replace(one, workers=workers[-1])
            if ranks > 1:
                found["learners"] = replace(one, envs=one.envs // ranks, learners=ranks)
        if self._plan.limits.threaded:
            found["threads"] = replace(one, threads=cpus)
        return found

    def run(self, known: Constants) -> None:
        """Rounds of bursts of the likeliest shapes, each with the better half of the last one's."""
        shapes = candidates(self.base, self._plan.limits, self.cpus)
        affordable = int(self.left / (2 * self.cost([self.base])))
        number = max(MIN_LISTED, min(MAX_LISTED, affordable))
        listed = shortlist(self.base, shapes, known, self.cpus, number)
        while listed and len(self.rounds) < MAX_ROUNDS:
            if self.rounds and self.left < self.cost(listed):
                break
            self._round(listed)
            ranked = [shape for shape in self._ranked() if shape != self.base]
            kept = ranked[: max(FINALISTS, len(ranked) // 2)]
            listed = [shape for shape in listed if shape == self.base or shape in kept]
            listed = [shape for shape in listed if shape not in self.failed]

    def _round(self, shapes: list[Shape]) -> None:
        """A burst of each, every second time backwards; of the first round, as many as fit."""
        rates: dict[Shape, float] = {}
        for shape in shapes[::-1] if len(self.rounds) % 2 else shapes:
            enough = not self.rounds and len(rates) > 1
            if enough and self.left < self.cost([shape]):
                continue
            if burst := self.measure(shape):
                rates[shape] = burst.fps
        if rates:
            self.rounds.append(rates)

    def relative(self) -> dict[Shape, list[float]]:
        """Rates over the mean of their round, so that a drift cancels; of what is in all rounds."""
        shapes = set[Shape].intersection(*map(set, self.rounds)) if self.rounds else set()
        shapes -= self.failed.keys()
        if not shapes:
            return {}
        means = [statistics.geometric_mean([rates[s] for s in shapes]) for rates in self.rounds]
        return {
            shape: [rates[shape] / mean for rates, mean in zip(self.rounds, means, strict=True)]
            for shape in shapes
        }

    def _ranked(self) -> list[Shape]:
        """Those that are permitted, fastest first."""
        rates = {s: statistics.median(v) for s, v in self.relative().items()}
        permitted = filter(self._plan.limits.permits, rates)
        return sorted(permitted, key=lambda shape: -rates[shape])

    def choice(self) -> Shape:
        """The fastest, or the simplest of those that can't be told from it."""
        ranked, found = self._ranked(), self.relative()
        if not ranked:
            causes = [f"{shape}: {cause}" for shape, cause in self.failed.items()]
            raise NothingMeasured("\n".join(["no shape could be measured to the end", *causes]))
        least = min(found[ranked[0]]) if len(self.rounds) > 1 else 0.0
        same = [shape for shape in ranked if max(found[shape]) >= least]
        return simplest({shape: statistics.median(found[shape]) for shape in same}, self.base)

    def ratio(self, shape: Shape) -> float:
        """To the present training: within the rounds that both are in, else of their best."""
        both = [rates for rates in self.rounds if shape in rates and self.base in rates]
        if both:
            return statistics.median(rates[shape] / rates[self.base] for rates in both)
        best = [
            max((burst.fps for burst in self.bursts.get(s, [])), default=math.nan)
            for s in (shape, self.base)
        ]
        return best[0] / best[1]


def _other(one: Shape, segment: int) -> Shape:
    """As many minibatches, of a quarter of the environments, or of four times as many."""
    envs = one.envs // GROWN
    if one.envs % GROWN or not envs or envs * (one.steps // segment) % one.minibatches:
        envs = one.envs * GROWN
    return replace(one, envs=envs)


def _undisturbed(bursts: list[Burst]) -> Burst:
    """The fastest, with the least time of each phase, since disturbance only slows."""
    times = ("t_iter", "t_rollout", "t_learn", "t_sync", "t_other")
    least = {name: min(getattr(burst, name) for burst in bursts) for name in times}
    return replace(max(bursts, key=lambda burst: burst.fps), **least)
