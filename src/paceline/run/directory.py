"""A run directory as it is written: which files it holds, and what if it moves while it trains."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from ..config.schema import BUDGETS, OBJECTS, Config
from ..errors import BadInput, PacelineError, StoppedEarly
from ..processes.hardware import description
from ..storage.files import read_plain, replace_file, shown
from ..storage.lock import LOCK, check_path
from .choices import Choices
from .writers import reserve

log = logging.getLogger("paceline")

CONFIG, RUN, METRICS, EPISODES = "config.yaml", "run.json", "metrics.jsonl", "episodes.csv"
EVALUATION, SAMPLED_EVALUATION = "eval.json", "eval-sampled.json"
SEEDS = "seeds.json"
"""In a directory that holds the runs of several seeds."""
FOLDERS = ("checkpoints", "events", "video")
RUN_FILES = (CONFIG, METRICS, RUN, EVALUATION, EPISODES, SAMPLED_EVALUATION, *FOLDERS)
MAX_RUN_BYTES = 2**20
"""Size of the largest run.json that is read."""
RECORDING = {"eval_every", "eval_episodes", "save_every", "keep", "log_every", "log_info"}
RECORDING |= {"log_jsonl", "track"}
RUNNING = {"pin", "worker_timeout", "max_restarts", "rank_timeout", "init_method"}
CHANGEABLE = {*BUDGETS, "stop_at_return", "schedule_budget"} | RECORDING | RUNNING
"""Options that a resume may change: none of them affects learning."""


def fixed(config: Config) -> dict[str, Any]:
    """The options that may not change while a run is learning."""
    free = CHANGEABLE | {"output_dir", "overwrite", "preset"}
    return {name: value for name, value in config.as_dict().items() if name not in free}


def planned_directory(config: Config, launch: str | None) -> Path | None:
    """Where a run will be, if that is known before it starts."""
    if config.output_dir:
        return Path(config.output_dir)
    if launch is None:
        return None
    return _under_runs(config, f"{zlib.crc32(launch.encode()):08x}")


def new_directory(config: Config) -> Path:
    """Make a directory under runs/ that no other run has."""
    folder = _under_runs(config, f"{datetime.now():%Y%m%d-%H%M%S}")
    with writing(shown(folder)):
        return _make_numbered(folder)


def _under_runs(config: Config, suffix: str) -> Path:
    name = config.env_name.replace(":", "-").replace("/", "-")
    return Path(config.working_directory) / "runs" / f"{name}-{config.algo_name}-{suffix}"


def _make_numbered(folder: Path) -> Path:
    """Make `folder`, or else `folder-2`, `folder-3` …: the first that does not exist."""
    made, number = folder, 1
    while True:
        try:
            made.mkdir(parents=True)
            return made
        except FileExistsError:
            if not os.path.lexists(made):  # one of its parents is a broken link
                raise
            number += 1
            made = folder.with_name(f"{folder.name}-{number}")


@contextmanager
def writing(what: str, raised: type[PacelineError] = BadInput) -> Iterator[None]:
    """Turn an OSError into an error for the user."""
    try:
        yield
    except OSError as error:
        raise raised(f"{what} can't be written: {error.strerror}") from None


def refuse_to_overwrite(folder: Path, config: Config, launch: str | None) -> None:
    """A directory that holds a run, or anything that a run would replace, needs --overwrite."""
    check_path("output_dir", str(folder))
    if (folder / SEEDS).exists():
        raise BadInput(
            f"{shown(folder)} holds the runs of several seeds ({SEEDS}); choose another "
            "--output-dir, or write --seeds to replace them"
        )
    held = [name for name in RUN_FILES if (folder / name).exists()]
    if held and not config.overwrite and not begun_by_launch(folder, launch):
        place = shown(folder)
        raise BadInput(
            f"{place} already holds a run ({held[0]}); go on with `paceline resume {place}`, "
            "choose another --output-dir, or replace it with --overwrite"
        )


def begun_by_launch(folder: Path, launch: str | None) -> bool:
    """Whether this run was started by ranks of the same launcher."""
    return launch is not None and run_facts(folder).get("launch") == launch


def run_facts(folder: Path) -> dict[str, Any]:
    """The content of run.json; empty if it can't be read."""
    try:
        facts = json.loads(read_plain(folder / RUN, MAX_RUN_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def write_run(folder: Path, facts: dict[str, Any]) -> None:
    replace_file(folder / RUN, json.dumps(facts, indent=1).encode())


def claim(folder: Path, config: Config, choices: Choices, launch: str | None) -> None:
    """Write what the run is; with --overwrite, in place of an earlier one."""
    refuse_to_overwrite(folder, config, launch)
    if config.log_jsonl:
        claim_copy(Path(config.log_jsonl), config.overwrite, folder)
    with writing(f"output_dir {shown(folder)}"):
        for name in RUN_FILES:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        facts = {
            **description(),
            "choices": asdict(choices),
            "preset": config.preset,
            "launch": launch,
            **{key: name in config.objects for name, key in OBJECTS.items()},
        }
        write_run(folder, facts)
        write_config(folder, config.as_dict())  # last: only with it is this a run


def claim_copy(path: Path, overwrite: bool, folder: Path) -> None:
    """Make sure that `log_jsonl` can be written, and that nothing is lost by it."""
    check_path("log_jsonl", str(path))
    own_files = {os.path.realpath(folder / name) for name in (*RUN_FILES, LOCK)}
    if own_files & {os.path.realpath(place) for place in (path, *path.parents)}:
        raise BadInput(f"log_jsonl {shown(path)} is the run's own file; name another, or none")
    if path.is_file() and path.stat().st_size and not overwrite:
        raise BadInput(f"log_jsonl {shown(path)} already exists; name another, or give --overwrite")
    with writing(f"log_jsonl {shown(path)}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        reserve(path)
        if path.is_file():
            os.truncate(path, 0)


def write_config(folder: Path, options: dict[str, Any]) -> None:
    text = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
    replace_file(folder / CONFIG, text.encode())


class RunDirectory:
    """A run directory that is held open, and so can be found after it was moved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._files = {name: read_plain(folder / name) for name in (RUN, CONFIG)}
        self._rewritten: set[str] = set()
        self.lost: str | None = None
        """why the run has to stop, if it was moved or deleted"""

    def close(self) -> None:
        os.close(self._descriptor)

    def add_facts(self, **facts: Any) -> None:
        """Add to run.json."""
        write_run(self.folder, json.loads(self._files[RUN]) | facts)
        self._files[RUN] = read_plain(self.folder / RUN)

    def check(self) -> bool:
        """Whether it was moved or deleted since the last check; deleted files are rewritten."""
        place = self._find()
        if place is None:
            self._make_again()
        elif place != self.folder:
            self.lost = f"{shown(self.folder)} was moved to {shown(place)} while it trained"
            self.folder = place
        else:
            self._rewrite_deleted_files()
            return False
        return True

    def _find(self) -> Path | None:
        """Where the directory is now; None if it was deleted, or the system does not tell."""
        if self._is_at(self.folder):
            return self.folder
        try:
            found = Path(f"/proc/self/fd/{self._descriptor}").readlink()
        except OSError:  # no /proc on this system
            return None
        return found if self._is_at(found) else None

    def _is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(path.stat(), os.fstat(self._descriptor))
        except OSError as error:  # any other error is of a disk that does not respond
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

    def _make_again(self) -> None:
        """Make a new directory, without checkpoints, beside whatever has its name now."""
        before = self.folder
        try:
            place = _make_numbered(before)
            for name, content in self._files.items():
                replace_file(place / name, content)
            os.close(self._descriptor)
            self._descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise StoppedEarly(
                f"{shown(before)} was deleted while it trained, and can't be made again: "
                f"{error.strerror}"
            ) from None
        self.folder = place
        self.lost = f"{shown(before)} was deleted while it trained; it is saved again"

    def _rewrite_deleted_files(self) -> None:
        for name, content in self._files.items():
            if name in self._rewritten or os.path.lexists(self.folder / name):
                continue
            self._rewritten.add(name)
            log.warning(f"{shown(self.folder / name)} was deleted; it is written again")
            try:
                replace_file(self.folder / name, content)
            except OSError as error:
                log.warning(f"{shown(self.folder)} can't be written: {error.strerror}")
