"""Memory that the learner and its workers share: weights, slots for rollouts, signs of life.

It has no name, so nothing of it can be left behind. Each worker writes its own places only; the
learner alone writes the weights.
"""

from __future__ import annotations

import mmap
import os
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..machine import ORDERED
from ..rollout import Array, Rollout
from ..spaces import ActionSpec, ObservationSpec

ALIGNMENT = 64
"""A cache line: what two processes write must not share one."""


@dataclass(frozen=True)
class Plan:
    """What is in the memory; both sides lay it out from this."""

    weights: int
    """floats that are published"""
    workers: int
    slots: int
    steps: int
    columns: int
    """of one slot"""
    obs: ObservationSpec
    act: ActionSpec
    values: bool = False
    """whether actors tell the value of what they see"""


class Memory:
    """The memory as one process sees it."""

    def __init__(self, plan: Plan, file: int) -> None:
        self._at, self._buffer = 0, None
        self._lay_out(plan)
        size = self._at
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        self._at, self._buffer = 0, mmap.mmap(file, size)
        self._lay_out(plan)

    def _lay_out(self, plan: Plan) -> None:
        self.weights = Weights(
            self._array((4,), np.int64), self._array((plan.weights,), np.float32)
        )
        lines = [self._array((3,), np.int64) for _ in range(plan.workers)]
        self.pulses = [memoryview(line.data) for line in lines]
        """of each worker"""
        self.slots = [
            Rollout.placed(
                self._array,
                plan.steps,
                plan.columns,
                plan.obs.stored,
                plan.act.stored,
                plan.obs.history,
                plan.values,
            )
            for _ in range(plan.slots)
        ]

    def _array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """The next array; while the size is being found out, one that holds nothing."""
        begin = -(-self._at // ALIGNMENT) * ALIGNMENT
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self._at = begin + size
        if self._buffer is None:
            return np.empty((0,) * len(shape), dtype)
        return np.ndarray(shape, dtype, self._buffer, begin)


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
