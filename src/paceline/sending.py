"""Sending what a user has made to another process, which may not be able to import it."""

from __future__ import annotations

import socket
import struct
from typing import Any

import cloudpickle

from .errors import BadInput


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
