"""What a comparison says in words and numbers: sentences, the table, rows of CSV."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ....config.text import listed, several
from .comparison import GroupRow, Pair, Point, best_of
from .statistics import RESAMPLES, Estimate, fewest_runs

MOST_NAMES = 12
STATISTICS = (
    "Score: mean return of the last 100 episodes of training, at the end of the budget (or at "
    "--at). Evaluation: mean return of the policy at the end, greedily, on fixed seeds.",
    "Numbers of a group: interquartile mean over its runs (a quarter is left out on each side). "
    f"Intervals: 95 %, percentiles of {RESAMPLES:,} bootstrap samples (stratified, of one stratum: "
    "the environment); fewer than 3 runs have none, and those of few runs are rather too narrow.",
    "Differences: the median of all differences between a run of one group and a run of the other "
    "(Hodges and Lehmann), with the exact 95 % interval of Mann and Whitney; of Wilcoxon, over "
    "pairs of runs with the same seed, where both groups have the same 6 seeds or more.",
    "A difference is called clear if two tests agree that chance would bring it in less than 5 % "
    "of such comparisons: the exact one of the ranks, and Welch's of the means (of pairs: "
    "Student's), this one adjusted for the number of pairs of groups (Holm).",
    "P(better): the chance that a run of the better group beats one of the other.",
    "Steps per second, phases, memory and CPU are those of whole runs, wherever they are compared.",
)


def verdict(rows: list[GroupRow], pairs: list[Pair], point: Point, target: Any) -> list[str]:
    """What a reader should take away."""
    best = best_of(rows)
    if best is None:
        return ["No episode has ended in any counted run: there is no score to compare."]
    alike = [k for k, row in enumerate(rows) if row.score.value == rows[best].score.value]
    top = [rows[k].name for k in alike]
    said = [f"{few_of(top)} scored {interval(rows[best].score)} after {point.text}."]
    if len(rows) > len(top) == 1:
        said[0] = said[0].replace(" scored ", " scored best: ", 1)
    if len(top) < len(rows):
        others = [p for p in pairs if best in (p.a, p.b) and not {p.a, p.b} <= set(alike)]
        said += _against(rows, others, best)
    elif len(rows) > 1:
        said.append("There is nothing between them.")
    return said + _soonest(rows, target) + _fastest(rows)


def _against(rows: list[GroupRow], pairs: list[Pair], best: int) -> list[str]:
    """The best group against every other."""
    other = {id(pair): rows[pair.a if pair.b == best else pair.b].name for pair in pairs}
    if len(pairs) == 1:
        return [says(rows, pairs[0])]
    clear = [other[id(pair)] for pair in pairs if pair.clear and pair.b == best]
    few = [other[id(pair)] for pair in pairs if pair.low is None]
    open_ = [name for name in other.values() if name not in (*clear, *few)]
    said = []
    if clear:
        said.append(f"It is clearly better than {few_of(clear)}.")
    if open_:
        said.append(f"What separates it from {few_of(open_)} may be chance.")
    if few:
        said.append(
            f"Against {few_of(few)} there are too few runs to tell: {fewest_runs()} of each could."
        )
    return said


def says(rows: list[GroupRow], pair: Pair) -> str:
    """One pair, in a sentence."""
    better, worse = rows[pair.b].name, rows[pair.a].name
    by = f"{number(pair.difference)} (95 % interval {number(pair.low)} to {number(pair.high)})"
    if pair.low is None:
        counts = f"{rows[pair.b].count} and {several(rows[pair.a].count, 'run')}"
        return (
            f"{better} and {worse} differ by {number(pair.difference)}, but {counts} are too few "
            f"to tell that from chance: {fewest_runs()} of each could."
        )
    if pair.clear:
        return f"{better} is better than {worse} by {by}."
    if pair.p < 0.05:
        return (
            f"{better} is ahead of {worse} by {by}, which among so many comparisons may be chance."
        )
    return f"{better} and {worse} can't be told apart: a difference of {by} may be chance."


def in_full(rows: list[GroupRow], pair: Pair) -> str:
    """The sentence, the chance that goes with it, and whether runs of one seed were paired."""
    return f"{says(rows, pair)} P(better) {interval(pair.improvement)}, {pair.pairing}."


def _soonest(rows: list[GroupRow], target: Any) -> list[str]:
    timed = [row for row in rows if row.time_to.value is not None]
    if not timed or target is None or len(rows) < 2:
        return []
    first, *others = sorted(timed, key=lambda row: (row.time_to.value or 0.0, -row.reached))
    if others and others[0].time_to.value == first.time_to.value:
        return []
    return [
        f"{first.name} was the first to a return of {number(target)}: in "
        f"{interval(first.time_to, ' s')}, {interval(first.steps_to, ' steps')}."
    ]


def _fastest(rows: list[GroupRow]) -> list[str]:
    known = sorted((row for row in rows if row.fps.value), key=lambda row: row.fps.value or 0.0)
    if len(known) < 2:
        return []
    slow, fast = known[0], known[-1]
    ratio = (fast.fps.value or 0.0) / (slow.fps.value or 1.0)
    if ratio < 1.01:
        return []
    return [
        f"{fast.name} made the most steps, {number(fast.fps.value)} a second: {ratio:.2f} times "
        f"those of {slow.name}."
    ]


def table(rows: list[GroupRow], target: float | None) -> str:
    """One line for each group, best first."""
    head = ["", "runs", "score", "evaluation", "steps/s"]
    head += [f"s to {number(target)}", "reached"] if target is not None else []
    head += ["memory", "CPU", "start-up"]
    lines = [head]
    for row in ranked(rows):
        line = [row.name, str(row.count), interval(row.score), interval(row.evaluation)]
        line.append(interval(row.fps))
        if target is not None:
            line += [interval(row.time_to), f"{row.reached} of {row.count}"]
        line += [_unit(row.memory_mb, " MB"), _unit(row.cpu_percent, " %")]
        lines.append([*line, _unit(row.startup, " s")])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def ranked(rows: list[GroupRow]) -> list[GroupRow]:
    """Best first; those without a score last."""
    return sorted(
        rows, key=lambda row: (row.score.value is None, -(row.score.value or 0.0), row.name)
    )


def shown_pairs(rows: list[GroupRow], pairs: list[Pair], most: int = 6) -> list[Pair]:
    """All of them, or where they are many those with the best group."""
    best = best_of(rows)
    few = len(pairs) <= most
    return pairs if few else [pair for pair in pairs if best in (pair.a, pair.b)]


def group_values(row: GroupRow) -> dict[str, Any]:
    """A row of comparison.csv."""
    out: dict[str, Any] = {}
    for name, value in vars(row).items():
        if isinstance(value, Estimate):
            out |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        elif name == "phases":
            out |= {f"share_{phase}": share for phase, share in value.items()}
        elif name not in ("curves", "runs", "scores", "colour", "dash"):
            out[name] = value
    return out


def run_values(rows: list[GroupRow]) -> list[dict[str, Any]]:
    """Rows of comparison_runs.csv; metrics of the last report stand behind the rest."""
    values = []
    for run in (run for row in rows for run in row.runs):
        own = asdict(run)
        metrics = own.pop("metrics")
        values.append({**own, **{n: v for n, v in metrics.items() if n not in own}})
    return values


def number(value: float | None) -> str:
    """With as many digits as say something."""
    if value is None:
        return "–"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if size >= 10 else f"{value:.3g}"


def _unit(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{number(value)}{unit}"


def interval(estimate: Estimate, unit: str = "") -> str:
    """495.2 (480.1 to 499.0)"""
    if estimate.value is None:
        return "–"
    said = f"{number(estimate.value)}{unit}"
    if estimate.low is None:
        return said
    return f"{said} ({number(estimate.low)} to {number(estimate.high)})"


def few_of(names: list[str]) -> str:
    """All of them, or how many."""
    if len(names) > MOST_NAMES:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return listed(names)
