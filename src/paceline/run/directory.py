"""A run's directory: which files it holds, who may write it, and taking back what was not saved."""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import is_dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from ..config.files import load_file
from ..config.registry import ENTRIES, entry, stand_in
from ..config.resolve import field_names, resolve
from ..config.schema import BUDGETS, OBJECTS, Config
from ..config.text import printable
from ..errors import BadInput, StoppedEarly
from ..processes import hardware as machine
from ..processes.hardware import Choices
from ..processes.launcher import launched
from ..storage import checkpoint
from ..storage.files import absolute, read_plain, replace_file, shown, strange
from ..storage.lock import LOCK, check_path
from .metrics import cut_back, reserve

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
        _claim_copy(Path(config.log_jsonl), config.overwrite, folder)
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
        _write_config(folder, config)  # last: from here on it is a run
    except OSError as error:
        raise BadInput(f"output_dir {shown(folder)} can't be written: {error.strerror}") from None


def add_to_run(folder: Path, **facts: Any) -> None:
    """Add to what run.json says."""
    known = json.loads(read_plain(folder / RUN, MOST_BYTES))
    replace_file(folder / RUN, json.dumps(known | facts, indent=1).encode())


def _claim_copy(path: Path, overwrite: bool, folder: Path) -> None:
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


def _write_config(folder: Path, config: Config, unused: Settings | None = None) -> None:
    content = config.as_dict() | (unused or {})
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    replace_file(folder / CONFIG, text.encode())


def fixed(config: Config) -> dict[str, Any]:
    """What may not change while a run is learning."""
    free = CHANGEABLE | {"output_dir", "overwrite", "preset"}
    return {name: value for name, value in config.as_dict().items() if name not in free}


def read_run(folder: Path) -> tuple[dict[str, Any], Choices]:
    """How the run was made; its choices are kept when it goes on."""
    try:
        facts: dict[str, Any] = json.loads(read_plain(folder / RUN, MOST_BYTES))
        choices = Choices(**facts["choices"])
        typed = [type(value) for value in vars(choices).values()] == [int, bool, str]
        if not (typed and choices.device in ("cpu", "cuda") and 1 <= choices.threads <= 4096):
            raise ValueError("its choices are not what a run writes")
        return facts, choices
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        cause = f"can't be read ({str(error)[:200]}): it can't be resumed"
        raise BadInput(f"{shown(folder / RUN)} {cause}") from None


def refuse_strange(run: Path) -> None:
    """A part of the run that leads elsewhere would be read or written; so it is refused."""
    checkpoints = run / "checkpoints"
    for name in (*OURS, LOCK):
        if cause := strange(run / name, name in FOLDERS):
            raise BadInput(f"{shown(run / name)} {cause}; remove it if you trust the rest")
    ours: list[Path] = []
    try:
        ours += [*checkpoints.glob(f"{checkpoint.DAMAGED}*"), *checkpoint.saved(checkpoints)]
    except OSError as error:
        raise BadInput(f"{shown(run)} can't be read: {error.strerror}") from None
    for path in ours:
        if cause := strange(path):
            raise BadInput(f"{shown(path)} {cause}; remove it if you trust the rest")


def run_config(run: Path, changes: Mapping[str, Any] | None = None) -> Config:
    """A run's own configuration, with `changes`; errors name the file or the option at fault."""
    given = {name: value for name, value in (changes or {}).items() if name in OBJECTS}
    stored = _as_launched(load_file(run / CONFIG) | given)
    try:
        config = resolve(stored)
    except BadInput as error:
        raise BadInput(f"{shown(run / CONFIG)}: {error}") from None
    if not changes:
        return config
    if any(changes.get(name) is not None for name in BUDGETS):
        stored = {key: value for key, value in stored.items() if key not in BUDGETS}
    return resolve(stored, changes)


def plain_config(run: Path) -> Config:
    """A run's own configuration, without importing what it names as module:Class."""
    stored = load_file(run / CONFIG)
    known = field_names()
    named = {o: v for o in ENTRIES if isinstance(v := stored.get(o), str) and ":" in v}
    own = {n: v for n, v in stored.items() if isinstance(v, dict) and n not in known}
    return run_config(run, {option: stand_in(option, v, own) for option, v in named.items()})


