"""Memory that the learner and its workers share: weights, rollout slots, heartbeats.

Each worker writes its own slots and heartbeat only; the learner alone writes the weights.
"""

from __future__ import annotations

import mmap
import os
import time
import zlib

import numpy as np

from ..processes.heartbeat import Heartbeat
from ..processes.shared_memory import ORDERED, Layout
from ..rollout import Array, Rollout, RolloutSpec


class WorkerMemory:
    """One process's view of it; `file` is grown to its size by the first that maps it."""

    def __init__(
        self, file: int, weights: int, workers: int, slots: int, rollout: RolloutSpec
    ) -> None:
        """For `weights` published floats and so many workers and slots of one rollout each."""
        counted = Layout()
        self._place(counted, weights, workers, slots, rollout)
        if os.fstat(file).st_size < counted.size:
            os.ftruncate(file, counted.size)
        self._place(Layout(mmap.mmap(file, counted.size)), weights, workers, slots, rollout)

    def _place(
        self, layout: Layout, weights: int, workers: int, slots: int, rollout: RolloutSpec
    ) -> None:
        header, values = layout.array((4,), np.int64), layout.array((weights,), np.float32)
        self.weights = PublishedWeights(header, values)
        self.heartbeats = [layout.structure(Heartbeat) for _ in range(workers)]
        """of each worker"""
        self.slots = [Rollout.from_spec(rollout, layout.array) for _ in range(slots)]


class PublishedWeights:
    """The latest weights under a sequence lock: readers never wait for each other.

    `header` is [sequence, version, checksum, -]. The sequence is odd while the writer writes, and a
    copy during which it changed is discarded. Where other cores may see writes out of order, a
    checksum is compared as well.
    """

    def __init__(self, header: Array, values: Array, checked: bool = not ORDERED) -> None:
        self._header, self._values, self._checked = header, values, checked

    @property
    def version(self) -> int:
        return int(self._header[1])

    @property
    def size(self) -> int:
        return len(self._values)

    def write(self, weights: Array, version: int) -> None:
        header = self._header
        header[0] += 1
        self._values[:] = weights
        header[1] = version
        header[2] = self._checksum(self._values, version)
        header[0] += 1

    def read(self, out: Array) -> int:
        """Copy the latest weights, whole, into `out`; returns their version."""
        header = self._header
        while True:
            before = int(header[0])
            if before % 2 == 0:
                out[:] = self._values
                version, checksum = int(header[1]), int(header[2])
                if header[0] == before and checksum == self._checksum(out, version):
                    return version
            time.sleep(0)

    def _checksum(self, values: Array, version: int) -> int:
        return zlib.crc32(values.data, version & 0xFFFFFFFF) if self._checked else 0
