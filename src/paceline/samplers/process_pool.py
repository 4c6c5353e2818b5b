"""ProcessPool: workers that are processes of this machine, replaced when they die or hang."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

from ..envs.columns import ReplayMismatch
from ..envs.suites.gym import registered
from ..errors import BadInput, EnvironmentFailed, PacelineError
from ..processes.channel import Channel, LogMessage, pickle_by_value, set_timeouts
from ..processes.forkserver import ProcessStarter, process_starter
from ..processes.hardware import oom_kills
from ..processes.heartbeat import HangDetector
from ..processes.lifetime import exit_reason
from ..processes.shared_memory import anonymous_file
from ..processes.stopping import interruptible
from ..rollout import Array, Rollout
from .block import format_differences, unpack_counters
from .ledger import Ledger
from .pool import TICK, Arrival, PoolSpec
from .worker import Begin, Crashed, Done, Fill, FromWorker, Ready, Setup, ToWorker
from .worker_memory import WorkerMemory

log = logging.getLogger("paceline")

SLOW_START = 60.0
"""Seconds without a heartbeat that a worker may take at least to make its environments."""
ENTRY = "paceline.samplers.worker:main"
PRELOAD = ["paceline.samplers.worker"]
PRELOAD_TORCH = ["paceline.policy.torch_actor"]
WorkerChannel: TypeAlias = Channel[ToWorker, FromWorker]


def start_workers(spec: PoolSpec) -> ProcessPool:
    """Allocate the memory of a pool and start its processes."""
    common = pickle_by_value((spec, registered(spec.env_info.env_id)), "leave num_workers at 0")
    with ExitStack() as stack:
        try:
            file = anonymous_file()
            stack.callback(os.close, file)
            memory = WorkerMemory(file, spec.weights, spec.workers, *spec.slots)
        except OSError as error:
            raise BadInput(
                f"rollouts of {spec.rollout.num_envs} envs × {spec.rollout.steps} steps do not fit "
                f"into memory ({error.strerror}); write a lower --num-envs or --rollout-steps"
            ) from None
        for slot in memory.slots:
            slot.poisoned()
        preload = PRELOAD + (PRELOAD_TORCH if spec.network.needs_torch else [])
        starter = process_starter(ENTRY, preload)
        stack.callback(starter.close)
        pool = ProcessPool(spec, common, starter, memory, file)
        stack.pop_all()
    return pool


@dataclass
class Worker:
    """The trainer's record of a worker, whose process may be replaced."""

    number: int
    columns: range
    ledger: Ledger
    slots: list[Rollout]
    pid: int = 0
    channel: WorkerChannel = field(init=False)
    ready: bool = False
    pending: deque[int] = field(default_factory=deque)
    """slots that it is to fill, oldest first"""
    failures: int = 0
    """in a row, without a finished rollout"""
    env_restarts: int = 0
    """of its current process"""

    @property
    def name(self) -> str:
        first, last = self.columns[0], self.columns[-1]
        return f"worker {self.number} (pid {self.pid}, columns {first}–{last})"


