"""Shared memory without a name, so that nothing of it can be left behind; arrays placed in it."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from ..rollout import Array

ORDERED = platform.machine().lower() in ("x86_64", "amd64", "i686")
"""Whether other cores see writes in the order in which they were made."""
CACHE_LINE = 64
"""Bytes; what two processes write must not share one."""

Structure = TypeVar("Structure", bound=ctypes.Structure)


def anonymous_file() -> int:
    """Descriptor of a file that is in no directory."""
    with suppress(AttributeError, OSError):  # not on every system, nor in every sandbox
        return os.memfd_create("paceline", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Layout:
    """Places arrays and structures one after another, each at the start of a cache line.

    Without memory it only counts the bytes they take (`size`).
    """

    def __init__(self, memory: mmap.mmap | memoryview | None = None) -> None:
        self._memory = memory
        self.size = 0

    def array(self, shape: Sequence[int], dtype: Any) -> Array:
        begin = self._take(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)
        if self._memory is None:
            return np.empty((0,) * len(shape), dtype)
        return np.ndarray(shape, dtype, self._memory, begin)

    def structure(self, kind: type[Structure]) -> Structure:
        begin = self._take(ctypes.sizeof(kind))
        return kind() if self._memory is None else kind.from_buffer(self._memory, begin)

    def _take(self, size: int) -> int:
        begin = -(-self.size // CACHE_LINE) * CACHE_LINE
        self.size = begin + size
        if self._memory is not None and self.size > len(self._memory):
            raise MemoryError("the shared memory is full")
        return begin
