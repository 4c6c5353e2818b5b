"""From the arguments of `paceline bench` to its cells: an algorithm in a way of running, a seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ...config.flags import ConfigParser, config_parser, nested
from ...config.registry import ALGORITHMS
from ...config.resolve import resolve
from ...config.schema import ALIASES, BUDGETS, Config
from ...config.values import seconds
from ...errors import BadInput
from ...processes.hardware import available_cpus
from ...run.directory import fixed
from ...storage.files import read_plain
from .arguments import looked_at, number_from, whole_from

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
NOT_IN_FILE = ("log_jsonl", "init_from")
"""Of these, what a file says would reach the runs."""
MOST_SEEDS = 1000
FEWEST = {"num_workers": 1, "ranks": 2}
"""From where on a number of processes in a file means a way of running."""


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
    seconds: float | None = None
    """of each run, if its time is limited"""

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
    parser = _parser()
    given = parser.parse(arguments)
    if given["resume"] is not None:
        if len(arguments) != 2 and not (len(arguments) == 1 and "=" in arguments[0]):
            raise BadInput("--resume DIR goes on as it was begun: leave the other options out")
        folder = Path(given["resume"])
        parser, typed = _parser(), _remembered(folder)
        return _matrix(typed, parser.parse(typed), parser.file, folder)
    typed = _rooted(_without(arguments, "--output-dir", "--overwrite", "--no-overwrite"))
    place, overwrite = given.pop("output_dir", None), given.pop("overwrite", None) == "true"
    if "config" in given:
        given["config"] = str(Path(given["config"]).absolute())
    return _matrix(typed, given, parser.file, Path(place) if place else None, overwrite)


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


def _rooted(arguments: list[str]) -> list[str]:
    """With the path of --config as it is known anywhere: --resume may be said elsewhere."""
    out: list[str] = []
    for argument in arguments:
        flag, equals, path = argument.partition("=")
        if flag == "--config" and equals:
            argument = f"{flag}={Path(path).absolute()}"
        elif out and out[-1] == "--config":
            argument = str(Path(argument).absolute())
        out.append(argument)
    return out


def _parser() -> ConfigParser:
    parser = config_parser()
    parser.add_argument("--algos", default=",".join(ALGOS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--seeds", type=lambda text: whole_from(text, 1, MOST_SEEDS), default=3)
    parser.add_argument("--first-seed", type=lambda text: whole_from(text, 0), default=0)
    parser.add_argument("--target-return", type=number_from, default=None)
    parser.add_argument("--resume", default=None)
    return parser


def _matrix(
    arguments: list[str],
    given: dict[str, Any],
    file: Mapping[str, Any],
    folder: Path | None,
    overwrite: bool = False,
) -> Matrix:
    own = {n: given.pop(n) for n in ("algos", "modes", "seeds", "first_seed", "target_return")}
    given.pop("resume")
    _refuse_ours(given, file)
    algos = _names("--algos", own["algos"], (*ALGORITHMS, *ALIASES))
    modes = _names("--modes", own["modes"], MODES)
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


def _refuse_ours(given: Mapping[str, str], file: Mapping[str, Any]) -> None:
    for name, hint in SET_HERE.items():
        said = [f"--{name.replace('_', '-')}"] if name in given else []
        if name in NOT_IN_FILE and file.get(name) is not None:
            said.append(f"{name} in {given['config']}")
        if said:
            raise BadInput(f"{said[0]} is bench's to say to its runs: {hint}")
    if "num_envs" in given and "num_envs_per_worker" in given:
        raise BadInput("--num-envs and --num-envs-per-worker say the same thing: write one of them")


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
    hogwild = "sync" in ALIASES.get(algo, {})
    if hogwild and mode == "ranks":
        return Cell(algo, mode, {}, f"{algo} has no such form: its learners are its workers")
    shaping = ("num_workers", "ranks", "num_envs", "num_envs_per_worker")
    options = {name: value for name, value in given.items() if name not in shaping}
    workers, ranks = (_processes(name, file, given) for name in ("num_workers", "ranks"))
    envs = _envs(file, given, workers)
    if mode == "parallel":
        shape = {"num_workers": workers, "ranks": "1"}
    elif mode == "sequential":
        shape = {"num_workers": "1" if hogwild else "0", "ranks": "1"}
    else:
        shape = {"num_workers": "0", "ranks": ranks}
        if envs.isdigit() and ranks.isdigit():
            envs = str(max(1, int(envs) // int(ranks)))  # as many in all
    options |= {"algo": algo} | shape | ({"num_envs": envs} if envs else {})
    try:
        config = _check(file, options)
    except BadInput as error:
        return Cell(algo, mode, options, str(error))
    limit = seconds(config.duration) if config.duration else None
    return Cell(algo, mode, options, config=json.dumps(fixed(config)), seconds=limit)


def _processes(name: str, file: Mapping[str, Any], given: Mapping[str, str]) -> str:
    """As many as were said; else as there are CPUs."""
    said = str(given.get(name, "auto"))
    if name not in given and str(file.get(name)).isdigit() and int(file[name]) >= FEWEST[name]:
        said = str(file[name])
    return str(max(2, available_cpus())) if said == "auto" else said


def _envs(file: Mapping[str, Any], given: Mapping[str, str], workers: str) -> str:
    """How many in all, also where they were counted by worker; nothing if nobody said."""
    for said in (given, file):
        if said.get("num_envs") is not None:
            return str(said["num_envs"])
        each = said.get("num_envs_per_worker")
        if each is not None:
            return str(int(workers) * int(each)) if f"{workers}{each}".isdigit() else str(each)
    return ""


def _check(file: Mapping[str, Any], options: Mapping[str, str]) -> Config:
    """The configuration of a cell's runs, before the first begins."""
    flags = {name: value for name, value in options.items() if name != "config"}
    return looked_at(resolve(file, nested(flags)))[0]
