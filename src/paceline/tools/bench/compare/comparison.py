"""From groups of runs to what a comparison says of them: scores, differences, curves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from ..plotting import looks
from .groups import Group
from .history import History
from .statistics import (
    Array,
    Estimate,
    aggregate,
    bootstrap,
    difference,
    holm,
    improvement,
    improvement_interval,
    iqm,
)

POINTS = 160
"""Of a curve."""
BAND_RESAMPLES = 300


@dataclass(frozen=True)
class Point:
    """Where runs are compared: when `time` or `steps` had come to `value`."""

    axis: str
    value: float
    text: str
    chosen: bool = False
    """by the user, instead of the runs' budget"""

    @property
    def end(self) -> float:
        """Up to where a run's score may come from; a budget's last iteration ends after it."""
        return self.value if self.chosen else math.inf

    def counts(self, run: History) -> bool:
        """Whether a run has come that far."""
        return run.last(self.axis) >= self.value if self.chosen else run.state == "done"


@dataclass(frozen=True)
class RunRow:
    name: str
    group: str
    seed: int
    state: str
    counted: bool
    score: float | None
    evaluation: float | None
    fps: float | None
    time: float
    steps: float
    time_to: float | None
    steps_to: float | None
    metrics: dict[str, float]
    """of its last report"""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Interquartile mean over runs, as far as all of them have come."""

    x: list[float]
    y: list[float | None]
    low: list[float | None]
    high: list[float | None]


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    name: str
    algo: str
    way: str
    colour: str
    dash: int
    count: int
    """runs that are counted"""
    score: Estimate
    evaluation: Estimate
    fps: Estimate
    time_to: Estimate
    steps_to: Estimate
    reached: int
    memory_mb: float | None
    cpu_percent: float | None
    startup: float | None
    phases: dict[str, float]
    curves: dict[str, Curve]
    runs: list[RunRow]
    scores: dict[int, list[float]] = field(repr=False)
    """of the counted runs, by seed"""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two groups; the runs of `b` are mostly the better ones."""

    a: int
    b: int
    difference: float
    low: float | None
    high: float | None
    p: float
    p_adjusted: float
    improvement: Estimate
    pairing: str

    @property
    def clear(self) -> bool:
        """Whether chance alone would hardly do this."""
        return self.p_adjusted < 0.05


def rows_of(groups: list[Group], point: Point, target: float | None) -> list[GroupRow]:
    """What there is to say of each group."""
    grids = {
        axis: _grid([run for group in groups for run in group.runs], axis, point)
        for axis in ("time", "steps")
    }
    seen = looks([(group.algo, group.way) for group in groups])
    return [
        _row(group, point, target, grids, look) for group, look in zip(groups, seen, strict=True)
    ]


def _row(
    group: Group,
    point: Point,
    target: float | None,
    grids: dict[str, Array],
    look: tuple[str, int],
) -> GroupRow:
    rows = [_run(run, group.name, point, target) for run in group.runs]
    kept = [run for run in group.runs if point.counts(run)]
    counted = [row for row in rows if row.counted]
    scores: dict[int, list[float]] = {}
    for row in counted:
        if row.score is not None:
            scores.setdefault(row.seed, []).append(row.score)
    shares = [run.shares for run in kept if run.shares]
    return GroupRow(
        name=group.name,
        algo=group.algo,
        way=group.way,
        colour=look[0],
        dash=look[1],
        count=len(counted),
        score=aggregate([row.score for row in counted]),
        evaluation=aggregate([row.evaluation for row in counted]),
        fps=aggregate([row.fps for row in counted]),
        time_to=_to_target([row.time_to for row in counted]),
        steps_to=_to_target([row.steps_to for row in counted]),
        reached=sum(row.time_to is not None for row in counted),
        memory_mb=_peak(kept, "memory_mb"),
        cpu_percent=_average(kept, "cpu_percent"),
        startup=_mean([run.startup for run in kept if run.startup is not None]),
        phases={name: float(np.mean([s[name] for s in shares])) for name in shares[0]}
        if shares
        else {},
        curves={axis: _curve(kept or list(group.runs), axis, grid) for axis, grid in grids.items()},
        runs=rows,
        scores=scores,
    )


