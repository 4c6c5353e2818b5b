"""The search of `paceline tune`: what is measured, in what order, and for how long."""

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
from .tune_bursts import Burst, Runs, stepped_alone
from .tune_constants import fitted, phases_of
from .tune_model import Constants, Shape, fps, predicted
from .tune_plan import Plan
from .tune_space import candidates, shortlist, simplest
from .tune_text import Row

FINALISTS = 3
ROUNDS = 3
MOST_ROUNDS = 5
MOST_LISTED = 12
KINDS = 4
"""Of shapes, of which the best are tried if there is any time: as it is, serial, workers, ranks."""
BEHIND = 0.85
"""Share of the best rate below which a shape is out after one burst."""
CAN_PIN = hasattr(os, "sched_setaffinity")
GROWN = 4
"""Times as many environments, or as few: tells the cost of a call from that of its rows."""


class NothingMeasured(PacelineError):
    """Every shape failed."""

    exit_code = 3


class Search:
    """From the training as it is to the fastest way of running it."""

    def __init__(self, plan: Plan, scratch: Path) -> None:
        network = network_for(plan.base, plan.env_info.obs_spec.seen, plan.env_info.act_spec)
        choices = choose(plan.base, network, topology_of(plan.base))
        self._plan, self._here = plan, available_cpus()
        self.base = replace(plan.shape, threads=choices.threads)
        self.runs = Runs(plan.options, plan.budget, choices.compiled, scratch)
        self.rounds = 0
        """in which the finalists took turns"""
        self._finals: list[dict[Shape, float]] = []
        envs, while_ = min(plan.shape.envs, 16), min(1.0, self.runs.seconds)
        self._stepping = stepped_alone(plan.env_info, plan.base, envs, while_)

    # What the model needs to know.

    def constants(self, rounds: int = 1) -> Constants:
        """Constants of this machine, from one burst or more of each shape that tells some."""
        one = self._alone()
        wanted = [one, _other(one), *self._beside(one)]
        found: dict[Shape, list[Burst]] = {shape: [] for shape in wanted}
        for number in range(rounds):
            for place, shape in enumerate(wanted):
                optional = number > 0 or place > (1 if rounds > 1 else 0)
                trial = bool(shape.workers) and shape.ranks == 1
                if optional and self.runs.left < self.runs.cost(shape, self.runs.seconds, trial):
                    continue
                if measured := self.runs.once(shape, self.runs.seconds, trial):
                    found[shape].append(measured)
        best = {shape: _undisturbed(bursts) for shape, bursts in found.items() if bursts}
        rest = {shape: burst for shape, burst in best.items() if shape not in wanted[:2]}
        known = fitted(
            self._stepping,
            best[one],
            best.get(wanted[1], best[one]),
            self._plan.base.epochs,
            self._here,
            **{_told_by(shape): burst for shape, burst in rest.items()},
        )
        self.runs.bursts.pop(wanted[1], None)  # which is no candidate
        return known

    def _alone(self) -> Shape:
        """The training as it is, on one learner that samples itself."""
        base = self.base
        workers = 1 if base.way == "apart" else 0
        envs = base.ranks * base.envs
        return replace(base, envs=envs, workers=workers, ranks=1, threads=1, pinned=False)

    def _beside(self, one: Shape) -> list[Shape]:
        """The same with as many workers, ranks and threads as there are CPUs, if that divides."""
        cpus, found = self._here, []
        if cpus > 1 and one.way == "apart":
            found.append(replace(one, workers=cpus))
        elif cpus > 1:
            beside = range(cpus - 1, 0, -1) if one.way == "stream" else range(cpus, 1, -1)
            workers = next((n for n in beside if one.envs % n == 0), 0)
            ranks = max(n for n in range(1, cpus + 1) if one.envs % n == one.batch % n == 0)
            found += [replace(one, workers=workers)] if workers else []
            found += [replace(one, envs=one.envs // ranks, ranks=ranks)] if ranks > 1 else []
        if self._plan.allowed.threaded and cpus > 1:
            found.append(replace(one, threads=cpus))
        return found

    # What is tried.

    def narrow(self, known: Constants) -> None:
        """From all shapes to a few, by short bursts; then the few in turn, several times."""
        shapes = candidates(self.base, self._plan.allowed, self._here)
        listed = shortlist(self.base, shapes, known, self._here, self._affordable())
        for place, shape in enumerate(listed):
            rounds = 1 if place < KINDS else ROUNDS  # the best of each kind before many rounds
            if shape not in self.runs.bursts and self._in_time(listed, rounds):
                self.runs.once(shape, self.runs.seconds, trial=True)
        tried = list(dict.fromkeys([*listed, *(s for s in self.runs.bursts if s in shapes)]))
        half = self._best(tried, known, max(FINALISTS + 1, -(-len(tried) // 2)))
        for shape in reversed(half):  # a burst that was disturbed has another chance
            if shape != self.base and self._in_time(half):
                self.runs.once(shape, self.runs.seconds, trial=True)
        self._take_turns(self._finalists(half, known))

    def _affordable(self) -> int:
        """Shapes that there is time to try, before the finals."""
        each = self.runs.cost(self.base, self.runs.seconds, trial=True)
        finals = self._turns([self.base] * FINALISTS)
        number = int((self.runs.left - finals) / (1.5 * each)) + 1
        fewest = KINDS if self.runs.left > finals / 2 else 2
        return max(fewest, min(MOST_LISTED, number))

    def _turns(self, finalists: list[Shape], rounds: int = ROUNDS) -> float:
        """Seconds of rounds in which each of these has its turn."""
        return rounds * sum(self.runs.cost(shape, 2 * self.runs.seconds) for shape in finalists)

    def _in_time(self, shapes: list[Shape], rounds: int = ROUNDS) -> bool:
        """Whether there is time for more, beside the rounds of the first of these."""
        return self.runs.left > self._turns(shapes[:FINALISTS], rounds)

    def _rate(self, shape: Shape, known: Constants) -> float:
        """The best that was measured, since what disturbs a burst only slows it; or else what the
        model expects."""
        if shape in self.runs.bursts:
            return max(self._as_trained(burst, known).fps for burst in self.runs.bursts[shape])
        ratio = fps(shape, known, self._here) / fps(self._alone(), known, self._here)
        return ratio * self._rate(self._alone(), known)

    def _as_trained(self, burst: Burst, known: Constants) -> Burst:
        """Had it been compiled like the training itself."""
        if burst.compiled == self.runs.compiled:
            return burst
        expected = predicted(burst.shape, known, self._here)
        return burst.had_it(expected.update, expected.sync)

    def _best(self, shapes: list[Shape], known: Constants, number: int) -> list[Shape]:
        alive = (shape for shape in shapes if shape not in self.runs.failed)
        return sorted(alive, key=lambda shape: -self._rate(shape, known))[:number]

    def _finalists(self, shapes: list[Shape], known: Constants) -> list[Shape]:
        """As it is, and the best of these, of each kind first, but for those far behind, as far as
        time allows; and the best of several processes also bound to CPUs."""
        others = [s for s in shapes if s != self.base and self._plan.allowed.permits(s)]
        ranked = self._best(others, known, len(others))
        kinds = {shape.kind: shape for shape in reversed(ranked)}
        varied = [shape for shape in ranked if kinds[shape.kind] == shape]
        least = BEHIND * max(self._rate(shape, known) for shape in [self.base, *ranked[:1]])
        order = dict.fromkeys([*varied, *ranked])
        found = [shape for shape in order if self._rate(shape, known) >= least][:FINALISTS]
        found = found or ranked[:1]  # which a single disturbed burst may have put behind
        if found and found[0].processes > 1 and not found[0].pinned and CAN_PIN:
            found.append(replace(found[0], pinned=True))
        while len(found) > 1 and self.runs.left < self._turns([self.base, *found]):
            found.pop()
        return list(dict.fromkeys([self.base, *found]))

    def _take_turns(self, finalists: list[Shape]) -> None:
        """Rounds in which every finalist has one burst; every second one backwards."""
        while self.rounds < MOST_ROUNDS:
            cost = sum(self.runs.cost(shape, 2 * self.runs.seconds) for shape in finalists)
            if self.rounds and self.runs.left < cost * (2 if self.rounds >= ROUNDS else 1):
                break
            order = finalists[::-1] if self.rounds % 2 else finalists
            made = {shape: self.runs.once(shape, 2 * self.runs.seconds) for shape in order}
            finalists = [shape for shape in finalists if made[shape] is not None]
            if not finalists:
                break
            self._finals.append({shape: found.fps for shape, found in made.items() if found})
            self.rounds += 1

    # What came out.

    def _relative(self) -> dict[Shape, list[float]]:
        """Rates of the finalists over the mean of their round, so that a drift cancels."""
        everywhere = set[Shape].intersection(*map(set, self._finals)) if self._finals else set()
        shapes = everywhere - self.runs.failed.keys()
        if not shapes:
            return {}
        means = [statistics.geometric_mean([final[s] for s in shapes]) for final in self._finals]
        return {
            shape: [final[shape] / mean for final, mean in zip(self._finals, means, strict=True)]
            for shape in shapes
        }

    def choice(self) -> Shape:
        """The fastest, or of those that can't be told from it the simplest."""
        found = {s: v for s, v in self._relative().items() if self._plan.allowed.permits(s)}
        if not found:
            causes = [f"{shape}: {cause}" for shape, cause in self.runs.failed.items()]
            raise NothingMeasured("\n".join(["no shape could be measured to the end", *causes]))
        rates = {shape: statistics.median(values) for shape, values in found.items()}
        best = max(rates, key=lambda shape: rates[shape])
        same = {s for s in rates if max(found[s]) >= min(found[best]) or self.rounds < 2}
        return simplest({shape: rates[shape] for shape in same}, self.base)

    def rows(self, known: Constants) -> list[Row]:
        """One for each shape, measured or failed."""
        relative = self._relative()
        rows = []
        for shape, bursts in self.runs.bursts.items():
            ratio = self._rate(shape, known) / self._rate(self.base, known)
            if shape in relative and self.base in relative:
                pairs = zip(relative[shape], relative[self.base], strict=True)
                ratio = statistics.median(one / base for one, base in pairs)
            real = [burst for burst in bursts if burst.compiled == self.runs.compiled]
            shown = real or [self._as_trained(burst, known) for burst in bursts]
            phases = phases_of(_middle(shown), known, self._stepping, self._here)
            rows.append(Row(shape, shown, ratio, phases, eager=not real))
        return rows + [Row(shape, [], failed=cause) for shape, cause in self.runs.failed.items()]


def _other(one: Shape) -> Shape:
    """As many minibatches, of a quarter of the environments, or of four times as many."""
    envs = one.envs // GROWN
    if one.envs % GROWN or not envs or envs * one.steps % one.minibatches:
        envs = one.envs * GROWN
    return replace(one, envs=envs)


def _told_by(shape: Shape) -> str:
    """Which constants a burst in this shape tells."""
    if shape.threads > 1:
        return "threads"
    return "ranks" if shape.learners > 1 else "workers"


def _middle(bursts: list[Burst]) -> Burst:
    """The burst with the middle rate."""
    return sorted(bursts, key=lambda burst: burst.fps)[len(bursts) // 2]


def _undisturbed(bursts: list[Burst]) -> Burst:
    """The fastest, with the least time of each phase, since what disturbs a burst only slows it."""
    times = ("t_iter", "t_rollout", "t_learn", "t_sync", "t_other")
    least = {name: min(getattr(burst, name) for burst in bursts) for name in times}
    return replace(max(bursts, key=lambda burst: burst.fps), **least)
