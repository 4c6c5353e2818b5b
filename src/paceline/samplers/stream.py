"""Stream sampler: asynchronous workers that wait neither for each other nor for new weights.

A worker starts each rollout with the latest weights, as long as it has a free slot. The learner
takes rollouts as they arrive, one per worker on average, as a batch of the usual size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..rollout import Array, Episode, Rollout
from .pool import TICK, Arrival, PoolSpec, WorkerPool
from .workers import PoolSampler

if TYPE_CHECKING:
    from ..config.schema import Config

SLOTS = 2
"""Per worker: one that it writes, and one that waits for the learner."""
POLL_SECONDS = 0.002
"""Between two checks for overdue rollouts."""


class Stream(PoolSampler):
    """A rollout's weights are at most `max_lag` updates older than the learner's."""

    runs_ahead = True

    def __init__(self, pool: WorkerPool, max_lag: int) -> None:
        super().__init__(pool)
        self._workers = range(pool.spec.workers)
        self._slots, self._max_lag = pool.spec.slots_per_worker, max_lag
        self._batch = Rollout.from_spec(pool.spec.rollout).poisoned()
        width = pool.spec.each.columns
        self._outs = [self._batch.column_range(i * width, (i + 1) * width) for i in self._workers]
        self._waiting: list[Arrival] = []
        self._taken: list[Arrival] = []
        self._streaming, self._version = False, 0

    @staticmethod
    def refuse(config: Config) -> None:
        PoolSampler.refuse(config)
        if not config.algorithm.needs_log_ratio:
            raise BadInput(
                f"sampler is 'stream', whose rollouts come from older weights, and "
                f"{config.algo_section} does not correct for that; write --sampler workers, or "
                "--algo impala, which does"
            )

    @staticmethod
    def make(spec: PoolSpec, config: Config) -> Stream:
        pool = config.make_entry("pool", replace(spec, slots_per_worker=SLOTS))
        return Stream(pool, config.max_lag)

    def publish(self, weights: Array, version: int) -> None:
        self._pool.publish(weights, version)
        self._version = version
        for arrival in self._taken:  # of each worker in order of time
            self._pool.ledgers[arrival.worker].published = arrival.snapshot
        self._taken = []

    def collect(self) -> Rollout:
        if not self._streaming:
            self._streaming = True
            self._pool.begin()
            for worker in self._workers:
                for slot in range(self._slots):
                    self._pool.fill(worker, slot)
        batch = len(self._outs)
        while len(self._waiting) < batch or self._overdue():
            enough = len(self._waiting) >= batch
            self._waiting += self._pool.arrivals(POLL_SECONDS if enough else TICK)
        self._waiting.sort(key=lambda arrival: int(arrival.rollout.version[0]))
        self._taken, self._waiting = self._waiting[:batch], self._waiting[batch:]
        episodes: list[Episode] = []
        for out, arrival in zip(self._outs, self._taken, strict=True):
            out.copy_from(arrival.rollout)
            episodes += arrival.episodes
            self._pool.fill(arrival.worker, arrival.slot)
        return replace(self._batch, episodes=episodes)

    def _overdue(self) -> bool:
        """Whether a worker is in a rollout that would be too old for the batch after this one."""
        oldest = self._version - (self._max_lag - self._slots)
        return any(self._pool.acting_version(worker) < oldest for worker in self._workers)
