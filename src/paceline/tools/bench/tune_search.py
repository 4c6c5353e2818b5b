"""The search of `paceline tune`: which shapes are measured, in what order, and for how long."""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from pathlib import Path

from ...errors import PacelineError
from ...processes.hardware import available_cpus
from ...run.build import network_for
from ...run.choices import choose
from ...run.topology import topology_of
from .tune_bursts import Burst, BurstRunner, time_env_row
from .tune_fit import fit, split_phases
from .tune_model import Constants, Shape, fps, predict
from .tune_plan import TunePlan
from .tune_space import candidates, shortlist, simplest
from .tune_text import ShapeRow

FINALISTS = 3
ROUNDS, MAX_ROUNDS = 3, 5
MAX_LISTED = 12
KINDS = 4
"""Shapes that are tried if there is any time: the present one, serial, workers, ranks."""
BEHIND = 0.85
"""Share of the best rate below which a shape is out after one burst."""
CAN_PIN = hasattr(os, "sched_setaffinity")
GROWN = 4
"""Factor of environments between two bursts that tell the cost of a call from that of its rows."""


class NothingMeasured(PacelineError):
    """Every shape failed."""

    exit_code = 3


class Search:
    """From the training as it is configured to the fastest shape for it."""

    def __init__(self, plan: TunePlan, scratch: Path) -> None:
        network = network_for(plan.base, plan.env_info.obs_spec.seen, plan.env_info.act_spec)
        choices = choose(plan.base, network, topology_of(plan.base))
        self._plan, self._cpus = plan, available_cpus()
        self.base = replace(plan.shape, threads=choices.threads)
        self.runner = BurstRunner(plan.options, plan.budget, choices.compiled, scratch)
        self._finals: list[dict[Shape, float]] = []
        """rates of the finalists, round by round"""
        envs, seconds = min(plan.shape.envs, 16), min(1.0, self.runner.seconds)
        self._env_row = time_env_row(plan.env_info, plan.base.seed, envs, seconds)

    @property
    def rounds(self) -> int:
        return len(self._finals)

    # The constants of the model.

    def constants(self, rounds: int = 1) -> Constants:
        """From up to `rounds` bursts of each shape that shows one of them, as time allows."""
        one = self._alone()
        other = _other(one)
        found: dict[Shape, list[Burst]] = {}
        for number in range(rounds):
            for shape in (one, other, *self._parallel(one)):
                required = number == 0 and (shape == one or (shape == other and rounds > 1))
                trial = shape.workers > 0 and shape.ranks == 1
                cost = self.runner.cost(shape, self.runner.seconds, trial)
                if not required and self.runner.left < cost:
                    continue
                if measured := self.runner.measure(shape, self.runner.seconds, trial):
                    found.setdefault(shape, []).append(measured)
        best = {shape: _undisturbed(bursts) for shape, bursts in found.items()}
        base, second = best.pop(one), best.pop(other, None)
        roles = {_role(shape): burst for shape, burst in best.items()}
        epochs = self._plan.base.epochs
        self.runner.bursts.pop(other, None)  # which is no candidate
        return fit(self._env_row, base, second or base, epochs, self._cpus, **roles)

    def _alone(self) -> Shape:
        """The present training with one learner that samples itself."""
        base = self.base
        workers = 1 if base.schedule == "hogwild" else 0
        envs = base.ranks * base.envs
        return replace(base, envs=envs, workers=workers, ranks=1, threads=1, pinned=False)

    def _parallel(self, one: Shape) -> list[Shape]:
        """The same with as many workers, ranks and threads as CPUs, where they divide the rows."""
        cpus, found = self._cpus, []
        if cpus == 1:
            return []
        if one.schedule == "hogwild":
            found.append(replace(one, workers=cpus))
        else:
            most, least = (cpus - 1, 1) if one.schedule == "stream" else (cpus, 2)
            workers = [n for n in range(least, most + 1) if one.envs % n == 0]
            ranks = max(n for n in range(1, cpus + 1) if one.envs % n == one.batch % n == 0)
            found += [replace(one, workers=workers[-1])] if workers else []
            found += [replace(one, envs=one.envs // ranks, ranks=ranks)] if ranks > 1 else []
        if self._plan.limits.threaded:
            found.append(replace(one, threads=cpus))
        return found

    # The search.

    def narrow(self, known: Constants) -> None:
        """Short bursts of the most promising shapes, then rounds of longer ones of the best."""
        shapes = candidates(self.base, self._plan.limits, self._cpus)
        listed = shortlist(self.base, shapes, known, self._cpus, self._affordable())
        for place, shape in enumerate(listed):
            rounds = 1 if place < KINDS else ROUNDS  # the best of each kind before many rounds
            if shape not in self.runner.bursts and self._in_time(listed, rounds):
                self.runner.measure(shape, self.runner.seconds, trial=True)
        tried = list(dict.fromkeys([*listed, *(s for s in self.runner.bursts if s in shapes)]))
        half = self._ranked(tried, known)[: max(FINALISTS + 1, -(-len(tried) // 2))]
        for shape in reversed(half):  # a burst that was disturbed gets another chance
            if shape != self.base and self._in_time(half):
                self.runner.measure(shape, self.runner.seconds, trial=True)
        self._take_turns(self._finalists(half, known))

    def _affordable(self) -> int:
        """How many shapes there is time to try before the rounds."""
        each = self.runner.cost(self.base, self.runner.seconds, trial=True)
        finals = self._round_cost([self.base] * FINALISTS) * ROUNDS
        number = int((self.runner.left - finals) / (1.5 * each)) + 1
        fewest = KINDS if self.runner.left > finals / 2 else 2
        return max(fewest, min(MAX_LISTED, number))

    def _round_cost(self, shapes: list[Shape]) -> float:
        """Seconds of a round in which each of these has a long burst."""
        return sum(self.runner.cost(shape, 2 * self.runner.seconds) for shape in shapes)

    def _in_time(self, shapes: list[Shape], rounds: int = ROUNDS) -> bool:
        """Whether there is time for more than the rounds of the first of these."""
        return self.runner.left > rounds * self._round_cost(shapes[:FINALISTS])

    def _rate(self, shape: Shape, known: Constants) -> float:
        """The best that was measured, since disturbance only slows; else the model's."""
        if shape in self.runner.bursts:
            return max(self._as_trained(burst, known).fps for burst in self.runner.bursts[shape])
        ratio = fps(shape, known, self._cpus) / fps(self._alone(), known, self._cpus)
        return ratio * self._rate(self._alone(), known)

    def _as_trained(self, burst: Burst, known: Constants) -> Burst:
        """With the update as the training itself would compile it."""
        if burst.compiled == self.runner.compiled:
            return burst
        expected = predict(burst.shape, known, self._cpus)
        return burst.with_update(expected.update, expected.sync)

    def _ranked(self, shapes: list[Shape], known: Constants) -> list[Shape]:
        """Fastest first, without those that failed."""
        alive = (shape for shape in shapes if shape not in self.runner.failed)
        return sorted(alive, key=lambda shape: -self._rate(shape, known))

    def _finalists(self, shapes: list[Shape], known: Constants) -> list[Shape]:
        """The present shape and the best others that are not far behind, each kind first; the
        best of several processes also pinned to CPUs; as many as there is time for."""
        permitted = [s for s in shapes if s != self.base and self._plan.limits.permits(s)]
        ranked = self._ranked(permitted, known)
        kinds = {shape.kind: shape for shape in reversed(ranked)}
        order = dict.fromkeys([*(s for s in ranked if kinds[s.kind] == s), *ranked])
        least = BEHIND * max(self._rate(shape, known) for shape in [self.base, *ranked[:1]])
        found = [shape for shape in order if self._rate(shape, known) >= least][:FINALISTS]
        found = found or ranked[:1]
        if found and found[0].processes > 1 and not found[0].pinned and CAN_PIN:
            found.append(replace(found[0], pinned=True))
        while len(found) > 1 and not self.runner.left >= ROUNDS * self._round_cost(
            [self.base, *found]
        ):
            found.pop()
        return list(dict.fromkeys([self.base, *found]))

    def _take_turns(self, finalists: list[Shape]) -> None:
        """Rounds in which every finalist has a burst; every second one backwards."""
        while finalists and self.rounds < MAX_ROUNDS:
            cost = self._round_cost(finalists)
            if self.rounds and self.runner.left < cost * (2 if self.rounds >= ROUNDS else 1):
                break
            order = finalists[::-1] if self.rounds % 2 else finalists
            made = {shape: self.runner.measure(shape, 2 * self.runner.seconds) for shape in order}
            finalists = [shape for shape in finalists if made[shape] is not None]
            if finalists:
                self._finals.append({shape: found.fps for shape, found in made.items() if found})

    # The result.

    def _relative(self) -> dict[Shape, list[float]]:
        """Rates of the finalists over the mean of their round, so that a drift cancels."""
        everywhere = set[Shape].intersection(*map(set, self._finals)) if self._finals else set()
        shapes = everywhere - self.runner.failed.keys()
        if not shapes:
            return {}
        means = [statistics.geometric_mean([final[s] for s in shapes]) for final in self._finals]
        return {
            shape: [final[shape] / mean for final, mean in zip(self._finals, means, strict=True)]
            for shape in shapes
        }

    def choice(self) -> Shape:
        """The fastest, or the simplest of those that can't be told from it."""
        found = {s: v for s, v in self._relative().items() if self._plan.limits.permits(s)}
        if not found:
            causes = [f"{shape}: {cause}" for shape, cause in self.runner.failed.items()]
            raise NothingMeasured("\n".join(["no shape could be measured to the end", *causes]))
        rates = {shape: statistics.median(values) for shape, values in found.items()}
        best = max(rates, key=lambda shape: rates[shape])
        same = {s for s in rates if max(found[s]) >= min(found[best]) or self.rounds < 2}
        return simplest({shape: rates[shape] for shape in same}, self.base)

    def rows(self, known: Constants) -> list[ShapeRow]:
        """One for each shape, measured or failed."""
        relative, rows = self._relative(), []
        for shape, bursts in self.runner.bursts.items():
            ratio = self._rate(shape, known) / self._rate(self.base, known)
            if shape in relative and self.base in relative:
                pairs = zip(relative[shape], relative[self.base], strict=True)
                ratio = statistics.median(one / base for one, base in pairs)
            real = [burst for burst in bursts if burst.compiled == self.runner.compiled]
            shown = real or [self._as_trained(burst, known) for burst in bursts]
            middle = sorted(shown, key=lambda burst: burst.fps)[len(shown) // 2]
            phases = split_phases(middle, known, self._cpus)
            rows.append(ShapeRow(shape, shown, ratio, phases, eager=not real))
        failed = self.runner.failed.items()
        return rows + [ShapeRow(shape, [], failed=cause) for shape, cause in failed]


def _other(one: Shape) -> Shape:
    """As many minibatches, of a quarter of the environments, or of four times as many."""
    envs = one.envs // GROWN
    if one.envs % GROWN or not envs or envs * one.steps % one.minibatches:
        envs = one.envs * GROWN
    return replace(one, envs=envs)


def _role(shape: Shape) -> str:
    """Which argument of `fit` a burst in this shape is."""
    if shape.threads > 1:
        return "threads"
    return "ranks" if shape.learners > 1 else "workers"


def _undisturbed(bursts: list[Burst]) -> Burst:
    """The fastest, with the least time of each phase, since disturbance only slows."""
    times = ("t_iter", "t_rollout", "t_learn", "t_sync", "t_other")
    least = {name: min(getattr(burst, name) for burst in bursts) for name in times}
    return replace(max(bursts, key=lambda burst: burst.fps), **least)
