"""The plan of `paceline bench`: every algorithm in every mode with every seed is a cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...config.registry import ALGORITHMS
from ...config.schema import ALIASES, BUDGETS, Config
from ...config.values import seconds
from ...errors import BadInput
from ...processes.hardware import available_cpus
from ...run.directory import fixed
from ...storage.files import read_plain
from .arguments import (
    Training,
    all_envs,
    new_folder,
    number_from,
    parse_options,
    refuse_flags,
    refuse_parallel,
    whole_number,
)
from .compare.command import read_named
from .compare.groups import comparable
from .compare.history import History, values_of
from .runs import Cell

PLAN = "bench.json"
MODES = ("sequential", "parallel", "workers", "ranks")
DEFAULT_MODES = "sequential,parallel,ranks"
ALGOS = ("ppo", "a2c", "a3c", "impala")
DEFAULT_DURATION = "2m"
OPTIONS: dict[str, dict[str, Any]] = {
    "--algos": {"default": ",".join(ALGOS)},
    "--modes": {"default": DEFAULT_MODES},
    "--seeds": {"type": whole_number(1, 1000), "default": 3},
    "--first-seed": {"type": whole_number(0), "default": 0},
    "--target-return": {"type": number_from},
    "--resume": {},
    "runs": {"nargs": "*"},
}
"""Of `bench` alone."""
SET_BY_BENCH = {
    "algo": "write --algos ppo,a2c for what is compared",
    "seed": "write --seeds 3 for how many, or --first-seed",
    "log_jsonl": "the metrics of every run are in its directory",
    "init_from": "all cells start from new weights",
}
REFUSED_IN_FILE = ("log_jsonl", "init_from")
SHAPE = ("num_workers", "ranks", "num_envs", "num_envs_per_worker")
"""Options that a mode sets."""
WORKERS = ("num_workers", "num_envs_per_worker")
FEWEST = {"num_workers": 1, "ranks": 2}
"""Smallest number in a file that counts as a choice of how many processes a mode has."""


Processes = dict[str, dict[str, str]]
"""Options of processes that a calibration has chosen for the parallel cells, by algorithm."""


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """What is run, and where."""

    folder: Path
    arguments: list[str]
    """those that --resume reads again: all but where to"""
    file: Mapping[str, Any]
    """the content of --config"""
    cells: list[Cell]
    """in the order in which they are run"""
    refused: dict[str, str]
    """why there are no cells of an algorithm in a mode, by name"""
    seconds: float | None
    """of each run, if its budget is a duration"""
    target: float | None
    runs: list[tuple[Path, History]]
    """runs that are there already and are compared with the others, as they were named"""
    chosen: Processes
    overwrite: bool = False

    @property
    def open(self) -> dict[str, Training]:
        """Trainings whose processes have to be chosen by a calibration, by algorithm."""
        cells = (cell for cell in self.cells if "parallel" in cell.options)
        return {cell.options["algo"]: Training(cell.options, self.file) for cell in cells}


def parse_bench(arguments: list[str]) -> BenchPlan:
    """The plan that these arguments ask for; with --resume DIR, the one that DIR was begun with."""
    own, given, file = parse_options(arguments, OPTIONS)
    if own["resume"] is not None:
        if len(arguments) != 2 and not (len(arguments) == 1 and "=" in arguments[0]):
            raise BadInput("--resume DIR takes the options DIR was begun with: leave others out")
        typed = remembered(Path(own["resume"]))
        return replace(parse_bench([*typed, f"--output-dir={own['resume']}"]), arguments=typed)
    place, overwrite = given.pop("output_dir", None), given.pop("overwrite", None) == "true"
    if "config" in given:  # --resume may be written in another directory
        given["config"] = str(Path(given["config"]).absolute())
    paths = [str(Path(path).absolute()) for path in own.pop("runs")]
    typed = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in {**own, **given}.items()
        if value is not None
    ]
    refuse_flags("bench", given, SET_BY_BENCH)
    refuse_parallel("bench", given, file)
    in_file = {name: file[name] for name in REFUSED_IN_FILE if file.get(name) is not None}
    refuse_flags("bench", in_file, SET_BY_BENCH, f" in {given.get('config')}")
    algos = _names("--algos", own["algos"], (*ALGORITHMS, *ALIASES))
    modes = _names("--modes", own["modes"], MODES)
    if not any(name in given or file.get(name) is not None for name in BUDGETS):
        given["duration"] = DEFAULT_DURATION
    runs = read_named(paths)
    folder = Path(place) if place else None
    chosen = _chosen_before(folder, [*typed, *paths]) if folder and not overwrite else {}
    variants, refused, config = _variants(algos, modes, Training(given, file), runs, chosen)
    planned = History(Path("this benchmark"), config, {}, "", {}, values=values_of(config))
    comparable([planned, *(run for _, run in runs)], anywhere=False)
    folder = folder or new_folder("bench", config)
    seeds = range(own["first_seed"], own["first_seed"] + own["seeds"])
    return BenchPlan(
        folder=folder,
        arguments=[*typed, *paths],
        file=file,
        cells=_cells(variants, seeds, folder),
        refused=refused,
        seconds=seconds(config.duration) if config.duration else None,
        target=own["target_return"],
        runs=runs,
        chosen=chosen,
        overwrite=overwrite,
    )


def remembered(folder: Path) -> list[str]:
    """The arguments that a benchmark was begun with."""
    try:
        found = json.loads(read_plain(folder / PLAN, 2**20))["arguments"]
        return [str(argument) for argument in found]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"{folder} holds no benchmark: there is no whole {PLAN} in it") from None


def _chosen_before(folder: Path, arguments: list[str]) -> Processes:
    """What was chosen for this very benchmark when it was begun."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = json.loads(read_plain(folder / PLAN, 2**20))
        if found["arguments"] == arguments:
            return {
                str(algo): {str(name): str(value) for name, value in options.items()}
                for algo, options in found["chosen"].items()
            }
    return {}


