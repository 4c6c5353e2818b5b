"""What `paceline scale` makes of its runs: ratios within a repeat, intervals, table, bottleneck."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .metrics import PHASES
from .tables import text_table

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)
"""97.5 % quantiles of Student's t with 1, 2, … degrees of freedom."""
NEAR = 0.9
"""Share of the ideal, or of the ceiling, from which there is nothing to explain."""
STEADY = 0.15
"""Relative deviation of the ceiling up to which it describes the machine."""
CAUSES = {
    "workers": {
        "rollout": "sampling (waking workers, waiting for the slowest, environments too cheap to "
        "be worth a process)",
        "learn": "learning, which only ranks and a3c's workers share",
        "sync": "the exchange of gradients",
        "other": "logs, checkpoints and evaluation",
    },
    "ranks": {
        "rollout": "sampling (each rank acts on fewer environments at once)",
        "learn": "learning (smaller minibatches cost more per row)",
        "sync": "the exchange of gradients (fewer, larger minibatches need fewer)",
        "other": "logs, checkpoints and evaluation",
    },
}
"""What takes the time of each phase, by what is counted."""


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
    world_size: int
    """learners of one run: its ranks, or A3C's workers"""
    global_batch: int
    """rows of one update, over all ranks"""
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

    def text(self, form: str = ".2f") -> str:
        return "–" if self.mean is None else f"{self.mean:{form}}"

    def with_std(self, form: str) -> str:
        return self.text(form) + (f" ± {self.std:{form}}" if self.std is not None else "")

    def with_interval(self) -> str:
        ends = f" ({self.ci_low:.2f} to {self.ci_high:.2f})" if self.ci_low is not None else ""
        return self.text() + ends


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """All repeats of one count."""

    count: int
    num_envs: int
    world_size: int
    global_batch: int
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

    def cost(self, phase: str) -> float:
        """Seconds of a phase per step."""
        return self.share(phase) / (self.fps.mean or math.inf)

    def share(self, phase: str) -> float:
        """Of an iteration's time; waiting for workers counts as sampling."""
        return self.shares[phase] + (self.shares["wait"] if phase == "rollout" else 0.0)


def processes(count: int) -> int:
    """Processes that sample or learn in parallel; without workers it is one."""
    return max(count, 1)


def named(count: int, kind: str) -> str:
    """2 workers, 1 rank, no workers."""
    return f"{count or 'no'} {kind[:-1] if count == 1 else kind}"


def summarize(runs: list[Measurement]) -> list[SummaryRow]:
    """A row for each count, smallest first."""
    counts = sorted({run.count for run in runs if run.kind != "ceiling"})
    return [_row(count, counts[0], runs) for count in counts]


def _row(count: int, base: int, runs: list[Measurement]) -> SummaryRow:
    counted = [run for run in runs if run.kind != "ceiling"]
    own = [run for run in counted if run.count == count]
    first = {run.repeat: run for run in counted if run.count == base}
    ideal = processes(count) / processes(base)
    speedups = [run.fps / first[run.repeat].fps for run in own]
    ceilings = [_ceiling(runs, r.repeat, count) / _ceiling(runs, r.repeat, base) for r in own]
    times = [(run.time_to_score, first[run.repeat].time_to_score) for run in own]
    reached = [time for time, _ in times if time is not None]
    return SummaryRow(
        count=count,
        num_envs=own[0].num_envs,
        world_size=own[0].world_size,
        global_batch=own[0].global_batch,
        repeats=len(own),
        fps=Spread.of([run.fps for run in own]),
        t_iter=Spread.of([run.t_iter or 0.0 for run in own]),
        ideal=ideal,
        speedup=Spread.of(speedups),
        efficiency=Spread.of(speedups).times(1 / ideal),
        ceiling=Spread.of(ceilings),
        of_ceiling=Spread.of([x / most for x, most in zip(speedups, ceilings, strict=True)]),
        shares={
            phase: statistics.fmean(getattr(run, f"share_{phase}") for run in own)
            for phase in PHASES
        },
        memory_mb=max(run.memory_mb or 0.0 for run in own),
        time_to_score=Spread.of(reached),
        reached=len(reached),
        score_speedup=Spread.of([one / time for time, one in times if time and one]),
    )


