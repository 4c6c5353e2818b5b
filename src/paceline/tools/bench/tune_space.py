"""Which shapes of running come into question, and which of them are worth a measurement."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .tune_model import Constants, Shape, fps

SHORTEST = 16
"""Steps of a rollout that no layout goes below by itself, unless the preset does."""
NEAR = 0.97
"""Share of the best rate from which the simpler of two shapes is preferred."""
MOST_NUMBERS = 64
"""Of environments that are tried, with each number of processes."""
ALIKE = 3
"""Shapes with the same processes that are listed."""
HOPELESS = 0.75
"""Share of the best predicted rate below which a shape is not worth a measurement."""


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """What the search may change of a training, and what it may use."""

    max_rows: int
    """of one update"""
    min_steps: int
    """of one rollout"""
    mode: str = "any"
    """or `sequential`, one process; or `parallel`, more than one"""
    whole: bool = False
    """whether an update is one minibatch, as A2C has it"""
    threaded: bool = False
    """whether the learner gains from threads"""

    def permits(self, shape: Shape) -> bool:
        """Whether its mode is the one asked for."""
        if self.mode == "any":
            return True
        return (shape.processes == 1) == (self.mode == "sequential")


def horizon(gamma: float, trace: float) -> float:
    """Steps ahead that an advantage looks: the mean of the weights (γλ)^k."""
    return 1.0 / max(1e-9, 1.0 - gamma * trace)


def shortest(steps: int, gamma: float, trace: float) -> int:
    """The shortest rollout that changes advantages little: as long as they look ahead."""
    return min(steps, max(SHORTEST, math.ceil(horizon(gamma, trace) - 1e-6)))


def candidates(base: Shape, allowed: Allowance, cpus: int) -> list[Shape]:
    """Every shape with the rows of `base` in an update, or more, up to what is allowed."""
    found = {base} if allowed.permits(base) else set()
    for ranks in range(1, 1 + (1 if base.way == "apart" else cpus)):
        if base.batch % ranks:
            continue
        for workers in _workers(base, cpus // ranks):
            for steps in _lengths(base.steps, allowed.min_steps):
                found.update(_laid_out(base, allowed, cpus, ranks, workers, steps))
    return sorted((shape for shape in found if allowed.permits(shape)), key=repr)


def _workers(base: Shape, most: int) -> list[int]:
    """One worker in step with its learner gains nothing; one beside it, or a learner, does."""
    if base.way == "apart":
        return list(range(1, most + 1))
    return [0, *range(1 if base.way == "stream" else 2, most + 1)]


def _lengths(steps: int, least: int) -> Iterator[int]:
    """`steps`, and its halves."""
    yield steps
    while steps % 2 == 0 and steps // 2 >= least:
        steps //= 2
        yield steps


def _laid_out(
    base: Shape, allowed: Allowance, cpus: int, ranks: int, workers: int, steps: int
) -> Iterator[Shape]:
    """Shapes with so many processes and steps: those whose rows are allowed and divide equally."""
    share = 1 if base.way == "apart" else max(1, workers)
    most = allowed.max_rows // (ranks * steps)
    for envs in _numbers(base.rows, ranks * steps, share, most):
        rows = ranks * envs * steps
        if not allowed.whole and (rows % base.batch or envs * steps % (rows // base.batch)):
            continue
        for threads in _threads(allowed, cpus // ranks, workers if base.way == "stream" else 0):
            yield replace(
                base,
                envs=envs,
                steps=steps,
                minibatches=1 if allowed.whole else rows // base.batch,
                workers=workers,
                ranks=ranks,
                threads=threads,
                pinned=False,
            )


def _numbers(rows: int, each: int, share: int, most: int) -> Iterable[int]:
    """Environments that make `rows`, or their doubles; if so many can't be shared, those that can.

    `each` is the rows that one of them makes.
    """
    unit = math.lcm(share, rows // math.gcd(rows, each))
    if unit <= most:
        return [unit << k for k in range((most // unit).bit_length())]
    fewest = -(-rows // each)
    return range(-(-fewest // share) * share, most + 1, share)[:MOST_NUMBERS]


def _threads(allowed: Allowance, cpus: int, busy: int) -> Iterable[int]:
    return range(1, max(1, cpus - busy) + 1) if allowed.threaded else (1,)


def simplest(rates: dict[Shape, float], base: Shape, near: float = NEAR) -> Shape:
    """The fastest; or of those nearly as fast the one that changes least and needs least."""
    best = max(rates.values())
    close = [shape for shape, value in rates.items() if value >= near * best]
    return min(close, key=lambda shape: (*_complexity(shape, base), -rates[shape]))


def _complexity(shape: Shape, base: Shape) -> tuple[float, ...]:
    shortened = abs(math.log2(base.steps / shape.steps))
    return shape.rows, shape.processes * shape.threads, shape.pinned, shortened


def shortlist(
    base: Shape, shapes: list[Shape], known: Constants, cpus: int, number: int
) -> list[Shape]:
    """`base`, the best of each kind, then what the model expects most of; at most `number`.

    The best of a kind that is expected far behind is left out where there is not the time.
    """
    rates = {shape: fps(shape, known, cpus) for shape in shapes}
    ranked = sorted(shapes, key=lambda shape: -rates[shape])
    kinds: dict[str, Shape] = {}
    for shape in ranked:
        kinds.setdefault(shape.kind, shape)
    first = sorted(kinds.values(), key=lambda shape: -rates[shape])
    rest, alike = [], Counter[tuple[int, ...]]()
    for shape in ranked:
        processes = shape.ranks, shape.workers, shape.threads
        alike[processes] += 1
        if rates[shape] >= HOPELESS * rates[ranked[0]] and alike[processes] <= ALIKE:
            rest.append(shape)
    return list(dict.fromkeys([base, *first, *rest]))[:number]
