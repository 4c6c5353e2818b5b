"""Run: what `paceline.train` and `paceline.resume` return, an iterator of reports.

A signal that Python would answer by an exception, or by ending the process, first saves the open
runs: in the middle of an iteration when that is done, in the caller's own code at once. Then it is
delivered again, with whatever effect it has without Paceline.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Self
from weakref import WeakSet

from ..config.schema import Config
from ..errors import BadInput
from ..processes.lifetime import STOP_SIGNALS
from ..processes.stopping import ACKNOWLEDGED, StopNow
from .report import Report

if TYPE_CHECKING:
    from ..policy.agent import Agent
    from .evaluation import EvalResult

log = logging.getLogger("paceline")

SOON = 0.05
"""Seconds, in which a finalizer has returned."""


class Training(Protocol):
    """A run whose parts are made: in this process, or in others that it has started."""

    config: Config

    @property
    def directory(self) -> Path: ...

    @property
    def agent(self) -> Agent: ...

    @property
    def lockstep(self) -> bool:
        """Whether other processes have to agree before the run is saved."""

    def reports(self) -> Iterator[Report]: ...

    def log(self, values: Mapping[str, Any]) -> None: ...

    def evaluate(self, episodes: int | None) -> EvalResult | None: ...

    def save(self) -> Path | None: ...


Begin = Callable[[Callable[[], bool]], AbstractContextManager[Training]]
"""Makes the parts of a run, given a function that tells whether it is to stop."""


class Run:
    """A run that trains while its reports are read: loop over them, or call `finish()`.

    Leaving the loop (`break`, an exception, Ctrl-C) ends the run with a checkpoint to resume from.
    """

    def __init__(self, config: Config, begin: Begin, stopping: Callable[[], bool]) -> None:
        self._config, self._begin = config, begin
        self._stopping: Callable[[], bool] = lambda: _signals.received is not None or stopping()
        self._reports: Generator[Any, None, None] | None = None
        self._training: Training | None = None
        self.ended = False
        self.stopped = False
        """whether it was stopped where no report follows: in its last evaluation, or while ranks
        start"""
        self._read = False
        """whether a report was asked for"""
        self.busy = self.starting = False
        """whether the caller waits for this run, or for its parts to be made"""
        _open_runs.add(self)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "training" if self._training else "not started"
        hint = "" if self.ended or self._training else ": loop over it, or call finish()"
        return f"<Run of {self._config.algo_name} on {self._config.env_name}, {state}{hint}>"

    @property
    def config(self) -> Config:
        """Complete: with what the environment's preset and spaces have filled in."""
        return self._opened().config

    @property
    def directory(self) -> Path:
        """Where the run is written."""
        return self._opened().directory

    @property
    def agent(self) -> Agent:
        """The policy as it is now, to act with: it learns while the run goes on."""
        return self._opened().agent

    def log(self, values: Mapping[str, float] | None = None, /, **named: float) -> None:
        """Add numbers by name to the report that the loop is at: metrics.jsonl and TensorBoard.

        With ranks, and with a3c, they join the next one that rank 0 writes.
        """
        self._refuse_if_ended()
        self._opened().log({**(values or {}), **named})

    def evaluate(self, episodes: int | None = None) -> EvalResult | None:
        """Evaluate the policy as it is now, as `eval_every` does; None if stopped by a signal.

        After the end of the run nothing is written.
        """
        if self.ended:
            return self._opened().evaluate(episodes)
        with self._waiting() as training:
            return training.evaluate(episodes)
        return None

    def save(self) -> Path | None:
        """Write a checkpoint now; returns its directory, None on ranks other than 0."""
        self._refuse_if_ended()
        with self._waiting() as training:
            return training.save()
        return None

    def finish(self) -> Self:
        """Train until the budget is spent."""
        for _ in self:
            pass
        return self

    def __iter__(self) -> Iterator[Report]:
        try:
            while (report := next(self, None)) is not None:
                yield report
        finally:
            self.close()

    def __next__(self) -> Report:
        if self.ended:
            raise StopIteration
        self._read = True
        with self._waiting():
            assert self._reports is not None
            try:
                report = next(self._reports)
            except BaseException:
                self._end()
                raise
            assert isinstance(report, Report)
            return report
        self.stopped = True
        raise StopIteration

    def open(self) -> None:
        """Make the run's parts now, not with the first report."""
        self._opened()

    def close(self) -> None:
        """End the run, with a checkpoint to resume from, unless it has ended."""
        if self.ended:
            return
        self.busy = True
        try:
            if self._reports is not None:
                self._reports.close()
        finally:
            self.busy = False
            self._end()
            _signals.deliver(later=True)  # this may be a finalizer, whose exceptions are ignored

    def __del__(self) -> None:
        self.warn_if_not_started()
        self.close()

    def warn_if_not_started(self) -> None:
        """A loop over the reports is easily forgotten."""
        if not self.ended and not self._read:
            log.warning(
                "a run was not started, so nothing was trained: loop over its reports (`for report "
                "in paceline.train(config): …`), or call finish()"
            )

    @property
    def needs_time(self) -> bool:
        """Whether the run can't be saved right now."""
        return self.busy or (self._training is not None and self._training.lockstep)

    def _refuse_if_ended(self) -> None:
        if self.ended:
            raise BadInput(
                "this run has ended, and is saved; go on with paceline.resume(run.directory, "
                "total_steps=…)"
            )

    @contextmanager
    def _waiting(self) -> Iterator[Training]:
        """The caller waits for this run: a signal takes effect when it need not wait any more."""
        training = self._opened()
        _signals.handle()
        self.busy = True
        try:
            yield training
        except StopNow:
            if not self._stopping():
                raise
        finally:
            self.busy = False
            _signals.deliver()

    def _opened(self) -> Training:
        """The run's parts, made when they are first needed."""
        if self._training is None:
            if self.ended:
                raise BadInput("this run was closed before it had started")
            _signals.handle()
            self._reports, self.starting = _generate(self._begin, self._stopping), True
            try:
                self._training = next(self._reports)
            except BaseException:
                self._end()
                raise
            finally:
                self.starting = False
        assert self._training is not None
        return self._training

    def _end(self) -> None:
        self.ended = True
        _open_runs.discard(self)
        if all(run._training is None for run in _open_runs):
            _signals.restore()


