"""Hogwild: learners share weights and the optimizer's state, and never wait for each other.

Rank 0 is the monitor: it learns nothing, but reports, evaluates and saves. Each learner takes
gradients on a copy of its own and applies them in place, without a lock (Recht 2011).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput, LostRank
from ..processes.heartbeat import TICK
from ..rollout import FEW_NUMBERS, Array, Episode
from . import Sync
from .rank_memory import FUTEX, RankMemory
from .rendezvous import RankGroup
from .wire import gather

ARENA = 2**30
"""Bytes for shared arrays; the system provides memory only for what is used."""
RING = 256
"""Latest episodes that are kept of each learner for the others to read."""
NUMBERS = FEW_NUMBERS + 1
"""Of an episode's `info`: one more than are logged, so that too many are noticed."""
NAME_BYTES = 64


class Hogwild(Sync):
    """Gradients stay local, so `size` and `sum` are those of a single process."""

    path = "shared weights, no locks"

    def __init__(self, group: RankGroup, timeout: float = 120.0) -> None:
        if not FUTEX or len(group.hosts) > 1:
            raise BadInput(
                "a3c's learners share memory, which takes one host with Linux on x86; "
                "write --algo a2c with --num-workers or --ranks instead"
            )
        self.rank, self._ranks = group.rank, group.size
        self._group = group
        """kept, since rank 0 hosts the store that others may still read"""
        # Crowded: they seldom wait for each other, and then for long.
        everyone = list(range(group.size))
        self._memory = RankMemory(group, everyone, timeout, crowded=True, arena=ARENA)
        self.heartbeat = self._memory.heartbeat
        self._checked = time.monotonic()
        self._episodes = self._array((self._ranks, RING, 3 + NUMBERS))
        """[rank, number % RING, (column, return, length, *info)]; NaN where info has no number"""
        self._names = self._array((self._ranks, NUMBERS), f"S{NAME_BYTES}")
        """names of the numbers in each rank's episodes; a rank adds to its own, before it uses
        them, and changes none"""
        self._counts = self._array((self._ranks,), np.int64)
        """episodes of each rank"""
        self._maxima = self._array((self._ranks,))
        self._read = [0] * self._ranks
        """episodes of each rank that this process has read"""
        self._totals: Array | None = None
        """[rank, metric]: sums since the start"""
        self._last_total: Array | float = 0.0

    @property
    def world_size(self) -> int:
        return self._ranks - 1

    def share(self, tensor: Tensor) -> Tensor:
        """A tensor in shared memory; all ranks share the same tensors in the same order."""
        array = self._array(tuple(tensor.shape), tensor.numpy(force=True).dtype)
        shared = torch.from_numpy(array)
        if self.rank == 0:
            shared.copy_(tensor)
        self._memory.exchange(np.zeros(1))
        return shared

    def _array(self, shape: Sequence[int], dtype: Any = np.float64) -> Array:
        try:
            return self._memory.array(shape, dtype)
        except MemoryError:
            raise BadInput(
                "this network is too large for a3c; use --algo a2c with --ranks"
            ) from None

    def gather(self, item: Any) -> list[Any]:
        """Only while all ranks start: later they no longer wait for each other."""
        return gather(self._memory.sum, self.rank, self._ranks, item)

    def reduce_metrics(self, sums: Array, episodes: list[Episode]) -> tuple[Array, list[Episode]]:
        """Since this process last called it, without waiting for others."""
        if self.rank and time.monotonic() - self._checked >= TICK:
            self._checked = time.monotonic()
            self._memory.monitor.check([0])  # nobody else would notice that it hangs
        if self._totals is None:
            self._totals = self._array((self._ranks, len(sums)))
        self._totals[self.rank] += sums
        for episode in episodes:
            row = self._episodes[self.rank, self._counts[self.rank] % RING]
            row[:3] = episode.column, episode.total, episode.length
            self._write_info(row[3:], episode.info)
            self._counts[self.rank] += 1
        total = self._totals.sum(0)
        since, self._last_total = total - self._last_total, total
        return since, self._new_episodes()

    def _write_info(self, row: Array, info: Mapping[str, float]) -> None:
        """Store the numbers of `info`, each in the place that this rank's names give it."""
        row[:] = np.nan
        names = self._names[self.rank]
        for name, number in info.items():
            known, used = name.encode(errors="replace")[:NAME_BYTES], np.count_nonzero(names)
            if known and known not in names and used < NUMBERS:
                names[used] = known
            if known:
                row[names == known] = number

    def _new_episodes(self) -> list[Episode]:
        """All learners' episodes that this process has not read, as far as they are kept."""
        found = []
        for rank, count in enumerate(self._counts.tolist()):
            for number in range(max(self._read[rank], count - RING), count):
                column, total, length, *numbers = self._episodes[rank, number % RING].tolist()
                info = {
                    bytes(name).decode(errors="ignore"): number
                    for name, number in zip(self._names[rank], numbers, strict=True)
                    if not math.isnan(number)
                }
                found.append(Episode(int(column), total, int(length), info))
            self._read[rank] = count
        return found

    def max(self, value: float) -> float:
        """The largest value that any process has given so far."""
        self._maxima[self.rank] = max(value, self._maxima[self.rank])
        return float(self._maxima.max())

    def pause(self, seconds: float) -> bool:
        self.heartbeat.beats += 1
        at_work = [rank for rank in range(1, self._ranks) if not self._memory.is_done(rank)]
        self._memory.monitor.check(at_work)
        if at_work:
            time.sleep(seconds)
        return bool(at_work)

    def finish(self) -> None:
        """A learner stays until the monitor has finished, to notice if it hangs."""
        self._memory.set_done()
        while self.rank and not self._memory.is_done(0):
            try:
                self._memory.monitor.check([0])
            except LostRank:
                if not self._memory.is_done(0):  # else it has finished, and left, meanwhile
                    raise
            time.sleep(TICK / 5)

    def close(self) -> None:
        self._memory.set_done()
        self._memory.close()
