"""Recorder: the metrics, evaluations and checkpoints of a run while it trains."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..config.schema import Config
from ..envs.source import source_of
from ..errors import PacelineError, StoppedEarly
from ..policy.agent import Agent
from ..processes.stopping import StopNow, interruptible
from ..storage import checkpoint
from ..storage.files import replace_file, shown
from .budget import Progress
from .build import Parts
from .checkpointing import LONG_REPLAY, copy_weights, gather_state, make_checkpoint, replay_steps
from .directory import EPISODES, EVALUATION, METRICS, RUN, RunDirectory
from .evaluation import EvalResult, Evaluation, Outcome, evaluate_policy
from .report import Report, check_logged
from .writers import EpisodeTable, JsonLines, TensorBoard

log = logging.getLogger("paceline")

SAVE_SECONDS = 30.0
"""Time between checkpoints, where no number of steps is given."""


class Recorder:
    """Rank 0 decides and writes; all ranks take part in checkpoints.

    A report is evaluated by `record` and written by `commit`, between which the caller's loop adds
    what it logs.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        parts: Parts,
        progress: Progress,
        stopping: Callable[[], bool],
        requested_at: float,
    ) -> None:
        self._config, self.folder, self._parts, self._progress = config, folder, parts, progress
        self._stopping, self._requested_at, self._started = stopping, requested_at, False
        self._time_before, self._reported_iter = progress.time, progress.iter
        self._resumed = progress.iter > 0
        self._seconds = {"eval": 0.0, "save": 0.0}
        """of this session"""
        self._reported_seconds = dict(self._seconds)
        self._directory: RunDirectory | None = None
        """on rank 0 only"""
        self._outputs: list[JsonLines | TensorBoard | EpisodeTable] = []
        if parts.sync.rank == 0:
            self._directory = RunDirectory(folder)
            self._outputs.append(JsonLines(folder / METRICS, own=True))
            self._outputs.append(EpisodeTable(folder / EPISODES))
            if config.log_jsonl:
                self._outputs.append(JsonLines(Path(config.log_jsonl)))
            if config.track == "tensorboard":
                purge = progress.steps + 1 if self._resumed else None
                self._outputs.append(TensorBoard(folder / "events", purge))
        self._steps, self._saved_at = progress.steps, time.monotonic()
        self._saved_iter = progress.iter if self._resumed else -1
        self._report: Report | None = None
        """not yet written"""
        self._logged: dict[str, float] = {}
        """by the user, for the next report that is written"""
        self._save_now = self._complete = False
        self._evaluated: float | None = None
        """mean return of the policy as it is now, if it was evaluated"""
        self._best_before = progress.best
        """of the evaluations before the last checkpoint"""
        self._replay_announced = False
        self._outcome = Outcome(parts.learner.module.policy, progress)
        self._evaluation_left = EvaluationEstimate(config, parts)
        self._unwritable: set[str] = set()
        """files that a warning was given for"""

    def close(self) -> None:
        if self._logged:
            names = ", ".join(self._logged)
            log.warning(f"logged after the last report, and so not written: {names}")
        for output in self._outputs:
            output.close()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def record(self, report: Report) -> Report:
        """Evaluate if it is due; the report is written by `commit`."""
        self._report, self._evaluated = report, None
        if self._directory is None:
            return report
        if not self._started:
            self._log_startup(report)
        left = self._evaluation_left.seconds(report)
        self._report = replace(self._with_times(report), evaluation_left=left)
        if _crosses(self._config.eval_every, self._steps, report.steps):
            self.evaluate(self._config.eval_episodes)
        return self._report

    def log(self, values: Mapping[str, Any]) -> None:
        """Add numbers to the next report that is written; rank 0's count."""
        checked = check_logged(values)
        if self._directory is not None:
            self._logged |= checked

    def evaluate(self, episodes: int) -> EvalResult | None:
        """Evaluate now; the result belongs to the report that is not yet written."""
        with self._timed("eval"):
            result = self._evaluate(episodes)
        if self._directory is None or result is None or result.cut_short:
            return result
        best, suffix, self._evaluated = self._progress.best, "", result.mean
        if best is None or result.mean > best:
            self._progress.best, suffix = result.mean, ", the best so far"
        if self._report is not None:
            self._report = replace(self._report, eval_return=result.mean)
        log.info(f"evaluation after {self._progress.steps:,} steps: mean {result.mean:.2f}{suffix}")
        return result

    def commit(self) -> None:
        """Write the report, with what was logged; save if it is due."""
        self._write()
        due = self._directory is not None and self._save_due()
        self._steps = self._progress.steps
        if self._parts.sync.size > 1:
            due = not self._parts.sync.all(not due)  # as rank 0 has decided
        if due:
            self.save()

    def save(self) -> Path | None:
        """Write what was reported, then a checkpoint; None on other ranks, or if it failed."""
        self._write()
        self._save_now = False
        with self._timed("save"):
            saved = self._save()
        if self._directory is not None and self._directory.lost:
            where = f"go on with `paceline resume {shown(self.folder)}`"
            outcome = where if saved else "no checkpoint could be written"
            raise StoppedEarly(f"{self._directory.lost}; {outcome}")
        return saved

    def _write(self) -> None:
        """Write the report that is not yet written, if there is one."""
        report, self._report = self._report, None
        if report is not None and self._directory is not None:
            self._save_now |= self._check_directory()
            logged, self._logged = self._logged, {}
            for output in self._outputs:
                output.write(replace(report, metrics={**report.metrics, **logged}), logged)

    def _check_directory(self) -> bool:
        """Whether a checkpoint is due because the run was moved, or its last one deleted."""
        assert self._directory is not None
        if moved := self._directory.check():
            self.folder = self._directory.folder
            for output, name in zip(self._outputs, (METRICS, EPISODES), strict=False):
                output.path = self.folder / name
        newest = self.folder / "checkpoints" / f"{self._saved_iter:08d}"
        missing = self._saved_iter >= 0 and not newest.exists()
        if missing:
            self._saved_iter = -1
            if not moved:
                log.warning(f"{shown(newest)} was deleted; the run is saved again")
        return moved or missing

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Count the time within as evaluation or saving."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - began

    def _with_times(self, report: Report) -> Report:
        """The report, with the time per iteration of evaluation and saving before it."""
        iters, self._reported_iter = max(1, report.iter - self._reported_iter), report.iter
        before, self._reported_seconds = self._reported_seconds, dict(self._seconds)
        each = {name: (now - before[name]) / iters for name, now in self._seconds.items()}
        return replace(report, t_eval=each["eval"], t_save=each["save"])

    def _save_due(self) -> bool:
        if self._save_now or self._progress.best != self._best_before:
            return True
        if self._config.save_every:
            return _crosses(self._config.save_every, self._steps, self._progress.steps)
        return time.monotonic() - self._saved_at >= SAVE_SECONDS

    def _log_startup(self, report: Report) -> None:
        """Log and write the time between the request and the first step."""
        self._started = True
        trained = report.time - self._time_before
        seconds = max(0.0, time.monotonic() - self._requested_at - trained)
        compiling = self._parts.learner.t_compile
        suffix = f", {compiling:.1f} s of it compiling" if compiling else ""
        log.info(f"start-up {seconds:.1f} s (not counted){suffix}")
        if self._directory is not None and not self._resumed:
            facts = {"seconds": round(seconds, 3), "compile_seconds": round(compiling, 3)}
            self._try_writing(RUN, partial(self._directory.add_facts, startup=facts))

    def finish(self) -> None:
        """The budget is spent: make the last checkpoint, and evaluate."""
        if self._directory is not None:
            now, seconds = self._progress.time, self._seconds
            whole = f", {now:.1f} s in all" if self._resumed else ""
            log.info(
                f"training time {now - self._time_before:.1f} s{whole} (evaluations "
                f"{seconds['eval']:.1f} s, checkpoints {seconds['save']:.1f} s)"
            )
        self._save_last()
        self._complete = True
        if self._directory is None or not self._config.eval_episodes:
            return
        result = self._evaluate(self._config.eval_episodes, at_end=True)
        if result is None:
            log.info("the evaluation was stopped before its first episode had ended")
        else:
            first, *others = result.lines()
            log.info(f"evaluation: {first}")
            for line in others:
                log.info(f"  {line}")
        if result is None or result.cut_short:
            raise StopNow  # training is complete; a resume evaluates again
        self._outcome.warn(self._config, self._progress, result)

    def stop(self) -> None:
        """The caller has left the loop: save, so that the run can be resumed."""
        self._write()
        if self._complete:  # other ranks have left
            if self._directory is not None:
                log.info(f"saved; go on with `paceline resume {shown(self.folder)}` to evaluate it")
            return
        if self._parts.sampler is not None and self._parts.sampler.state() is None:
            log.info("stopped before the first step: there is nothing to save yet")
            return
        self._save_last()
        if self._directory is not None:
            log.info(f"saved; go on with `paceline resume {shown(self.folder)}`")

    def fail(self, error: PacelineError) -> None:
        """Save the state before the iteration that failed, unless that takes other ranks."""
        self._write()
        saved = self._save() if self._parts.sync.size == 1 else None
        if saved:
            error.args = (f"{error}\nthe last good state is in {shown(saved)}",)

    def _evaluate(self, episodes: int, at_end: bool = False) -> EvalResult | None:
        parts, config, env_info = self._parts, self._config, self._parts.env_info
        agent = Agent(parts.network, copy_weights(parts.learner))
        evaluation = Evaluation(
            episodes=episodes,
            log_info=config.log_info,
            heartbeat=parts.sync.heartbeat,
            stopping=self._stopping,
        )
        began = time.monotonic()
        with interruptible():
            result = evaluate_policy(agent, env_info.env_id, env_info.options, evaluation)
        self._evaluation_left.measured(episodes, time.monotonic() - began)
        if result is None or self._directory is None or (result.cut_short and not at_end):
            return result
        saved = self._saved_iter == self._progress.iter
        name = f"checkpoints/{self._progress.iter:08d}" if saved else None
        result = replace(result, checkpoint=name, env_id=config.env_name)
        path = self.folder / EVALUATION
        self._try_writing(EVALUATION, partial(replace_file, path, result.as_json()))
        return result

    def _save(self) -> Path | None:
        """Save a checkpoint and drop old ones; None on other ranks, or if the disk refused it."""
        state = gather_state(self._parts)  # takes all ranks
        if state is None or self._directory is None:
            return None
        self._check_directory()
        progress, folder = self._progress, self.folder / "checkpoints"
        saved: Path | None = folder / f"{progress.iter:08d}"
        if self._saved_iter != progress.iter:
            if not self._replay_announced and (steps := replay_steps(state)) > LONG_REPLAY:
                self._replay_announced = True
                log.warning(f"a resume from here would first replay {steps:,} steps")
            content = make_checkpoint(self._config, self._parts, progress, state, self._evaluated)
            save = partial(checkpoint.save, folder, progress.iter, content)
            saved = self._try_writing("checkpoints", save)
            self._saved_at = time.monotonic()
        if saved is None:
            progress.best = self._best_before
        else:
            self._saved_iter = progress.iter
            if progress.best != self._best_before:
                self._try_writing("best", partial(checkpoint.mark_best, saved))
            self._best_before = progress.best
            checkpoint.prune(folder, self._config.keep)
        return saved

    def _save_last(self) -> None:
        saved = self._save()
        if self._directory is None:
            return
        if self._directory.lost:
            log.warning(self._directory.lost)
        if saved is None:
            raise StoppedEarly(
                "the last checkpoint could not be written; earlier ones are intact: free some "
                f"space, then `paceline resume {shown(self.folder)}`"
            )

    def _try_writing(self, name: str, write: Callable[[], Any]) -> Any:
        """Warn once of a disk that is full or gone, and train on."""
        try:
            return write()
        except OSError as error:
            if name not in self._unwritable:
                path = shown(self.folder / name)
                log.warning(f"{path} can't be written: {error.strerror}; training goes on")
            self._unwritable.add(name)
            return None


class EvaluationEstimate:
    """How long the evaluation at the end will take: as the last one, or else from the time of a
    step in training and the length of recent episodes."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self._episodes, self._workers = config.eval_episodes, config.workers
        env_info = parts.env_info
        self._variants = 1 + len(source_of(env_info.env_id, **env_info.options).elsewhere)
        self._length: float | None = None
        self._each: float | None = None
        """measured seconds per episode"""

    def measured(self, episodes: int, seconds: float) -> None:
        self._each = seconds / episodes

    def seconds(self, report: Report) -> float:
        self._length = report.episode_length or self._length
        if self._each is not None:
            return self._episodes * self._each
        busy = self._workers * report.t_iter if self._workers else report.t_rollout
        step = busy * report.world_size / max(1.0, report.fps * report.t_iter)
        return self._variants * self._episodes * (self._length or 0.0) * step


def _crosses(every: int | None, before: int, now: int) -> bool:
    """Whether a multiple of `every` lies after `before`, up to `now`."""
    return every is not None and before // every != now // every
