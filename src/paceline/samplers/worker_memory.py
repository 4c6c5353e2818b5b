"""Memory that the learner and its workers share: weights, slots for rollouts, signs of life.

It has no name, so nothing of it can be left behind. Each worker writes its own places only; the
learner alone writes the weights.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
import zlib
from typing import Any

import numpy as np

from ..processes.hardware import ORDERED
from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Rollout, RolloutSpec

ALIGNMENT = 64
"""A cache line: what two processes write must not share one."""


class Memory:
    """The memory as one process sees it."""

    def __init__(
        self, file: int, weights: int, workers: int, slots: int, rollout: RolloutSpec
    ) -> None:
        """So many published floats, workers, and slots for a rollout each; both sides say so."""
        self._at, self._buffer = 0, None
        self._lay_out(weights, workers, slots, rollout)
        size = self._at
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        self._at, self._buffer = 0, mmap.mmap(file, size)
        self._lay_out(weights, workers, slots, rollout)

    def _lay_out(self, weights: int, workers: int, slots: int, rollout: RolloutSpec) -> None:
        self.weights = Weights(self._array((4,), np.int64), self._array((weights,), np.float32))
        self.heartbeats = [self._heartbeat() for _ in range(workers)]
        """of each worker"""
        self.slots = [Rollout.from_spec(rollout, self._array) for _ in range(slots)]

    def _heartbeat(self) -> Heartbeat:
        place = self._place(ctypes.sizeof(Heartbeat))
        return Heartbeat() if self._buffer is None else Heartbeat.from_buffer(self._buffer, place)

    def _array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """The next array; while the size is being found out, one that holds nothing."""
        place = self._place(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)
        if self._buffer is None:
            return np.empty((0,) * len(shape), dtype)
        return np.ndarray(shape, dtype, self._buffer, place)

    def _place(self, size: int) -> int:
        """Where the next so many bytes begin."""
        begin = -(-self._at // ALIGNMENT) * ALIGNMENT
        self._at = begin + size
        return begin


class Weights:
    """Published weights under a sequence lock: readers never wait for each other.

    `header` is [sequence, version, checksum, -]. The sequence is odd while the writer is at work,
    and a copy during which it changed is thrown away. Where other cores may see writes out of
    order, a checksum tells as well.
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
        header[2] = self._sum(self._values, version)
        header[0] += 1

    def read(self, out: Array) -> int:
        """Copy the latest weights, whole, into `out`; returns their version."""
        header = self._header
        while True:
            before = int(header[0])
            if before % 2 == 0:
                out[:] = self._values
                version, checksum = int(header[1]), int(header[2])
                if header[0] == before and checksum == self._sum(out, version):
                    return version
            time.sleep(0)

    def _sum(self, values: Array, version: int) -> int:
        return zlib.crc32(values.data, version & 0xFFFFFFFF) if self._checked else 0
