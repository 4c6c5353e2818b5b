"""A worker process: one block of columns that writes its rollouts into shared slots.

It has a channel to the trainer alone; when that ends, so does the worker. It never imports the
user's `__main__`, nor torch unless its actor needs it.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import time
import traceback
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import cloudpickle
import numpy as np

from ..envs.columns import ReplayMismatch
from ..envs.guards import ENV_ERRORS
from ..envs.suites.gym import register
from ..errors import BadInput, EnvironmentFailed, PacelineError
from ..processes.channel import Channel, LogMessage, LogSender
from ..processes.lifetime import exit_now, ignore_stop_signals
from ..rollout import Array, Episode, Rollout
from .block import Block, pack_counters
from .ledger import Snapshot
from .unroll import RolloutCancelled
from .worker_memory import PublishedWeights, WorkerMemory


@dataclass(frozen=True)
class Setup:
    """First message to a worker."""

    pool: bytes
    """pickled by value: the pool's `PoolSpec`, and environments that the trainer has registered"""
    number: int
    """of this worker"""


@dataclass(frozen=True)
class Begin:
    """Begin the first episodes, or go on from a state."""

    state: Snapshot
    """empty at first"""


@dataclass(frozen=True)
class Fill:
    """Act with the latest weights, and write the next rollout into this slot."""

    slot: int


@dataclass(frozen=True)
class Ready:
    snapshot: Snapshot
    different: list[ReplayMismatch]
    """columns whose replay came out different"""


@dataclass(frozen=True)
class Done:
    slot: int
    counters: tuple[Array, Snapshot]
    """from `pack_counters`"""
    episodes: list[Episode]
    failures: int
    """environments rebuilt by this process so far"""
    seconds: float
    """from the first step of the rollout to the last"""


@dataclass(frozen=True)
class Crashed:
    """This process can't go on; another might."""

    cause: str
    traceback: str


ToWorker: TypeAlias = Setup | Begin | Fill
FromWorker: TypeAlias = Ready | Done | Crashed | LogMessage | PacelineError
"""The trainer raises a `PacelineError`."""
TrainerChannel: TypeAlias = Channel[FromWorker, ToWorker]

DISCONNECTED = (EOFError, BrokenPipeError, ConnectionResetError, RolloutCancelled)


def main(connection: int, memory: int) -> NoReturn:
    """A worker from its start to its end, given the descriptors of its channel and its memory."""
    code = 1
    try:
        with suppress(PermissionError):  # where it leads a session already
            os.setpgid(0, 0)  # so that what an environment starts can be ended with it
        with suppress(AttributeError, OSError):
            # Otherwise the first worker that is asked for a rollout takes the CPU from the trainer
            # before it has asked the second.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        ignore_stop_signals()
        faulthandler.enable()
        channel: TrainerChannel = Channel(connection)
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
        exit_now(code)


def _work(channel: TrainerChannel, memory_file: int) -> None:
    setup = channel.receive()
    assert isinstance(setup, Setup)
    number = setup.number
    spec, registered = cloudpickle.loads(setup.pool)
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
    memory = WorkerMemory(memory_file, spec.weights, spec.workers, *spec.slots)
    try:
        block = spec.make_block(number, memory.heartbeats[number])
    except EnvironmentFailed as error:  # another attempt may succeed
        channel.send(Crashed(str(error), traceback.format_exc()))
        return
    with closing(block):
        _serve(channel, memory.weights, spec.slots_of(number, memory.slots), block)


def _serve(
    channel: TrainerChannel, published: PublishedWeights, slots: list[Rollout], block: Block
) -> None:
    """Handle the trainer's messages until it disconnects."""
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
                began = time.perf_counter()
                episodes = block.fill(slots[slot])
                seconds = time.perf_counter() - began
                counters = pack_counters(block.counters())
                channel.send(Done(slot, counters, episodes, block.columns.failures, seconds))
