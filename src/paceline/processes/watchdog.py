"""Watchdog: a small process beside a command, for what the command itself can no longer do.

It prints a message when the command ends in the middle of its work: an environment calls os._exit,
native code crashes, the kernel kills it. And it kills a command that handles no signal, since
native code that never returns keeps the interpreter from running. That is why it is a process, and
not one of the hang detectors of `heartbeat.py`. It is not a child of the command, and ends with it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress

from .lifetime import STOP_SIGNALS, wait_readable

LIMIT = 10.0
"""Seconds after a signal in which a command that can't stop ends itself; see `stopping.py`."""
UNHANDLED_LIMIT = LIMIT + 5.0
"""Seconds after which a command is killed whose interpreter has not handled a signal."""
DONE, HANDLED = b"\0", b"\xff"
"""Messages to the watchdog, beside the numbers of signals that the kernel delivers."""

_connection: socket.socket | None = None
"""To the watchdog, if there is one."""


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