def _names(flag: str, text: str, known: tuple[str, ...]) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in known:
            raise BadInput(f"{flag}: {name!r} is none of {', '.join(known)}")
    if not names:
        raise BadInput(f"{flag} is {text!r}: write some of {', '.join(known)}")
    return list(dict.fromkeys(names))


def _variants(
    algos: list[str],
    modes: list[str],
    training: Training,
    runs: list[tuple[Path, History]],
    chosen: Processes,
) -> tuple[dict[tuple[str, str], dict[str, str]], dict[str, str], Config]:
    """Options by (algorithm, mode), why others are refused, and the configuration of one."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    refused: dict[str, str] = {}
    seen = {_learned(run.config): str(path) for path, run in runs if run.state == "done"}
    config = None
    for algo in algos:
        for mode in modes:
            name = variant_name(algo, mode)
            try:
                options = _options(algo, mode, training)
                if "parallel" in options and algo in chosen:
                    del options["parallel"]
                    options |= chosen[algo]
                config, _ = Training(options, training.file).inspect()
            except BadInput as error:
                refused[name] = str(error)
                continue
            same = seen.setdefault(_learned(config), name)
            if same != name:
                refused[name] = f"the same as {same}"
            else:
                found[algo, mode] = options
    if config is None:
        raise BadInput(next(iter(refused.values())))
    return found, refused, config


def _learned(config: Config) -> str:
    """The same for runs that differ in nothing but their seed."""
    return json.dumps(fixed(config) | {"seed": None})


def variant_name(algo: str, mode: str) -> str:
    return f"{algo.upper()} · {mode}"


def variant_folder(folder: Path, algo: str, mode: str) -> Path:
    return folder / "runs" / f"{algo}-{mode}"


def _options(algo: str, mode: str, training: Training) -> dict[str, str]:
    """Flags of `train` for an algorithm in a mode; a learner has as many environments in each."""
    given, file = training.flags, training.file
    hogwild = "sync" in ALIASES.get(algo, {})
    if hogwild and mode == "ranks":
        raise BadInput(f"{algo} has no such form: its learners are its workers")
    workers, ranks = (_processes(name, given, file) for name in ("num_workers", "ranks"))
    envs = all_envs(given, file, workers)
    if mode == "parallel" and not hogwild and not _gives_workers(training):
        shape = {"parallel": "auto"}
    else:
        shape = {
            "sequential": {"num_workers": str(int(hogwild)), "ranks": "1"},
            "parallel": {"num_workers": str(workers), "ranks": "1"},
            "workers": {"num_workers": str(workers), "ranks": "1"},
            "ranks": {"num_workers": "0", "ranks": str(ranks)},
        }[mode]
    kept = {name: value for name, value in given.items() if name not in SHAPE}
    if envs is not None:
        kept["num_envs"] = envs
    return kept | {"algo": algo} | shape


def _gives_workers(training: Training) -> bool:
    given = (source.get(name) for source in (training.flags, training.file) for name in WORKERS)
    return any(value not in (None, 0, "0", "auto") for value in given)


def _processes(name: str, given: Mapping[str, str], file: Mapping[str, Any]) -> int:
    """As many as a flag says, or the file; else one for each CPU."""
    count, in_file = given.get(name, "auto"), str(file.get(name))
    if name not in given and in_file.isdigit() and int(in_file) >= FEWEST[name]:
        count = in_file
    if count == "auto":
        return max(2, available_cpus())
    if not count.isdigit():
        raise BadInput(f"{name} is {count!r}: write a whole number, such as 2")
    return int(count)


def _cells(
    variants: dict[tuple[str, str], dict[str, str]], seeds: range, folder: Path
) -> list[Cell]:
    """Seed by seed, every second one backwards, so that a drift of the machine cancels."""
    return [
        Cell(
            name=f"{variant_name(algo, mode)} · seed {seed}",
            options=variants[algo, mode] | {"seed": str(seed)},
            folder=variant_folder(folder, algo, mode) / f"seed-{seed}",
        )
        for number, seed in enumerate(seeds)
        for algo, mode in list(variants)[:: -1 if number % 2 else 1]
    ]
