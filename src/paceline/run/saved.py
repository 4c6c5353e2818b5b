"""A run directory as it is read: its configuration, and what it is trusted with."""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from ..config.files import load_file
from ..config.registry import ENTRIES, entry, stand_in
from ..config.resolve import field_names, resolve
from ..config.schema import BUDGETS, OBJECTS, Config
from ..config.text import printable
from ..errors import BadInput, StoppedEarly
from ..processes.hardware import Choices
from ..processes.launcher import launched
from ..storage import checkpoint
from ..storage.files import absolute, irregular, read_plain, shown
from ..storage.lock import LOCK
from .directory import (
    CHANGEABLE,
    CONFIG,
    FOLDERS,
    METRICS,
    MOST_BYTES,
    OURS,
    RUN,
    Settings,
    claim_copy,
    write_config,
)
from .writers import cut_back

log = logging.getLogger("paceline")


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
        if cause := irregular(run / name, name in FOLDERS):
            raise BadInput(f"{shown(run / name)} {cause}; remove it if you trust the rest")
    ours: list[Path] = []
    try:
        ours += [*checkpoints.glob(f"{checkpoint.DAMAGED}*"), *checkpoint.paths(checkpoints)]
    except OSError as error:
        raise BadInput(f"{shown(run)} can't be read: {error.strerror}") from None
    for path in ours:
        if cause := irregular(path):
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
    if config.init_from and not said_again and not checkpoint.paths(folder / "checkpoints"):
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
            claim_copy(copy, False, folder)
        cut_back(folder / METRICS, iteration)
        write_config(folder, config, unused)
    except OSError as error:
        raise StoppedEarly(f"{shown(folder)} can't be written: {error.strerror}") from None
