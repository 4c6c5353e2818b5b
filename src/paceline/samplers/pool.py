"""WorkerPool: workers that collect rollouts for a sampler, wherever they run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..config.schema import LogInfo
from ..envs.columns import ReplayMismatch
from ..envs.info import info_reader
from ..envs.source import EnvInfo
from ..policy.actor import make_actor
from ..policy.network import NetworkSpec
from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Episode, Rollout, RolloutSpec
from . import Counters
from .block import Block
from .ledger import Ledger, Snapshot

TICK = 0.5
"""Seconds between two checks of the workers' heartbeats."""


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """What a pool is built from. Columns are divided equally among the workers, in order."""

    env_info: EnvInfo
    network: NetworkSpec
    weights: int = 0
    """number of floats that are published to worker processes"""
    workers: int
    """or blocks in the learner's process"""
    rollout: RolloutSpec
    """of all workers together"""
    seed: int
    first_column: int = 0
    slots_per_worker: int = 0
    """rollouts of each worker's own; 0: all workers write their columns of a common one"""
    cpus: Sequence[list[int]] = ()
    """CPUs to which each worker is bound; an empty list for any"""
    timeout: float = 60.0
    """seconds without a heartbeat after which a worker is replaced"""
    max_restarts: int = 5
    """of one worker in a row without a finished rollout"""
    threads: int = 1
    """threads that step a batch of environments, where there are no workers"""
    log_info: LogInfo = "auto"
    """which numbers in `info` episodes carry"""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    """of the trainer, which beats while it waits for its workers"""

    @property
    def each(self) -> RolloutSpec:
        """Spec of one worker's rollout."""
        return replace(self.rollout, columns=self.rollout.columns // self.workers)

    @property
    def slots(self) -> tuple[int, RolloutSpec]:
        """Number of rollouts in the pool, and their spec."""
        own = self.slots_per_worker
        return (own * self.workers, self.each) if own else (1, self.rollout)

    def slots_of(self, worker: int, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The slots of a worker out of all `rollouts`; or its columns of the common one."""
        if own := self.slots_per_worker:
            return list(rollouts[worker * own : (worker + 1) * own])
        width = self.each.columns
        return [rollouts[0].column_range(worker * width, (worker + 1) * width)]

    def columns_of(self, worker: int) -> range:
        """Columns of a worker, numbered over all ranks."""
        width = self.each.columns
        first = self.first_column + worker * width
        return range(first, first + width)

    def make_block(self, worker: int, heartbeat: Heartbeat, threads: int = 1) -> Block:
        """A worker's columns and their actor; `threads` step a native batch."""
        each, first = self.each, self.columns_of(worker).start
        columns = self.env_info.columns(each.num_envs, self.seed, first, threads)
        columns.read_info = info_reader(self.log_info)
        try:
            actor = make_actor(self.network, each.columns)
            return Block(columns, actor, each, self.seed, heartbeat)
        except BaseException:
            columns.close()
            raise

    def make_ledgers(self) -> list[Ledger]:
        return [Ledger(self.env_info, self.each) for _ in range(self.workers)]


@dataclass(frozen=True)
class Arrival:
    """A finished rollout. Its slot belongs to the learner until the next `fill` of it."""

    worker: int
    slot: int
    rollout: Rollout
    episodes: list[Episode]
    snapshot: Snapshot
    """state of its columns after it"""
    seconds: float = math.nan
    """that the worker was at work on it; NaN if the pool does not measure that"""


class WorkerPool(Counters, Protocol):
    """Workers by number. One that dies or hangs is replaced, and replays to its ledger's latest
    snapshot; if that fails too often, any of the calls raises `EnvironmentFailed`."""

    @property
    def spec(self) -> PoolSpec: ...

    @property
    def ledgers(self) -> Sequence[Ledger]:
        """Of each worker. The pool records every rollout there, the sampler those it consumed."""

    @property
    def common(self) -> Rollout:
        """The rollout of all columns, where workers have no slots of their own."""

    def begin(self) -> list[ReplayMismatch]:
        """Begin the first episodes, or replay the ledgers'; columns whose replay differs."""

    def publish(self, weights: Array, version: int) -> None:
        """Use these weights in every rollout that begins from now on."""

    def fill(self, worker: int, slot: int) -> None:
        """Queue a worker's next rollout, which it writes into this slot."""

    def arrivals(self, timeout: float) -> list[Arrival]:
        """Rollouts that have arrived, each worker's in order; empty after `timeout` seconds."""

    def acting_version(self, worker: int) -> int:
        """Version of the weights of a worker's oldest queued rollout; the latest if it has none.

        A lower bound: never later than the version that rollout will carry.
        """

    def close(self) -> None:
        """End every worker, also in the middle of a rollout."""
