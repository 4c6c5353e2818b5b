"""Workers: rollouts made by processes, all by the same weights, in step with the learner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..arrays import part
from ..envs.replaying import Difference
from ..rollout import Array, Episode, Rollout
from .block import states
from .crew import Crew
from .memory import Memory


class Processes:
    """What samplers made of processes share: everything but how rollouts are collected."""

    def __init__(self, crew: Crew, memory: Memory) -> None:
        self._crew, self._memory = crew, memory

    @property
    def t_wait(self) -> float:
        return self._crew.t_wait

    @property
    def restarts(self) -> int:
        return self._crew.restarts

    @property
    def env_restarts(self) -> int:
        return self._crew.env_restarts

    def begin(self) -> None:
        self._crew.begin()

    def state(self) -> dict[str, Any] | None:
        return states([worker.ledger for worker in self._crew.workers])

    def restore(self, state: dict[str, Any]) -> list[Difference]:
        for number, worker in enumerate(self._crew.workers):
            worker.ledger.restore(part(f"{number}.", state))
        return self._crew.begin()

    def close(self) -> None:
        self._crew.close()


class Workers(Processes):
    """One slot, of which every worker writes its own columns; then all wait for new weights."""

    def publish(self, weights: Array, version: int) -> None:
        self._memory.weights.write(weights, version)
        for worker in self._crew.workers:
            worker.ledger.published = worker.ledger.now

    def collect(self) -> Rollout:
        crew = self._crew
        crew.begin()
        for worker in crew.workers:
            crew.fill(worker, 0)
        episodes: dict[int, list[Episode]] = {}
        while len(episodes) < len(crew.workers):
            for arrival in crew.arrivals():
                episodes[arrival.worker.setup.number] = arrival.done.episodes
        in_order = [episode for number in sorted(episodes) for episode in episodes[number]]
        return replace(self._memory.slots[0], episodes=in_order)
