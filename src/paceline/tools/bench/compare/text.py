"""What a comparison says in sentences: the verdict, pair by pair, and what has to be known."""

from __future__ import annotations

from ....config.text import printable, several
from .comparison import GroupRow, Pair, Point, best_of
from .format import duration, few_of, interval, number
from .groups import WAY, Groups, shown, varied
from .history import History
from .statistics import RESAMPLES, fewest_runs

FOLLOWS = {*WAY, "sampler", "sync", "num_envs", "minibatches", "batch_size"}
"""What goes with a way of running."""
MOST = 6
"""Options, and values of each, that are told."""
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


def notes(groups: Groups, rows: list[GroupRow], point: Point) -> list[str]:
    """What a reader has to know before believing a comparison: one sentence for each thing."""
    runs = [run for own in groups.values() for run in own]
    said = [_unfinished(run, point) for run in runs if not point.counts(run)]
    # Where the user says at which point, runs count that have not come to their end.
    early = [f"{r.name} ({r.state})" for r in runs if point.counts(r) and r.state != "done"]
    if early:
        said.append(f"Counted here, though not done: {few_of(early)}.")
    said += [f"{run.name}: {run.lost} lines of metrics can't be read" for run in runs if run.lost]
    said += _machines(runs)
    if told := _told(_versions(runs)):
        said.append(f"The runs were not made with the same versions: {told}.")
    mixed = [name for name, own in groups.items() if len({_compiled(run) for run in own}) > 1]
    if mixed:
        said.append(
            f"Of {few_of(mixed)} some runs were compiled and some not, which alters their speed."
        )
    if told := _told(_unnamed(groups)):
        said.append(f"The groups differ in more than their names say: {told}.")
    if len({tuple(sorted(row.scores)) for row in rows if row.count}) > 1:
        said.append("The groups do not have the same seeds.")
    return said


def _unfinished(run: History, point: Point) -> str:
    came = run.last(point.axis)
    so_far = duration(came) if point.axis == "time" else f"{number(came)} steps"
    ended = {"still going": "is still going, after", "done": "ended after"}
    how = ended.get(run.state, "was cut short after")
    return f"{run.name} {how} {so_far} of {point.text}, and is not counted."


def _machines(runs: list[History]) -> list[str]:
    for what, fact in (("CPU", "cpu"), ("number of CPUs", "cpus")):
        found = {str(run.facts.get(fact)) for run in runs}
        if len(found) > 1:
            return [
                f"The runs were not made on the same machine ({what}: {', '.join(sorted(found))}): "
                "their speeds, and what they reached in a given time, say little about each other."
            ]
    return []


def _versions(runs: list[History]) -> dict[str, list[str]]:
    """Versions of each package that some runs were made with, and others not."""
    known = [run.part("versions") for run in runs]
    names = dict.fromkeys(name for one in known for name in one)
    found = {
        name: list(dict.fromkeys(str(one.get(name, "unknown")) for one in known)) for name in names
    }
    return {name: values for name, values in found.items() if len(values) > 1}


def _compiled(run: History) -> bool:
    return run.part("choices").get("compiled") is True


def _unnamed(groups: Groups) -> dict[str, list[str]]:
    """Options in which groups of one algorithm differ, and their names do not say it."""
    found: dict[str, list[str]] = {}
    for algo in dict.fromkeys(run.config.algo_name for own in groups.values() for run in own):
        own = {name: [r for r in of if r.config.algo_name == algo] for name, of in groups.items()}
        alike = {name: runs for name, runs in own.items() if runs}
        runs = [run for of in alike.values() for run in of]
        for option, values in varied(runs).items():
            if option not in FOLLOWS and _differs(option, alike):
                found[option] = list(dict.fromkeys([*found.get(option, []), *values]))
    return found


def _differs(option: str, groups: Groups) -> bool:
    own = [{shown(run.values.get(option)) for run in runs} for runs in groups.values()]
    named = all(f" · {option} " in f" · {name}" for name in groups)
    return not named and any(values != own[0] for values in own)


def _told(values: dict[str, list[str]]) -> str:
    """lr (0.001, 0.002), gamma (0.9, 0.99)"""
    said = []
    for name, found in values.items():
        short = [printable(value)[:40] for value in found]
        listed = short if len(short) <= MOST else [*short[:MOST], "…"]
        said.append(f"{printable(name)[:40]} ({', '.join(listed)})")
    return ", ".join(said[:MOST]) + (f" and {len(said) - MOST} more" if len(said) > MOST else "")
