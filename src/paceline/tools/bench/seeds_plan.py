"""The plan of `paceline train --seeds N`: a run for every seed, and the files that remember it.

`seeds.json` has the seeds, and `options.yaml` what all their runs have in common, as a
configuration file. Both are plain data: nothing in them is executed.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...config.files import load_file
from ...config.flags import nested
from ...config.known_names import as_flag
from ...config.resolve import resolve
from ...config.schema import BUDGETS, Config
from ...envs import source_of
from ...errors import BadInput
from ...processes import launcher
from ...run.directory import CONFIG, RUN, RUN_FILES, SEEDS, new_directory, writing
from ...run.saved import open_run
from ...run.topology import topology_of
from ...storage.files import absolute, irregular, read_plain, replace_file, shown
from .arguments import Training, parse_options, refuse_flags, whole_number
from .runs import Cell

OPTIONS, TABLE = "options.yaml", "seeds.csv"
MOST_SEEDS = 1000
MAX_SEED = 2**31 - 1
OWN = ("seed", "output_dir", "overwrite")
"""Options that differ from seed to seed."""
OF_BUDGET = (*BUDGETS, "stop_at_return", "schedule_budget")
"""Changes of `resume` that are remembered until all seeds have followed them."""
SET_BY_SEEDS = {"log_jsonl": "the metrics of every run are in its directory"}


@dataclass(frozen=True, kw_only=True)
class SeedsPlan:
    """The runs of several seeds, in one directory."""

    folder: Path
    seeds: list[int]
    config: Config
    """of one of them"""
    options: Mapping[str, Any]
    """what they have in common, as it was given"""
    changes: Mapping[str, str]
    """flags of `resume` for those that were begun before"""

    @property
    def one_process(self) -> bool:
        """Whether a run is one process, which leaves the other CPUs free."""
        return not self.config.workers and topology_of(self.config).size == 1

    def cell(self, seed: int) -> Cell:
        return Cell(
            name=f"seed {seed}",
            options={"config": str(self.folder / OPTIONS), "seed": str(seed)},
            folder=self.folder / f"seed-{seed}",
            changes=self.changes,
        )


def new_plan(arguments: list[str]) -> SeedsPlan:
    """The plan that arguments of `train` ask for; its directory is not yet written."""
    own, given, file = parse_options(arguments, {"--seeds": {"type": whole_number(1, MOST_SEEDS)}})
    if launcher.rank() is not None:
        raise BadInput(
            "--seeds starts every run by itself, and this process is a rank of a launcher (RANK "
            "is set); start it without torchrun, with --ranks for runs of several ranks"
        )
    training = Training(given, file)
    config = training.config()
    refuse_flags("train --seeds", _given(config, SET_BY_SEEDS), SET_BY_SEEDS)
    seeds = list(range(config.seed, config.seed + own["seeds"]))
    training.config({"seed": seeds[-1]})  # refused if it is too large
    source_of(config.env_id, **config.env_options)  # refused if there is none
    options = plain_options(config)
    folder = Path(config.output_dir) if config.output_dir else new_directory(config)
    return SeedsPlan(folder=folder, seeds=seeds, config=config, options=options, changes={})


def _given(config: Config, names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config.given[name] for name in names if config.given.get(name) is not None}


def plain_options(config: Config) -> dict[str, Any]:
    """The given options as plain data, for other processes to read."""
    given = {name: value for name, value in config.given.items() if name not in OWN}
    for name, value in given.items():
        try:
            given[name] = json.loads(json.dumps(value))
        except TypeError:
            raise BadInput(
                f"{name} is a Python object, and --seeds starts processes, which have none of it: "
                "name it as module:Class, or train seed by seed in Python, with "
                "paceline.train(config.replace(seed=seed))"
            ) from None
    return given


def saved_plan(folder: Path, changes: Mapping[str, str]) -> SeedsPlan:
    """The plan that a directory was begun with; `changes` are flags of `resume`."""
    folder = Path(absolute(folder))
    seeds, unfinished = _saved_seeds(folder)
    changes = unfinished | dict(changes)
    refuse_flags("train --seeds", changes, SET_BY_SEEDS)
    for path in (folder / OPTIONS, *(folder / f"seed-{seed}" for seed in seeds)):
        if cause := irregular(path, folder=path.name != OPTIONS):
            raise BadInput(f"{shown(path)} {cause}; remove it if you trust the rest")
    begun = [path for seed in seeds if ((path := folder / f"seed-{seed}") / CONFIG).is_file()]
    options = load_file(folder / OPTIONS)
    refuse_flags("train --seeds", options, SET_BY_SEEDS, f" in {OPTIONS}")
    if len(begun) < len(seeds):
        _refuse_leading_out(folder / OPTIONS, options, changes)
    if any(name in changes for name in BUDGETS):
        options = {name: value for name, value in options.items() if name not in BUDGETS}
    options = options | nested(dict(changes))
    config = open_run(begun[0], changes).config if begun else resolve(options)
    if "schedule_budget" in changes:
        options["schedule_budget"] = config.schedule_budget  # `keep` is for runs that were begun
    return SeedsPlan(folder=folder, seeds=seeds, config=config, options=options, changes=changes)


def _refuse_leading_out(path: Path, options: Mapping[str, Any], changes: Mapping[str, str]) -> None:
    """A directory may come from a stranger: runs that are yet to begin would follow these."""
    for name in ("init_from", "init_method"):
        if options.get(name) not in (None, changes.get(name)):
            raise BadInput(
                f"{shown(path)} has {name} {str(options[name])[:200]!r}, which leads out of the "
                f"directory; to follow it, write {as_flag(name)} again"
            )


def _saved_seeds(folder: Path) -> tuple[list[int], dict[str, str]]:
    """The seeds, and changes of the budget that not all of them have followed."""
    try:
        saved = json.loads(read_plain(folder / SEEDS, 2**20))
        seeds, changes = saved["seeds"], dict(saved.get("changes", {}))
        whole = all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in seeds)
        if whole and 1 <= len(set(seeds)) == len(seeds) <= MOST_SEEDS:
            return list(seeds), {name: str(changes[name]) for name in OF_BUDGET if name in changes}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise BadInput(
        f"{shown(folder / SEEDS)} can't be read; every run in {shown(folder)} can be resumed alone"
    )


def claim(plan: SeedsPlan) -> None:
    """Write what the directory is for; with --overwrite, in place of runs that it holds."""
    folder = plan.folder
    numbered = [path for path in folder.iterdir() if re.fullmatch(r"seed-\d+", path.name)]
    runs = [path for path in numbered if any((path / name).exists() for name in (CONFIG, RUN))]
    held = [name for name in RUN_FILES if (folder / name).exists()]
    if (found := [*(path.name for path in runs), *held]) and not plan.config.overwrite:
        place = shown(folder)
        raise BadInput(
            f"{place} already holds a run ({found[0]}); go on with `paceline resume {place}`, "
            "choose another --output-dir, or replace it with --overwrite"
        )
    with writing(f"output_dir {shown(folder)}"):
        for path in (*runs, *(folder / name for name in (*held, TABLE))):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    write_plan(plan)


def write_plan(plan: SeedsPlan, **result: Any) -> None:
    """The files that `resume` reads; with the result, if there is one."""
    text = yaml.safe_dump(dict(plan.options), sort_keys=False, allow_unicode=True)
    with writing(f"output_dir {shown(plan.folder)}"):
        replace_file(plan.folder / OPTIONS, text.encode())
        changes = {name: plan.changes[name] for name in OF_BUDGET if name in plan.changes}
        content = {"seeds": plan.seeds, **(result or {"changes": changes})}
        replace_file(plan.folder / SEEDS, json.dumps(content).encode())
