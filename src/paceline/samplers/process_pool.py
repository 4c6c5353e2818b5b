"""ProcessPool: workers that are processes of this machine; replaced when they die or hang."""

from __future__ import annotations

import logging
import os
import pickle
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from ..envs.replaying import Difference
from ..envs.suites.gym import registered
from ..errors import BadInput, EnvironmentFailed, PacelineError
from ..processes.forkserver import Starter, starter
from ..processes.hardware import nameless_file, oom_kills
from ..processes.sending import Logged, by_value, limit_waiting
from ..processes.stopping import interruptible
from ..rollout import Array, Rollout
from .block import format_differences, unpack_counters
from .ledger import Ledger
from .pool import TICK, Arrival, PoolSpec
from .worker import Begin, Crashed, Done, Fill, Ready
from .worker_memory import Memory

log = logging.getLogger("paceline")

SLOW_START = 60.0
"""A worker that makes its environments is silent for as long as that takes; at least this long."""
PRELOAD = ["paceline.samplers.worker"]
PRELOAD_TORCH = ["paceline.policy.torch_actor"]


def start_workers(spec: PoolSpec) -> ProcessPool:
    """The memory of a pool, and its processes."""
    common = by_value((spec, registered(spec.env_info.env_id)), "leave num_workers at 0")
    with ExitStack() as stack:
        try:
            file = nameless_file()
            stack.callback(os.close, file)
            memory = Memory(file, spec.weights, spec.workers, *spec.slots)
        except OSError as error:
            raise BadInput(
                f"rollouts of {spec.rollout.num_envs} envs × {spec.rollout.steps} steps do not fit "
                f"into memory ({error.strerror}); write a lower --num-envs or --rollout-steps"
            ) from None
        for slot in memory.slots:
            slot.poisoned()
        source = starter(PRELOAD + (PRELOAD_TORCH if spec.network.needs_torch else []))
        stack.callback(source.close)
        pool = ProcessPool(spec, common, source, memory, file)
        stack.pop_all()
    return pool


@dataclass
class Worker:
    """A worker as the trainer knows it, through all the processes that it has been."""

    number: int
    columns: range
    ledger: Ledger
    slots: list[Rollout]
    pid: int = 0
    connection: Connection[Any, Any] = field(init=False)
    ready: bool = False
    pending: deque[int] = field(default_factory=deque)
    """slots that it was told to fill and has not"""
    failures: int = 0
    """in a row, without a finished rollout"""
    silent: float = 0.0
    """seconds without a heartbeat, when there should have been one"""
    heartbeat: bytes = b""
    env_restarts: int = 0
    """of this process"""

    @property
    def name(self) -> str:
        first, last = self.columns[0], self.columns[-1]
        return f"worker {self.number} (pid {self.pid}, columns {first}–{last})"


