"""What a reader has to know before believing a comparison: what else differs, what is not whole."""

from __future__ import annotations

from typing import Any

from ....config.text import printable
from .comparison import GroupRow, Point
from .groups import WAY, Group, shown, varied
from .history import History
from .text import few_of, number

FOLLOWS = {*WAY, "sampler", "sync", "num_envs", "minibatches", "batch_size"}
"""What goes with a way of running."""
MOST = 6
"""Options, and values of each, that are told."""


def notes(groups: list[Group], rows: list[GroupRow], point: Point) -> list[str]:
    """One sentence for each thing."""
    runs = [run for group in groups for run in group.runs]
    said = [_unfinished(run, point) for run in runs if not point.counts(run)]
    said += _not_done(runs, point)
    said += [f"{run.name}: {run.lost} lines of metrics can't be read" for run in runs if run.lost]
    said += _machines(runs) + _versions(runs) + _compiled(groups) + _unnamed(groups)
    scored = [row for row in rows if row.count]
    if len(scored) > 1 and len({tuple(sorted(row.scores)) for row in scored}) > 1:
        said.append("The groups do not have the same seeds.")
    return said


def _unfinished(run: History, point: Point) -> str:
    came = f"{number(run.last(point.axis))} {'s' if point.axis == 'time' else 'steps'}"
    ended = "is still going, after" if run.state == "still going" else "was cut short after"
    if run.state == "done":
        ended = "ended after"
    return f"{run.name} {ended} {came} of {point.text}, and is not counted."


def _not_done(runs: list[History], point: Point) -> list[str]:
    """Where the user says at which point, runs count that have not come to their end."""
    found = [f"{r.name} ({r.state})" for r in runs if point.counts(r) and r.state != "done"]
    return [f"Counted here, though not done: {few_of(found)}."] if found else []


def _machines(runs: list[History]) -> list[str]:
    for what, find in (("CPU", "cpu"), ("number of CPUs", "cpus")):
        found = {str(run.facts.get(find)) for run in runs}
        if len(found) > 1:
            return [
                f"The runs were not made on the same machine ({what}: {', '.join(sorted(found))}): "
                "their speeds, and what they reached in a given time, say little about each other."
            ]
    return []


def _versions(runs: list[History]) -> list[str]:
    known = [_part(run, "versions") for run in runs]
    found = {
        name: list(dict.fromkeys(str(one.get(name, "unknown")) for one in known))
        for name in dict.fromkeys(name for one in known for name in one)
    }
    told = _told({name: values for name, values in found.items() if len(values) > 1})
    return [f"The runs were not made with the same versions: {told}."] if told else []


def _compiled(groups: list[Group]) -> list[str]:
    mixed = [
        group.name
        for group in groups
        if {_part(run, "choices").get("compiled") is True for run in group.runs} == {True, False}
    ]
    if not mixed:
        return []
    return [f"Of {few_of(mixed)} some runs were compiled and some not, which alters their speed."]


def _part(run: History, name: str) -> dict[str, Any]:
    """A table of run.json, which may hold anything."""
    found = run.facts.get(name)
    return found if isinstance(found, dict) else {}


def _unnamed(groups: list[Group]) -> list[str]:
    """Options in which groups of one algorithm differ, and their names do not say it."""
    found: dict[str, list[str]] = {}
    for algo in dict.fromkeys(run.config.algo_name for group in groups for run in group.runs):
        alike = [group for group in groups if any(r.config.algo_name == algo for r in group.runs)]
        runs = [run for group in alike for run in group.runs if run.config.algo_name == algo]
        for name, values in varied(runs).items():
            if name not in FOLLOWS and _differs(name, alike):
                found[name] = list(dict.fromkeys([*found.get(name, []), *values]))
    told = _told(found)
    return [f"The groups differ in more than their names say: {told}."] if told else []


def _differs(name: str, groups: list[Group]) -> bool:
    own = [{shown(run.values.get(name)) for run in group.runs} for group in groups]
    named = all(
        any(part.startswith(f"{name} ") for part in group.name.split(" · ")) for group in groups
    )
    return not named and any(values != own[0] for values in own)


def _told(values: dict[str, list[str]]) -> str:
    """lr (0.001, 0.002), gamma (0.9, 0.99)"""
    said = [
        f"{printable(str(name))[:40]} ({', '.join(_cut(found))})" for name, found in values.items()
    ]
    return ", ".join(said[:MOST]) + (f" and {len(said) - MOST} more" if len(said) > MOST else "")


def _cut(values: list[str]) -> list[str]:
    short = [printable(value)[:40] for value in values]
    return short if len(short) <= MOST else [*short[:MOST], "…"]
