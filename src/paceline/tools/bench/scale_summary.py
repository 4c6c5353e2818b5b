"""What repeated measurements say together: ratios within a repeat, intervals, the bottleneck."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .metrics import PHASES, Run

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)
"""97.5 % quantiles of Student's t with 1, 2, … degrees of freedom."""
NEAR = 0.9
"""Share of the ideal, or of the ceiling, from which there is nothing to explain."""

STEADY = 0.15
"""Deviation of the ceiling, as a share of it, up to which it says something about the machine."""


@dataclass(frozen=True)
class Spread:
    """Mean and deviation over repeats, and the mean's 95 % interval, of what can't be negative."""

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
class Row:
    """All repeats of one count."""

    count: int
    num_envs: int
    repeats: int
    fps: Spread
    t_iter: Spread
    ideal: float
    """speed-up of a count that loses nothing"""
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
    """That sample or learn side by side; without workers there is the one."""
    return max(count, 1)


def summarize(runs: list[Run]) -> list[Row]:
    """A row for each count, smallest first."""
    counted = [run for run in runs if run.kind != "ceiling"]
    counts = sorted({run.count for run in counted})
    ceilings = {(run.repeat, run.count): run.fps for run in runs if run.kind == "ceiling"}
    return [_row(count, counts[0], counted, ceilings) for count in counts]


def _ceiling(repeat: int, count: int, ceilings: dict[tuple[int, int], float]) -> float:
    """Steps/s of as many independent runs, or of the most that there were CPUs for."""
    sizes = [size for number, size in ceilings if number == repeat and size <= processes(count)]
    return ceilings[repeat, max(sizes)] if sizes else math.nan


def _row(count: int, base: int, runs: list[Run], ceilings: dict[tuple[int, int], float]) -> Row:
    own = [run for run in runs if run.count == count]
    first = {run.repeat: run for run in runs if run.count == base}
    pairs = [(run, first[run.repeat]) for run in own if run.repeat in first]
    ideal = processes(count) / processes(base)
    speedups = {run.repeat: run.fps / one.fps for run, one in pairs}
    ratios = {r: _ceiling(r, count, ceilings) / _ceiling(r, base, ceilings) for r in speedups}
    limits = {repeat: ratio for repeat, ratio in ratios.items() if math.isfinite(ratio)}
    speedup = Spread.of(list(speedups.values()))
    times = [run.time_to_score for run in own if run.time_to_score is not None]
    return Row(
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


def named(count: int, kind: str) -> str:
    """2 workers, 1 rank, no workers."""
    if count == 0:
        return f"no {kind}"
    return f"{count} {kind if count > 1 else kind[:-1]}"


def bottleneck(rows: list[Row], kind: str, cpus: int) -> str:
    """What keeps the largest count from its ideal, in a sentence or two."""
    base, last = rows[0], rows[-1]
    if base is last or not last.speedup.mean:
        return f"Only {named(base.count, kind)} was measured: there is nothing to compare."
    said = (
        f"{named(last.count, kind).capitalize()} made {last.speedup.mean:.2f} times the steps/s of "
        f"{named(base.count, kind)}, where {last.ideal:g} would be ideal"
    )
    if last.ceiling.mean:
        said += f" and {last.ceiling.mean:.2f} is what independent processes reach here"
    said = f"{said}. {_reason(base, last, kind, cpus)}"
    best = max(rows, key=lambda row: row.fps.mean or 0.0)
    if best is not last:
        said += f" The fastest is {named(best.count, kind)}."
    low, high = last.speedup.ci_low, last.speedup.ci_high
    if low is not None and high is not None and low < 1 < high:
        said += " With this noise it could as well be no difference: the interval includes 1."
    if not _steady(last.ceiling):
        said += (
            " The machine was not quiet: independent runs gained now much, now little. Measure "
            "again while nothing else runs, or with more --repeats."
        )
    return said


def _steady(spread: Spread) -> bool:
    return (spread.std or 0.0) <= STEADY * (spread.mean or 0.0)


def _reason(base: Row, last: Row, kind: str, cpus: int) -> str:
    speedup = last.speedup.mean or 0.0
    if speedup >= NEAR * last.ideal:
        return "Nothing holds it back."
    crowd = processes(last.count) > cpus
    if _steady(last.ceiling) and speedup >= NEAR * (last.ceiling.mean or math.inf):
        few = f", which has {cpus} CPUs" if crowd else ""
        return f"The bottleneck is the machine itself{few}: as many independent runs gain no more."
    lost = {phase: _cost(last, phase) - _cost(base, phase) / last.ideal for phase in WHY[kind]}
    worst = max(lost, key=lambda phase: lost[phase])
    share = lost[worst] / sum(loss for loss in lost.values() if loss > 0)
    taken = sum(last.shares[phase] for phase in _parts(worst))
    few = f" {named(last.count, kind).capitalize()} share {cpus} CPUs." if crowd else ""
    return (
        f"The bottleneck is {WHY[kind][worst]}: {taken:.0%} of the time, and {share:.0%} of what "
        f"is lost against the ideal.{few}"
    )


def _parts(phase: str) -> tuple[str, ...]:
    """Sampling is the learner's own, or its waiting for workers."""
    return ("rollout", "wait") if phase == "rollout" else (phase,)


def _cost(row: Row, phase: str) -> float:
    """Seconds of a phase for each step."""
    return sum(row.shares[part] for part in _parts(phase)) / (row.fps.mean or math.inf)


WHY = {
    "workers": {
        "rollout": "sampling (waking workers, waiting for the slowest, environments too cheap to "
        "be worth a process)",
        "learn": "learning, which only ranks and a3c's workers share",
        "sync": "the exchange of gradients",
        "other": "what surrounds the training: logs, checkpoints, evaluation",
    },
    "ranks": {
        "rollout": "sampling (fewer environments for each rank to act on at once)",
        "learn": "learning (smaller minibatches cost more for each row)",
        "sync": "the exchange of gradients (fewer, larger minibatches need fewer)",
        "other": "what surrounds the training: logs, checkpoints, evaluation",
    },
}
"""By what is counted and by phase: what takes the time."""
