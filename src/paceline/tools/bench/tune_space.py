"""Which shapes come into question, and which of them are worth a measurement. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ...run.cost_model import Constants, Shape, fps

SHORTEST = 16
"""Steps that no rollout goes below, unless the preset's are shorter."""
NEAR = 0.97
"""Share of the best rate from which the simpler of two shapes is preferred."""
MAX_NUMBERS = 64
"""Numbers of environments that are tried with each number of processes."""
HOPELESS = 0.75
"""Share of the best predicted rate below which a shape is not worth a measurement."""
CAN_PIN = hasattr(os, "sched_setaffinity")


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
    segment: int = 1
    """steps that a minibatch has whole numbers of: a memory's"""

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
    lengths = [base.steps]
    while lengths[-1] % (2 * limits.segment) == 0 and lengths[-1] // 2 >= limits.min_steps:
        lengths.append(lengths[-1] // 2)
    found = {base}
    for learners in range(1, cpus + 1):
        if base.batch % _sharing(base, learners):
            continue
        for workers in _workers(base, cpus // learners):
            for steps in lengths:
                processes = replace(base, learners=learners, workers=workers, steps=steps)
                found.update(_layouts(replace(processes, pinned=False), base, limits, cpus))
    return sorted((shape for shape in found if limits.permits(shape)), key=repr)


def _sharing(base: Shape, learners: int) -> int:
    """Learners that share an update."""
    return 1 if base.schedule == "hogwild" else learners


def _workers(base: Shape, most: int) -> list[int]:
    """A single worker gains nothing, unless it samples while its learner learns."""
    if base.schedule == "hogwild":
        return [0]
    return [0, *range(1 if base.schedule == "stream" else 2, most + 1)]


def _layouts(shape: Shape, base: Shape, limits: Limits, cpus: int) -> Iterator[Shape]:
    """With its processes and steps, all whose rows divide into equal minibatches."""
    free = cpus // shape.learners - (shape.workers if base.schedule == "stream" else 0)
    threads = range(1, max(1, free) + 1) if limits.threaded else (1,)
    rows_each = _sharing(base, shape.learners) * shape.steps
    for envs in _envs(base.rows, rows_each, max(1, shape.workers), limits.max_rows // rows_each):
        minibatches = 1 if limits.one_minibatch else envs * rows_each // base.batch
        whole = envs * rows_each % base.batch == 0 == envs * shape.steps % max(1, minibatches)
        segments = envs * shape.steps // limits.segment
        if (limits.one_minibatch or whole) and segments % max(1, minibatches) == 0:
            for number in threads:
                yield replace(shape, envs=envs, minibatches=minibatches, threads=number)


def _envs(rows: int, rows_each: int, workers: int, most: int) -> Iterable[int]:
    """Numbers of environments that make `rows`, or their doubles, and that workers can share.

    If no number up to `most` makes exactly a multiple of `rows`, all that make more.
    """
    unit = math.lcm(workers, rows // math.gcd(rows, rows_each))
    if unit <= most:
        return [unit << k for k in range((most // unit).bit_length())]
    fewest = -(-rows // rows_each)
    return range(-(-fewest // workers) * workers, most + 1, workers)[:MAX_NUMBERS]


def simplest(rates: dict[Shape, float], base: Shape) -> Shape:
    """Of the shapes nearly as fast as the fastest, the one that needs and changes least."""
    best = max(rates.values())

    def complexity(shape: Shape) -> tuple[float, ...]:
        shortened = abs(math.log2(base.steps / shape.steps))
        processes = shape.processes * shape.threads
        return shape.rows, processes, shape.pinned, shortened, -rates[shape]

    return min((shape for shape, rate in rates.items() if rate >= NEAR * best), key=complexity)


def shortlist(
    base: Shape, shapes: list[Shape], known: Constants, cpus: int, number: int
) -> list[Shape]:
    """`base`, the best of each kind, then the fastest by the model; at most `number`.

    The best of several processes is there a second time, bound to CPUs.
    """
    rates = {shape: fps(shape, known, cpus) for shape in shapes}
    ranked = sorted(shapes, key=lambda shape: -rates[shape])
    kinds = {shape.kind: shape for shape in reversed(ranked)}
    found = [base, *sorted(kinds.values(), key=lambda shape: -rates[shape])]
    parallel = [shape for shape in ranked if shape.processes > 1]
    if CAN_PIN and parallel:
        found.append(replace(parallel[0], pinned=True))
    found += [shape for shape in ranked if rates[shape] >= HOPELESS * rates[ranked[0]]]
    return list(dict.fromkeys(found))[:number]
