"""A run directory as it is read: its configuration, and what it is trusted with.

A run may come from a stranger. Paths in its files that lead out of it are not followed unless the
user repeats them, and nothing that it names is imported to read it.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

from ..config.files import load_file
from ..config.registry import ENTRIES, entry, stand_in
from ..config.resolve import field_names, resolve
from ..config.schedules import KEEP
from ..config.schema import BUDGETS, OBJECTS, Config
from ..config.text import printable
from ..errors import BadInput, StoppedEarly
from ..processes.launcher import launched
from ..storage import checkpoint
from ..storage.files import absolute, irregular, shown
from ..storage.lock import LOCK
from . import directory
from .budget import Progress
from .choices import Choices
from .directory import CHANGEABLE, CONFIG, EPISODES, FOLDERS, METRICS, RUN, RUN_FILES
from .extending import warn_of_schedules
from .writers import cut_back, cut_back_episodes

log = logging.getLogger("paceline")

IGNORED = {"log_jsonl": "is not written to", "init_method": "is not where ranks meet"}
"""Options that may lead out of a run, and what happens unless the user repeats them."""


@dataclass(frozen=True)
class SavedRun:
    """A run that is to be resumed."""

    folder: Path
    config: Config
    """with the changes of the resume"""
    before: Config
    """without them"""
    choices: Choices
    facts: Mapping[str, Any]
    """the content of run.json"""
    stored: Mapping[str, Any]
    """the content of config.yaml"""
    ignored: Mapping[str, Any]
    """options in config.yaml that lead out of the run, and that the user has not repeated"""


def open_run(folder: Path, changes: Mapping[str, Any]) -> SavedRun:
    """Read a run to resume it with `changes`; refuse those that affect learning."""
    if not (folder / CONFIG).exists() and not (folder / CONFIG).is_symlink():
        raise BadInput(f"{shown(folder)} holds no run: there is no {CONFIG} in it")
    refuse_irregular(folder)
    stored = load_file(folder / CONFIG)
    if changes.get("schedule_budget") == KEEP:
        changes = {**changes, "schedule_budget": _schedule_budget(stored)}
    objects = {name for name in OBJECTS if name in changes and _only_python(name, changes[name])}
    source = changes.get("init_from")
    same_source = isinstance(source, str) and absolute(source) == stored.get("init_from")
    for name in changes:
        if name not in CHANGEABLE | objects and not (same_source and name == "init_from"):
            allowed = ", ".join(f"--{n.replace('_', '-')}" for n in sorted(CHANGEABLE))
            raise BadInput(
                f"{name} can't change when a run is resumed, since it affects learning; "
                f"what can: {allowed}"
            )
    facts = directory.run_facts(folder)
    choices = _choices_of(folder, facts)
    for name, key in OBJECTS.items():
        if facts.get(key) and name not in objects:
            raise _missing_object(name, stored.get(name))
    ignored = _leading_out(folder, stored, changes)
    config = _run_config(folder, {**changes, **{name: getattr(Config, name) for name in ignored}})
    if config.init_from and not same_source and not checkpoint.paths(folder / "checkpoints"):
        raise BadInput(
            f"{shown(folder)} has no checkpoint yet, and its {CONFIG} says that it started from "
            f"the weights of {config.init_from}; to read them again, write --init-from "
            f"{shlex.quote(config.init_from)}"
        )
    before = _run_config(folder, {name: changes[name] for name in objects})
    return SavedRun(folder, config, before, choices, facts, stored, ignored)


def _schedule_budget(stored: Mapping[str, Any]) -> str:
    """The budget that a run's schedules follow so far."""
    limits = {name: stored[name] for name in BUDGETS if stored.get(name) is not None}
    own = stored.get("schedule_budget")
    return own or ",".join(f"{name}={limit}" for name, limit in limits.items())


def _only_python(name: str, value: Any) -> bool:
    """Whether an option is an object that only Python can give, or wrappers among which one is."""
    if name != "env":
        return callable(value) or is_dataclass(value)  # an algorithm may be one with its options
    wrappers = value["wrappers"] if isinstance(value, Mapping) and [*value] == ["wrappers"] else ()
    return callable(wrappers) or any(callable(wrapper) for wrapper in wrappers)


def _missing_object(name: str, stored: Any) -> BadInput:
    """For an option that was a Python object, of which the run has only the name `stored`."""
    what, given = f"{name} was a Python callable", f"{name}=that_callable"
    if name == "env":
        what, given = "env.wrappers were Python callables", 'env={"wrappers": those_callables}'
        stored = stored.get("wrappers") if isinstance(stored, dict) else stored
    return BadInput(
        f"this run's {what} ({stored}); resume it from Python with paceline.resume(run, {given})"
    )


