"""Signs of life of a process that has nothing else to show."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..processes.heartbeat import Heartbeat

TICK = 0.25
"""Seconds between two signs, and between two looks at those of others."""


@contextmanager
def beating(heartbeat: Heartbeat) -> Iterator[None]:
    """Show signs of life during something long that shows none by itself."""
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
