"""A worker process: one block of columns that writes its rollouts into shared slots.

It talks to the trainer alone, over a connection of its own; when that ends, so does the worker. It
never imports the user's `__main__`, nor torch unless its actor needs it.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import random
import threading
import traceback
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import cloudpickle
import numpy as np

from ..envs.guards import ENV_ERRORS
from ..envs.replaying import Difference
from ..envs.suites.gym import register
from ..errors import BadInput, EnvironmentFailed, PacelineError
from ..processes.forkserver import ignore_signals
from ..processes.hardware import end_with, leave
from ..processes.sending import LogSender
from ..rollout import Array, Episode, Rollout
from .block import Block, pack_counters
from .ledger import Snapshot
from .unroll import RolloutCancelled
from .worker_memory import Memory, Weights

# What the trainer says, after the pool's common setup and the worker's number …


@dataclass(frozen=True)
class Begin:
    """Begin the first episodes, or go on from a state."""

    state: Snapshot
    """empty at first"""


@dataclass(frozen=True)
class Fill:
    """Act with the latest weights, and write the next rollout into this slot."""

    slot: int


# … and what a worker says; or a `PacelineError`, which the trainer raises in turn.


@dataclass(frozen=True)
class Ready:
    snapshot: Snapshot
    different: list[Difference]
    """columns that did not come out as they were"""


@dataclass(frozen=True)
class Done:
    slot: int
    counters: tuple[Array, Snapshot]
    """from `pack_counters`"""
    episodes: list[Episode]
    failures: int
    """environments rebuilt by this process so far"""


@dataclass(frozen=True)
class Crashed:
    """This process can't go on, which another might."""

    cause: str
    trace: str


DISCONNECTED = (EOFError, BrokenPipeError, ConnectionResetError, RolloutCancelled)


def main(connection: int, memory: int, trainer: int) -> NoReturn:
    """The whole life of a worker, given its descriptors and the trainer's process id."""
    code = 1
    try:
        with suppress(PermissionError):  # where it leads a session already
            os.setpgid(0, 0)  # so that what an environment starts can be ended with it
        with suppress(AttributeError, OSError):
            # Else the first worker that is told to go takes the CPU from the trainer, which is
            # about to tell the second.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        ignore_signals()
        faulthandler.enable()
        end_with(trainer)
        channel = Channel(Connection(connection))
        try:
            _work(channel, memory)
        except PacelineError as error:
            channel.send(error)
        except DISCONNECTED:
            raise
        except ENV_ERRORS as error:
            channel.send(Crashed(f"{type(error).__name__}: {error}", traceback.format_exc()))
    except DISCONNECTED:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


class Channel:
    """The connection to the trainer; what is logged goes over it too, from any thread."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self.receive = connection.recv

    def send(self, message: Any) -> None:
        with self._lock:
            self._connection.send_bytes(pickle.dumps(message))


def _work(channel: Channel, memory_file: int) -> None:
    common, number = channel.receive()
    spec, registered = cloudpickle.loads(common)
    log = logging.getLogger("paceline")
    log.addHandler(LogSender(channel.send))
    log.propagate = False
    if spec.cpus[number]:
        os.sched_setaffinity(0, spec.cpus[number])
    register(registered)
    # Environments should draw from their own generator; those that do not at least differ.
    first_column = spec.columns_of(number).start
    random.seed(f"{spec.seed} {first_column}")
    np.random.seed([spec.seed, first_column])
    memory = Memory(memory_file, spec.weights, spec.workers, *spec.slots)
    try:
        block = spec.make_block(number, memory.heartbeats[number])
    except EnvironmentFailed as error:  # another attempt may succeed
        channel.send(Crashed(str(error), traceback.format_exc()))
        return
    with closing(block):
        _serve(channel, memory.weights, spec.slots_of(number, memory.slots), block)


def _serve(channel: Channel, published: Weights, slots: list[Rollout], block: Block) -> None:
    """Do as the trainer says until it disconnects."""
    weights = np.empty(published.size, np.float32)
    while True:
        match channel.receive():
            case Begin(state):
                try:
                    different = block.restore(state)
                except ValueError as error:
                    raise BadInput(
                        f"the environments refuse the state they were saved with: {error}"
                    ) from None
                channel.send(Ready(block.snapshot(), different))
            case Fill(slot):
                block.load(weights, published.read(weights))
                episodes = block.fill(slots[slot])
                counters = pack_counters(block.counters())
                channel.send(Done(slot, counters, episodes, block.columns.failures))