def _leading_out(
    folder: Path, stored: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Options in config.yaml that lead out of the run, and are not among the changes."""
    copy, meeting = str(stored.get("log_jsonl") or ""), str(stored.get("init_method") or "")
    found = {
        "log_jsonl": bool(copy) and not _inside(folder, copy),
        "init_method": bool(meeting) and not meeting.startswith("env://"),
    }
    return {name: stored[name] for name, out in found.items() if out and name not in changes}


def _inside(folder: Path, path: str) -> bool:
    """Whether a file lies in a run, links followed, and is none that the run itself writes."""
    try:
        inside = Path(os.path.realpath(path)).relative_to(os.path.realpath(folder))
        return inside.parts[0] not in (*RUN_FILES, LOCK)
    except (ValueError, IndexError):
        return False


def _choices_of(folder: Path, facts: Mapping[str, Any]) -> Choices:
    """The choices in run.json, which may be damaged or a stranger's."""
    try:
        choices = Choices(**facts["choices"])
        typed = [type(value) for value in vars(choices).values()] == [int, bool, str]
        if typed and choices.device in ("cpu", "cuda") and 1 <= choices.threads <= 4096:
            return choices
    except (KeyError, TypeError):
        pass
    raise BadInput(
        f"{shown(folder / RUN)} can't be read, or its choices are not what a run writes: it can't "
        "be resumed"
    )


def refuse_irregular(run: Path) -> None:
    """Refuse a run with a part that is a link, a pipe or a device: it would be followed."""
    checkpoints = run / "checkpoints"
    for name in (*RUN_FILES, LOCK):
        if cause := irregular(run / name, name in FOLDERS):
            raise BadInput(f"{shown(run / name)} {cause}; remove it if you trust the rest")
    try:
        found = [*checkpoints.glob(f"{checkpoint.DAMAGED}*"), *checkpoint.paths(checkpoints)]
    except OSError as error:
        raise BadInput(f"{shown(run)} can't be read: {error.strerror}") from None
    for path in found:
        if cause := irregular(path):
            raise BadInput(f"{shown(path)} {cause}; remove it if you trust the rest")


def _run_config(run: Path, changes: Mapping[str, Any]) -> Config:
    """A run's own configuration, with `changes`; errors name the file or the option at fault."""
    objects = {name: value for name, value in changes.items() if name in OBJECTS}
    stored = load_file(run / CONFIG)
    if "env" in objects and isinstance(stored.get("env"), dict):
        objects["env"] = stored["env"] | objects["env"]
    stored = _as_launched(stored | objects, changes.get("init_method"))
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
    return _run_config(run, {option: stand_in(option, v, own) for option, v in named.items()})


def _as_launched(stored: dict[str, Any], init_method: str | None) -> dict[str, Any]:
    """Without the number of processes, if it is what a launcher has started, which meet there."""
    meeting = init_method or stored.get("init_method") or Config.init_method
    try:
        started = launched(init_method=meeting) or 0
    except BadInput:
        return stored
    sync = entry("sync", stored.get("sync")) or entry("sync", "allreduce")
    if stored.get(sync.counted_by) != started - sync.watcher:
        return stored
    kept = {key: value for key, value in stored.items() if key != sync.counted_by}
    return kept | {"init_method": meeting}


def rewind(saved: SavedRun, progress: Progress, warn_init_method: bool) -> None:
    """Drop the metrics after `progress`, which are written again, and update config.yaml."""
    folder, config, iteration = saved.folder, saved.config, progress.iter
    warn_of_schedules(saved.before, config, progress)
    for name, value in saved.ignored.items():
        if name == "log_jsonl" or warn_init_method:
            text = printable(str(value))[:200]
            log.warning(
                f"{name} of {shown(folder / CONFIG)} leads out of the run: {text} "
                f"{IGNORED[name]}; to use it, write --{name.replace('_', '-')} {shlex.quote(text)}"
            )
    with directory.writing(shown(folder), StoppedEarly):
        copy = Path(config.log_jsonl) if config.log_jsonl else None
        if copy and str(copy) == saved.stored.get("log_jsonl") and copy.is_file():
            cut_back(copy.resolve(), iteration, own=False)
        elif copy:
            directory.claim_copy(copy, False, folder)
        cut_back(folder / METRICS, iteration)
        cut_back_episodes(folder / EPISODES, progress.steps)
        directory.write_config(folder, {**config.as_dict(), **saved.ignored})
