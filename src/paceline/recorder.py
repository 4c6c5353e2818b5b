"""Recorder: what a run writes while it learns, and when."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import checkpoint, evaluation, shards
from .agent import Agent, network_facts
from .budget import Progress
from .build import Parts
from .clock import Clock
from .config import Config
from .errors import PacelineError, StoppedEarly
from .files import replace_file, shown
from .held import HeldRun
from .metrics import JsonLines, Report, TensorBoard
from .outcome import Outcome
from .rollout import Array
from .rundir import EVALUATION, METRICS, RUN, add_to_run, fixed
from .stopping import interruptible

log = logging.getLogger("paceline")

SAVE_SECONDS = 30.0
"""Time between checkpoints, where no number of steps is given."""
LONG_REPLAY = 1_000_000
"""Environment steps whose replay, on resume, is worth a word."""


class Recorder:
    """Writes metrics, evaluates, and saves checkpoints. A context manager.

    Every rank has one, since a checkpoint takes all of them; but rank 0 alone decides and writes.
    """

    def __init__(
        self, config: Config, folder: Path, parts: Parts, progress: Progress, asked: float
    ) -> None:
        self._config, self._folder, self._parts, self._progress = config, folder, parts, progress
        self._clock = Clock(asked, progress)
        self._writes = parts.sync.rank == 0
        self._held: HeldRun | None = None
        self._lines: list[JsonLines] = []
        self._board = None
        if self._writes:
            self._held = HeldRun(folder, config)
            self._lines = [JsonLines(folder / METRICS, own=True)]
            self._lines += [JsonLines(Path(config.log_jsonl))] if config.log_jsonl else []
        if self._writes and config.track == "tensorboard":
            purge = progress.steps + 1 if progress.iter else None
            self._board = TensorBoard(folder / "events", purge)
        self._steps, self._saved_at = progress.steps, time.monotonic()
        self._saved_iter = progress.iter if progress.iter else -1
        self._announced = False
        self._outcome = Outcome(parts.learner.module.policy, progress)
        self._refused: set[str] = set()
        """what could not be written, and has been said"""

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        for lines in self._lines:
            lines.close()
        if self._board is not None:
            self._board.close()
        if self._held is not None:
            self._held.close()

    def record(self, report: Report) -> Report:
        """Evaluate if it is time; write the report; save if it is time."""
        before, better, due = self._progress.best, False, False
        if self._writes:
            gone = self._look_after_directory()
            if self._clock.startup is None:
                self._note_startup(self._clock.start(report))
            report, better = self._written(self._clock.apart(report))
            due = gone or better or self._timely(report)
        self._steps = report.steps
        if not self._any(due):
            return report
        with self._clock.part("save"):
            saved = self._save(report.eval_return)
            if better and saved:
                self._try("best", lambda: checkpoint.mark_best(saved))
            elif better:
                self._progress.best = before
            self._prune()
        if lost := self._lost():
            where = f"go on with `paceline resume {shown(self._folder)}`"
            raise StoppedEarly(f"{lost}; {where if saved else 'no checkpoint could be written'}")
        return report

    def _look_after_directory(self) -> bool:
        """Whether a checkpoint is due since the run was moved, or what was saved is deleted."""
        if self._held is None:
            return False
        if moved := self._held.check():
            self._folder = self._held.folder
            self._lines[0].path = self._folder / METRICS
        newest = self._folder / "checkpoints" / f"{self._saved_iter:08d}"
        missing = self._saved_iter >= 0 and not newest.exists()
        if missing:
            self._saved_iter = -1
            if not moved:
                log.warning("%s was deleted; the run is saved anew", shown(newest))
        return moved or missing

    def _lost(self) -> str | None:
        return self._held.lost if self._held is not None else None

    def _written(self, report: Report) -> tuple[Report, bool]:
        """The report with its evaluation, if it was time; and whether that was the best so far."""
        better, best = False, self._progress.best
        try:
            if _due(self._config.eval_every, self._steps, report.steps):
                with self._clock.part("eval"):
                    report = replace(report, eval_return=self._evaluate().mean)
        finally:  # an evaluation that fails takes nothing away from what was learnt
            for lines in self._lines:
                lines.write(report)
            if self._board is not None:
                self._board.write(report)
        score = report.eval_return
        if score is not None:
            better = best is None or score > best
            said = ", the best so far" if better else ""
            log.info("evaluation after %s steps: mean %.2f%s", f"{report.steps:,}", score, said)
            if self._board is not None:
                self._board.evaluation(report.steps, score)
        if better:
            self._progress.best = score
        return report, better

    def _timely(self, report: Report) -> bool:
        """Whether a checkpoint is due."""
        if self._config.save_every:
            return _due(self._config.save_every, self._steps, report.steps)
        return time.monotonic() - self._saved_at >= SAVE_SECONDS

    def _any(self, flag: bool) -> bool:
        """What rank 0 has decided."""
        sync = self._parts.sync
        return flag if sync.size == 1 else not sync.all(not flag)

    def _note_startup(self, seconds: float) -> None:
        compiling = self._parts.learner.t_compile
        said = f", {compiling:.1f} s of them compiling" if compiling else ""
        log.info("the clock started after %.1f s%s", seconds, said)
        if self._clock.resumed:
            return
        facts = {"seconds": round(seconds, 3), "compile_seconds": round(compiling, 3)}
        self._try(RUN, lambda: add_to_run(self._folder, startup=facts))
        if self._held is not None:
            self._try(RUN, self._held.remember_facts)

    def finish(self) -> None:
        """The budget is spent: the last checkpoint, and the evaluation of what was learnt."""
        if self._writes:
            log.info(self._clock.summary())
        self._save_at_last()
        if not self._writes:
            return
        result = self._evaluate()
        log.info(
            "evaluation: mean %.2f ± %.2f over %d episodes, 95%% interval %.2f to %.2f",
            result.mean,
            result.std,
            result.episodes,
            result.ci_low,
            result.ci_high,
        )
        for line in result.told_elsewhere():
            log.info("  %s", line)
        self._outcome.say(self._config, self._progress, result)

    def stop(self) -> None:
        """The caller has left the loop: save, so that the run can be resumed."""
        if self._parts.sampler is not None and self._parts.sampler.state() is None:
            log.info("stopped before the first step: there is nothing to save yet")
            return
        self._save_at_last()
        if self._writes:
            log.info("saved; go on with `paceline resume %s`", shown(self._folder))

    def fail(self, error: PacelineError) -> None:
        """Keep the state before the iteration that failed, if no other rank is needed for it."""
        saved = self._save() if self._parts.sync.size == 1 else None
        if saved:
            error.args = (f"{error}\nthe last good state is in {shown(saved)}",)

    def _evaluate(self) -> evaluation.EvalResult:
        parts, config = self._parts, self._config
        agent = Agent(parts.network, self._weights())
        world, heartbeat = parts.world, parts.sync.heartbeat
        with interruptible():
            result = evaluation.run(
                agent, world.env_id, world.options, config.eval_episodes, heartbeat=heartbeat
            )
        name = f"checkpoints/{self._progress.iter:08d}"
        saved = name if self._saved_iter == self._progress.iter else None
        result = replace(result, checkpoint=saved, env_id=config.env_name)
        text = json.dumps(result.as_dict(), indent=1)
        path = self._folder / EVALUATION
        self._try(EVALUATION, lambda: replace_file(path, text.encode()))
        return result

    def _save(self, evaluated: float | None = None) -> Path | None:
        """A checkpoint of this moment; None where the disk refused it, which is said."""
        arrays = self._state()  # takes all ranks, whether or not it is needed
        if arrays is None or not self._writes:
            return None
        self._look_after_directory()
        progress, folder = self._progress, self._folder / "checkpoints"
        if self._saved_iter == progress.iter:
            return folder / f"{progress.iter:08d}"
        content = checkpoint.Checkpoint(
            weights=self._weights(),
            arrays=arrays,
            facts={
                "iter": progress.iter,
                "steps": progress.steps,
                "time": progress.time,
                "recent": list(progress.recent),
                "first": progress.first,
                "episodes": progress.episodes,
                "best": progress.best,
                "evaluated": evaluated,
                "network": network_facts(self._parts.network),
                "config": fixed(self._config),
            },
        )
        saved = self._try("checkpoints", lambda: checkpoint.save(folder, progress.iter, content))
        self._saved_at = time.monotonic()
        if saved is not None:
            self._saved_iter = progress.iter
        return saved

    def _state(self) -> dict[str, Array] | None:
        """The state of all ranks, for the one that writes; None before the first rollout."""
        parts, sync = self._parts, self._parts.sync
        sampler = parts.sampler.state() if parts.sampler is not None else {}
        if sampler is None:
            return None
        self._announce(sampler)
        own = shards.own(parts.learner.state(), sampler, sync.rank, parts.learner.per_column)
        return shards.joined(sync.gather(own) if sync.size > 1 else [own])

    def _announce(self, sampler: dict[str, Any]) -> None:
        replay = sum(len(v) for name, v in sampler.items() if name.endswith(".actions"))
        if replay > LONG_REPLAY and not self._announced:
            self._announced = True
            log.warning("a resume from here would first replay %s steps", f"{replay:,}")

    def _weights(self) -> dict[str, Array]:
        """Copies, by name."""
        named = self._parts.learner.module.named_weights()
        return {name: weight.numpy(force=True).copy() for name, weight in named.items()}

    def _save_at_last(self) -> None:
        saved = self._save()
        if lost := self._lost():
            log.warning("%s", lost)
        if saved is None and self._writes:
            raise StoppedEarly(
                "the last checkpoint could not be written; earlier ones are whole: free some "
                f"space, then `paceline resume {shown(self._folder)}`"
            )
        self._prune()

    def _prune(self) -> None:
        if self._writes:
            checkpoint.prune(self._folder / "checkpoints", self._config.keep)

    def _try(self, name: str, write: Callable[[], Any]) -> Any:
        """A disk that is full or gone is reported, and training goes on."""
        try:
            return write()
        except OSError as error:
            if name not in self._refused:
                path = shown(self._folder / name)
                log.warning("%s can't be written: %s; training goes on", path, error.strerror)
            self._refused.add(name)
            return None


def _due(every: int | None, before: int, now: int) -> bool:
    """Whether a multiple of `every` lies after `before`, up to `now`."""
    return every is not None and before // every != now // every
