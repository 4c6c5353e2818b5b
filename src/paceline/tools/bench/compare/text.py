"""What a comparison says in sentences: the verdict, pair by pair, how it was made."""

from __future__ import annotations

from ....config.text import several
from .comparison import GroupRow, Pair, Point, best_of
from .format import duration, few_of, interval, number
from .statistics import RESAMPLES, fewest_runs

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


def verdict(
    rows: list[GroupRow], pairs: list[Pair], point: Point, target: float | None
) -> list[str]:
    """What a reader should take away."""
    best = best_of(rows)
    if best is None:
        return ["No episode has ended in any counted run: there is no score to compare."]
    top = [row for row in rows if row.score.value == best.score.value]
    scored = "scored best:" if len(rows) > len(top) == 1 else "scored"
    names = few_of([row.name for row in top])
    said = [f"{names} {scored} {interval(best.score)} after {point.text}."]
    if len(top) < len(rows):
        of_best = [pair for pair in pairs if best in (pair.better, pair.worse)]
        said += _against(best, [p for p in of_best if not (p.better in top and p.worse in top)])
    elif len(rows) > 1:
        said.append("There is nothing between them.")
    return said + _soonest(rows, target) + _fastest(rows)


def _against(best: GroupRow, pairs: list[Pair]) -> list[str]:
    """The best group against every other."""
    if len(pairs) == 1:
        return [says(pairs[0])]
    clear, few, open_ = [], [], []
    for pair in pairs:
        other = (pair.worse if pair.better is best else pair.better).name
        if pair.clear and pair.better is best:
            clear.append(other)
        elif pair.difference.low is None:
            few.append(other)
        else:
            open_.append(other)
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


def says(pair: Pair) -> str:
    """One pair, in a sentence."""
    better, worse, apart = pair.better.name, pair.worse.name, pair.difference
    if apart.low is None:
        counts = f"{pair.better.count} and {several(pair.worse.count, 'run')}"
        return (
            f"{better} and {worse} differ by {number(apart.value)}, but {counts} are too few "
            f"to tell that from chance: {fewest_runs()} of each could."
        )
    by = f"{number(apart.value)} (95 % interval {number(apart.low)} to {number(apart.high)})"
    if pair.clear:
        return f"{better} is better than {worse} by {by}."
    if pair.p < 0.05:
        return (
            f"{better} is ahead of {worse} by {by}, which among so many comparisons may be chance."
        )
    return f"{better} and {worse} can't be told apart: a difference of {by} may be chance."


def says_in_full(pair: Pair) -> str:
    """The sentence, the chance that goes with it, and whether runs of one seed were paired."""
    return f"{says(pair)} P(better) {interval(pair.improvement)}, {pair.pairing}."


def _soonest(rows: list[GroupRow], target: float | None) -> list[str]:
    timed = [row for row in rows if row.time_to.value is not None]
    if not timed or target is None or len(rows) < 2:
        return []
    first, *others = sorted(timed, key=lambda row: (row.time_to.value or 0.0, -row.reached))
    if others and others[0].time_to.value == first.time_to.value:
        return []
    return [
        f"{first.name} was the first to a return of {number(target)}: in "
        f"{interval(first.time_to, duration)}, {interval(first.steps_to)} steps."
    ]


def _fastest(rows: list[GroupRow]) -> list[str]:
    known = [(row.fps.value, row.name) for row in rows if row.fps.value]
    if not known:
        return []
    (slow, slowest), (fast, fastest) = min(known), max(known)
    if fast / slow < 1.01:
        return []
    return [
        f"{fastest} made the most steps, {number(fast)} a second: {fast / slow:.2f} times those of "
        f"{slowest}."
    ]
