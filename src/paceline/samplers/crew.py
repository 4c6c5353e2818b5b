"""Crew: the worker processes of a run, watched, and replaced when they die or hang."""

from __future__ import annotations

import logging
import os
import pickle
import selectors
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from ..envs.replaying import Difference
from ..errors import EnvironmentFailed
from ..heartbeat import Heartbeat
from ..machine import oom_kills
from ..rollout import Rollout
from ..stopping import interruptible
from .block import Ledger, Mark, listed, unpacked
from .forkserver import Starter
from .memory import Memory
from .worker import Begin, Broke, Done, Failed, Fill, Ready, Said, Setup

log = logging.getLogger("paceline")

TICK = 0.5
"""Seconds between two looks at the workers' signs of life."""
SLOW_START = 60.0
"""A worker that makes its environments is silent for as long as that takes; at least this long."""


@dataclass
class Worker:
    """A worker as the trainer knows it, through all the processes that it has been."""

    setup: Setup
    ledger: Ledger
    slots: list[Rollout]
    """its columns of every slot"""
    pid: int = 0
    line: Connection[Any, Any] | None = None
    ready: bool = False
    orders: deque[Fill] = field(default_factory=deque)
    """rollouts it was told to make and has not finished"""
    failures: int = 0
    """in a row, without a finished rollout"""
    quiet: float = 0.0
    """seconds without a sign of life, when there should have been one"""
    heartbeat: bytes = b""
    env_restarts: int = 0
    """of its processes before this one"""
    env_restarts_now: int = 0

    @property
    def name(self) -> str:
        first = self.setup.first_column
        return (
            f"worker {self.setup.number} (pid {self.pid}, columns {first}–"
            f"{first + self.setup.columns - 1})"
        )


@dataclass(frozen=True)
class Arrival:
    """A finished rollout, in a slot that is the learner's until it is given back."""

    worker: Worker
    done: Done
    mark: Mark

    @property
    def rollout(self) -> Rollout:
        return self.worker.slots[self.done.slot]

    @property
    def version(self) -> int:
        return int(self.rollout.version[0])


