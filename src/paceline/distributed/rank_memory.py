"""Memory that the ranks of one host share, and sums and exchanges of arrays through it.

It has no name, so nothing of it can be left behind. A rank writes its own slots and status only.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PacelineError
from ..processes.hardware import available_cpus
from ..processes.heartbeat import TICK, Heartbeat
from ..processes.shared_memory import ORDERED, Layout, anonymous_file
from ..rollout import Array
from .rendezvous import RankGroup, RankMonitor

POSTED, BYTES, HEARTBEAT, DONE = 0, 1, 3, 6
"""Columns of a rank's status, 8 integers that fill a cache line: turns posted; bytes of an even and
of an odd turn; its `Heartbeat` (3); whether it has finished."""
STATUS_SIZE = 8
SLOT = 2**24
"""Bytes that a rank can post at once; the system provides memory only for what is used."""
SPIN_SECONDS = 2e-4
YIELDS = 8
FUTEX = sys.platform == "linux" and ORDERED
"""Whether a process can sleep until another has changed a number in shared memory."""


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


if FUTEX:
    _syscall = ctypes.CDLL(None, use_errno=True).syscall
    _futex, _wait, _wake = ctypes.c_long(202), ctypes.c_int(0), ctypes.c_int(1)
    _all = ctypes.c_int(2**31 - 1)


class RankMemory:
    """A status and two slots for each rank, used in turns; and arrays that all of them share.

    A rank posts its part of turn k and reads the others' when they have posted theirs. Its slot of
    turn k is written again in turn k + 2, which begins when all have posted turn k + 1, and so have
    read it.
    """

    def __init__(
        self,
        group: RankGroup,
        ranks: list[int],
        timeout: float,
        crowded: bool,
        arena: int = 0,
    ) -> None:
        """`crowded`: there are more busy processes than CPUs. `arena`: bytes for `array`."""
        self._ranks, self._place = ranks, ranks.index(group.rank)
        size = len(ranks)
        length = size * (8 * STATUS_SIZE + 2 * SLOT) + arena
        self._file = _shared_file(group, ranks[0], length)
        memory = mmap.mmap(self._file, length)
        layout = Layout(memory)
        statuses = layout.array((size * STATUS_SIZE,), np.int64)
        self._slots = layout.array((2, size, SLOT), np.uint8)
        self.array = layout.array
        """makes an array; all ranks make the same ones in the same order"""
        self._status = statuses.data  # a memoryview, which is faster to index than an array
        own = STATUS_SIZE * self._place
        self.heartbeat = Heartbeat.from_buffer(memory, 8 * (own + HEARTBEAT))
        self._addresses = [
            ctypes.c_void_p(statuses.ctypes.data + 8 * STATUS_SIZE * n) for n in range(size)
        ]
        self._others = [n for n in range(size) if n != self._place]
        self._turn = 0
        self._views: dict[tuple[int, Any, int], list[Array]] = {}
        # A rank that spins while another waits for its CPU only keeps it waiting.
        self._spin_seconds = 0.0 if crowded or size > available_cpus() else SPIN_SECONDS
        self.monitor = RankMonitor(group, lambda rank: bytes(self._status_of(rank)), timeout)

    def _status_of(self, rank: int) -> memoryview:
        """Status of a rank; it changes while the rank works or waits."""
        begin = STATUS_SIZE * self._ranks.index(rank)
        return self._status[begin : begin + STATUS_SIZE]

    def set_done(self) -> None:
        """This rank has finished."""
        self._status[STATUS_SIZE * self._place + DONE] = 1

    def is_done(self, rank: int) -> bool:
        return bool(self._status_of(rank)[DONE])

    def sum(self, buffer: Tensor) -> None:
        """Replace `buffer` by its sum, in the order of ranks, so that all get the same bits."""
        mine = buffer.numpy(force=True)
        flat = mine.reshape(-1)
        most = SLOT // flat.itemsize
        for begin in range(0, flat.size, most):
            part = flat[begin : begin + most]
            first, second, *rest = self.exchange(part)
            np.add(first, second, out=part)
            for other in rest:
                part += other
        if buffer.device.type != "cpu" or not buffer.is_contiguous():  # `flat` is a copy
            buffer.copy_(torch.from_numpy(flat.reshape(mine.shape)))

    def exchange(self, mine: Array) -> list[Array]:
        """Every rank's array of this size, when all have posted; valid until the next exchange."""
        self._turn += 1
        odd, status, own = self._turn % 2, self._status, STATUS_SIZE * self._place
        views = self._slot_views(odd, mine.dtype, mine.size)
        views[self._place][:] = mine
        status[own + BYTES + odd] = mine.nbytes
        status[own + POSTED] = self._turn  # seen by others after what was written before it
        _syscall(_futex, self._addresses[self._place], _wake, _all, None, None, 0)
        for other in self._others:
            if status[STATUS_SIZE * other] < self._turn:
                self._await(other)
            if status[STATUS_SIZE * other + BYTES + odd] != mine.nbytes:
                raise PacelineError(
                    f"rank {self._ranks[other]} exchanges "
                    f"{status[STATUS_SIZE * other + BYTES + odd]} bytes, and rank "
                    f"{self._ranks[self._place]} {mine.nbytes}: they no longer do the same"
                )
        return views

    def _slot_views(self, odd: int, dtype: Any, size: int) -> list[Array]:
        """Every rank's slot as an array of this dtype and size."""
        key = (odd, dtype, size)
        if key not in self._views:
            slots = self._slots[odd, :, : size * dtype.itemsize]
            self._views[key] = [slot.view(dtype) for slot in slots]
        return self._views[key]

    def _await(self, other: int) -> None:
        """Spin briefly, yield the CPU, then sleep until woken, checking on the other rank."""
        status, at, turn = self._status, STATUS_SIZE * other, self._turn
        end = time.perf_counter() + self._spin_seconds
        while time.perf_counter() < end:
            if status[at] >= turn:
                return
        for _ in range(YIELDS):
            os.sched_yield()
            if status[at] >= turn:
                return
        checked = time.monotonic()
        while (seen := status[at]) < turn:
            _sleep(self._addresses[other], seen, TICK)
            if status[at] < turn and time.monotonic() - checked >= TICK:
                checked = time.monotonic()
                self.heartbeat.beats += 1  # a rank that waits is alive
                self.monitor.check([self._ranks[other]])

    def close(self) -> None:
        self.monitor.close()
        os.close(self._file)


def _sleep(address: ctypes.c_void_p, seen: int, seconds: float) -> None:
    """Sleep until woken, unless the low 32 bits of the number there are no longer `seen`."""
    limit = _Time(int(seconds), int(seconds % 1 * 1e9))
    value = ctypes.c_uint32(seen & 0xFFFFFFFF)
    failed = _syscall(_futex, address, _wait, value, ctypes.byref(limit), None, 0)
    if failed and ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
        time.sleep(0.0005)  # the system forbids it


def _shared_file(group: RankGroup, first: int, size: int) -> int:
    """An anonymous file, made by the `first` rank and opened by the others through /proc."""
    store, key, file = group.store, f"memory/{first}", -1
    if group.rank == first:
        try:
            made = anonymous_file()
            os.ftruncate(made, size)
            file = made
        finally:  # also after a failure, so that the others do not wait: they find no file -1
            store.set(key, str(file))
        return file
    path = f"/proc/{group.members[first].pid}/fd/{store.get(key).decode()}"
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)
