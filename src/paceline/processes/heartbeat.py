"""Heartbeat: a process whose signs of life stay the same for too long hangs."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar


class Heartbeat(ctypes.Structure):
    """`Heartbeat()` is one that nobody else reads; `from_buffer` puts one into shared memory."""

    _fields_: ClassVar[Any] = (
        ("row", ctypes.c_int64),
        ("beats", ctypes.c_int64),
        ("leave", ctypes.c_int64),
    )
    row: int
    """of the run; changes while environments are stepped"""
    beats: int
    """changes while anything else goes on that takes long"""
    leave: int
    """set by others: the process is to stop what it does"""
