"""Which shapes come into question, and which of them are worth a measurement. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .tune_model import Constants, Shape, fps

SHORTEST = 16
"""Steps that no rollout goes below, unless the preset's are shorter."""
NEAR = 0.97
"""Share of the best rate from which the simpler of two shapes is preferred."""
MAX_NUMBERS = 64
"""Numbers of environments that are tried with each number of processes."""
MAX_ALIKE = 3
"""Shapes with the same processes on the shortlist."""
HOPELESS = 0.75
"""Share of the best predicted rate below which a shape is not worth a measurement."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the search may change of a training."""

    max_rows: int
    """of one update"""
    min_steps: int
    """of one rollout"""
    mode: str = "any"
    """`sequential`: one process; `parallel`: more than one"""
    one_minibatch: bool = False
    """an update is one minibatch, as in A2C"""
    threaded: bool = False
    """the learner gains from threads"""

    def permits(self, shape: Shape) -> bool:
        """Whether its mode is the one asked for."""
        return self.mode == "any" or (shape.processes == 1) == (self.mode == "sequential")


def horizon(gamma: float, trace: float) -> float:
    """Steps that an advantage looks ahead: the sum of the weights (γλ)^k."""
    return 1.0 / max(1e-9, 1.0 - gamma * trace)


def min_rollout(steps: int, gamma: float, trace: float) -> int:
    """The shortest rollout that changes advantages little: as long as they look ahead."""
    return min(steps, max(SHORTEST, math.ceil(horizon(gamma, trace) - 1e-6)))


def candidates(base: Shape, limits: Limits, cpus: int) -> list[Shape]:
    """Every shape with the rows of `base` in an update, or more within the limits."""
    found = {base}
    for ranks in range(1, 1 + (1 if base.schedule == "hogwild" else cpus)):
        if base.batch % ranks:
            continue
        for workers in _workers(base, cpus // ranks):
            for steps in _lengths(base.steps, limits.min_steps):
                found.update(_layouts(base, limits, cpus, ranks, workers, steps))
    return sorted((shape for shape in found if limits.permits(shape)), key=repr)


def _workers(base: Shape, most: int) -> list[int]:
    """A single worker gains nothing, unless it samples while its learner learns, or learns."""
    if base.schedule == "hogwild":
        return list(range(1, most + 1))
    return [0, *range(1 if base.schedule == "stream" else 2, most + 1)]


def _lengths(steps: int, least: int) -> Iterator[int]:
    """`steps`, and its halves."""
    yield steps
    while steps % 2 == 0 and steps // 2 >= least:
        steps //= 2
        yield steps


def _layouts(
    base: Shape, limits: Limits, cpus: int, ranks: int, workers: int, steps: int
) -> Iterator[Shape]:
    """Shapes with these processes and steps whose rows divide into equal minibatches."""
    sharing = 1 if base.schedule == "hogwild" else max(1, workers)
    free = cpus // ranks - (workers if base.schedule == "stream" else 0)
    threads = range(1, max(1, free) + 1) if limits.threaded else (1,)
    for envs in _envs(base.rows, ranks * steps, sharing, limits.max_rows // (ranks * steps)):
        rows = ranks * envs * steps
        minibatches = 1 if limits.one_minibatch else rows // base.batch
        if not limits.one_minibatch and (rows % base.batch or envs * steps % minibatches):
            continue
        shape = replace(base, envs=envs, steps=steps, minibatches=minibatches, pinned=False)
        for number in threads:
            yield replace(shape, workers=workers, ranks=ranks, threads=number)


def _envs(rows: int, rows_each: int, sharing: int, most: int) -> Iterable[int]:
    """Numbers of environments that make `rows`, or their doubles, and that workers can share.

    If no number up to `most` makes exactly a multiple of `rows`, all that make more.
    """
    unit = math.lcm(sharing, rows // math.gcd(rows, rows_each))
    if unit <= most:
        return [unit << k for k in range((most // unit).bit_length())]
    fewest = -(-rows // rows_each)
    return range(-(-fewest // sharing) * sharing, most + 1, sharing)[:MAX_NUMBERS]


def simplest(rates: dict[Shape, float], base: Shape) -> Shape:
    """Of the shapes nearly as fast as the fastest, the one that needs and changes least."""
    best = max(rates.values())
    close = [shape for shape, rate in rates.items() if rate >= NEAR * best]
    return min(close, key=lambda shape: (*_complexity(shape, base), -rates[shape]))


def _complexity(shape: Shape, base: Shape) -> tuple[float, ...]:
    shortened = abs(math.log2(base.steps / shape.steps))
    return shape.rows, shape.processes * shape.threads, shape.pinned, shortened


def shortlist(
    base: Shape, shapes: list[Shape], known: Constants, cpus: int, number: int
) -> list[Shape]:
    """`base`, the best of each kind, then the fastest by the model; at most `number`."""
    rates = {shape: fps(shape, known, cpus) for shape in shapes}
    ranked = sorted(shapes, key=lambda shape: -rates[shape])
    kinds = {shape.kind: shape for shape in reversed(ranked)}
    first = sorted(kinds.values(), key=lambda shape: -rates[shape])
    rest, alike = [], Counter[tuple[int, ...]]()
    for shape in ranked:
        processes = shape.ranks, shape.workers, shape.threads
        alike[processes] += 1
        if rates[shape] >= HOPELESS * rates[ranked[0]] and alike[processes] <= MAX_ALIKE:
            rest.append(shape)
    return list(dict.fromkeys([base, *first, *rest]))[:number]
