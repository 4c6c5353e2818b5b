"""Segment: memory that the ranks of one host share, and how they wait for each other in it.

It has no name, so nothing of it can be left behind. Every rank writes its own places only.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
import time
from typing import Any

import numpy as np

from ..errors import PacelineError
from ..processes.hardware import ORDERED, available_cpus, nameless_file
from ..processes.heartbeat import Heartbeat
from ..rollout import Array
from .beat import TICK
from .rendezvous import Meeting, Watch

WORDS = 8
"""Of a rank's line, which fills a cache line: [turn posted, bytes of an even turn, of an odd one,
its `Heartbeat` (3), looks, whether it is done]."""
POSTED, BYTES, HEARTBEAT, LOOKS, DONE = 0, 1, 3, 6, 7
SLOT = 2**24
"""Bytes that a rank can post at once; memory is taken only for what is used."""
NONE = "none"
SPIN_SECONDS = 2e-4
YIELDS = 8
FUTEX = sys.platform == "linux" and ORDERED
"""Whether a process can sleep until another has changed a number in shared memory."""


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


if FUTEX:
    _syscall = ctypes.CDLL(None, use_errno=True).syscall
    _number = ctypes.c_long(240 if platform.machine().lower() == "i686" else 202)
    _wait, _wake, _all = ctypes.c_int(0), ctypes.c_int(1), ctypes.c_int(2**31 - 1)


class Segment:
    """Lines of signs, and two slots for each rank, used in turns.

    A rank posts its part of turn k and reads the others' when they have posted theirs. Its slot of
    turn k is written again in turn k + 2, which begins when all have posted turn k + 1, and so have
    read it.
    """

    def __init__(
        self,
        meeting: Meeting,
        ranks: list[int],
        timeout: float,
        crowded: bool,
        arena: int = 0,
    ) -> None:
        self._ranks, self._place = ranks, ranks.index(meeting.rank)
        size = len(ranks)
        slots = size * WORDS * 8
        slots += -slots % mmap.PAGESIZE
        self._file = _shared_file(meeting, ranks[0], slots + 2 * size * SLOT + arena)
        self._memory = mmap.mmap(self._file, slots + 2 * size * SLOT + arena)
        whole = np.frombuffer(self._memory, np.uint8)
        self._lines = whole[: size * WORDS * 8].view(np.int64)
        self._slots = whole[slots : slots + 2 * size * SLOT].reshape(2, size, SLOT)
        self.arena = whole[slots + 2 * size * SLOT :]
        """memory for whatever else is shared"""
        self.signs = memoryview(self._lines.data)
        mine = WORDS * self._place
        self.line = self.signs[mine : mine + WORDS]
        """all that shows this rank to be at work, waiting included"""
        self.heartbeat = Heartbeat.from_buffer(self._memory, 8 * (mine + HEARTBEAT))
        self._addresses = [
            ctypes.c_void_p(self._lines.ctypes.data + 8 * WORDS * n) for n in range(size)
        ]
        self._others = [n for n in range(size) if n != self._place]
        self._turn = 0
        self._views: dict[tuple[int, Any, int], list[Array]] = {}
        # A rank that spins while another waits for its CPU only keeps it waiting.
        crowded = crowded or size > available_cpus()
        self._spins = 0 if crowded else _spins()
        self.watch = Watch(meeting, self.sign, timeout)

    def sign(self, rank: int) -> bytes:
        """What changes while a rank is at work."""
        line = WORDS * self._ranks.index(rank)
        return bytes(self.signs[line : line + WORDS])

    def exchange(self, mine: Array) -> list[Array]:
        """Every rank's array of this size, when all have posted; holds until the next exchange."""
        self._turn += 1
        odd, signs, line = self._turn % 2, self.signs, WORDS * self._place
        views = self._viewed(odd, mine.dtype, mine.size)
        views[self._place][:] = mine
        signs[line + BYTES + odd] = mine.nbytes
        signs[line + POSTED] = self._turn  # seen by others after what was written before it
        _syscall(_number, self._addresses[self._place], _wake, _all, None, None, 0)
        for other in self._others:
            if signs[WORDS * other] < self._turn:
                self._await(other)
            if signs[WORDS * other + BYTES + odd] != mine.nbytes:
                raise PacelineError(
                    f"rank {self._ranks[other]} exchanges "
                    f"{signs[WORDS * other + BYTES + odd]} bytes, and rank "
                    f"{self._ranks[self._place]} {mine.nbytes}: they no longer do the same"
                )
        return views

    def _viewed(self, odd: int, dtype: Any, size: int) -> list[Array]:
        """Everybody's slot as arrays of this kind."""
        key = (odd, dtype, size)
        if key not in self._views:
            slots = self._slots[odd, :, : size * dtype.itemsize]
            self._views[key] = [slot.view(dtype) for slot in slots]
        return self._views[key]

    def _await(self, other: int) -> None:
        """Spin briefly, let others have the CPU, then sleep until woken, looking now and then."""
        signs, at, turn = self.signs, WORDS * other, self._turn
        for _ in range(self._spins):
            if signs[at] >= turn:
                return
        for _ in range(YIELDS):
            os.sched_yield()
            if signs[at] >= turn:
                return
        looked = time.monotonic()
        while (seen := signs[at]) < turn:
            _sleep(self._addresses[other], seen, TICK)
            if signs[at] < turn and time.monotonic() - looked >= TICK:
                looked = time.monotonic()
                signs[WORDS * self._place + LOOKS] += 1  # a rank that waits is alive
                self.watch.look([self._ranks[other]])

    def close(self) -> None:
        self.watch.close()
        os.close(self._file)


def _sleep(address: ctypes.c_void_p, seen: int, seconds: float) -> None:
    """Until somebody wakes this process, unless the number's low 32 bits are no longer `seen`."""
    limit = _Time(int(seconds), int(seconds % 1 * 1e9))
    value = ctypes.c_uint32(seen & 0xFFFFFFFF)
    failed = _syscall(_number, address, _wait, value, ctypes.byref(limit), None, 0)
    if failed and ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
        time.sleep(0.0005)  # the system forbids it


def _shared_file(meeting: Meeting, first: int, size: int) -> int:
    """A file without a name, made by the `first` rank and opened by the others through its id."""
    store, key = meeting.store, f"segment/{first}"
    if meeting.rank == first:
        try:
            file = nameless_file()
            os.ftruncate(file, size)
        except OSError:  # a limit on the size of files, say: nobody is to wait for it
            store.set(key, NONE)
            raise
        store.set(key, str(file))
        return file
    number = store.get(key).decode()
    if number == NONE:
        raise OSError("the first rank of this host has no memory to share")
    return os.open(f"/proc/{meeting.members[first].pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)


def _spins() -> int:
    """How many looks at a number take `SPIN_SECONDS`."""
    numbers, looks = memoryview(bytearray(8)).cast("q"), 2000
    began = time.perf_counter()
    for _ in range(looks):
        if numbers[0] >= 1:
            break
    return int(SPIN_SECONDS * looks / (time.perf_counter() - began))
