"""From the arguments of `paceline bench` to its cells: an algorithm in a way of running, a seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ...config import ALGORITHM_DEFAULTS, ALIASES, BUDGETS, Config
from ...config_files import load_file
from ...configure import fitted, resolve
from ...errors import BadInput
from ...files import read_plain
from ...flags import Parser, config_parser, nested
from ...machine import available_cpus
from ...rundir import fixed
from ..arguments import number_from, whole_from

PLAN = "bench.json"
MODES = ("sequential", "parallel", "ranks")
ALGOS = ("ppo", "a2c", "a3c", "impala")
DEFAULT_DURATION = "2m"
SET_HERE = {
    "algo": "write --algos ppo,a2c for what is compared",
    "seed": "write --seeds 3 for how many, or --first-seed",
    "output_dir": "",
    "log_jsonl": "the metrics of every run are in its directory",
    "init_from": "all cells start anew",
}


@dataclass(frozen=True)
class Cell:
    """One algorithm in one way of running."""

    algo: str
    mode: str
    options: dict[str, str]
    refused: str | None = None
    """why it can't be"""
    config: str = ""
    """of its runs, but for what does not alter them"""

    @property
    def name(self) -> str:
        return f"{self.algo.upper()} · {self.mode}"

    def folder(self, seed: int) -> Path:
        return Path("runs") / f"{self.algo}-{self.mode}" / f"seed-{seed}"


@dataclass(frozen=True)
class Matrix:
    """What is run, where."""

    folder: Path
    arguments: list[str]
    """as typed, without where to"""
    cells: list[Cell]
    seeds: list[int]
    target: float | None
    overwrite: bool

    def jobs(self) -> list[tuple[Cell, int]]:
        """Seed by seed, every second time backwards, so that no cell has the quiet hours."""
        good = [cell for cell in self.cells if cell.refused is None]
        return [
            (cell, seed)
            for number, seed in enumerate(self.seeds)
            for cell in (good[::-1] if number % 2 else good)
        ]


def matrix_of(arguments: list[str]) -> Matrix:
    """What these arguments ask for; with --resume DIR, what was asked for there."""
    given = _parser().parse(arguments)
    if given["resume"] is not None:
        if len(arguments) != 2 and not (len(arguments) == 1 and "=" in arguments[0]):
            raise BadInput("--resume DIR goes on as it was begun: leave the other options out")
        folder = Path(given["resume"])
        return _matrix(_remembered(folder), folder)
    typed = _without(arguments, "--output-dir", "--overwrite", "--no-overwrite")
    place, overwrite = given.get("output_dir"), given.get("overwrite") == "true"
    return _matrix(typed, Path(place) if place else None, overwrite)


def _remembered(folder: Path) -> list[str]:
    try:
        found = json.loads(read_plain(folder / PLAN, 2**20))["arguments"]
        return [str(argument) for argument in found]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"{folder} holds no benchmark: there is no whole {PLAN} in it") from None


def _without(arguments: list[str], *flags: str) -> list[str]:
    """The arguments, but for these options and their values."""
    left, skip = [], False
    for place, argument in enumerate(arguments):
        value = skip and not argument.startswith("--")
        skip = False
        if argument in flags:
            skip = place + 1 < len(arguments)
        elif not value and argument.partition("=")[0] not in flags:
            left.append(argument)
    return left


def _parser() -> Parser:
    parser = config_parser()
    parser.add_argument("--algos", default=",".join(ALGOS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--seeds", type=whole_from, default=3)
    parser.add_argument("--first-seed", type=lambda text: whole_from(text, 0), default=0)
    parser.add_argument("--target-return", type=number_from, default=None)
    parser.add_argument("--resume", default=None)
    return parser


def _matrix(arguments: list[str], folder: Path | None, overwrite: bool = False) -> Matrix:
    given = _parser().parse(arguments)
    own = {n: given.pop(n) for n in ("algos", "modes", "seeds", "first_seed", "target_return")}
    given.pop("resume")
    for name, hint in SET_HERE.items():
        if name in given:
            raise BadInput(f"--{name.replace('_', '-')} is bench's to say to its runs: {hint}")
    algos = _names("--algos", own["algos"], (*ALGORITHM_DEFAULTS, *ALIASES))
    modes = _names("--modes", own["modes"], MODES)
    file = load_file(given["config"]) if "config" in given else {}
    if not any(name in given or file.get(name) is not None for name in BUDGETS):
        given["duration"] = DEFAULT_DURATION
    cells = _distinct([_cell(algo, mode, file, given) for algo in algos for mode in modes])
    refused = [cell.refused for cell in cells if cell.refused is not None]
    if len(refused) == len(cells):
        raise BadInput(refused[0])
    seeds = list(range(own["first_seed"], own["first_seed"] + own["seeds"]))
    if folder is None:
        env = str(given.get("env_id", file.get("env_id", "CartPole-v1")))
        stem = env.replace(":", "-").replace("/", "-")
        folder = Path("runs") / f"bench-{stem}-{datetime.now():%Y%m%d-%H%M%S}"
    return Matrix(folder, arguments, cells, seeds, own["target_return"], overwrite)


def _distinct(cells: list[Cell]) -> list[Cell]:
    """Without cells that would repeat the runs of one before."""
    seen: dict[str, str] = {}
    out = []
    for cell in cells:
        same = seen.setdefault(cell.config, cell.name) if cell.refused is None else cell.name
        out.append(cell if same == cell.name else replace(cell, refused=f"the same as {same}"))
    return out


def _names(flag: str, text: str, known: tuple[str, ...]) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in known:
            raise BadInput(f"{flag}: {name!r} is none of {', '.join(known)}")
    if not names:
        raise BadInput(f"{flag} is {text!r}: write some of {', '.join(known)}")
    return list(dict.fromkeys(names))


def _cell(algo: str, mode: str, file: Mapping[str, Any], given: Mapping[str, str]) -> Cell:
    """Its options, or why there are none."""
    options = {name: value for name, value in given.items() if name not in ("num_workers", "ranks")}
    options |= {"algo": algo}
    many = str(max(2, available_cpus()))
    workers, ranks = (
        many if given.get(name, "auto") == "auto" else given[name]
        for name in ("num_workers", "ranks")
    )
    alone = {} if "sync" in ALIASES.get(algo, {}) else {"ranks": "1"}
    if algo in ALIASES and mode == "ranks" and "sync" in ALIASES[algo]:
        return Cell(algo, mode, {}, f"{algo} has no such form: its learners are its workers")
    if mode == "parallel":
        options |= {"num_workers": workers} | alone
    elif mode == "sequential":
        options |= {"num_workers": "0" if alone else "1"} | alone
    else:
        options |= {"ranks": ranks, "num_workers": "0"}
        envs = given.get("num_envs", file.get("num_envs"))
        if envs is not None and str(envs).isdigit() and ranks.isdigit():
            options["num_envs"] = str(max(1, int(envs) // int(ranks)))  # as many in all
    try:
        config = _check(file, options)
    except BadInput as error:
        return Cell(algo, mode, options, str(error))
    return Cell(algo, mode, options, config=json.dumps(fixed(config)))


def _check(file: Mapping[str, Any], options: Mapping[str, str]) -> Config:
    """The configuration of a cell's runs, before the first begins."""
    from ...envs.maker import look_at

    flags = {name: value for name, value in options.items() if name != "config"}
    config = resolve(file, nested(flags))
    world = look_at(config.env_id, **vars(config.env))
    return fitted(config, world.obs_spec, world.act_spec)
