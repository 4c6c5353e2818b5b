"""Where reports go: metrics.jsonl, TensorBoard, the console."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

from .errors import BadInput
from .files import read_plain, replace_file

log = logging.getLogger("paceline")


@dataclass(frozen=True, kw_only=True)
class Report:
    """One or more iterations, as they are written to metrics.jsonl."""

    time: float
    """seconds since the first environment step, over all sessions of the run"""
    iter: int
    steps: int
    """environment steps so far, over all ranks"""
    steps_global: int
    """environment steps in this report, over all ranks"""
    world_size: int
    fps: float
    """steps_global over the wall time since the last report, everything included"""
    t_iter: float
    t_rollout: float
    t_learn: float
    t_sync: float
    t_other: float
    """evaluation, checkpoints and logging since the last report"""
    t_wait: float
    """the part of t_rollout in which the learner waited for workers"""
    restarts: int
    """worker processes replaced so far in this session"""
    env_restarts: int
    """environments rebuilt so far in this session"""
    lag_mean: float
    """updates between the weights that acted and those that learnt"""
    lag_max: int
    episodes: int
    episode_return: float | None
    episode_length: float | None
    loss: float | None
    policy_loss: float | None
    value_loss: float | None
    entropy: float | None
    approx_kl: float | None = None
    clip_frac: float | None = None
    explained_variance: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    rho_mean: float | None = None
    """mean of min(1, ratio of the learner's policy to the one that acted); 1 without lag"""
    memory_mb: float | None = None
    """of the process tree"""
    cpu_percent: float | None = None
    eval_return: float | None = None
    """mean return of the evaluation that followed, if there was one"""
    recent_return: float | None = field(default=None, metadata={"written": False})
    """mean return of the last 100 episodes"""
    fraction: float = field(default=0.0, metadata={"written": False})
    """share of the budget that is spent"""

    def as_dict(self) -> dict[str, Any]:
        """The fields that are written; what is no number becomes null."""
        written = (f.name for f in fields(self) if f.metadata.get("written", True))
        return {name: _clean(getattr(self, name)) for name in written}


def _clean(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


class JsonLines:
    """One JSON object per report, each written whole or, on a full disk, not at all."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._lost = 0

    def write(self, report: Report) -> None:
        size = os.fstat(self._file.fileno()).st_size
        line = (json.dumps(report.as_dict()) + "\n").encode()
        try:
            written = self._file.write(line)
            if written == len(line):
                return
            cause = "the disk is full"
        except OSError as error:
            cause = error.strerror or str(error)
        self._file.truncate(size)
        self._lost += 1
        if self._lost == 1:
            log.warning("%s can't be written: %s; training goes on", self._path, cause)

    def close(self) -> None:
        self._file.close()


def cut_back(path: Path, iteration: int, own: bool = True) -> None:
    """Drop the lines after `iteration`, and a torn one: a resume writes them anew.

    Where it is not the run's `own` file, anything else in it is somebody's, and left alone.
    """
    if not path.exists():
        return
    kept, strangers = [], 0
    lines = read_plain(path).splitlines(keepends=True)
    for line in lines:
        try:
            if json.loads(line)["iter"] <= iteration and line.endswith(b"\n"):
                kept.append(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            strangers += line is not lines[-1]  # the last may be torn
    if not own and (strangers or (lines and not kept and not lines[-1].startswith(b'{"time"'))):
        raise BadInput(f"{path} is not a file of metrics; name another with --log-jsonl")
    replace_file(path, b"".join(kept))


class TensorBoard:
    """Curves for TensorBoard, at most twice a second; given up where they can't be written.

    Written record by record in this thread: torch's writer has one of its own, whose errors
    can't be caught.
    """

    EVERY = 0.5

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder, self._written = folder, -math.inf
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

    def write(self, report: Report) -> None:
        if time.monotonic() - self._written < self.EVERY:
            return
        self._written = time.monotonic()
        values = report.as_dict()
        for name in ("steps", "iter", "eval_return"):
            values.pop(name)
        self._add({_group(k): v for k, v in values.items() if v is not None}, report.steps)

    def evaluation(self, steps: int, mean: float) -> None:
        self._add({"eval/mean_return": mean}, steps)

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
        log.warning("%s can't be written: %s; no more curves", self._folder, error.strerror)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _group(name: str) -> str:
    if name.startswith("episode"):
        return f"rollout/{name}"
    timing = name.startswith(("t_", "time", "fps", "memory", "cpu", "world", "steps"))
    return f"{'time' if timing else 'train'}/{name}"


class Console:
    """Live progress on a terminal; plain lines, a few seconds apart, when piped."""

    EVERY = 2.0

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout or _nowhere()
        self._live: Any = None
        self._printed = -math.inf
        self._fps = 0.0
        self._shares: dict[str, float] = {}
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            from rich.live import Live

            self._live = Live(refresh_per_second=8, transient=False)
            self._live.start()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            self._print(text)

    def _print(self, text: str) -> None:
        """A reader that has gone away, or a full disk, is no reason to stop training."""
        try:
            print(text, file=self._stream, flush=True)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def show(self, report: Report) -> None:
        """Progress so far."""
        self._smooth(report)
        spent = report.fraction
        left = report.time * (1 - spent) / spent if spent > 0 else math.inf
        if self._live is not None:
            self._live.update(self._panel(report, left))
        elif spent >= 1 or time.monotonic() - self._printed >= self.EVERY:
            self._printed = time.monotonic()
            self._print(self._line(report, left))

    def _smooth(self, report: Report) -> None:
        """A rate that does not jump, and the shares of the phases."""
        weight = 0.1 if self._fps else 1.0
        self._fps += weight * (report.fps - self._fps)
        whole = max(report.t_iter, 1e-9)
        for phase in ("rollout", "wait", "learn", "sync", "other"):
            share = getattr(report, f"t_{phase}") / whole
            old = self._shares.get(phase, share)
            self._shares[phase] = old + weight * (share - old)

    def _line(self, report: Report, left: float) -> str:
        score = "–" if report.recent_return is None else f"{report.recent_return:.1f}"
        return (
            f"{report.fraction:4.0%}  {report.steps:>10,} steps  {self._fps:>9,.0f} steps/s  "
            f"return {score:>8}  {_clock(left)} left  {self._phases()}"
        )

    def _panel(self, report: Report, left: float) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        numbers = Table.grid(padding=(0, 2))
        for _ in range(5):
            numbers.add_column(justify="right")
        score = "–" if report.recent_return is None else f"{report.recent_return:.1f}"
        numbers.add_row("steps", "steps/s", "return (last 100)", "elapsed", "left", style="dim")
        numbers.add_row(
            f"{report.steps:,}", f"{self._fps:,.0f}", score, _clock(report.time), _clock(left)
        )
        rows = Table.grid()
        rows.add_row(ProgressBar(total=1.0, completed=report.fraction, width=60))
        rows.add_row(numbers)
        rows.add_row(Text(self._phases(), style="dim"))
        return rows

    def _phases(self) -> str:
        shown = {name: share for name, share in self._shares.items() if share >= 0.005}
        wait = shown.pop("wait", None)
        parts = [f"{name} {share:.0%}" for name, share in shown.items()]
        if wait is not None:  # a part of the rollout's
            parts.insert(1, f"(waiting {wait:.0%})")
        return "  ".join(parts)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _nowhere() -> TextIO:
    """Standard output may have been closed."""
    return Path(os.devnull).open("w", encoding="utf-8")


def _clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
