"""Sending to another process: what a user has made, which it may not find, and what is logged."""

from __future__ import annotations

import logging
import socket
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from ..errors import BadInput


@dataclass(frozen=True)
class Logged:
    """A line of the log of another process."""

    level: int
    text: str
    trace: str


class LogSender(logging.Handler):
    """Sends what is logged in this process."""

    def __init__(self, send: Callable[[Logged], None], prefix: str = "") -> None:
        super().__init__()
        self._send, self._prefix = send, prefix

    def emit(self, record: logging.LogRecord) -> None:
        trace = ""
        if record.exc_info and record.exc_info[0] is not None:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        self._send(Logged(record.levelno, self._prefix + record.getMessage(), trace))


def by_value(thing: Any, otherwise: str) -> bytes:
    """As bytes; what can't be sent is refused, with what can be done `otherwise`."""
    try:
        pickled: bytes = cloudpickle.dumps(thing)
        return pickled
    except Exception as error:
        raise BadInput(
            f"this environment or network can't be sent to other processes ({error}); give it as "
            f"module:Name, or as a callable that makes it, or {otherwise}"
        ) from None


def received(pickled: bytes, otherwise: str) -> Any:
    """What `by_value` took apart; refused where its modules are not to be found."""
    try:
        return cloudpickle.loads(pickled)
    except Exception as error:
        raise BadInput(
            f"this environment or network can't be read by other processes ({error}); give it as "
            f"module:Name of a module that they can import, or {otherwise}"
        ) from None


def limit_waiting(connection: socket.socket, receiving: int, sending: int) -> None:
    """Seconds after which a message that was begun and not finished, or is not taken, ends it."""
    for option, seconds in ((socket.SO_RCVTIMEO, receiving), (socket.SO_SNDTIMEO, sending)):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
