"""Training runs as a user would start them: processes that never outlive the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...cli.train import stoppable
from ...config.schema import Config
from ...errors import PacelineError, StoppedEarly
from ...processes.lifetime import exit_reason, terminate
from ...processes.start import start_python
from ...processes.stopping import handle_stop_signals
from ...run.directory import CONFIG
from ...storage.compiler_cache import CACHE, compiled_cache

SPEED_ONLY = {"track": "none", "eval_episodes": "1"}
"""Options of runs of which only the speed is measured."""
GRACE = 30.0
"""Seconds that a run gets to save and exit before it is killed."""
TICK = 0.25
"""Seconds between two looks at a run."""
LOG_LINES = 8
ERROR_PREFIX = "paceline: "
"""Starts the line in which `paceline train` says what was wrong."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training of a sweep: a configuration and a seed."""

    name: str
    options: Mapping[str, str]
    """flags of `paceline train`, by option name"""
    folder: Path
    """its run directory"""
    changes: Mapping[str, str] = field(default_factory=dict)
    """flags of `paceline resume`, if the run was begun before"""
    copies: int = 1
    """how many of it run at the same time, each in a run directory of its own"""

    @property
    def folders(self) -> list[Path]:
        if self.copies == 1:
            return [self.folder]
        name = self.folder.name
        return [self.folder.with_name(f"{name}-copy-{n}") for n in range(1, self.copies + 1)]


class RunFailed(PacelineError):
    """A training run that ended with an error; its exit code becomes ours."""

    def __init__(self, log: Path, code: int) -> None:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        ended = f"a training run {exit_reason(code)}"
        head = f"{ended}; its last lines:" if lines else ended
        super().__init__("\n".join([head, *lines[-LOG_LINES:]]))
        errors = [line for line in lines[-LOG_LINES:] if line.startswith(ERROR_PREFIX)]
        self.reason = errors[0].removeprefix(ERROR_PREFIX) if errors else ended
        """in one line"""
        self.exit_code = code if code >= 0 else 128 - code  # as a shell reports it


def calibrate(config: Config, name: str = "") -> Config:
    """With the processes that `parallel` amounts to, for runs of which this command starts several;
    `name` is of what they are chosen for, for messages."""
    from ...run.parallel import calibrated

    os.environ.setdefault(CACHE, compiled_cache())
    with stoppable(text="stopped while it calibrated") as (stop, console):
        if name:
            console.say(f"{name}:")
        return calibrated(config)
    raise StoppedEarly(f"stopped by {stop.name}")


def run_cell(cell: Cell, watch: Callable[[], None] | None = None) -> None:
    """Train to the end, calling `watch` meanwhile; a run directory begun before is resumed."""
    with ExitStack() as stack:
        running = {
            folder: stack.enter_context(_started_with_log(cell, folder)) for folder in cell.folders
        }
        while running:
            for folder, process in list(running.items()):
                try:
                    code = process.wait(TICK)
                except subprocess.TimeoutExpired:
                    continue
                if code:
                    raise RunFailed(log_of(folder), code)
                del running[folder]
            if watch is not None:
                watch()


@contextmanager
def scratch_runs(cell: Cell) -> Iterator[list[Path]]:
    """Train to the end; within, the run directories, which are gone afterwards."""
    parent = cell.folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".run-", dir=parent) as scratch:
        made = replace(cell, folder=Path(scratch) / cell.folder.name)
        run_cell(made)
        yield made.folders


def log_of(folder: Path) -> Path:
    """Where the standard error of a run goes: beside its run directory."""
    return folder.with_name(f"{folder.name}.log")


def arguments_of(cell: Cell, folder: Path) -> list[str]:
    """Of the command that begins this run, or goes on with it if it was begun before."""
    if (folder / CONFIG).is_file():
        return ["resume", str(folder), *_flags(cell.changes)]
    return ["train", f"--output-dir={folder}", "--overwrite", *_flags(cell.options)]


def _flags(options: Mapping[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


@contextmanager
def started(
    cell: Cell, folder: Path, entry: str = f"{__name__}:run_command", **streams: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, so that Ctrl-C reaches this command alone."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    process = start_python(entry, arguments_of(cell, folder), **streams)
    try:
        yield process
    finally:
        terminate(process, GRACE)


@contextmanager
def _started_with_log(cell: Cell, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        log_of(folder).open("wb") as log,
        started(cell, folder, stdout=subprocess.DEVNULL, stderr=log) as process,
    ):
        yield process


def run_command(arguments: list[str]) -> None:
    """In a process of its own: `paceline` with these arguments."""
    from ...cli.commands import main

    sys.argv = ["paceline", *arguments]  # which a run records
    main()


def interrupt_on_signals() -> AbstractContextManager[None]:
    """Within, every signal that would end this process raises KeyboardInterrupt, as Ctrl-C does."""
    return handle_stop_signals(signal.default_int_handler)
