"""Where reports are written: metrics.jsonl, episodes.csv, TensorBoard."""

from __future__ import annotations

import csv
import errno
import io
import json
import logging
import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..storage.files import read_lines, replace_file, shown
from .report import CORE, FinishedEpisode, Report

log = logging.getLogger("paceline")


class JsonLines:
    """One JSON object per report, each written whole or not at all; never blocks on a pipe."""

    def __init__(self, path: Path, own: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._own = path, own
        self._file = _reserved.pop(path) if path in _reserved else _opened(path, own)
        self._torn = self._warned = False

    def write(self, report: Report, logged: Mapping[str, float]) -> None:
        if self._own:
            self._reopen_if_replaced()
        line = (json.dumps(report.as_dict()) + "\n").encode()
        if self._torn:
            line = b"\n" + line
        try:
            written = os.write(self._file, line)
            if written == len(line):
                self._torn = False
                return
            self._torn = True
            cause = "the disk is full"
            if stat.S_ISREG(os.fstat(self._file).st_mode):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                self._torn = False
        except BlockingIOError:
            cause = "its reader is too slow"
        except OSError as error:
            cause = error.strerror or str(error)
        self._warn(cause)

    def _warn(self, cause: str) -> None:
        if not self._warned:
            log.warning(f"{shown(self.path)} can't be written: {cause}; training goes on")
        self._warned = True

    def _reopen_if_replaced(self) -> None:
        """Write a deleted file again; append to one that has replaced it."""
        try:
            if os.path.samestat(self.path.lstat(), os.fstat(self._file)):
                return
            what = "was replaced; the new one is appended to"
        except OSError:
            what = "was deleted; it is written again"
        try:
            if not os.path.lexists(self.path):
                with os.fdopen(os.dup(self._file), "rb") as old:
                    old.seek(0)
                    replace_file(self.path, iter(lambda: old.read(2**20), b""))
            file = _opened(self.path, self._own)
        except OSError as error:
            self._warn(error.strerror or str(error))
            return
        os.close(self._file)
        self._file = file
        log.warning(f"{shown(self.path)} {what}")

    def close(self) -> None:
        os.close(self._file)


_reserved: dict[Path, int] = {}


def reserve(path: Path) -> None:
    """Open what a `JsonLines` will write: closed in between, a pipe would lose its reader."""
    _reserved[path] = _opened(path)


def _opened(path: Path, own: bool = False) -> int:
    """A descriptor that appends without blocking; the run's `own` file is no link, and readable."""
    flags = os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    flags |= os.O_RDWR | os.O_NOFOLLOW if own else os.O_WRONLY
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        text = "this pipe has no reader; start it first"
        raise OSError(errno.ENXIO, text, str(path)) from None


def cut_back(path: Path, iteration: int, own: bool = True) -> None:
    """Drop the lines after `iteration`, and a torn one: a resume writes them again.

    A file that is not the run's `own` is refused if it holds anything but metrics.
    """
    if not path.exists():
        return
    try:
        if not own and not _holds_metrics(path):
            raise BadInput(f"{shown(path)} is not a file of metrics; name another with --log-jsonl")
        kept = (line for line in read_lines(path) if _iteration(line) <= iteration)
        replace_file(path, (line for line in kept if line.endswith(b"\n")))
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        text = f"{shown(path)} is not a file of metrics ({error.strerror}); repair or remove it"
        raise BadInput(text) from None


def _iteration(line: bytes) -> float:
    """The iteration of a report; infinite for anything else."""
    try:
        return float(json.loads(line)["iter"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return math.inf


def _holds_metrics(path: Path) -> bool:
    """Whether every line is a report, but for the last, which may be torn."""
    reports, last = 0, b""
    for line in read_lines(path):
        if last and _iteration(last) == math.inf:
            return False
        reports, last = reports + bool(last), line
    return reports > 0 or not last or last.startswith(b'{"time"')


class EpisodeTable:
    """episodes.csv: a line per episode. A column is added when an episode has a new number in its
    `info`; given up if it can't be written."""

    COLUMNS = ("time", "step", "column", "return", "length")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: list[str] = []
        """of numbers from `info`, in the order of their columns"""
        self._failed = False
        self._attempt(self._open)

    def _open(self) -> None:
        if self.path.exists():
            self._names = _read_header(self.path)[len(self.COLUMNS) :]
        else:
            replace_file(self.path, _csv_line(self.COLUMNS))

    def write(self, report: Report, logged: Mapping[str, float]) -> None:
        if report.finished and not self._failed:
            self._attempt(lambda: self._append(report.finished))

    def _append(self, finished: Iterable[FinishedEpisode]) -> None:
        new = {name: None for one in finished for name in one.episode.info}
        if added := [name for name in new if name not in self._names]:
            self._names += added
            self._widen(len(added))
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for one in finished:
            episode = one.episode
            known = f"{one.time:.3f}", one.steps, episode.column, f"{episode.total:.6g}"
            info = (_number(episode.info.get(name)) for name in self._names)
            rows.writerow((*known, episode.length, *info))
        if not self.path.exists():  # it was deleted
            replace_file(self.path, _csv_line((*self.COLUMNS, *self._names)))
        data = text.getvalue().encode()
        with os.fdopen(_opened(self.path, own=True), "ab", buffering=0) as file:
            written = file.write(data)
            if written != len(data):  # whole lines or none
                file.truncate(os.fstat(file.fileno()).st_size - written)
                raise OSError(errno.ENOSPC, "the disk is full")

    def _widen(self, count: int) -> None:
        """Rewrite the file with `count` empty columns more."""
        header = _csv_line((*self.COLUMNS, *self._names))
        old = (line.rstrip(b"\r\n") + b"," * count + b"\n" for line in read_lines(self.path))
        next(old, None)
        replace_file(self.path, (line for part in ([header], old) for line in part))

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, csv.Error, ValueError) as error:
            self._failed = True
            cause = getattr(error, "strerror", None) or error
            log.warning(f"{shown(self.path)} can't be written: {cause}; training goes on")

    def close(self) -> None:
        """Nothing is held open."""


def _csv_line(values: Iterable[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()


def _read_header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def _number(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"


def cut_back_episodes(path: Path, steps: int) -> None:
    """Drop the episodes after `steps`, and a torn line: a resume writes them again."""
    if not path.exists():
        return
    lines = enumerate(read_lines(path))
    kept = (line for n, line in lines if n == 0 or _step_of(line) <= steps)
    replace_file(path, (line for line in kept if line.endswith(b"\n")))


def _step_of(line: bytes) -> float:
    try:
        return float(line.split(b",")[1])
    except (ValueError, IndexError):
        return math.inf


class TensorBoard:
    """Curves for TensorBoard, at most twice a second; given up if they can't be written.

    Written in this thread: torch's writer has one of its own, whose errors can't be caught.
    """

    EVERY = 0.5

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.path, self._written = folder, -math.inf
        self._file: Any = None
        name = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / name).open("ab", buffering=0)
        except OSError as error:
            self._give_up(error)
            return
        self._records = RecordWriter(self._file)
        self._put(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if purge_step is not None:
            log_start = SessionLog(status=SessionLog.START)
            self._put(Event(wall_time=time.time(), step=purge_step, session_log=log_start))

    def write(self, report: Report, logged: Mapping[str, float]) -> None:
        if time.monotonic() - self._written >= self.EVERY:
            self._written = time.monotonic()
            if self._file is not None and not os.fstat(self._file.fileno()).st_nlink:
                self._give_up(OSError(errno.ENOENT, "its file was deleted"))
            values = report.as_dict()
            for name in ("steps", "iter", "eval_return"):
                values.pop(name)
            self._add({_group(k): v for k, v in values.items() if v is not None}, report.steps)
        elif logged:
            self._add({_group(name): value for name, value in logged.items()}, report.steps)
        if report.eval_return is not None:
            self._add({"eval/mean_return": report.eval_return}, report.steps)

    def _add(self, values: dict[str, float], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._put(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))

    def _put(self, event: Any) -> None:
        if self._file is None:
            return
        try:
            self._records.write(event.SerializeToString())
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        log.warning(f"{shown(self.path)} can't be written: {error.strerror}; no more curves")
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _group(name: str) -> str:
    """The tag of a metric; a name with a slash has its own group."""
    if "/" in name:
        return name
    if name.startswith("episode"):
        return f"rollout/{name}"
    timing = name.startswith(("t_", "time", "fps", "memory", "cpu", "world", "steps"))
    return f"{'time' if timing and name in CORE else 'train'}/{name}"
