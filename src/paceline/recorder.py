"""Recorder: what a run leaves behind in its directory, and when."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from . import checkpoint, evaluation, machine
from .agent import Agent, network_facts
from .build import Parts
from .config import Config
from .errors import BadInput, PacelineError, StoppedEarly
from .metrics import JsonLines, Report, TensorBoard, cut_back
from .ring import Progress

log = logging.getLogger("paceline")

CONFIG, RUN, METRICS, EVALUATION = "config.yaml", "run.json", "metrics.jsonl", "eval.json"
FOLDERS = ("checkpoints", "events", "video")
SAVE_SECONDS = 30.0
"""Time between checkpoints, where no number of steps is given."""


def claim(folder: Path, config: Config, choices: dict[str, Any]) -> None:
    """Make the directory and write what the run is; a run that is there already is refused."""
    _check_path("output_dir", str(folder))
    held = [name for name in (CONFIG, METRICS, "checkpoints") if (folder / name).exists()]
    if held and not config.overwrite:
        raise BadInput(
            f"{folder} already holds a run ({held[0]}); go on with `paceline resume {folder}`, "
            "choose another --output-dir, or replace it with --overwrite"
        )
    if config.log_jsonl:
        _claim_copy(Path(config.log_jsonl), config.overwrite)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (CONFIG, METRICS, EVALUATION, RUN):
            (folder / name).unlink(missing_ok=True)
        for name in FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
        facts = {
            **machine.description(),
            "choices": choices,
            "preset": config.preset,
            "env_is_callable": callable(config.env_id),
        }
        checkpoint.replace_file(folder / RUN, json.dumps(facts, indent=1).encode())
        write_config(folder, config)  # last: from here on it is a run
    except OSError as error:
        raise BadInput(f"output_dir {folder} can't be written: {error.strerror}") from None


def _claim_copy(path: Path, overwrite: bool) -> None:
    """Make sure that `log_jsonl` can be written, and holds nothing yet."""
    _check_path("log_jsonl", str(path))
    if path.is_file() and path.stat().st_size and not overwrite:
        raise BadInput(f"log_jsonl {path} already exists; name another, or give --overwrite")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    except OSError as error:
        raise BadInput(f"log_jsonl {path} can't be written: {error.strerror}") from None


def _check_path(name: str, path: str) -> None:
    try:
        if "\0" not in path and os.fsencode(path):
            return
    except UnicodeError:
        pass
    raise BadInput(f"{name} is {path!r}, which no file system takes; write a plain path")


def write_config(folder: Path, config: Config) -> None:
    text = yaml.safe_dump(config.as_dict(), sort_keys=False, allow_unicode=True)
    checkpoint.replace_file(folder / CONFIG, text.encode())


def read_run(folder: Path) -> dict[str, Any]:
    """How the run was made; its choices are kept when it goes on."""
    try:
        facts: dict[str, Any] = json.loads((folder / RUN).read_text())
        facts["choices"]["threads"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{folder / RUN} can't be read ({error}); the run can't be resumed"
        ) from None
    return facts


def unclaim(folder: Path, config: Config, iteration: int) -> None:
    """Take back what was written after `iteration`, which will be written again."""
    write_config(folder, config)
    cut_back(folder / METRICS, iteration)
    if config.log_jsonl:
        cut_back(Path(config.log_jsonl), iteration)


class Recorder:
    """Writes metrics, evaluates, and saves checkpoints. A context manager."""

    def __init__(self, config: Config, folder: Path, parts: Parts, progress: Progress) -> None:
        self._config, self._folder, self._parts, self._progress = config, folder, parts, progress
        paths = [folder / METRICS, *([Path(config.log_jsonl)] if config.log_jsonl else [])]
        self._lines = [JsonLines(path) for path in paths]
        self._board = None
        if config.track == "tensorboard":
            purge = progress.steps + 1 if progress.iter else None
            self._board = TensorBoard(folder / "events", purge)
        self._steps, self._saved_at = progress.steps, time.monotonic()
        self._saved_iter = progress.iter if progress.iter else -1
        self._best = self._best_so_far()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for lines in self._lines:
            lines.close()
        if self._board is not None:
            self._board.close()

    def record(self, report: Report) -> Report:
        """Evaluate if it is time; write the report; save if it is time."""
        config, better = self._config, False
        if _due(config.eval_every, self._steps, report.steps):
            result = self._evaluate()
            report = replace(report, eval_return=result.mean)
            better = self._best is None or result.mean > self._best
            log.info(
                "evaluation after %s steps: mean %.2f%s",
                f"{report.steps:,}",
                result.mean,
                ", the best so far" if better else "",
            )
            if self._board is not None:
                self._board.evaluation(report.steps, result.mean)
        for lines in self._lines:
            lines.write(report)
        if self._board is not None:
            self._board.write(report)
        timely = (
            _due(config.save_every, self._steps, report.steps)
            if config.save_every
            else time.monotonic() - self._saved_at >= SAVE_SECONDS
        )
        if better:
            self._best = report.eval_return
        if (better or timely) and (saved := self._save()):
            if better:
                checkpoint.mark_best(saved)
            checkpoint.prune(self._folder / "checkpoints", config.keep)
        self._steps = report.steps
        return report

    def finish(self) -> None:
        """The budget is spent: the last checkpoint, and the evaluation of what was learnt."""
        self._save_at_last()
        result = self._evaluate()
        log.info(
            "evaluation: mean %.2f ± %.2f over %d episodes, 95%% interval %.2f to %.2f",
            result.mean,
            result.std,
            result.episodes,
            result.ci_low,
            result.ci_high,
        )

    def stop(self) -> None:
        """The caller has left the loop: save, so that the run can be resumed."""
        self._save_at_last()
        log.info("saved; go on with `paceline resume %s`", self._folder)

    def fail(self, error: PacelineError) -> None:
        """Keep the state before the iteration that failed."""
        saved = self._save(before_last=True)
        if saved:
            error.args = (f"{error}\nthe last good state is in {saved}",)

    def _evaluate(self) -> evaluation.EvalResult:
        parts, config = self._parts, self._config
        weights = {k: v.numpy(force=True) for k, v in parts.learner.module.state_dict().items()}
        agent = Agent(parts.network, weights)
        result = evaluation.run(agent, parts.make_env, config.eval_episodes)
        name = f"checkpoints/{self._progress.iter:08d}"
        result = replace(result, checkpoint=name, env_id=config.env_name)
        text = json.dumps(result.as_dict(), indent=1)
        self._try(lambda: checkpoint.replace_file(self._folder / EVALUATION, text.encode()))
        return result

    def _save(self, before_last: bool = False) -> Path | None:
        """A checkpoint of this moment; None where the disk refused it, which is said."""
        parts, progress = self._parts, self._progress
        sampler = parts.sampler.state(before_last)
        if not sampler or self._saved_iter == progress.iter:
            return self._folder / "checkpoints" / f"{progress.iter:08d}" if sampler else None
        state = parts.learner.module.state_dict()
        content = checkpoint.Checkpoint(
            weights={name: tensor.numpy(force=True) for name, tensor in state.items()},
            arrays={f"learner.{k}": v for k, v in parts.learner.state().items()}
            | {f"sampler.{k}": v for k, v in sampler.items()},
            facts={
                "iter": progress.iter,
                "steps": progress.steps,
                "time": progress.time,
                "recent": list(progress.recent),
                "best": self._best,
                "replay": len(sampler["actions"]),
                "weights": list(state),
                "network": network_facts(parts.network),
                "env_id": self._config.env_name,
                "algo": self._config.algo,
            },
        )
        folder = self._folder / "checkpoints"
        saved = self._try(lambda: checkpoint.save(folder, progress.iter, content))
        self._saved_at = time.monotonic()
        if saved is not None:
            self._saved_iter = progress.iter
        return saved

    def _save_at_last(self) -> None:
        if self._save() is None:
            raise StoppedEarly(
                "the last checkpoint could not be written; earlier ones are whole: free some "
                f"space, then `paceline resume {self._folder}`"
            )
        checkpoint.prune(self._folder / "checkpoints", self._config.keep)

    def _try(self, write: Any) -> Any:
        """A disk that is full or gone is reported, and training goes on."""
        try:
            return write()
        except OSError as error:
            log.warning("%s: %s; training goes on", error.filename or "a file", error.strerror)
            return None

    def _best_so_far(self) -> float | None:
        best = checkpoint.best_of(self._folder / "checkpoints")
        try:
            score: float | None = checkpoint.load(best).facts["best"] if best else None
        except checkpoint.Damaged:
            return None
        return score


def _due(every: int | None, before: int, now: int) -> bool:
    """Whether a multiple of `every` lies after `before`, up to `now`."""
    return every is not None and before // every != now // every