class Crew:
    def __init__(
        self,
        starter: Starter,
        memory: Memory,
        memory_file: int,
        setups: list[Setup],
        ledgers: list[Ledger],
        timeout: float,
        most_failures: int,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._starter, self._memory, self._file = starter, memory, memory_file
        self._timeout, self._most = timeout, most_failures
        self._heartbeat = heartbeat or Heartbeat()
        self._selector = selectors.DefaultSelector()
        self.workers = []
        for setup, ledger in zip(setups, ledgers, strict=True):
            end = setup.place + setup.columns
            slots = [slot.between(setup.place, end) for slot in memory.slots]
            self.workers.append(Worker(setup, ledger, slots))
        self.restarts = 0
        self._oom_kills = oom_kills()
        self.t_wait = 0.0
        self._looked = time.monotonic()
        self._traced = False
        self._begun = self._at_work = False
        for worker in self.workers:
            self._start(worker)

    @property
    def env_restarts(self) -> int:
        return sum(worker.env_restarts + worker.env_restarts_now for worker in self.workers)

    def begin(self) -> list[Difference]:
        """Wait until every worker has its first episodes, or those of its ledger.

        Returns the columns that did not come out as they were.
        """
        if self._begun:
            return []
        self._begun = True
        for worker in self.workers:
            self._begin(worker)
        different: list[Difference] = []
        while not all(worker.ready for worker in self.workers):
            for event in self._events(TICK):
                assert isinstance(event, Ready)
                different += event.different
        self._at_work = True
        return sorted(set(different))

    def fill(self, worker: Worker, slot: int) -> None:
        """Have a worker make its next rollout, after those it has been told to make before."""
        order = Fill(slot)
        worker.orders.append(order)
        self._say(worker, order)

    def arrivals(self, patience: float = TICK) -> list[Arrival]:
        """Rollouts that have come in; none, if nothing or something else happened in that time."""
        return [event for event in self._events(patience) if isinstance(event, Arrival)]

    def _events(self, patience: float) -> Iterator[Ready | Arrival]:
        """What workers say, after having waited for one of them; whoever has died is replaced."""
        began = time.perf_counter()
        with interruptible():
            ready = self._selector.select(patience)
        self.t_wait += time.perf_counter() - began
        for key, _ in ready:
            worker: Worker = key.data
            try:
                assert worker.line is not None
                message = worker.line.recv()
            except BlockingIOError:
                self._replace(worker, "stopped in the middle of a message")
                continue
            except (EOFError, OSError):
                self._replace(worker)
                continue
            match message:
                case Said():
                    self._pass_on(message)
                case Ready():
                    yield self._welcome(worker, message)
                case Done():
                    yield self._take(worker, message)
                case Failed(error):
                    raise error
                case Broke(cause, trace):
                    log.warning("%s", self._shown(trace))
                    self._replace(worker, f"broke ({cause})")
        self._look()

    def _welcome(self, worker: Worker, message: Ready) -> Ready:
        worker.ready, worker.quiet, worker.heartbeat = True, 0.0, b""
        if message.different and self._at_work:  # before, whoever asked for it will say so
            log.warning(
                "the environments of columns %s did not replay to the same observation and return; "
                "they begin a new episode",
                listed(message.different),
            )
        now = worker.ledger.now
        if not now:
            worker.ledger.begin(message.mark)
        else:
            now.update(message.mark)
        return message

    def _take(self, worker: Worker, done: Done) -> Arrival:
        worker.orders.popleft()
        worker.failures, worker.quiet = 0, 0.0
        worker.env_restarts_now = done.failures
        mark = worker.ledger.note(worker.slots[done.slot], unpacked(*done.counters))
        return Arrival(worker, done, mark)

    def _pass_on(self, said: Said) -> None:
        log.log(said.level, "%s%s", said.text, f"\n{self._shown(said.trace)}" if said.trace else "")

    def _shown(self, trace: str) -> str:
        """A traceback, the first time; later ones would say the same."""
        shown = trace.rstrip() if not self._traced else trace.rstrip().splitlines()[-1]
        self._traced = True
        return shown

    def _look(self) -> None:
        """Replace the workers that have shown no sign of life for too long."""
        now = time.monotonic()
        # A trainer that was itself asleep for a while has no right to complain.
        passed = min(now - self._looked, 2 * TICK)
        if passed < TICK / 2:
            return
        self._looked = now
        self._heartbeat.beats += 1  # a trainer that watches its workers is alive
        for worker in self.workers:
            heartbeat = bytes(self._memory.heartbeats[worker.setup.number])
            expected = bool(worker.orders) or (self._begun and not worker.ready)
            alive = not expected or heartbeat != worker.heartbeat
            worker.quiet = 0.0 if alive else worker.quiet + passed
            worker.heartbeat = heartbeat
            patience = self._timeout if worker.ready else max(self._timeout, SLOW_START)
            if worker.quiet >= patience:
                quiet = f"showed no sign of life for {worker.quiet:.0f} s (--worker-timeout)"
                self._replace(worker, quiet)

    def _start(self, worker: Worker) -> None:
        try:
            line = self._started(worker)
        except OSError:  # the server of workers may have been killed, and is there again
            try:
                line = self._started(worker)
            except OSError as error:
                raise EnvironmentFailed(f"no worker process can be started: {error}") from error
        # A worker that is stopped in the middle of a message must not stop the trainer.
        for option, patience in (
            (socket.SO_RCVTIMEO, self._timeout),
            (socket.SO_SNDTIMEO, max(self._timeout, SLOW_START)),
        ):
            line.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(patience) + 1, 0))
        worker.line = Connection(line.detach())
        worker.ready, worker.quiet, worker.heartbeat = False, 0.0, b""
        self._selector.register(worker.line, selectors.EVENT_READ, worker)
        self._say(worker, worker.setup)

    def _started(self, worker: Worker) -> socket.socket:
        """The trainer's end of the line to a new process."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                worker.pid = self._starter.start(theirs.fileno(), self._file)
            except BaseException:
                ours.close()
                raise
        return ours

    def _begin(self, worker: Worker) -> None:
        ledger = worker.ledger
        self._say(worker, Begin(ledger.state(ledger.now) if ledger.now else None))

    def _say(self, worker: Worker, message: Setup | Begin | Fill) -> None:
        assert worker.line is not None
        try:
            worker.line.send_bytes(pickle.dumps(message))
        except OSError:  # half a message is worse than none; its successor will be told again
            _shut(worker.line)

    def _replace(self, worker: Worker, cause: str | None = None) -> None:
        """Another process on the same columns, brought to where the latest rollout ended."""
        self._hang_up_on(worker)
        code = self._starter.end(worker.pid)
        worker.failures += 1
        at = self._memory.heartbeats[worker.setup.number].row
        what = f"{worker.name} {cause or _ended(code)} at step {at:,}"
        if cause is None and code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            what += ", the system ran out of memory"
        if worker.failures > self._most:
            raise EnvironmentFailed(
                f"{what}; that was failure {worker.failures} in a row without a finished rollout"
            )
        self.restarts += 1
        worker.env_restarts += worker.env_restarts_now
        worker.env_restarts_now = 0
        self._start(worker)
        log.warning("%s; pid %d takes its place", what, worker.pid)
        if self._begun:
            self._begin(worker)
        for order in worker.orders:
            self._say(worker, order)

    def _hang_up_on(self, worker: Worker) -> None:
        if worker.line is not None:
            self._selector.unregister(worker.line)
            _shut(worker.line)
            worker.line.close()
            worker.line = None

    def close(self) -> None:
        """Hang up on every worker, also in the middle of a rollout; wait until they are gone."""
        for worker in self.workers:
            self._memory.heartbeats[worker.setup.number].leave = 1
            self._hang_up_on(worker)
        self._selector.close()
        self._starter.close()
        os.close(self._file)


def _shut(line: Connection[Any, Any]) -> None:
    """End the conversation for both sides, whoever else holds a copy of the line."""
    with suppress(OSError), socket.socket(fileno=os.dup(line.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)


def _ended(code: int | None) -> str:
    if code is None:
        return "is gone"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