class ProcessPool:
    """Each worker has a channel of its own, and no lock that another could hold."""

    def __init__(
        self,
        spec: PoolSpec,
        common: bytes,
        starter: ProcessStarter,
        memory: WorkerMemory,
        file: int,
    ) -> None:
        self.spec, self.ledgers, self.common = spec, spec.make_ledgers(), memory.slots[0]
        self._common, self._starter, self._memory, self._file = common, starter, memory, file
        self._selector = selectors.DefaultSelector()
        self._workers = [
            Worker(number, spec.columns_of(number), ledger, spec.slots_of(number, memory.slots))
            for number, ledger in enumerate(self.ledgers)
        ]
        self.restarts, self.env_restarts, self.t_wait = 0, 0, 0.0
        self._oom_kills, self._hangs = oom_kills(), HangDetector(TICK)
        self._traced = self._begun = self._at_work = False
        for worker in self._workers:
            self._start(worker)

    def begin(self) -> list[ReplayMismatch]:
        if self._begun:
            return []
        self._begun = True
        for worker in self._workers:
            self._begin(worker)
        different: list[ReplayMismatch] = []
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

    def arrivals(self, timeout: float) -> list[Arrival]:
        return [event for event in self._events(timeout) if isinstance(event, Arrival)]

    def acting_version(self, worker: int) -> int:
        acting = self._workers[worker]
        if not acting.pending or not acting.ready:
            return self._memory.weights.version
        # Before the rollout begins, its slot still has the version of an older one.
        return int(acting.slots[acting.pending[0]].version[0])

    def _events(self, timeout: float) -> Iterator[Ready | Arrival]:
        """Wait for messages of workers and handle them; workers that died or hang are replaced."""
        began = time.perf_counter()
        with interruptible():
            ready = self._selector.select(timeout)
        self.t_wait += time.perf_counter() - began
        for key, _ in ready:
            worker: Worker = key.data
            try:
                message = worker.channel.receive()
            except BlockingIOError:
                self._replace(worker, "stopped in the middle of a message")
                continue
            except (EOFError, OSError):
                self._replace(worker)
                continue
            match message:
                case LogMessage(level, text, trace):
                    log.log(level, "%s%s", text, f"\n{self._shorten(trace)}" if trace else "")
                case Ready():
                    yield self._on_ready(worker, message)
                case Done():
                    yield self._on_done(worker, message)
                case PacelineError():
                    raise message
                case Crashed(cause, trace):
                    log.warning("%s", self._shorten(trace))
                    self._replace(worker, f"broke ({cause})")
        self._check_heartbeats()

    def _on_ready(self, worker: Worker, message: Ready) -> Ready:
        worker.ready = True
        self._hangs.forget(worker.number)
        if message.different and self._at_work:  # before that the caller of `begin` reports them
            log.warning(
                "the environments of columns %s did not replay to the same observation and return; "
                "they begin a new episode",
                format_differences(message.different),
            )
        worker.ledger.begin(message.snapshot)
        return message

    def _on_done(self, worker: Worker, done: Done) -> Arrival:
        worker.pending.popleft()
        worker.failures = 0
        self._hangs.forget(worker.number)
        self.env_restarts += done.failures - worker.env_restarts
        worker.env_restarts = done.failures
        rollout = worker.slots[done.slot]
        snapshot = worker.ledger.record(rollout, unpack_counters(*done.counters))
        return Arrival(worker.number, done.slot, rollout, done.episodes, snapshot, done.seconds)

    def _shorten(self, trace: str) -> str:
        """The whole of the first traceback, the last line of later ones: they are mostly alike."""
        shown = trace.rstrip() if not self._traced else trace.rstrip().splitlines()[-1]
        self._traced = True
        return shown

    def _check_heartbeats(self) -> None:
        """Replace workers whose heartbeat has stood still for too long."""
        if not self._hangs.due:
            return
        self.spec.heartbeat.beats += 1
        expected = [w for w in self._workers if w.pending or (self._begun and not w.ready)]
        beats = {w.number: bytes(self._memory.heartbeats[w.number]) for w in expected}
        silence = self._hangs.look(beats)
        for worker in expected:
            seconds, timeout = silence[worker.number], self.spec.timeout
            if seconds >= (timeout if worker.ready else max(timeout, SLOW_START)):
                cause = f"showed no sign of life for {seconds:.0f} s (--worker-timeout)"
                self._replace(worker, cause)

    def _start(self, worker: Worker) -> None:
        timeout = self.spec.timeout
        try:
            ours, theirs = socket.socketpair()
            # A worker that is stopped in the middle of a message must not stop the trainer.
            set_timeouts(ours, int(timeout) + 1, int(max(timeout, SLOW_START)) + 1)
            worker.channel, worker.ready = Channel(ours.detach()), False
            self._selector.register(worker.channel, selectors.EVENT_READ, worker)
            with theirs:
                worker.pid = self._starter.start(theirs.fileno(), self._file)
        except OSError as error:
            raise EnvironmentFailed(
                f"no worker process can be started: {error} (ulimit -n raises the limit of open "
                "files)"
            ) from error
        self._hangs.forget(worker.number)
        self._send(worker, Setup(self._common, worker.number))

    def _begin(self, worker: Worker) -> None:
        self._send(worker, Begin(worker.ledger.state(worker.ledger.latest)))

    def _send(self, worker: Worker, message: ToWorker) -> None:
        try:
            worker.channel.send(message)
        except OSError:  # perhaps half sent: end the channel, and so replace the worker
            worker.channel.shut_down()

    def _replace(self, worker: Worker, cause: str | None = None) -> None:
        """Start another process for the same columns, from where the latest rollout ended."""
        self._disconnect(worker)
        code = self._starter.end(worker.pid)
        worker.failures += 1
        at = self._memory.heartbeats[worker.number].row
        what = f"{worker.name} {cause or exit_reason(code)} at step {at:,}"
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
        if not worker.channel.closed:
            self._selector.unregister(worker.channel)
            worker.channel.shut_down()
            worker.channel.close()

    def close(self) -> None:
        """End every worker, also in the middle of a rollout; wait until they are gone."""
        for worker in self._workers:
            self._memory.heartbeats[worker.number].leave = 1
            self._disconnect(worker)
        self._selector.close()
        self._starter.close()
        os.close(self._file)