def _ceiling(runs: list[Measurement], repeat: int, count: int) -> float:
    """Steps/s of as many independent runs, or of the most that there were CPUs for."""
    ceilings = [run for run in runs if run.kind == "ceiling" and run.repeat == repeat]
    few_enough = [run for run in ceilings if run.count <= processes(count)]
    return max(few_enough, key=lambda run: run.count).fps


COLUMNS: dict[str, Callable[[SummaryRow], str]] = {
    "steps/s": lambda row: row.fps.with_std(",.0f"),
    "speed-up (95 %)": lambda row: row.speedup.with_interval(),
    "ideal": lambda row: f"{row.ideal:g}",
    "ceiling": lambda row: row.ceiling.text(),
    "efficiency": lambda row: row.efficiency.text(".0%"),
    "sampling": lambda row: f"{row.shares['rollout']:.0%}",
    "waiting": lambda row: f"{row.shares['wait']:.0%}",
    "learning": lambda row: f"{row.shares['learn']:.0%}",
    "sync": lambda row: f"{row.shares['sync']:.0%}",
    "other": lambda row: f"{row.shares['other']:.0%}",
    "memory": lambda row: f"{row.memory_mb:,.0f} MB",
}
"""Of the table, beside the count."""


def table(rows: list[SummaryRow], kind: str) -> str:
    """One line for each count."""
    lines = [[kind, *COLUMNS]]
    lines += [[str(row.count), *(cell(row) for cell in COLUMNS.values())] for row in rows]
    if any(row.reached for row in rows):
        lines[0] += ["time to score", "speed-up"]
        for line, row in zip(lines[1:], rows, strict=True):
            part = "" if row.reached == row.repeats else f" ({row.reached} of {row.repeats})"
            time = f"{row.time_to_score.with_std('.1f')} s{part}" if row.reached else "not reached"
            line += [time, row.score_speedup.with_interval()]
    return text_table(lines)


def bottleneck(rows: list[SummaryRow], kind: str, cpus: int) -> str:
    """What keeps the largest count from its ideal, and how sure that is."""
    base, last = rows[0], rows[-1]
    if base is last:
        return f"Only {named(base.count, kind)} was measured: there is nothing to compare."
    sentences = [
        f"{named(last.count, kind).capitalize()} made {last.speedup.text()} times the steps/s of "
        f"{named(base.count, kind)}, where {last.ideal:g} would be ideal and {last.ceiling.text()} "
        "is what independent processes reach here.",
        _cause(base, last, kind, cpus),
    ]
    best = max(rows, key=lambda row: row.fps.mean or 0.0)
    if best is not last:
        sentences.append(f"The fastest is {named(best.count, kind)}.")
    low, high = last.speedup.ci_low, last.speedup.ci_high
    if low is not None and high is not None and low < 1 < high:
        sentences.append("This may be noise: the interval of the speed-up includes 1.")
    if not _steady(last.ceiling):
        sentences.append(
            "The machine was not quiet: the speed of independent runs varied. Measure again "
            "while nothing else runs, or with more --repeats."
        )
    return " ".join(sentences)


def _steady(spread: Spread) -> bool:
    return (spread.std or 0.0) <= STEADY * (spread.mean or 0.0)


def _cause(base: SummaryRow, last: SummaryRow, kind: str, cpus: int) -> str:
    speedup = last.speedup.mean or 0.0
    if speedup >= NEAR * last.ideal:
        return "It scales: there is no bottleneck to name."
    crowded = processes(last.count) > cpus
    if _steady(last.ceiling) and speedup >= NEAR * (last.ceiling.mean or math.inf):
        few = f", which has {cpus} CPUs" if crowded else ""
        return f"The bottleneck is the machine itself{few}: as many independent runs gain no more."
    causes = CAUSES[kind]
    lost = {phase: last.cost(phase) - base.cost(phase) / last.ideal for phase in causes}
    worst = max(lost, key=lambda phase: lost[phase])
    share = lost[worst] / sum(loss for loss in lost.values() if loss > 0)
    few = f" {named(last.count, kind).capitalize()} share {cpus} CPUs." if crowded else ""
    return (
        f"The bottleneck is {causes[worst]}: {last.share(worst):.0%} of the time, and "
        f"{share:.0%} of what is lost against the ideal.{few}"
    )
