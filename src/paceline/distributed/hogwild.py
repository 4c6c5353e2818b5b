"""Hogwild: learners that share their weights and the optimiser's state, and wait for nobody.

Rank 0 learns nothing: it watches, reports, evaluates and saves beside the others. Each learner
takes gradients on a copy of its own and applies them in place, without a lock (Recht 2011).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput
from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Episode
from . import Sync
from .beat import TICK
from .groups import Shared
from .rank_memory import DONE, FUTEX, LOOKS, WORDS, Segment
from .rendezvous import Meeting

if TYPE_CHECKING:
    from ..learning.learner import Learner
    from ..run.budget import Budget, Progress
    from ..run.meter import Meter
    from ..run.report import Report
    from . import Watch

ARENA = 2**30
"""Bytes for all that is shared; memory is taken only for what is used."""
ALIGNMENT = 64
PAUSE = 0.05
"""Seconds between two looks at the learners."""
RING = 256
"""Episodes of each learner that are remembered until everybody has read them."""


class Hogwild(Sync):
    size = 1
    path = "shared weights, no locks"

    def __init__(self, meeting: Meeting, timeout: float = 120.0) -> None:
        if not FUTEX or len(meeting.hosts) > 1:
            raise BadInput(
                "a3c's learners share memory, which takes one host with Linux on x86; "
                "write --algo a2c with --num-workers or --ranks instead"
            )
        self.rank, self._ranks, self._meeting = meeting.rank, meeting.size, meeting
        everyone = list(range(meeting.size))
        # Crowded: they seldom wait for each other, and then for long.
        self._segment = Segment(meeting, everyone, timeout, crowded=True, arena=ARENA)
        self._group = Shared(self._segment)
        self.heartbeat: Heartbeat = self._segment.heartbeat
        self._taken, self._looked = 0, time.monotonic()
        self._rings = self._array((self._ranks, RING, 3))
        self._counts = self._array((self._ranks, 1))
        """episodes of each"""
        self._peaks = self._array((self._ranks, 1))
        self._read = [0] * self._ranks
        self._table: Array | None = None
        """what each has to tell, ever"""
        self._heard: Array = np.zeros(())

    @property
    def world_size(self) -> int:
        return self._ranks - 1

    def share(self, tensor: Tensor) -> Tensor:
        """A tensor in memory that all see; everybody shares the same ones in the same order."""
        array = self._array(tuple(tensor.shape), tensor.numpy(force=True).dtype)
        shared = torch.from_numpy(array)
        if self.rank == 0:
            shared.copy_(tensor)
        self._segment.exchange(np.zeros(1))
        return shared

    def _array(self, shape: Sequence[int], dtype: Any = np.float64) -> Array:
        begin = -(-self._taken // ALIGNMENT) * ALIGNMENT
        self._taken = begin + int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self._taken > ARENA:
            raise BadInput("this network is too large for a3c; use --algo a2c with --ranks")
        return self._segment.arena[begin : self._taken].view(dtype).reshape(shape)

    def sum(self, buffer: Tensor) -> None:
        """No-op: gradients stay local."""

    def gather(self, item: Any) -> list[Any]:
        """While everybody is still starting; afterwards nobody would come."""
        return self._group.gather(item)

    def news(self, sums: Array, episodes: list[Episode]) -> tuple[Array, list[Episode]]:
        """Since this process last asked; nobody waits for anybody."""
        if self.rank and time.monotonic() - self._looked >= TICK:
            self._looked = time.monotonic()
            self._segment.watch.look([0])  # nobody else would tell that the watcher hangs
        if self._table is None:
            self._table = self._array((self._ranks, len(sums)))
            self._heard = np.zeros_like(sums)
        self._table[self.rank] += sums
        for episode in episodes:
            count = int(self._counts[self.rank, 0])
            self._rings[self.rank, count % RING] = episode.column, episode.total, episode.length
            self._counts[self.rank] = count + 1
        total = self._table.sum(0)
        since, self._heard = total - self._heard, total
        return since, self._ended()

    def _ended(self) -> list[Episode]:
        """All learners' episodes that have not been read yet, as far as they are remembered."""
        found = []
        for rank, count in enumerate(self._counts[:, 0].astype(int).tolist()):
            for number in range(max(self._read[rank], count - RING), count):
                column, total, length = self._rings[rank, number % RING]
                found.append(Episode(int(column), float(total), int(length)))
            self._read[rank] = count
        return found

    def peak(self, value: float) -> float:
        """The largest that any process has named, ever."""
        self._peaks[self.rank] = max(value, self._peaks[self.rank, 0])
        return float(self._peaks.max())

    def _pause(self, seconds: float) -> bool:
        """Let the learners learn for a moment; False once they have all left."""
        self._segment.signs[WORDS * self.rank + LOOKS] += 1  # a sign of life
        at_work = [n for n in range(1, self._ranks) if not self._segment.signs[WORDS * n + DONE]]
        self._segment.watch.look(at_work)
        if at_work:
            time.sleep(seconds)
        return bool(at_work)

    @property
    def watch(self) -> Watch | None:
        return self._watch if self.rank == 0 else None

    def _watch(
        self,
        learner: Learner,
        meter: Meter,
        budget: Budget,
        progress: Progress,
        log_every: int,
        stopping: Callable[[], bool],
    ) -> Iterator[Report]:
        at_work, stopped = True, False
        while at_work:
            left = math.inf if budget.seconds is None else budget.seconds - progress.time
            # Shorter towards the end, to see it in time.
            at_work = self._pause(PAUSE if left > 10 * PAUSE else PAUSE / 20)
            over = budget.fraction(progress) >= 1.0
            stopped |= meter.poll(over or stopped or stopping()) and not over
            learner.set_version(progress.iter)
            spent = budget.fraction(progress)
            due = meter.iters >= log_every and not stopped and spent < 1.0
            if due or (not at_work and (meter.iters or stopped)):  # nobody is left behind
                learner.pull_shared_weights()
                yield meter.report(spent, stopped)

    def close(self) -> None:
        self._segment.signs[WORDS * self.rank + DONE] = 1
        self._group.close()