class ProcessPool:
    """Each worker has a connection of its own, and nothing that another could keep it from."""

    def __init__(
        self, spec: PoolSpec, common: bytes, source: Starter, memory: Memory, file: int
    ) -> None:
        self.spec, self.ledgers, self.common = spec, spec.make_ledgers(), memory.slots[0]
        self._common, self._starter, self._memory, self._file = common, source, memory, file
        self._selector = selectors.DefaultSelector()
        self._workers = [
            Worker(number, spec.columns_of(number), ledger, spec.slots_of(number, memory.slots))
            for number, ledger in enumerate(self.ledgers)
        ]
        self.restarts, self.env_restarts, self.t_wait = 0, 0, 0.0
        self._oom_kills, self._checked = oom_kills(), time.monotonic()
        self._traced = self._begun = self._at_work = False
        for worker in self._workers:
            self._start(worker)

    def begin(self) -> list[Difference]:
        if self._begun:
            return []
        self._begun = True
        for worker in self._workers:
            self._begin(worker)
        different: list[Difference] = []
        while not all(worker.ready for worker in self._workers):
            for event in self._events(TICK):
                assert isinstance(event, Ready)
                different += event.different
        self._at_work = True
        return sorted(set(different))

    def publish(self, weights: Array, version: int) -> None:
        self._memory.weights.write(weights, version)

    def fill(self, worker: int, slot: int) -> None:
        filling = self._workers[worker]
        filling.pending.append(slot)
        self._send(filling, Fill(slot))

    def arrivals(self, patience: float) -> list[Arrival]:
        return [event for event in self._events(patience) if isinstance(event, Arrival)]

    def acting_version(self, worker: int) -> int:
        acting = self._workers[worker]
        if not acting.pending or not acting.ready:
            return self._memory.weights.version
        # Before the rollout is begun, its slot shows an older one.
        return int(acting.slots[acting.pending[0]].version[0])

    def _events(self, patience: float) -> Iterator[Ready | Arrival]:
        """Messages of workers, after having waited for one of them; the dead are replaced."""
        began = time.perf_counter()
        with interruptible():
            ready = self._selector.select(patience)
        self.t_wait += time.perf_counter() - began
        for key, _ in ready:
            worker: Worker = key.data
            try:
                message = worker.connection.recv()
            except BlockingIOError:
                self._replace(worker, "stopped in the middle of a message")
                continue
            except (EOFError, OSError):
                self._replace(worker)
                continue
            match message:
                case Logged(level, text, trace):
                    log.log(level, "%s%s", text, f"\n{self._shown(trace)}" if trace else "")
                case Ready():
                    yield self._on_ready(worker, message)
                case Done():
                    yield self._on_done(worker, message)
                case PacelineError():
                    raise message
                case Crashed(cause, trace):
                    log.warning("%s", self._shown(trace))
                    self._replace(worker, f"broke ({cause})")
        self._check_heartbeats()

    def _on_ready(self, worker: Worker, message: Ready) -> Ready:
        worker.ready, worker.silent, worker.heartbeat = True, 0.0, b""
        if message.different and self._at_work:  # before, whoever asked for it will say so
            log.warning(
                "the environments of columns %s did not replay to the same observation and return; "
                "they begin a new episode",
                format_differences(message.different),
            )
        worker.ledger.begin(message.snapshot)
        return message

    def _on_done(self, worker: Worker, done: Done) -> Arrival:
        worker.pending.popleft()
        worker.failures, worker.silent = 0, 0.0
        self.env_restarts += done.failures - worker.env_restarts
        worker.env_restarts = done.failures
        rollout = worker.slots[done.slot]
        snapshot = worker.ledger.record(rollout, unpack_counters(*done.counters))
        return Arrival(worker.number, done.slot, rollout, done.episodes, snapshot)

    def _shown(self, trace: str) -> str:
        """A traceback, the first time; later ones would say the same."""
        shown = trace.rstrip() if not self._traced else trace.rstrip().splitlines()[-1]
        self._traced = True
        return shown

    def _check_heartbeats(self) -> None:
        """Replace the workers that have shown none for too long."""
        now = time.monotonic()
        # A trainer that was itself asleep for a while has no right to complain.
        passed = min(now - self._checked, 2 * TICK)
        if passed < TICK / 2:
            return
        self._checked = now
        self.spec.heartbeat.beats += 1
        for worker in self._workers:
            heartbeat = bytes(self._memory.heartbeats[worker.number])
            expected = bool(worker.pending) or (self._begun and not worker.ready)
            alive = not expected or heartbeat != worker.heartbeat
            worker.silent = 0.0 if alive else worker.silent + passed
            worker.heartbeat = heartbeat
            patience = self.spec.timeout if worker.ready else max(self.spec.timeout, SLOW_START)
            if worker.silent >= patience:
                cause = f"showed no sign of life for {worker.silent:.0f} s (--worker-timeout)"
                self._replace(worker, cause)

    def _start(self, worker: Worker) -> None:
        try:
            connection = self._started(worker)
        except OSError:  # the server of workers may have been killed, and is there again
            try:
                connection = self._started(worker)
            except OSError as error:
                raise EnvironmentFailed(f"no worker process can be started: {error}") from error
        # A worker that is stopped in the middle of a message must not stop the trainer.
        patience = self.spec.timeout, max(self.spec.timeout, SLOW_START)
        limit_waiting(connection, *(int(seconds) + 1 for seconds in patience))
        worker.connection = Connection(connection.detach())
        worker.ready, worker.silent, worker.heartbeat = False, 0.0, b""
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)
        self._send(worker, (self._common, worker.number))

    def _started(self, worker: Worker) -> socket.socket:
        """The trainer's end of the connection to a new process."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                worker.pid = self._starter.start(theirs.fileno(), self._file)
            except BaseException:
                ours.close()
                raise
        return ours

    def _begin(self, worker: Worker) -> None:
        self._send(worker, Begin(worker.ledger.state(worker.ledger.latest)))

    def _send(self, worker: Worker, message: Any) -> None:
        try:
            worker.connection.send_bytes(pickle.dumps(message))
        except OSError:  # half a message is worse than none; its successor will be told again
            _shut(worker.connection)

    def _replace(self, worker: Worker, cause: str | None = None) -> None:
        """Another process on the same columns, brought to where the latest rollout ended."""
        self._disconnect(worker)
        code = self._starter.end(worker.pid)
        worker.failures += 1
        at = self._memory.heartbeats[worker.number].row
        what = f"{worker.name} {cause or _ended(code)} at step {at:,}"
        if cause is None and code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            what += ", the system ran out of memory"
        if worker.failures > self.spec.max_restarts:
            raise EnvironmentFailed(
                f"{what}; that was failure {worker.failures} in a row without a finished rollout"
            )
        self.restarts += 1
        worker.env_restarts = 0
        self._start(worker)
        log.warning("%s; pid %d takes its place", what, worker.pid)
        if self._begun:
            self._begin(worker)
        for slot in worker.pending:
            self._send(worker, Fill(slot))

    def _disconnect(self, worker: Worker) -> None:
        if not worker.connection.closed:
            self._selector.unregister(worker.connection)
            _shut(worker.connection)
            worker.connection.close()

    def close(self) -> None:
        """End every worker, also in the middle of a rollout; wait until they are gone."""
        for worker in self._workers:
            self._memory.heartbeats[worker.number].leave = 1
            self._disconnect(worker)
        self._selector.close()
        self._starter.close()
        os.close(self._file)


def _shut(connection: Connection[Any, Any]) -> None:
    """End it for both sides, whoever else holds a copy."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)


def _ended(code: int | None) -> str:
    if code is None:
        return "is gone"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