def _generate(begin: Begin, stopping: Callable[[], bool]) -> Generator[Any, None, None]:
    """The training once its parts are made, then its reports. Without a reference to the run, which
    so ends when it is dropped, not with the next garbage collection."""
    with begin(stopping) as training:
        yield training
        yield from training.reports()


_open_runs: WeakSet[Run] = WeakSet()


class _Signals:
    """Signals that Python answers in its own way, while runs are open."""

    def __init__(self) -> None:
        self.received: int | None = None
        """waits for a run to be at the end of an iteration"""
        self._delivering = False
        self._before: dict[signal.Signals, Any] = {}

    def handle(self) -> None:
        """Handle those that have no handler of the program's own (again, in each notebook cell)."""
        if threading.current_thread() is not threading.main_thread():
            return
        for kind in STOP_SIGNALS:
            handler = signal.getsignal(kind)
            if handler in (signal.SIG_DFL, signal.default_int_handler):
                self._before[kind] = handler
                signal.signal(kind, self._on_signal)

    def restore(self) -> None:
        for kind, handler in self._before.items():
            if signal.getsignal(kind) == self._on_signal:
                with suppress(ValueError):  # another thread has ended the last run
                    signal.signal(kind, handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None or self._delivering
        if again or any(run.starting for run in _open_runs):
            self.received = None
            self.restore()
            signal.raise_signal(number)
            return
        self.received = number
        waits = any(run.needs_time for run in _open_runs)
        text = f"{signal.Signals(number).name}: {ACKNOWLEDGED if waits else 'saving'}"
        # In a thread: a handler may have interrupted the writing of another line.
        threading.Thread(target=log.warning, args=(text,), daemon=True).start()
        if not waits:
            self.deliver()

    def deliver(self, later: bool = False) -> None:
        """Save the open runs, and let a signal that was received have its effect, now or soon."""
        if self.received is None or threading.current_thread() is not threading.main_thread():
            return
        number, self.received, self._delivering = self.received, None, True
        for run in list(_open_runs):
            try:
                run.close()
            except Exception as error:
                log.warning(f"a run could not be saved: {error}")
        self._delivering = False
        self.restore()
        if later:
            threading.Timer(SOON, os.kill, (os.getpid(), number)).start()
        else:
            signal.raise_signal(number)


_signals = _Signals()


@atexit.register
def _end_runs() -> None:
    for run in list(_open_runs):
        run.warn_if_not_started()
        with suppress(ValueError):  # it is being executed: the script exited inside it
            run.close()
