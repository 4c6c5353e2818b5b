"""Repeated measurements of `paceline scale` together: ratios within a repeat, intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .metrics import PHASES

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)
"""97.5 % quantiles of Student's t with 1, 2, … degrees of freedom."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run: a row of per_run.csv."""

    kind: str
    """`ranks`, `workers`, or `ceiling` for independent runs at the same time"""
    count: int
    repeat: int
    seed: int
    num_envs: int
    """over all ranks, workers or copies"""
    iters: int
    steps: int
    seconds: float
    fps: float
    t_iter: float | None = None
    share_rollout: float | None = None
    share_wait: float | None = None
    share_learn: float | None = None
    share_sync: float | None = None
    share_other: float | None = None
    memory_mb: float | None = None
    time_to_score: float | None = None

    def as_ceiling(self) -> Measurement:
        """A run in one process, as the ceiling of one."""
        kept = ("repeat", "seed", "num_envs", "iters", "steps", "seconds", "fps")
        return Measurement(kind="ceiling", count=1, **{name: getattr(self, name) for name in kept})


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over repeats, and the mean's 95 % interval, not below 0."""

    mean: float | None
    std: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return Spread(values[0] if values else None)
        mean, std = statistics.fmean(values), statistics.stdev(values)
        free = len(values) - 1
        half = (STUDENT[free - 1] if free <= len(STUDENT) else 2.1) * std / math.sqrt(len(values))
        return Spread(mean, std, max(0.0, mean - half), mean + half)

    def times(self, factor: float) -> Spread:
        return Spread(*(None if x is None else x * factor for x in vars(self).values()))


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """All repeats of one count."""

    count: int
    num_envs: int
    repeats: int
    fps: Spread
    t_iter: Spread
    ideal: float
    """speed-up that loses nothing"""
    speedup: Spread
    """over the smallest count, in steps per second"""
    efficiency: Spread
    """speed-up over the ideal"""
    ceiling: Spread
    """speed-up of as many independent runs"""
    of_ceiling: Spread
    shares: dict[str, float]
    memory_mb: float
    time_to_score: Spread
    reached: int
    """repeats that reached the target return"""
    score_speedup: Spread
    """over the smallest count, in time to score"""

    def flat(self) -> dict[str, float | None]:
        """Columns of summary.csv."""
        out: dict[str, float | None] = {}
        for name, value in vars(self).items():
            if isinstance(value, Spread):
                out |= {f"{name}_{part}": number for part, number in vars(value).items()}
            elif name == "shares":
                out |= {f"share_{phase}": share for phase, share in value.items()}
            else:
                out[name] = value
        return out


def processes(count: int) -> int:
    """Processes that sample or learn in parallel; without workers it is one."""
    return max(count, 1)


def summarize(runs: list[Measurement]) -> list[SummaryRow]:
    """A row for each count, smallest first."""
    counted = [run for run in runs if run.kind != "ceiling"]
    counts = sorted({run.count for run in counted})
    ceilings = {(run.repeat, run.count): run.fps for run in runs if run.kind == "ceiling"}
    return [_row(count, counts[0], counted, ceilings) for count in counts]


def _row(
    count: int, base: int, runs: list[Measurement], ceilings: dict[tuple[int, int], float]
) -> SummaryRow:
    own = [run for run in runs if run.count == count]
    first = {run.repeat: run for run in runs if run.count == base}
    pairs = [(run, first[run.repeat]) for run in own if run.repeat in first]
    ideal = processes(count) / processes(base)
    speedups = {run.repeat: run.fps / one.fps for run, one in pairs}
    ratios = {r: _ceiling(r, count, ceilings) / _ceiling(r, base, ceilings) for r in speedups}
    limits = {repeat: ratio for repeat, ratio in ratios.items() if math.isfinite(ratio)}
    speedup = Spread.of(list(speedups.values()))
    times = [run.time_to_score for run in own if run.time_to_score is not None]
    return SummaryRow(
        count=count,
        num_envs=own[0].num_envs,
        repeats=len(own),
        fps=Spread.of([run.fps for run in own]),
        t_iter=Spread.of([run.t_iter or 0.0 for run in own]),
        ideal=ideal,
        speedup=speedup,
        efficiency=speedup.times(1 / ideal),
        ceiling=Spread.of(list(limits.values())),
        of_ceiling=Spread.of([speedups[r] / limits[r] for r in speedups if r in limits]),
        shares={
            phase: statistics.fmean(getattr(run, f"share_{phase}") for run in own)
            for phase in PHASES
        },
        memory_mb=max(run.memory_mb or 0.0 for run in own),
        time_to_score=Spread.of(times),
        reached=len(times),
        score_speedup=Spread.of(
            [
                one.time_to_score / run.time_to_score
                for run, one in pairs
                if run.time_to_score and one.time_to_score
            ]
        ),
    )


def _ceiling(repeat: int, count: int, ceilings: dict[tuple[int, int], float]) -> float:
    """Steps/s of as many independent runs, or of the most that there were CPUs for."""
    sizes = [size for number, size in ceilings if number == repeat and size <= processes(count)]
    return ceilings[repeat, max(sizes)] if sizes else math.nan


def named(count: int, kind: str) -> str:
    """2 workers, 1 rank, no workers."""
    if count == 0:
        return f"no {kind}"
    return f"{count} {kind if count > 1 else kind[:-1]}"
