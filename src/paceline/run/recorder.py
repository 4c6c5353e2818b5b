"""Recorder: what a run writes while it learns, and when."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..config.schema import Config
from ..errors import PacelineError, StoppedEarly
from ..policy.agent import Agent, network_facts
from ..processes.stopping import interruptible
from ..rollout import Array
from ..storage import checkpoint
from ..storage.files import replace_file, shown
from . import evaluation
from .budget import Progress
from .build import Parts
from .directory import EVALUATION, METRICS, RUN, HeldRun, fixed
from .outcome import Outcome
from .report import Report
from .writers import JsonLines, TensorBoard

log = logging.getLogger("paceline")

SAVE_SECONDS = 30.0
"""Time between checkpoints, where no number of steps is given."""


class Recorder:
    """Writes metrics, evaluates, and saves checkpoints: rank 0 decides, all have a part in it."""

    def __init__(
        self, config: Config, folder: Path, parts: Parts, progress: Progress, asked: float
    ) -> None:
        self._config, self._folder, self._parts, self._progress = config, folder, parts, progress
        self._asked, self._started = asked, False
        self._time_before, self._reported_iter = progress.time, progress.iter
        self._resumed = progress.iter > 0
        self._spent = {"eval": 0.0, "save": 0.0}
        """seconds since the last report"""
        self._total = {"eval": 0.0, "save": 0.0}
        """seconds of this session"""
        self._writes = parts.sync.rank == 0
        self._held: HeldRun | None = None
        self._outputs: list[JsonLines | TensorBoard] = []
        if self._writes:
            self._held = HeldRun(folder)
            self._outputs.append(JsonLines(folder / METRICS, own=True))
            if config.log_jsonl:
                self._outputs.append(JsonLines(Path(config.log_jsonl)))
            if config.track == "tensorboard":
                purge = progress.steps + 1 if self._resumed else None
                self._outputs.append(TensorBoard(folder / "events", purge))
        self._steps, self._saved_at = progress.steps, time.monotonic()
        self._saved_iter = progress.iter if self._resumed else -1
        self._announced = False
        self._outcome = Outcome(parts.learner.module.policy, progress)
        self._refused: set[str] = set()
        """what could not be written, and has been said"""

    def close(self) -> None:
        for output in self._outputs:
            output.close()
        if self._held is not None:
            self._held.close()

    def record(self, report: Report) -> Report:
        """Evaluate if it is time; write the report; save if it is time."""
        before, better, due = self._progress.best, False, False
        if self._writes:
            gone = self._look_after_directory()
            if not self._started:
                self._note_startup(report)
            report, better = self._written(self._with_times(report))
            due = gone or better or self._timely(report)
        self._steps = report.steps
        if self._parts.sync.size > 1:
            due = not self._parts.sync.all(not due)  # what rank 0 has decided
        if not due:
            return report
        with self._timed("save"):
            saved = self._save(report.eval_return)
            if better and saved:
                self._try("best", lambda: checkpoint.mark_best(saved))
            elif better:
                self._progress.best = before
            if self._writes:
                checkpoint.prune(self._folder / "checkpoints", self._config.keep)
        if self._held is not None and self._held.lost:
            where = f"go on with `paceline resume {shown(self._folder)}`"
            said = where if saved else "no checkpoint could be written"
            raise StoppedEarly(f"{self._held.lost}; {said}")
        return report

    def _look_after_directory(self) -> bool:
        """Whether a checkpoint is due since the run was moved, or what was saved is deleted."""
        assert self._held is not None  # it is rank 0's to look after
        if moved := self._held.check():
            self._folder = self._held.folder
            self._outputs[0].path = self._folder / METRICS
        newest = self._folder / "checkpoints" / f"{self._saved_iter:08d}"
        missing = self._saved_iter >= 0 and not newest.exists()
        if missing:
            self._saved_iter = -1
            if not moved:
                log.warning(f"{shown(newest)} was deleted; the run is saved anew")
        return moved or missing

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """What is done within counts as evaluation or saving."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._spent[name] += time.monotonic() - began

    def _with_times(self, report: Report) -> Report:
        """The report, with what was spent between it and the one before, for each iteration."""
        spent, self._spent = self._spent, dict.fromkeys(self._spent, 0.0)
        for name, seconds in spent.items():
            self._total[name] += seconds
        iters, self._reported_iter = max(1, report.iter - self._reported_iter), report.iter
        return replace(report, t_eval=spent["eval"] / iters, t_save=spent["save"] / iters)

    def _written(self, report: Report) -> tuple[Report, bool]:
        """The report with its evaluation, if it was time; and whether that was the best so far."""
        best = self._progress.best
        try:
            if _due(self._config.eval_every, self._steps, report.steps):
                with self._timed("eval"):
                    report = replace(report, eval_return=self._evaluate().mean)
        finally:  # an evaluation that fails takes nothing away from what was learnt
            for output in self._outputs:
                output.write(report)
        score = report.eval_return
        if score is None:
            return report, False
        better = best is None or score > best
        said = ", the best so far" if better else ""
        log.info(f"evaluation after {report.steps:,} steps: mean {score:.2f}{said}")
        self._progress.best = score if better else best
        return report, better

    def _timely(self, report: Report) -> bool:
        """Whether a checkpoint is due."""
        if self._config.save_every:
            return _due(self._config.save_every, self._steps, report.steps)
        return time.monotonic() - self._saved_at >= SAVE_SECONDS

    def _note_startup(self, report: Report) -> None:
        """From when the run was asked for to its first step."""
        self._started = True
        trained = report.time - self._time_before
        seconds = max(0.0, time.monotonic() - self._asked - trained)
        compiling = self._parts.learner.t_compile
        said = f", {compiling:.1f} s of them compiling" if compiling else ""
        log.info(f"the clock started after {seconds:.1f} s{said}")
        if self._resumed or self._held is None:
            return
        facts = {"seconds": round(seconds, 3), "compile_seconds": round(compiling, 3)}
        self._try(RUN, partial(self._held.add_facts, startup=facts))

    def finish(self) -> None:
        """The budget is spent: the last checkpoint, and the evaluation of what was learnt."""
        if self._writes:
            before = f" after {self._time_before:.1f} s before" if self._resumed else ""
            log.info(
                f"trained for {self._progress.time - self._time_before:.1f} s{before}, in which "
                f"evaluations took {self._total['eval']:.1f} s and checkpoints "
                f"{self._total['save']:.1f} s; what follows is not counted"
            )
        self._save_at_last()
        if not self._writes:
            return
        result = self._evaluate()
        log.info(
            f"evaluation: mean {result.mean:.2f} ± {result.std:.2f} over {result.episodes} "
            f"episodes, 95% interval {result.ci_low:.2f} to {result.ci_high:.2f}"
        )
        for line in result.told_elsewhere():
            log.info(f"  {line}")
        self._outcome.say(self._config, self._progress, result)

    def stop(self) -> None:
        """The caller has left the loop: save, so that the run can be resumed."""
        if self._parts.sampler is not None and self._parts.sampler.state() is None:
            log.info("stopped before the first step: there is nothing to save yet")
            return
        self._save_at_last()
        if self._writes:
            log.info(f"saved; go on with `paceline resume {shown(self._folder)}`")

    def fail(self, error: PacelineError) -> None:
        """Keep the state before the iteration that failed, if no other rank is needed for it."""
        saved = self._save() if self._parts.sync.size == 1 else None
        if saved:
            error.args = (f"{error}\nthe last good state is in {shown(saved)}",)

    def _evaluate(self) -> evaluation.EvalResult:
        parts, config = self._parts, self._config
        agent, heartbeat = Agent(parts.network, self._weights()), parts.sync.heartbeat
        where = parts.env_info.env_id, parts.env_info.options
        with interruptible():
            result = evaluation.run(agent, *where, config.eval_episodes, heartbeat=heartbeat)
        name = f"checkpoints/{self._progress.iter:08d}"
        saved = name if self._saved_iter == self._progress.iter else None
        result = replace(result, checkpoint=saved, env_id=config.env_name)
        text = json.dumps(result.as_dict(), indent=1)
        self._try(EVALUATION, lambda: replace_file(self._folder / EVALUATION, text.encode()))
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
        facts = vars(progress) | {
            "recent": list(progress.recent),
            "evaluated": evaluated,
            "network": network_facts(self._parts.network),
            "config": fixed(self._config),
        }
        content = checkpoint.Checkpoint(self._weights(), arrays, facts)
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
        replay = sum(len(v) for name, v in sampler.items() if name.endswith(".actions"))
        if replay > 1_000_000 and not self._announced:
            self._announced = True
            log.warning(f"a resume from here would first replay {replay:,} steps")
        ours = checkpoint.rank_arrays(
            parts.learner.state(), sampler, sync.rank, parts.learner.per_column
        )
        return checkpoint.join_ranks(sync.gather(ours) if sync.size > 1 else [ours])

    def _weights(self) -> dict[str, Array]:
        """Copies, by name."""
        named = self._parts.learner.module.named_weights()
        return {name: weight.numpy(force=True).copy() for name, weight in named.items()}

    def _save_at_last(self) -> None:
        saved = self._save()
        if self._held is None:
            return
        if self._held.lost:
            log.warning(self._held.lost)
        if saved is None:
            raise StoppedEarly(
                "the last checkpoint could not be written; earlier ones are whole: free some "
                f"space, then `paceline resume {shown(self._folder)}`"
            )
        checkpoint.prune(self._folder / "checkpoints", self._config.keep)

    def _try(self, name: str, write: Callable[[], Any]) -> Any:
        """A disk that is full or gone is reported, and training goes on."""
        try:
            return write()
        except OSError as error:
            if name not in self._refused:
                path = shown(self._folder / name)
                log.warning(f"{path} can't be written: {error.strerror}; training goes on")
            self._refused.add(name)
            return None


def _due(every: int | None, before: int, now: int) -> bool:
    """Whether a multiple of `every` lies after `before`, up to `now`."""
    return every is not None and before // every != now // every
