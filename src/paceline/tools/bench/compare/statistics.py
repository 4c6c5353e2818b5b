"""Statistics of few runs: interquartile mean, stratified bootstrap, exact ranks. Pure numpy.

N = runs, M = tasks (strata). Agarwal et al. 2021 for the aggregates; the intervals and tests of a
difference are those of Mann and Whitney, and Wilcoxon, which hold for five runs as for fifty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
LEVEL = 0.95
RESAMPLES = 2000
ENOUGH_PAIRS = 6
"""Pairs from which a paired test can find anything at all: 2 / 2**5 is more than 5 %."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, where that is known."""

    value: float | None
    low: float | None = None
    high: float | None = None


def iqm(scores: Any, axis: int | None = None) -> Any:
    """Mean of the middle half: a quarter of the scores, rounded down, is left out on each side."""
    scores = np.sort(np.asarray(scores, float), axis=axis)
    axis = axis or 0  # without an axis np.sort has made one
    cut = scores.shape[axis] // 4
    middle = np.take(scores, range(cut, scores.shape[axis] - cut), axis)
    return middle.mean(axis)


def bootstrap(
    scores: Any,
    statistic: Callable[[Array], Array] = lambda draws: iqm(draws.reshape(len(draws), -1), 1),
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """95 % interval of a statistic of scores [N] or [N, M]: runs are drawn anew within each task.

    `statistic` takes [resamples, N, M] at once. The draws are always the same.
    """
    scores = np.asarray(scores, float)
    scores = scores.reshape(len(scores), -1)
    random = np.random.default_rng(0)
    draws = random.integers(len(scores), size=(resamples, *scores.shape))
    return _ends(statistic(np.take_along_axis(scores[None], draws, 1)))


def _ends(values: Array) -> tuple[float, float]:
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def aggregate(scores: Any) -> Estimate:
    """Interquartile mean with its bootstrap interval; none of fewer than three runs."""
    scores = [score for score in scores if score is not None and math.isfinite(score)]
    if not scores:
        return Estimate(None)
    value = float(iqm(scores))
    return Estimate(value, *bootstrap(scores)) if len(scores) >= 3 else Estimate(value)


def mean_interval(scores: Any) -> Estimate:
    """Mean with Student's 95 % interval; none of a single run."""
    scores = np.asarray([score for score in scores if score is not None], float)
    if len(scores) < 2:
        return Estimate(float(scores[0]) if len(scores) else None)
    error = float(scores.std(ddof=1)) / math.sqrt(len(scores))
    away = student_quantile(len(scores) - 1) * error
    return Estimate(float(scores.mean()), float(scores.mean()) - away, float(scores.mean()) + away)


def student_quantile(free: int) -> float:
    """How many standard errors a 95 % interval reaches to either side, by bisection."""
    low, high = 0.0, 20.0  # 12.7 with one degree of freedom
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student(middle, 1.0, free) > 1 - LEVEL else (low, middle)
    return low


def improvement(better: Any, than: Any, resamples: int = RESAMPLES) -> Estimate:
    """Probability that a run of the first is better than one of the second; a tie counts half.

    The interval is by bootstrap of both; there is none of fewer than three runs.
    """
    wins = np.sign(np.subtract.outer(np.asarray(better, float), np.asarray(than, float))) / 2 + 0.5
    value = float(wins.mean())
    if min(wins.shape) < 3:
        return Estimate(value)
    random = np.random.default_rng(0)
    drawn = [random.integers(count, size=(resamples, count)) for count in wins.shape]
    # How often each run is in a sample: the mean over all pairs is a product with that.
    ours, theirs = (
        np.array([np.bincount(sample, minlength=count) for sample in samples])
        for samples, count in zip(drawn, wins.shape, strict=True)
    )
    return Estimate(value, *_ends(((ours @ wins) * theirs).sum(1) / wins.size))


@dataclass(frozen=True)
class Difference(Estimate):
    """By how much the second of two groups is above the first, and whether that may be chance.

    The value is the median of all differences between two runs (Hodges and Lehmann), and the
    interval is exact.
    """

    p_ranks: float = 1.0
    """chance of an order like that of the runs, if nothing differs: exact, but never very small"""
    p_means: float = 1.0
    """chance of means so far apart, by Student's t (Welch's, if the runs are not paired)"""
    paired: bool = False


def difference(first: dict[int, list[float]], second: dict[int, list[float]]) -> Difference:
    """Of two groups of runs, by seed. Paired where all seeds are shared, and there are enough."""
    paired = (
        first.keys() == second.keys()
        and len(first) >= ENOUGH_PAIRS
        and all(len(runs) == 1 for group in (first, second) for runs in group.values())
    )
    if paired:
        return _paired(np.array([second[seed][0] - first[seed][0] for seed in sorted(first)]))
    x, y = (np.array([score for runs in g.values() for score in runs]) for g in (first, second))
    if min(len(x), len(y)) < 2:
        return Difference(float(y.mean() - x.mean()))
    return _unpaired(x, y)


def _unpaired(x: Array, y: Array) -> Difference:
    """Mann and Whitney: all differences, and how many of them are positive."""
    parts = x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)
    squares = sum(part**2 / (len(of) - 1) for part, of in zip(parts, (x, y), strict=True))
    free = sum(parts) ** 2 / squares if squares else math.inf
    gap = float(y.mean() - x.mean())
    p_means = student(gap, math.sqrt(sum(parts)), free)
    differences = np.subtract.outer(y, x).ravel()
    return _tested(differences, mann_whitney_null(len(x), len(y)), gap, p_means, False)


