"""Watchdog: a small process beside a command, for what the command can't say or do any more.

It says so when the command ends in the middle: an environment calls os._exit, native code crashes,
the kernel kills it. And it ends a command that no signal reaches, since native code that never
returns keeps the interpreter. It is nobody's child, and ends with the command.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from contextlib import suppress

KINDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""
LIMIT = 10.0
"""Seconds after a signal in which a command that can't stop ends itself; see `stopping.py`."""
DONE, HEARD = b"\0", b"\xff"
LATE = LIMIT + 5.0
"""Seconds after a signal of which the interpreter has not heard."""

_line: socket.socket | None = None
"""To the watchdog, if there is one."""


def watched() -> None:
    """Start it, before anything else has been started; where the system can't, go without."""
    global _line
    if not hasattr(os, "pidfd_open") or _line is not None:
        return
    with suppress(OSError):
        command = os.pidfd_open(os.getpid())
        _line, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                _watch(theirs, command)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(command)
        theirs.close()
        _line.setblocking(False)
        signal.set_wakeup_fd(_line.fileno(), warn_on_full_buffer=False)


def heard() -> None:
    """The interpreter has taken note of a signal, and will obey."""
    _send(HEARD)


def leaving() -> None:
    """The command ends as it should."""
    global _line
    _send(DONE)
    if _line is not None:
        with suppress(ValueError):  # where this is not the main thread, the process ends anyway
            signal.set_wakeup_fd(-1)
            _line.close()
            _line = None


def _send(what: bytes) -> None:
    if _line is not None:
        with suppress(OSError):
            _line.send(what)


def _watch(line: socket.socket, command: int) -> None:
    """The watchdog's life."""
    os.setsid()  # what the terminal sends is not for it
    for kind in KINDS:
        signal.signal(kind, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for number in range(3, 256):
        if number not in (line.fileno(), command):
            with suppress(OSError):
                os.close(number)
    os.chdir("/")
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(command, select.POLLIN)
    done, deadline = False, None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        happened = dict(poll.poll(left))
        if line.fileno() in happened:
            message = line.recv(256)
            done |= DONE in message
            if deadline is None and any(kind in message for kind in KINDS):
                deadline = time.monotonic() + LATE
            if HEARD in message:
                deadline = None
            if not message:
                poll.unregister(line)
        if command in happened:
            if not done:
                _tell(
                    "the process ended in the middle of its work: it was killed, or ended by an "
                    "environment or a library"
                )
            return
        if deadline is not None and time.monotonic() >= deadline:
            signal.pidfd_send_signal(command, signal.SIGKILL)
            _tell(
                "no signal reached the process, which was killed: native code, perhaps of an "
                "environment, did not return"
            )
            return


def _tell(text: str) -> None:
    with suppress(OSError):
        os.write(
            2,
            f"paceline: {text}; `paceline resume` goes on from the last checkpoint, and with "
            "--num-workers an environment that does this is replaced\n".encode(),
        )
