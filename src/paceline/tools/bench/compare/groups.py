"""Which runs belong together: those that differ in nothing but their seed, or as the user says."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....config.schema import BUDGETS, Config
from ....config.text import printable
from ....config.values import seconds
from ....errors import BadInput
from ....run.directory import CHANGEABLE
from .history import History

MATTERS = {"pin", "eval_every"}
"""Of what may change while a run learns, what its speed may depend on."""
IGNORED = {"seed", "output_dir", "overwrite", "preset"} | (CHANGEABLE - MATTERS)
"""What runs of one group may differ in."""
WAY = {"algo", "num_workers", "num_envs_per_worker", "ranks"}
"""What the name of a way of running says already."""
FOLDER = "folder"
"""For --by: every path on the command line is a group."""
SEQUENTIAL = "sequential"


@dataclass(frozen=True)
class Group:
    """Runs that are repeats of each other."""

    name: str
    algo: str
    way: str
    runs: tuple[History, ...]


def comparable(runs: list[History], anywhere: bool) -> None:
    """Other environments are other questions, and so are other budgets, at their end.

    Runs can be compared `anywhere` that all have come to.
    """
    first = runs[0]
    for run in runs[1:]:
        ours, theirs = _world(first), _world(run)
        for name in ours:
            if ours[name] != theirs[name]:
                raise BadInput(
                    f"{name} is {ours[name]} in {first.path} and {theirs[name]} in {run.path}: "
                    "their returns mean different things; compare runs of one environment"
                )
        ours, theirs = _budget(first.config), _budget(run.config)
        if ours != theirs and not anywhere:
            raise BadInput(
                f"{first.path} had {_told(ours)} and {run.path} {_told(theirs)}: a longer run is "
                "not a better one; compare runs with the same budget, or at a time or a number of "
                "steps that all have come to, with --at"
            )


def _world(run: History) -> dict[str, Any]:
    return {k: v for k, v in run.values.items() if k == "env_id" or k.startswith("env.")} | {
        "env.vector": None  # the same environment, stepped otherwise
    }


def _budget(config: Config) -> dict[str, Any]:
    limit = seconds(config.duration) if config.duration else None
    values = {name: getattr(config, name) for name in (*BUDGETS, "stop_at_return")}
    return values | {"duration": limit}


def _told(budget: dict[str, Any]) -> str:
    units = {"total_steps": "{:,} steps", "total_iters": "{:,} iterations", "duration": "{:g} s"}
    said = [form.format(budget[name]) for name, form in units.items() if budget[name] is not None]
    if budget["stop_at_return"] is not None:
        said.append(f"a return of {budget['stop_at_return']:g} to stop at")
    return " and ".join(said)


def grouped(given: list[tuple[Path, History]], by: list[str] | None) -> list[Group]:
    """Groups in the order in which they were named; `given` says by which path each run was."""
    runs = [run for _, run in given]
    if by == [FOLDER]:
        places = list(dict.fromkeys(path for path, _ in given))
        return [
            _group(printable(str(p)), [run for path, run in given if path == p]) for p in places
        ]
    names = _checked(by, runs[0]) if by else None
    labels = [" · ".join(_named(run, names)) for run in runs] if names else _found(runs)
    return [_group(label, _alike(runs, labels, label)) for label in dict.fromkeys(labels)]


def _group(name: str, runs: list[History]) -> Group:
    ways, algos = {way_of(run.config) for run in runs}, {run.config.algo_name for run in runs}
    return Group(name, " ".join(sorted(algos)), " ".join(sorted(ways)), tuple(runs))


def _checked(by: list[str], run: History) -> list[str]:
    for name in by:
        if name not in run.values:
            near = difflib.get_close_matches(name, run.values, n=1, cutoff=0.6)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise BadInput(
                f"--by {name}: there is no such option{hint}; write options of train, such as "
                f"--by algo,lr, or --by {FOLDER} alone to compare the paths as they were given"
            )
    return by


def _named(run: History, names: Iterable[str]) -> list[str]:
    """Without options of entries that this run has not chosen."""
    return [f"{name} {shown(run.values[name])}" for name in names if name in run.values]


def _found(runs: list[History]) -> list[str]:
    """Names by the way of running, and by what differs among runs of the same way."""
    ways = [f"{run.config.algo_name.upper()} · {way_of(run.config)}" for run in runs]
    differing = {
        way: [name for name in varied(_alike(runs, ways, way)) if name not in WAY]
        for way in dict.fromkeys(ways)
    }
    labels = []
    for run, way in zip(runs, ways, strict=True):
        parts = [way] if len(differing) > 1 or not differing[way] else []
        labels.append(" · ".join([*parts, *_named(run, differing[way])]))
    return labels


def _alike(runs: list[History], labels: list[str], label: str) -> list[History]:
    return [run for run, own in zip(runs, labels, strict=True) if own == label]


def varied(runs: list[History]) -> dict[str, list[str]]:
    """The options in which these runs differ, beside seeds and what alters nothing."""
    names = dict.fromkeys(name for run in runs for name in run.values if name not in IGNORED)
    found = {
        name: list(dict.fromkeys(shown(run.values.get(name)) for run in runs)) for name in names
    }
    return {name: values for name, values in found.items() if len(values) > 1}


def shown(value: Any) -> str:
    """As a user would write it."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list):
        return printable(",".join(map(str, value)))
    return printable(value if isinstance(value, str) else json.dumps(value))


def way_of(config: Config) -> str:
    """How it was run: sequential, 2 workers, 2 ranks, 2 ranks × 4 workers, 2 learners."""

    def counted(number: int, what: str) -> str:
        return f"{number} {what}{'s' if number > 1 else ''}"

    if config.entry("sync").watcher:
        return counted(config.learners, "learner")
    parts = [counted(config.ranks, "rank")] if config.ranks > 1 else []
    if config.workers:
        parts.append(counted(config.workers, "worker"))
    return " × ".join(parts) or SEQUENTIAL
