"""Stopping: what a signal asks for, and what happens until it is obeyed.

The first signal is noted, and the run ends after its iteration. Where that takes longer than
`GRACE` seconds (an environment that hangs, an evaluation, a compiler), `StopNow` is raised there;
where even that does not help, the process ends as it is. A second signal ends it at once.
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
from .lifetime import end_descendants
from .watchdog import KINDS, LIMIT, heard, leaving

log = logging.getLogger("paceline")

ANNOUNCED = 1.0
"""Seconds after which a stop that is still under way is announced."""
GRACE = 3.0
TICK = 0.5

_interruptible = 0
"""How many `interruptible` blocks the main thread is in."""


class StopNow(BaseException):
    """Raised in an `interruptible` block; no environment's `except Exception` keeps it."""


@contextmanager
def interruptible() -> Iterator[None]:
    """What is done within may be left at any point without harm to what a checkpoint holds."""
    global _interruptible
    _interruptible += 1
    try:
        yield
    finally:
        _interruptible -= 1


class Stop:
    """Handles signals; `insist` where this process alone decides when the run stops."""

    def __init__(self, insist: bool) -> None:
        self._insist = insist
        self.name: str | None = None
        """of the first signal"""
        self._reminding = False

    def __call__(self) -> bool:
        return self.name is not None

    def handle(self, number: int, frame: Any) -> None:
        heard()
        if self._reminding:
            self._reminding = False
            if _interruptible:
                raise StopNow
        elif self.name is not None:
            end_at_once()
        else:
            self.name = signal.Signals(number).name
            if self._insist:
                threading.Thread(target=self._remind, args=(number,), daemon=True).start()

    def _remind(self, number: int) -> None:
        """See to it that the main thread stops."""
        time.sleep(ANNOUNCED)
        log.info("%s: the run stops after this iteration; a second signal ends it", self.name)
        time.sleep(GRACE - ANNOUNCED)
        waited = 0.0
        while waited < LIMIT - GRACE:
            if _interruptible:
                self._reminding = True
                signal.pthread_kill(threading.main_thread().ident or 0, number)
                waited += TICK
            time.sleep(TICK)
        print(
            f"paceline: stopped by {self.name}; an environment did not return, so the process was "
            "ended: the last checkpoint is what remains",
            file=sys.stderr,
            flush=True,
        )
        end_at_once()


def end_at_once() -> NoReturn:
    leaving()
    end_descendants()
    os._exit(StoppedEarly.exit_code)


@contextmanager
def handling(handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """Call `handler` for signals that ask for the end, but for those that were to be ignored.

    nohup, and shells for what they run in the background, have a process ignore some of them.
    """
    before = {kind: signal.getsignal(kind) for kind in KINDS}
    ours = [kind for kind, handled in before.items() if handled != signal.SIG_IGN]
    for kind in ours:
        signal.signal(kind, handler)
    try:
        yield
    finally:
        for kind in ours:
            signal.signal(kind, before[kind])