def _run(run: History, group: str, point: Point, target: float | None) -> RunRow:
    at = run.reached(target) if target is not None else None
    if at is not None and point.chosen and run.columns[point.axis][at] > point.value:
        at = None
    return RunRow(
        name=run.name,
        group=group,
        seed=run.seed,
        state=run.state,
        counted=point.counts(run),
        score=run.score(point.axis, point.end),
        evaluation=None if point.chosen else run.evaluation,
        fps=run.fps,
        time=run.last("time"),
        steps=run.last("steps"),
        time_to=None if at is None else float(run.columns["time"][at]),
        steps_to=None if at is None else float(run.columns["steps"][at]),
        metrics=run.metrics,
    )


def _to_target(values: list[float | None]) -> Estimate:
    """A run that never came there took longer than any that did: then the median is told."""
    if None not in values:
        return aggregate(values)
    middle = float(np.median([math.inf if value is None else value for value in values]))
    return Estimate(middle if math.isfinite(middle) else None)


def _peak(runs: list[History], name: str) -> float | None:
    return _mean([float(np.nanmax(c)) for c in (r.columns[name] for r in runs) if _known(c)])


def _average(runs: list[History], name: str) -> float | None:
    return _mean([float(np.nanmean(c)) for c in (r.columns[name] for r in runs) if _known(c)])


def _known(column: Array) -> bool:
    return bool(np.isfinite(column).any())


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _grid(runs: list[History], axis: str, point: Point) -> Array:
    end = max(run.last(axis) for run in runs)
    if point.axis == axis:
        end = min(end, point.value)
    return np.linspace(0.0, end, POINTS + 1)[1:]


def _curve(runs: list[History], axis: str, grid: Array) -> Curve:
    values = np.array([run.on(axis, grid) for run in runs])
    here = np.isfinite(values).all(0)
    x, values = grid[here], values[:, here]
    if not len(x):
        return Curve(x=[], y=[], low=[], high=[])
    ends = np.full((2, len(x)), math.nan)
    if len(runs) >= 3:
        ends = np.array([bootstrap(column, resamples=BAND_RESAMPLES) for column in values.T]).T
    return Curve(x=_plain(x), y=_plain(iqm(values, 0)), low=_plain(ends[0]), high=_plain(ends[1]))


def _plain(values: Array) -> list[Any]:
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def pairs_of(rows: list[GroupRow]) -> list[Pair]:
    """Every two groups that have scores, compared; adjusted for how many pairs there are."""
    scored = [k for k, row in enumerate(rows) if row.scores]
    found, ordered = [], []
    for a, b in combinations(scored, 2):
        each = difference(rows[a].scores, rows[b].scores)
        if each.value < 0:
            a, b, each = b, a, difference(rows[b].scores, rows[a].scores)
        ordered.append((a, b))
        found.append(each)
    adjusted = holm([each.p_means for each in found])
    made = zip(ordered, found, adjusted, strict=True)
    return [
        Pair(
            a=a,
            b=b,
            difference=each.value,
            low=each.low,
            high=each.high,
            p=max(each.p_ranks, each.p_means),
            p_adjusted=max(each.p_ranks, p),
            improvement=_improvement(rows[a], rows[b]),
            pairing="paired by seed" if each.paired else "unpaired",
        )
        for (a, b), each, p in made
    ]


def _score(row: GroupRow) -> float:
    return -math.inf if row.score.value is None else row.score.value


def _improvement(a: GroupRow, b: GroupRow) -> Estimate:
    ours, theirs = ([s for runs in row.scores.values() for s in runs] for row in (b, a))
    value = improvement(ours, theirs)
    if min(len(ours), len(theirs)) < 3:
        return Estimate(value)
    return Estimate(value, *improvement_interval(ours, theirs))


def best_of(rows: list[GroupRow]) -> int | None:
    """The group with the highest score, if any has one."""
    scored = [k for k, row in enumerate(rows) if row.score.value is not None]
    return max(scored, key=lambda k: _score(rows[k]), default=None)
