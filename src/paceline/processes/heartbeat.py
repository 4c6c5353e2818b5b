"""Heartbeat: counters that a process changes while it works. One whose heartbeat stands still
for too long hangs.

Workers are watched and replaced by `samplers/process_pool.py`, ranks by `distributed/`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

TICK = 0.25
"""Seconds between two beats of `beating`, and between two looks at others' heartbeats."""


class Heartbeat(ctypes.Structure):
    """`Heartbeat()` is one that nobody else reads; `from_buffer` puts one into shared memory."""

    _fields_: ClassVar[Any] = (
        ("row", ctypes.c_int64),
        ("beats", ctypes.c_int64),
        ("leave", ctypes.c_int64),
    )
    row: int
    """row of the run; changes while environments are stepped"""
    beats: int
    """changes while anything else goes on that takes long"""
    leave: int
    """set by others: the process is to stop what it does"""


@contextmanager
def beating(heartbeat: Heartbeat) -> Iterator[None]:
    """Beat from a thread during something long that does not beat by itself."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(TICK):
            heartbeat.beats += 1

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class HangDetector:
    """For how long each of several processes, by number, has not changed its heartbeat."""

    def __init__(self, tick: float = TICK) -> None:
        self._tick, self._looked = tick, time.monotonic()
        self._last: dict[int, bytes] = {}
        self._silence: dict[int, float] = {}

    @property
    def due(self) -> bool:
        """Whether the last look was long enough ago for another."""
        return time.monotonic() - self._looked >= self._tick / 2

    def look(self, heartbeats: Mapping[int, bytes]) -> dict[int, float]:
        """Seconds of silence of each; for a process that was not in the last look it is 0."""
        now = time.monotonic()
        # Time in which this process did not look (it was suspended, or busy) does not count.
        passed = min(now - self._looked, 2 * self._tick)
        self._looked = now
        same = [number for number, beat in heartbeats.items() if beat == self._last.get(number)]
        longer = {number: self._silence[number] + passed for number in same}
        self._silence = dict.fromkeys(heartbeats, 0.0) | longer
        self._last = dict(heartbeats)
        return self._silence

    def forget(self, number: int) -> None:
        """Begin anew with a process: it was replaced, or has shown another sign of life."""
        self._last.pop(number, None)
