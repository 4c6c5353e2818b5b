"""Futex: sleep until another process has changed a number in shared memory. Linux."""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
import time

from ..machine import ORDERED

WAIT, WAKE = 0, 1
NUMBERS = {"i686": 240}
"""Of the system call; on other machines of this kind it is 202."""
AVAILABLE = sys.platform == "linux" and ORDERED
EVERYBODY = 2**31 - 1
BRIEFLY = 0.0005


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


if AVAILABLE:
    _syscall = ctypes.CDLL(None, use_errno=True).syscall
    _number = ctypes.c_long(NUMBERS.get(platform.machine().lower(), 202))
    _wake, _wait, _all = ctypes.c_int(WAKE), ctypes.c_int(WAIT), ctypes.c_int(EVERYBODY)


def wake(address: ctypes.c_void_p) -> None:
    """Wake everybody who sleeps at `address`."""
    _syscall(_number, address, _wake, _all, None, None, 0)


def sleep(address: ctypes.c_void_p, seen: int, seconds: float) -> None:
    """Until somebody wakes this process, unless the number's low 32 bits are no longer `seen`."""
    limit = _Time(int(seconds), int(seconds % 1 * 1e9))
    value = ctypes.c_uint32(seen & 0xFFFFFFFF)
    failed = _syscall(_number, address, _wait, value, ctypes.byref(limit), None, 0)
    if failed and ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
        time.sleep(BRIEFLY)  # the system forbids it
