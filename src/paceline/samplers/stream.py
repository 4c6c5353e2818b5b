"""Stream: rollouts of processes that never wait for each other, nor for new weights.

A worker goes on with whatever weights are the latest when a rollout begins, as long as it has a
free slot. The learner takes rollouts as they come, as many as make a batch of the usual size.
"""

from __future__ import annotations

from dataclasses import replace

from ..rollout import Array, Episode, Rollout
from .crew import TICK, Arrival, Crew, Worker
from .memory import Memory
from .workers import Processes

SLOTS = 2
"""Of each worker: one that it writes, and one that waits for the learner."""
BRIEFLY = 0.002
"""Seconds until another look at what workers are about."""


class Stream(Processes):
    """No rollout is more than `max_lag` updates older than the weights that learn from it."""

    def __init__(self, crew: Crew, memory: Memory, batch: Rollout, max_lag: int) -> None:
        super().__init__(crew, memory)
        self._batch, self._max_lag, self._version = batch, max_lag, 0
        self._waiting: list[Arrival] = []
        self._lanes = len(crew.workers)
        width = batch.columns // self._lanes
        self._places = [batch.between(i * width, (i + 1) * width) for i in range(self._lanes)]
        self._taken: list[Arrival] = []
        self._streaming = False

    def publish(self, weights: Array, version: int) -> None:
        self._memory.weights.write(weights, version)
        self._version = version
        for arrival in self._taken:  # in order of time, of each worker
            arrival.worker.ledger.published = arrival.mark
        self._taken = []

    def collect(self) -> Rollout:
        self._stream()
        while len(self._waiting) < self._lanes or self._overdue():
            enough = len(self._waiting) >= self._lanes
            self._waiting += self._crew.arrivals(BRIEFLY if enough else TICK)
        self._waiting.sort(key=lambda arrival: arrival.version)
        self._taken, self._waiting = self._waiting[: self._lanes], self._waiting[self._lanes :]
        episodes: list[Episode] = []
        for place, arrival in zip(self._places, self._taken, strict=True):
            place.copy_from(arrival.rollout)
            episodes += arrival.done.episodes
            self._crew.fill(arrival.worker, arrival.done.slot)
        return replace(self._batch, episodes=episodes)

    def _stream(self) -> None:
        """Let every worker go."""
        if self._streaming:
            return
        self._streaming = True
        self._crew.begin()
        for worker in self._crew.workers:
            for k in range(SLOTS):
                self._crew.fill(worker, SLOTS * worker.setup.number + k)

    def _overdue(self) -> bool:
        """Whether a rollout is in the making that would be too old for the batch after this one."""
        oldest = self._version - (self._max_lag - SLOTS)
        return any(self._acting_with(worker) < oldest for worker in self._crew.workers)

    def _acting_with(self, worker: Worker) -> int:
        """Version of the weights of a worker's next rollout, which may have come in unread.

        Before it is begun its slot shows an older one, and so the learner rather waits.
        """
        if not worker.orders or not worker.ready:
            return self._version
        return int(worker.slots[worker.orders[0].slot].version[0])
