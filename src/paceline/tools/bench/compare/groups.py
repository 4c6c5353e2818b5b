"""Which runs belong together: those that differ in nothing but their seed, or as the user says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ....config.schema import Config
from ....config.text import did_you_mean, printable, several
from ....errors import BadInput
from ....run.budget import Budget
from ....run.directory import CHANGEABLE, SEEDS
from .format import duration
from .history import History

MATTERS = {"pin", "eval_every"}
"""Of what may change while a run learns, what its speed may depend on."""
IGNORED = {"seed", "output_dir", "overwrite", "preset"} | (CHANGEABLE - MATTERS)
"""What runs of one group may differ in."""
WAY = {"algo", "num_workers", "num_envs_per_worker", "ranks"}
"""What the name of a way of running says already."""
FOLDER = "folder"
"""For --by: every path on the command line is a group."""
Groups = dict[str, list[History]]
"""Runs that are repeats of each other, by the name of their group."""


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
        budget, other = Budget.of(first.config), Budget.of(run.config)
        if budget != other and not anywhere:
            raise BadInput(
                f"{first.path} had {budget_text(budget)} and {run.path} {budget_text(other)}: a "
                "longer run is not a better one; compare runs with the same budget, or at a time "
                "or a number of steps that all have come to, with --at"
            )


def _world(run: History) -> dict[str, Any]:
    return {k: v for k, v in run.values.items() if k == "env_id" or k.startswith("env.")} | {
        "env.vector": None  # the same environment, stepped otherwise
    }


def budget_text(budget: Budget) -> str:
    """30 min or 50,000 steps or a return of 475"""
    said = [duration(budget.seconds)] if budget.seconds else []
    said += [f"{budget.steps:,} steps"] if budget.steps else []
    said += [f"{budget.iters:,} iterations"] if budget.iters else []
    said += [] if budget.score is None else [f"a return of {budget.score:g}"]
    return " or ".join(said)


def grouped(given: list[tuple[Path, History]], by: list[str] | None) -> Groups:
    """Groups in the order in which they were named; `given` says by which path each run was."""
    runs = [run for _, run in given]
    if by == [FOLDER]:
        labels = [printable(str(path)) for path, _ in given]
    elif by:
        names = _checked(by, runs[0])
        labels = [" · ".join(_named(run, names)) for run in runs]
    else:
        labels = _of_seeds(runs, _found(runs))
    return {label: _alike(runs, labels, label) for label in dict.fromkeys(labels)}


def _checked(by: list[str], run: History) -> list[str]:
    for name in by:
        if name not in run.values:
            hint = did_you_mean(name, run.values)
            raise BadInput(
                f"--by {name}: there is no such option{hint} (write options of train, such as --by "
                f"algo,lr, or --by {FOLDER} alone to compare the paths as they were given)"
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


def _of_seeds(runs: list[History], labels: list[str]) -> list[str]:
    """With one label for each directory of `train --seeds`, which is a group of its own."""
    parents = [run.path.parent for run in runs]
    folders = [parent if (parent / SEEDS).is_file() else None for parent in parents]
    first: dict[Path | None, str] = {}
    sharing: dict[str, set[Path | None]] = {}
    for folder, label in zip(folders, labels, strict=True):
        own = first.setdefault(folder, label) if folder else label
        sharing.setdefault(own, set()).add(folder)
    found = []
    for folder, label in zip(folders, labels, strict=True):
        own = first[folder] if folder else label
        found.append(
            f"{own} · {printable(str(folder))}" if folder and len(sharing[own]) > 1 else own
        )
    return found


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
    if config.entry("sync").watcher:
        return several(config.learners, "learner")
    parts = [several(config.ranks, "rank")] if config.ranks > 1 else []
    parts += [several(config.workers, "worker")] if config.workers else []
    return " × ".join(parts) or "sequential"
