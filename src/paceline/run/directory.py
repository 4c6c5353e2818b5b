"""A run's directory: which files it holds, who may write it, and taking back what was not saved."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from ..config.schema import BUDGETS, OBJECTS, Config
from ..errors import BadInput, StoppedEarly
from ..processes import hardware as machine
from ..storage.files import read_plain, replace_file, shown
from ..storage.lock import LOCK, check_path
from .writers import reserve

log = logging.getLogger("paceline")

Settings = dict[str, Any]
"""Options by name."""
CONFIG, RUN, METRICS, EVALUATION = "config.yaml", "run.json", "metrics.jsonl", "eval.json"
FOLDERS = ("checkpoints", "events", "video")
OURS = (CONFIG, METRICS, RUN, EVALUATION, *FOLDERS)
MOST_BYTES = 2**20
"""Size of the largest run.json that is read."""
CHANGEABLE = {
    *(*BUDGETS, "stop_at_return", "eval_every", "eval_episodes", "save_every", "keep"),
    *("log_every", "log_jsonl", "track"),
    *("pin", "worker_timeout", "max_restarts", "rank_timeout", "init_method"),
}
"""What a resumed run may do differently: none of it alters learning."""


def refuse_to_lose(folder: Path, config: Config, launch: str | None) -> None:
    """A directory that holds a run, or anything that one would replace, needs --overwrite."""
    check_path("output_dir", str(folder))
    held = [name for name in OURS if (folder / name).exists()]
    if held and not config.overwrite and not begun_by_this_launch(folder, launch):
        place = shown(folder)
        raise BadInput(
            f"{place} already holds a run ({held[0]}); go on with `paceline resume {place}`, "
            "choose another --output-dir, or replace it with --overwrite"
        )


def begun_by_this_launch(folder: Path, name: str | None) -> bool:
    """Whether the ranks that began this run were started by the launcher that started this one."""
    try:
        facts = json.loads(read_plain(folder / RUN, MOST_BYTES))
        return name is not None and bool(facts["launch"] == name)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def claim(folder: Path, config: Config, choices: dict[str, Any], launch: str | None) -> None:
    """Write what the run is; with --overwrite, in place of the one that is there."""
    refuse_to_lose(folder, config, launch)
    if config.log_jsonl:
        claim_copy(Path(config.log_jsonl), config.overwrite, folder)
    try:
        for name in OURS:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        facts = {
            **machine.description(),
            "choices": choices,
            "preset": config.preset,
            "launch": launch,
            **{key: callable(getattr(config, name)) for name, key in OBJECTS.items()},
        }
        replace_file(folder / RUN, json.dumps(facts, indent=1).encode())
        write_config(folder, config)  # last: from here on it is a run
    except OSError as error:
        raise BadInput(f"output_dir {shown(folder)} can't be written: {error.strerror}") from None


def add_to_run(folder: Path, **facts: Any) -> None:
    """Add to what run.json says."""
    known = json.loads(read_plain(folder / RUN, MOST_BYTES))
    replace_file(folder / RUN, json.dumps(known | facts, indent=1).encode())


def claim_copy(path: Path, overwrite: bool, folder: Path) -> None:
    """Make sure that `log_jsonl` can be written, and that nothing is lost by it."""
    check_path("log_jsonl", str(path))
    ours = {os.path.realpath(folder / name) for name in (*OURS, LOCK)}
    if ours & {os.path.realpath(place) for place in (path, *path.parents)}:
        raise BadInput(f"log_jsonl {shown(path)} is the run's own file; name another, or none")
    if path.is_file() and path.stat().st_size and not overwrite:
        raise BadInput(f"log_jsonl {shown(path)} already exists; name another, or give --overwrite")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        reserve(path)
        if path.is_file():
            os.truncate(path, 0)
    except OSError as error:
        raise BadInput(f"log_jsonl {shown(path)} can't be written: {error.strerror}") from None


def write_config(folder: Path, config: Config, unused: Settings | None = None) -> None:
    content = config.as_dict() | (unused or {})
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    replace_file(folder / CONFIG, text.encode())


def fixed(config: Config) -> dict[str, Any]:
    """What may not change while a run is learning."""
    free = CHANGEABLE | {"output_dir", "overwrite", "preset"}
    return {name: value for name, value in config.as_dict().items() if name not in free}


class HeldRun:
    """A run directory while it is written; by its descriptor it is found where it was moved to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._files = {name: read_plain(folder / name) for name in (RUN, CONFIG)}
        self._put_back: set[str] = set()
        self.lost: str | None = None
        """what has befallen it, if the run can't go on there"""

    def close(self) -> None:
        os.close(self._handle)

    def add_facts(self, **facts: Any) -> None:
        """Add to run.json."""
        add_to_run(self.folder, **facts)
        self._files[RUN] = read_plain(self.folder / RUN)

    def check(self) -> bool:
        """Whether it was moved or deleted since the last time; what can be mended is mended."""
        place = self._place()
        if place is None:
            self._make_again()
        elif place != self.folder:
            self.lost = f"{shown(self.folder)} was moved to {shown(place)} while it trained"
            self.folder = place
        else:
            self._put_back_files()
            return False
        return True

    def _place(self) -> Path | None:
        """Where the directory is now; None if it was deleted, or nobody can say."""
        if self._is_at(self.folder):
            return self.folder
        try:
            found = Path(f"/proc/self/fd/{self._handle}").readlink()
        except OSError:  # not on this system
            return None
        return found if self._is_at(found) else None

    def _is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(path.stat(), os.fstat(self._handle))
        except OSError as error:  # others are of a disk that does not answer
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

    def _make_again(self) -> None:
        """All but what was learnt; nothing else that has its name now is touched."""
        before = self.folder
        names = (before.with_name(f"{before.name}-{n}") if n > 1 else before for n in count(1))
        place = next(path for path in names if not os.path.lexists(path))
        try:
            place.mkdir(parents=True)
            for name, content in self._files.items():
                replace_file(place / name, content)
            os.close(self._handle)
            self._handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise StoppedEarly(
                f"{shown(before)} was deleted while it trained, and can't be made again: "
                f"{error.strerror}"
            ) from None
        self.folder = place
        self.lost = f"{shown(before)} was deleted while it trained; it is saved anew"

    def _put_back_files(self) -> None:
        for name, content in self._files.items():
            if name in self._put_back or os.path.lexists(self.folder / name):
                continue
            self._put_back.add(name)
            log.warning(f"{shown(self.folder / name)} was deleted; it is written again")
            try:
                replace_file(self.folder / name, content)
            except OSError as error:
                log.warning(f"{shown(self.folder)} can't be written: {error.strerror}")
