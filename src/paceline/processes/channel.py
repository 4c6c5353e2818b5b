"""Channel: how a rank and the process that started it find each other, and nobody else gets in.

On Linux the listener has an abstract name, which leaves no file behind; the kernel tells each side
the user id of the other, and strangers are turned away unread. Elsewhere it is a socket in a
directory that only this user can enter.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import struct
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from .sending import limit_waiting

Channel: TypeAlias = "Connection[Any, Any]"
STALLED, SENDING = 5, 60
"""Seconds after which a message that was begun and not finished, or is not taken, ends it."""
CREDENTIALS = struct.Struct("3i")
"""Process, user and group id of a peer."""


class Listener:
    """Waits for ranks at `address`, which goes into their environment."""

    def __init__(self, backlog: int) -> None:
        self._folder: str | None = None
        name = f"paceline-{secrets.token_hex(16)}"
        if sys.platform == "linux":
            self.address = f"@{name}"
        else:
            self._folder = tempfile.mkdtemp(prefix="paceline-")  # mode 0700
            self.address = str(Path(self._folder, "ranks"))
        self.socket = socket.socket(socket.AF_UNIX)
        """readable when somebody wants to connect"""
        self.socket.bind(_bindable(self.address))
        self.socket.listen(backlog)
        self.socket.setblocking(False)

    def accept(self) -> Channel | None:
        """The connection that waits, unless it is a stranger's; never blocks."""
        try:
            other, _ = self.socket.accept()
        except OSError:  # gone again
            return None
        # A rank that stops in the middle of a message must not stop whoever reads it.
        limit_waiting(other, STALLED, SENDING)
        return _trusted(other)

    def close(self) -> None:
        self.socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def connect(address: str) -> Channel | None:
    """To a listener of this user; None where there is none."""
    ours = socket.socket(socket.AF_UNIX)
    try:
        ours.connect(_bindable(address))
    except OSError:
        ours.close()
        return None
    return _trusted(ours)


def _trusted(other: socket.socket) -> Channel | None:
    """A channel to this user's own process; others are hung up on before a byte is read."""
    other.setblocking(True)
    if hasattr(socket, "SO_PEERCRED"):
        found = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        if CREDENTIALS.unpack(found)[1] != os.geteuid():
            other.close()
            return None
    return Connection(other.detach())


def _bindable(address: str) -> str:
    return f"\0{address[1:]}" if address.startswith("@") else address