def _as_launched(stored: dict[str, Any]) -> dict[str, Any]:
    """Without a number of processes that a launcher has started anyway."""
    try:
        started = launched() or 0
    except BadInput:
        return stored
    sync = entry("sync", stored.get("sync")) or entry("sync", "allreduce")
    if stored.get(sync.counted_by) != started - sync.watcher:
        return stored
    return {key: value for key, value in stored.items() if key != sync.counted_by}


def resumed_config(folder: Path, changes: dict[str, Any]) -> tuple[Config, Choices]:
    """The configuration of a run that is to go on, and the choices it was begun with."""
    if not (folder / CONFIG).exists() and not (folder / CONFIG).is_symlink():
        raise BadInput(f"{shown(folder)} holds no run: there is no {CONFIG} in it")
    refuse_strange(folder)
    stored = load_file(folder / CONFIG)
    given = {name: changes[name] for name in OBJECTS if name in changes}
    # What Python gives and no file holds; an algorithm may come with its options.
    objects = {n: value for n, value in given.items() if callable(value) or is_dataclass(value)}
    source = changes.get("init_from")
    said_again = isinstance(source, str) and absolute(source) == stored.get("init_from")
    for name in changes:
        if name not in CHANGEABLE | set(objects) and not (said_again and name == "init_from"):
            allowed = ", ".join(f"--{n.replace('_', '-')}" for n in sorted(CHANGEABLE))
            raise BadInput(
                f"{name} can't change when a run is resumed, since it alters what is learnt; "
                f"what can: {allowed}"
            )
    made_with, choices = read_run(folder)
    for name, key in OBJECTS.items():
        if made_with.get(key) and name not in objects:
            raise BadInput(
                f"this run's {name} was a Python callable ({stored.get(name)}); resume it from "
                f"Python with paceline.resume(run, {name}=that_callable)"
            )
    unused = {name: getattr(Config, name) for name in _leading_out(folder, stored, changes)}
    config = run_config(folder, changes | unused)
    if config.init_from and not said_again and not checkpoint.saved(folder / "checkpoints"):
        raise BadInput(
            f"{shown(folder)} has no checkpoint yet, and its {CONFIG} says that it began with the "
            f"weights of {config.init_from}; to read them again, write --init-from "
            f"{shlex.quote(config.init_from)}"
        )
    return config, choices


def _leading_out(folder: Path, stored: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """What a run's own files say that leads out of it, and nobody has said again: it isn't used."""
    found = {}
    copy, meeting = stored.get("log_jsonl"), stored.get("init_method")
    if copy and "log_jsonl" not in changes and not _inside(folder, str(copy)):
        found["log_jsonl"] = copy
    if meeting and "init_method" not in changes and not str(meeting).startswith("env://"):
        found["init_method"] = meeting
    return found


def _inside(folder: Path, path: str) -> bool:
    """Whether a file lies in a run, links followed, and is none that the run itself writes."""
    try:
        inside = Path(os.path.realpath(path)).relative_to(os.path.realpath(folder))
        return inside.parts[0] not in (*OURS, LOCK)
    except (ValueError, IndexError):
        return False


def _warn_of(unused: Settings, folder: Path, several: bool) -> None:
    consequences = {"log_jsonl": "is not written to"}
    if several:
        consequences["init_method"] = "is not where ranks meet"
    for name, consequence in consequences.items():
        if name in unused:
            value = printable(str(unused[name]))[:200]
            log.warning(
                f"{name} of {shown(folder / CONFIG)} leads out of the run: {value} {consequence}; "
                f"if it is meant, write --{name.replace('_', '-')} {shlex.quote(value)}"
            )


def rewind(folder: Path, config: Config, iteration: int, changes: Settings, several: bool) -> None:
    """Take back what `several` processes or one wrote after `iteration`: it is written again."""
    stored = load_file(folder / CONFIG)
    unused = _leading_out(folder, stored, changes)
    _warn_of(unused, folder, several)
    try:
        copy = Path(config.log_jsonl) if config.log_jsonl else None
        if copy and str(copy) == stored.get("log_jsonl") and copy.is_file():
            cut_back(copy.resolve(), iteration, own=False)
        elif copy:
            _claim_copy(copy, False, folder)
        cut_back(folder / METRICS, iteration)
        _write_config(folder, config, unused)
    except OSError as error:
        raise StoppedEarly(f"{shown(folder)} can't be written: {error.strerror}") from None


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
