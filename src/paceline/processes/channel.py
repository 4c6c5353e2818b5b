"""Channel: messages between two processes of one user; what they log; how ranks connect.

Messages are pickled, so both sides have to be trusted: a channel is either a socket pair made by
the parent, or checked to lead to a process of the same user.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import shutil
import socket
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

import cloudpickle

from ..errors import BadInput

STALLED, SENDING = 5, 60
"""Seconds after which a message from a rank that was begun and not finished, or one to it that is
not taken, ends its channel."""
CREDENTIALS = struct.Struct("3i")
"""Process, user and group id of a peer."""
PROGRESS = logging.INFO - 5
"""Level of log messages that the next one replaces, such as `evaluating: 7 of 20 episodes`."""

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class Channel(Generic[Sent, Received]):
    """One end of a connection, by its descriptor; `send` may be called from any thread.

    `receive` raises EOFError or OSError once the other side is gone.
    """

    def __init__(self, descriptor: int) -> None:
        self._connection: Connection[Any, Any] = Connection(descriptor)
        self._lock = threading.Lock()
        self.fileno = self._connection.fileno

    def send(self, message: Sent) -> None:
        with self._lock:
            self._connection.send_bytes(pickle.dumps(message))

    def receive(self) -> Received:
        received: Received = self._connection.recv()
        return received

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def shut_down(self) -> None:
        """End the connection for both sides, whoever else holds a copy of its descriptor."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


def set_timeouts(connection: socket.socket, receiving: int, sending: int) -> None:
    """Seconds after which a message that was begun and not finished, or is not taken, fails."""
    for option, seconds in ((socket.SO_RCVTIMEO, receiving), (socket.SO_SNDTIMEO, sending)):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))


class Listener:
    """Accepts ranks at `address`, which goes into their environment.

    On Linux it is an abstract name, which leaves no file behind, and the kernel tells each side the
    user id of the other. Elsewhere it is a socket in a directory that only this user can enter.
    """

    def __init__(self, backlog: int) -> None:
        self._folder: str | None = None
        name = f"paceline-{secrets.token_hex(16)}"
        if sys.platform == "linux":
            self.address = f"@{name}"
        else:
            self._folder = tempfile.mkdtemp(prefix="paceline-")  # mode 0700
            self.address = str(Path(self._folder, "ranks"))
        self.socket = socket.socket(socket.AF_UNIX)
        """readable when a process wants to connect"""
        self.socket.bind(_socket_name(self.address))
        self.socket.listen(backlog)
        self.socket.setblocking(False)

    def accept(self) -> Channel[Any, Any] | None:
        """The connection that waits, if there is one and it is this user's; never blocks."""
        try:
            connection, _ = self.socket.accept()
        except OSError:  # it has been closed meanwhile
            return None
        # A rank that stops in the middle of a message must not stop the process that reads it.
        set_timeouts(connection, STALLED, SENDING)
        return _trusted(connection)

    def close(self) -> None:
        self.socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def connect(address: str) -> Channel[Any, Any] | None:
    """To a listener of this user; None where there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(_socket_name(address))
    except OSError:
        connection.close()
        return None
    return _trusted(connection)


def _trusted(connection: socket.socket) -> Channel[Any, Any] | None:
    """A channel to this user's own process; others are disconnected before a byte is read."""
    connection.setblocking(True)
    if hasattr(socket, "SO_PEERCRED"):
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        if CREDENTIALS.unpack(found)[1] != os.geteuid():
            connection.close()
            return None
    return Channel(connection.detach())


def _socket_name(address: str) -> str:
    return f"\0{address[1:]}" if address.startswith("@") else address


@dataclass(frozen=True)
class LogMessage:
    """A log record of another process."""

    level: int
    text: str
    traceback: str


class LogSender(logging.Handler):
    """Sends what is logged in this process to another."""

    def __init__(self, send: Callable[[LogMessage], None], prefix: str = "") -> None:
        super().__init__()
        self._send, self._prefix = send, prefix

    def emit(self, record: logging.LogRecord) -> None:
        trace = ""
        if record.exc_info and record.exc_info[0] is not None:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        self._send(LogMessage(record.levelno, self._prefix + record.getMessage(), trace))


def pickle_by_value(thing: Any, alternative: str) -> bytes:
    """Environments and networks that a user has defined; `alternative` says what else to do."""
    try:
        pickled: bytes = cloudpickle.dumps(thing)
        return pickled
    except Exception as error:
        raise BadInput(
            f"this environment or network can't be sent to other processes ({error}); give it as "
            f"module:Name, or as a callable that makes it, or {alternative}"
        ) from None


def unpickle(pickled: bytes, alternative: str) -> Any:
    """Inverse of `pickle_by_value`; fails where modules can't be imported."""
    try:
        return cloudpickle.loads(pickled)
    except Exception as error:
        raise BadInput(
            f"this environment or network can't be read by other processes ({error}); give it as "
            f"module:Name of a module that they can import, or {alternative}"
        ) from None
