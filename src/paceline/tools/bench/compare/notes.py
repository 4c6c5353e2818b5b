"""What a reader has to know before believing a comparison: what else differs, what is not whole."""

from __future__ import annotations

from ....config.text import printable
from .comparison import GroupRow, Point
from .format import duration, few_of, number
from .groups import WAY, Groups, shown, varied
from .history import History

FOLLOWS = {*WAY, "sampler", "sync", "num_envs", "minibatches", "batch_size"}
"""What goes with a way of running."""
MOST = 6
"""Options, and values of each, that are told."""


def notes(groups: Groups, rows: list[GroupRow], point: Point) -> list[str]:
    """One sentence for each thing."""
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
