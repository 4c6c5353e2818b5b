"""Workers sampler: a pool of workers, synchronous and on-policy (one barrier per rollout)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..envs.columns import ReplayMismatch
from ..errors import BadInput
from ..rollout import Array, Episode, Rollout
from .barrier_cost import BarrierCost
from .ledger import ledgers_state, restore_ledgers
from .pool import TICK, PoolSpec, WorkerPool

if TYPE_CHECKING:
    from ..config.schema import Config


class PoolSampler:
    """What samplers over a pool share: all but `collect` and `publish`."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    @staticmethod
    def refuse(config: Config) -> None:
        if not config.workers:
            raise BadInput(
                f"sampler is {config.resolved_sampler!r}, which needs workers; write "
                "--num-workers 2, or auto"
            )

    @property
    def t_wait(self) -> float:
        return self._pool.t_wait

    @property
    def restarts(self) -> int:
        return self._pool.restarts

    @property
    def env_restarts(self) -> int:
        return self._pool.env_restarts

    def begin(self) -> None:
        self._pool.begin()

    def state(self) -> dict[str, Any] | None:
        return ledgers_state(self._pool.ledgers)

    def restore(self, state: dict[str, Any]) -> list[ReplayMismatch]:
        restore_ledgers(self._pool.ledgers, state)
        return self._pool.begin()

    def close(self) -> None:
        self._pool.close()


class Workers(PoolSampler):
    """Each worker writes its columns of one common rollout, then waits for new weights."""

    runs_ahead = False

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__(pool)
        self._barrier_cost = BarrierCost(pool.spec)

    @staticmethod
    def make(spec: PoolSpec, config: Config) -> Workers:
        return Workers(config.make_entry("pool", spec))

    def publish(self, weights: Array, version: int) -> None:
        self._pool.publish(weights, version)
        for ledger in self._pool.ledgers:
            ledger.published = ledger.latest

    def collect(self) -> Rollout:
        pool, workers = self._pool, range(self._pool.spec.workers)
        pool.begin()
        began, alone = time.perf_counter(), 0.0
        for worker in workers:
            pool.fill(worker, 0)
        episodes: dict[int, list[Episode]] = {}
        while len(episodes) < len(workers):
            for arrival in pool.arrivals(TICK):
                episodes[arrival.worker] = arrival.episodes
                alone += arrival.seconds
        if not self._barrier_cost.decided:
            self._barrier_cost.record(time.perf_counter() - began, alone)
        in_order = [episode for worker in workers for episode in episodes[worker]]
        return replace(pool.common, episodes=in_order)
