"""Stopping a run by a signal.

After the first signal the run ends with its iteration, or its evaluation with the episodes it has;
while the run starts, `StopNow` is raised at once. Where an iteration takes longer than `GRACE`
seconds (an environment that hangs), `StopNow` is raised there; where even that does not help, the
process is ended. A second signal ends it at once.

The watchdog is a small process beside a command, for what the command itself can no longer do. It
prints a message when the command ends in the middle of its work: an environment calls os._exit,
native code crashes, the kernel kills it. And it kills a command that handles no signal, since
native code that never returns keeps the interpreter from running. It is not a child of the command,
and ends with it. (Workers and ranks that hang are found by `heartbeat.py`.)
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from ..errors import StoppedEarly
from .lifetime import STOP_SIGNALS, end_descendants, wait_readable

log = logging.getLogger("paceline")

GRACE = 3.0
TICK = 0.5
LIMIT = 10.0
"""Seconds after a signal in which a command that can't stop ends itself."""
UNHANDLED_LIMIT = LIMIT + 5.0
"""Seconds after which a command is killed whose interpreter has not handled a signal."""
DONE, HANDLED = b"\0", b"\xff"
"""Messages to the watchdog, beside the numbers of signals that the kernel delivers."""

_connection: socket.socket | None = None
"""To the watchdog, if there is one."""

_interruptible = 0
"""How many `interruptible` blocks the main thread is in."""
_starting = 0
"""How many of them are start-up."""


ACKNOWLEDGED = "finishing this iteration, then saving; again to quit now"


class StopNow(BaseException):
    """Raised in an `interruptible` block; an environment's `except Exception` does not catch it."""


@contextmanager
def interruptible(starting: bool = False) -> Iterator[None]:
    """A block that may be left at any point without damage to what checkpoints hold; while a run is
    `starting`, by the first signal."""
    global _interruptible, _starting
    _interruptible += 1
    _starting += starting
    try:
        yield
    finally:
        _interruptible -= 1
        _starting -= starting


class Stop:
    """Handles signals; calling it tells whether to stop.

    With `insist`, where no other process decides when the run stops, it enforces the stop.
    """

    def __init__(self, insist: bool, text: str = ACKNOWLEDGED) -> None:
        self._insist, self._text = insist, text
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
            # In a thread: a handler may have interrupted the writing of another line.
            threading.Thread(target=self._enforce, args=(number,), daemon=True).start()
            if _starting and self._insist:
                raise StopNow

    def _enforce(self, number: int) -> None:
        """In a thread: say that the run stops, and make sure that the main thread does."""
        log.info("%s: %s", self.name, self._text)
        if not self._insist:
            return
        time.sleep(GRACE)
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


def start_watchdog() -> None:
    """Before anything else is started; without one where the system has no pidfd."""
    global _connection
    if not hasattr(os, "pidfd_open") or _connection is not None:
        return
    with suppress(OSError):
        command = os.pidfd_open(os.getpid())
        _connection, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                _watch(theirs, command)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(command)
        theirs.close()
        _connection.setblocking(False)
        signal.set_wakeup_fd(_connection.fileno(), warn_on_full_buffer=False)


def signal_handled() -> None:
    """The interpreter has seen a signal, and the command will stop."""
    _send(HANDLED)


def stop_watchdog() -> None:
    """The command ends as it should."""
    global _connection
    _send(DONE)
    if _connection is not None:
        with suppress(ValueError):  # not in the main thread: the process is about to end
            signal.set_wakeup_fd(-1)
            _connection.close()
            _connection = None


def _send(message: bytes) -> None:
    if _connection is not None:
        with suppress(OSError):
            _connection.send(message)


def _watch(connection: socket.socket, command: int) -> None:
    """In the watchdog: wait for the end of `command` (a pidfd) or a signal it does not handle."""
    _detach(keep=(connection.fileno(), command))
    done, deadline, fds = False, None, [connection.fileno(), command]
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait_readable(fds, left)
        if connection.fileno() in ready:
            message = connection.recv(256)
            done |= DONE in message
            if deadline is None and any(kind in message for kind in STOP_SIGNALS):
                deadline = time.monotonic() + UNHANDLED_LIMIT
            if HANDLED in message:
                deadline = None
            if not message:
                fds.remove(connection.fileno())
        if command in ready:
            if not done:
                _print(
                    "the process ended in the middle of its work: it was killed, or ended by an "
                    "environment or a library"
                )
            return
        if deadline is not None and time.monotonic() >= deadline:
            signal.pidfd_send_signal(command, signal.SIGKILL)
            _print(
                "no signal reached the process, which was killed: native code, perhaps of an "
                "environment, did not return"
            )
            return


def _detach(keep: tuple[int, ...]) -> None:
    """From the terminal, the command's files and its directory."""
    os.setsid()
    for kind in STOP_SIGNALS:
        signal.signal(kind, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for number in range(3, 256):
        if number not in keep:
            with suppress(OSError):
                os.close(number)
    os.chdir("/")


def _print(text: str) -> None:
    with suppress(OSError):
        os.write(
            2,
            f"paceline: {text}; `paceline resume` goes on from the last checkpoint, and with "
            "--num-workers an environment that does this is replaced\n".encode(),
        )
