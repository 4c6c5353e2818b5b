"""WorkerPool: workers that make rollouts for a sampler, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..envs.maker import EnvInfo
from ..envs.replaying import Difference
from ..policy.network import NetworkSpec
from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Episode, Rollout, RolloutSpec
from . import Counters
from .block import Block, make_block
from .ledger import Ledger, Snapshot

TICK = 0.5
"""Seconds between two checks of the workers' heartbeats."""


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """All that a pool is made from. Columns are divided equally among the workers, in order."""

    env_info: EnvInfo
    network: NetworkSpec
    weights: int
    """floats that are published"""
    workers: int
    rollout: RolloutSpec
    """of all workers together"""
    seed: int
    first_column: int = 0
    slots_per_worker: int = 0
    """rollouts that each worker has of its own; 0: all write their columns of a common one"""
    cpus: Sequence[list[int]]
    """that each worker may run on alone; an empty list for any"""
    timeout: float
    """seconds without a heartbeat after which a worker is replaced"""
    max_restarts: int
    """of one worker in a row, without a finished rollout"""
    threads: int = 1
    """of environments that are stepped as a batch, where there are no workers"""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    """of the trainer, which beats while it watches its workers"""

    @property
    def each(self) -> RolloutSpec:
        """Rollout of one worker."""
        return replace(self.rollout, columns=self.rollout.columns // self.workers)

    @property
    def slots(self) -> tuple[int, RolloutSpec]:
        """How many rollouts the pool has, and of what kind."""
        own = self.slots_per_worker
        return (own * self.workers, self.each) if own else (1, self.rollout)

    def slots_of(self, worker: int, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Those of a worker, out of all `slots`; or its columns of the common one."""
        if own := self.slots_per_worker:
            return list(rollouts[worker * own : (worker + 1) * own])
        width = self.each.columns
        return [rollouts[0].column_range(worker * width, (worker + 1) * width)]

    def columns_of(self, worker: int) -> range:
        """Numbers of a worker's columns, over all ranks."""
        width = self.each.columns
        first = self.first_column + worker * width
        return range(first, first + width)

    def make_block(self, worker: int, heartbeat: Heartbeat) -> Block:
        first = self.columns_of(worker).start
        return make_block(self.env_info, self.network, self.each, self.seed, first, heartbeat)

    def make_ledgers(self) -> list[Ledger]:
        return [Ledger(self.env_info, self.each) for _ in range(self.workers)]


@dataclass(frozen=True)
class Arrival:
    """A finished rollout, in a slot that is the learner's until the next `fill` of it."""

    worker: int
    slot: int
    rollout: Rollout
    episodes: list[Episode]
    snapshot: Snapshot
    """where its columns stand after it"""


class WorkerPool(Counters, Protocol):
    """Workers by number. One that dies or hangs is replaced and brought back to where its ledger
    stands; if that fails too often, any of the calls raises `EnvironmentFailed`."""

    @property
    def spec(self) -> PoolSpec: ...

    @property
    def ledgers(self) -> Sequence[Ledger]:
        """Of each worker. The pool notes every rollout there, the sampler what was learnt from."""

    @property
    def common(self) -> Rollout:
        """The rollout of all columns, where workers have no slots of their own."""

    def begin(self) -> list[Difference]:
        """Begin the first episodes, or the ledgers', once; the columns that came out different."""

    def publish(self, weights: Array, version: int) -> None:
        """Act with these weights in every rollout that is begun from now on."""

    def fill(self, worker: int, slot: int) -> None:
        """Have a worker make its next rollout, after those that it was asked for before."""

    def arrivals(self, patience: float) -> list[Arrival]:
        """Rollouts that have come in, each worker's in order; none after so many seconds."""

    def acting_version(self, worker: int) -> int:
        """Version of the weights of a worker's oldest rollout that has not come in.

        Never a later one than it will name; the latest, if it was asked for none.
        """

    def close(self) -> None:
        """End every worker, also in the middle of a rollout."""