def _paired(apart: Array) -> Difference:
    """Wilcoxon: means of any two differences, and how many of them are positive."""
    rows, columns = np.triu_indices(len(apart))
    error = float(apart.std(ddof=1)) / math.sqrt(len(apart))
    gap = float(apart.mean())
    p_means = student(gap, error, len(apart) - 1)
    means = (apart[rows] + apart[columns]) / 2
    return _tested(means, wilcoxon_null(len(apart)), gap, p_means, True)


def student(apart: float, error: float, free: float) -> float:
    """Chance of a mean at least so far from 0, given its standard error: two-sided.

    With x = √free · tan θ Student's density becomes cos θ to the power free − 1.
    """
    if not error or not math.isfinite(free):
        return 1.0 if not apart else 0.0
    nodes, weights = _gauss()
    begin, end = math.atan(abs(apart) / error / math.sqrt(free)), math.pi / 2
    angles = begin + (nodes + 1) * (end - begin) / 2
    tail = float((weights * np.cos(angles) ** (free - 1)).sum()) * (end - begin) / 2
    scale = math.lgamma((free + 1) / 2) - math.lgamma(free / 2) - math.log(math.pi) / 2
    return min(1.0, 2 * tail * math.exp(scale))


@cache
def _gauss() -> tuple[Array, Array]:
    """Nodes and weights of the integral in `student`."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return nodes, weights


def _tested(
    differences: Array, null: Array, gap: float, p_means: float, paired: bool
) -> Difference:
    """`null` is the chance of each count of positive differences if the groups are alike.

    `gap` is how far apart the means are.
    With ties the count varies less than that, and so the test errs to the side of caution.
    """
    ordered = np.sort(differences)
    positive = float((ordered > 0).sum() + (ordered == 0).sum() / 2)
    few = math.ceil(min(positive, len(ordered) - positive))
    value = float(np.median(ordered))
    p_means = p_means if value * gap > 0 else 1.0  # which would be another difference
    chance = np.cumsum(null)
    p_ranks = min(1.0, 2 * float(chance[few]))
    outside = int(np.searchsorted(chance, (1 - LEVEL) / 2, side="right"))
    bounded = 0 < outside <= len(ordered) // 2
    low = float(ordered[outside - 1]) if bounded else None
    high = float(ordered[-outside]) if bounded else None
    return Difference(value, low, high, p_ranks, p_means, paired)


@cache
def mann_whitney_null(n: int, m: int) -> Array:
    """Chance of each number of pairs (0 … n·m) in which y is above x, if both are alike.

    The coefficients of ∏ (1 − q^(m+i)) / (1 − q^i), i = 1 … n, normed to 1.
    """
    size = n * m + 1
    counts = np.zeros(size)
    counts[0] = 1.0
    for i in range(1, n + 1):
        times = counts.copy()
        times[m + i :] -= counts[: max(0, size - m - i)]
        for k in range(i):  # divided by 1 − q^i
            times[k::i] = np.cumsum(times[k::i])
        counts = times / times.sum()
    return np.maximum(counts, 0.0) / counts.sum()


@cache
def wilcoxon_null(n: int) -> Array:
    """Chance of each number of positive means of two differences (0 … n(n+1)/2), by signs."""
    chance = np.ones(1)
    for rank in range(1, n + 1):
        chance = np.concatenate([chance, np.zeros(rank)]) + np.concatenate([np.zeros(rank), chance])
    return chance / chance.sum()


def holm(chances: list[float]) -> list[float]:
    """Chances of being wrong adjusted for how many questions were asked (Holm 1979)."""
    adjusted, worst = list(chances), 0.0
    for place, k in enumerate(np.argsort(chances, kind="stable")):
        worst = max(worst, min(1.0, (len(chances) - place) * chances[k]))
        adjusted[k] = worst
    return adjusted


def fewest_runs() -> int:
    """Runs of each of two groups from which any difference can be shown."""
    return next(n for n in range(2, 100) if mann_whitney_null(n, n)[0] <= (1 - LEVEL) / 2)
