"""From groups of runs to what a comparison says of them: scores, differences, curves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from ..metrics import PHASES
from ..plotting import looks
from .groups import Groups, way_of
from .history import History
from .statistics import Array, Estimate, aggregate, bootstrap, difference, holm, improvement, iqm

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


RunRow = dict[str, Any]
"""A row of comparison_runs.csv, by the names of its columns."""


@dataclass(frozen=True)
class Curve:
    """Interquartile mean over runs and its interval, as far as all of them have come.

    The ends of the interval are NaN where there are too few runs for one.
    """

    x: Array
    y: Array
    low: Array
    high: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupRow:
    """A row of comparison.csv, and what is drawn of it."""

    name: str
    algo: str
    way: str
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
    """shares of the time; empty where they are not known"""
    curves: dict[str, Curve]
    """over time and over steps"""
    runs: list[RunRow]
    scores: dict[int, list[float]]
    """of the counted runs, by seed"""
    key: int = 0
    """place among the groups"""
    color: str = ""
    dash: int = 0


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two groups; the runs of `better` are mostly the better ones."""

    better: GroupRow
    worse: GroupRow
    difference: Estimate
    p: float
    p_adjusted: float
    improvement: Estimate
    pairing: str

    @property
    def name(self) -> str:
        return f"{self.better.name} over {self.worse.name}"

    @property
    def clear(self) -> bool:
        """Whether chance alone would hardly do this."""
        return self.p_adjusted < 0.05


@dataclass(frozen=True)
class Missing:
    """A group that has no runs, and why."""

    name: str
    cause: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that is written."""

    title: str
    subtitle: str
    verdict: list[str]
    notes: list[str]
    failed: list[Missing]
    point: Point
    target: float | None
    target_source: str
    rows: list[GroupRow]
    pairs: list[Pair]
    varied: dict[str, list[str]]
    machine: dict[str, str]


def rows_of(groups: Groups, point: Point, target: float | None) -> list[GroupRow]:
    """What there is to say of each group."""
    every = [run for runs in groups.values() for run in runs]
    grids = {axis: _grid(every, axis, point) for axis in ("time", "steps")}
    rows = [_row(name, runs, point, target, grids) for name, runs in groups.items()]
    seen = looks([(row.algo, row.way) for row in rows])
    return [
        replace(row, key=key, color=color, dash=dash)
        for key, (row, (color, dash)) in enumerate(zip(rows, seen, strict=True))
    ]


def _row(
    name: str, runs: list[History], point: Point, target: float | None, grids: dict[str, Array]
) -> GroupRow:
    rows = [_run(run, name, point, target) for run in runs]
    counted = [row for row in rows if row["counted"]]
    kept = [run for run in runs if point.counts(run)]
    scores: dict[int, list[float]] = {}
    for row in counted:
        if row["score"] is not None:
            scores.setdefault(row["seed"], []).append(row["score"])
    shares = [run.shares for run in kept if run.shares]
    return GroupRow(
        name=name,
        algo=" ".join(sorted({run.config.algo_name for run in runs})),
        way=" ".join(sorted({way_of(run.config) for run in runs})),
        count=len(counted),
        score=aggregate([row["score"] for row in counted]),
        evaluation=aggregate([row["evaluation"] for row in counted]),
        fps=aggregate([row["fps"] for row in counted]),
        time_to=_to_target([row["time_to"] for row in counted]),
        steps_to=_to_target([row["steps_to"] for row in counted]),
        reached=sum(row["time_to"] is not None for row in counted),
        memory_mb=_mean([run.over("memory_mb", np.max) for run in kept]),
        cpu_percent=_mean([run.over("cpu_percent", np.mean) for run in kept]),
        startup=_mean([run.startup for run in kept]),
        phases={p: float(np.mean([own[p] for own in shares])) for p in PHASES if shares},
        curves={axis: _curve(kept or runs, axis, grid) for axis, grid in grids.items()},
        runs=rows,
        scores=scores,
    )


def _run(run: History, group: str, point: Point, target: float | None) -> RunRow:
    at = run.reached(target) if target is not None else None
    if at is not None and point.chosen and run.columns[point.axis][at] > point.value:
        at = None
    own = {
        "name": run.name,
        "group": group,
        "seed": run.config.seed,
        "state": run.state,
        "counted": point.counts(run),
        "score": run.score(point.axis, point.end),
        "evaluation": None if point.chosen else run.evaluation,
        "fps": run.fps,
        "time": run.last("time"),
        "steps": run.last("steps"),
        "time_to": None if at is None else float(run.columns["time"][at]),
        "steps_to": None if at is None else float(run.columns["steps"][at]),
    }
    return own | run.metrics | own  # behind the rest, and under no name that is taken


def _to_target(values: list[float | None]) -> Estimate:
    """A run that never came there took longer than any that did: then the median is told."""
    if None not in values:
        return aggregate(values)
    middle = float(np.median([math.inf if value is None else value for value in values]))
    return Estimate(middle if math.isfinite(middle) else None)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


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
        return Curve(x, x, x, x)
    ends = np.full((2, len(x)), math.nan)
    if len(runs) >= 3:
        ends = np.array([bootstrap(column, resamples=BAND_RESAMPLES) for column in values.T]).T
    return Curve(x, iqm(values, 0), *ends)


def pairs_of(rows: list[GroupRow]) -> list[Pair]:
    """Every two groups that have scores, compared; adjusted for how many pairs there are."""
    found = []
    for worse, better in combinations([row for row in rows if row.scores], 2):
        each = difference(worse.scores, better.scores)
        if (each.value or 0.0) < 0:
            worse, better = better, worse
            each = difference(worse.scores, better.scores)
        found.append((better, worse, each))
    adjusted = holm([each.p_means for _, _, each in found])
    return [
        Pair(
            better=better,
            worse=worse,
            difference=each,
            p=max(each.p_ranks, each.p_means),
            p_adjusted=max(each.p_ranks, p_means),
            improvement=improvement(_all(better.scores), _all(worse.scores)),
            pairing="paired by seed" if each.paired else "unpaired",
        )
        for (better, worse, each), p_means in zip(found, adjusted, strict=True)
    ]


def _all(scores: dict[int, list[float]]) -> list[float]:
    return [score for runs in scores.values() for score in runs]


def ranked(rows: list[GroupRow]) -> list[GroupRow]:
    """Best first; those without a score last."""
    return sorted(
        rows, key=lambda row: (row.score.value is None, -(row.score.value or 0.0), row.name)
    )


def best_of(rows: list[GroupRow]) -> GroupRow | None:
    """The group with the highest score, if any has one."""
    scored = [row for row in rows if row.score.value is not None]
    return max(scored, key=lambda row: row.score.value or 0.0, default=None)


def shown_pairs(rows: list[GroupRow], pairs: list[Pair], most: int = 6) -> list[Pair]:
    """All of them, or where they are many those with the best group."""
    best = best_of(rows)
    few = len(pairs) <= most
    return pairs if few else [pair for pair in pairs if best in (pair.better, pair.worse)]
