"""What is reported, and where it is written: metrics.jsonl, TensorBoard."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

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
    t_eval: float = 0.0
    """the part of t_other in which the policy was evaluated (a3c's learners learn meanwhile)"""
    t_save: float = 0.0
    """the part of t_other in which rank 0 made checkpoints"""
    t_wait: float
    """the part of t_rollout in which the learner waited for workers"""
    restarts: int
    """worker processes replaced so far in this session, and times that all ranks were"""
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
    stopping: bool = field(default=False, metadata={"written": False})
    """whether any rank has been told to stop: leave the loop"""

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
