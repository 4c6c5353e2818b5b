"""Stopping a run by a signal.

After the first signal the run ends with its iteration. Where that takes longer than `GRACE` seconds
(an environment that hangs, an evaluation, a compiler), `StopNow` is raised there; where even that
does not help, the process is ended. A second signal ends it at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ..errors import StoppedEarly
from .lifetime import STOP_SIGNALS, end_descendants
from .watchdog import LIMIT, signal_handled, stop_watchdog

log = logging.getLogger("paceline")

ANNOUNCE_AFTER = 1.0
"""Seconds after which a message says that the run is stopping."""
GRACE = 3.0
TICK = 0.5

_interruptible = 0
"""How many `interruptible` blocks the main thread is in."""


class StopNow(BaseException):
    """Raised in an `interruptible` block; an environment's `except Exception` does not catch it."""


@contextmanager
def interruptible() -> Iterator[None]:
    """A block that may be left at any point without damage to what checkpoints hold."""
    global _interruptible
    _interruptible += 1
    try:
        yield
    finally:
        _interruptible -= 1


class Stop:
    """Handles signals; calling it tells whether to stop.

    With `insist`, where no other process decides when the run stops, it enforces the stop.
    """

    def __init__(self, insist: bool) -> None:
        self._insist = insist
        self.name: str | None = None
        """of the first signal"""
        self._raising = False

    def __call__(self) -> bool:
        return self.name is not None

    def handle(self, number: int, frame: Any) -> None:
        signal_handled()
        if self._raising:
            self._raising = False
            if _interruptible:
                raise StopNow
        elif self.name is not None:
            abort()
        else:
            self.name = signal.Signals(number).name
            if self._insist:
                threading.Thread(target=self._enforce, args=(number,), daemon=True).start()

    def _enforce(self, number: int) -> None:
        """In a thread: make sure that the main thread stops."""
        time.sleep(ANNOUNCE_AFTER)
        log.info("%s: the run stops after this iteration; a second signal ends it", self.name)
        time.sleep(GRACE - ANNOUNCE_AFTER)
        waited = 0.0
        while waited < LIMIT - GRACE:
            if _interruptible:
                self._raising = True
                signal.pthread_kill(threading.main_thread().ident or 0, number)
                waited += TICK
            time.sleep(TICK)
        print(
            f"paceline: stopped by {self.name}; an environment did not return, so the process was "
            "ended: the last checkpoint is what remains",
            file=sys.stderr,
            flush=True,
        )
        abort()


def abort() -> NoReturn:
    stop_watchdog()
    end_descendants()
    os._exit(StoppedEarly.exit_code)


@contextmanager
def handle_stop_signals(handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """Call `handler` for SIGINT, SIGTERM and SIGHUP, except for those that are ignored.

    nohup, and shells for background jobs, have a process ignore some of them.
    """
    before = {kind: signal.getsignal(kind) for kind in STOP_SIGNALS}
    ours = [kind for kind, handled in before.items() if handled != signal.SIG_IGN]
    for kind in ours:
        signal.signal(kind, handler)
    try:
        yield
    finally:
        for kind in ours:
            signal.signal(kind, before[kind])
