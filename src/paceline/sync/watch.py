"""Watch: tells a rank that takes its time from one that hangs or has gone."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from ..errors import LostRank
from .beat import TICK
from .meeting import Meeting

UNKNOWN, GONE = -1, -2
"""Instead of the descriptor of a process."""
Sign = bytes
"""Whatever changes while a rank is at work."""


class Watch:
    """`sign(rank)` is read now and then; one that stays the same for `timeout` seconds hangs."""

    def __init__(self, meeting: Meeting, sign: Callable[[int], Sign], timeout: float) -> None:
        self._members, self._sign, self._timeout = meeting.members, sign, timeout
        self._looked = time.monotonic()
        self._seen: dict[int, Sign] = {}
        self._quiet: dict[int, float] = {}
        self._pidfds: dict[int, int] = {}
        here = meeting.members[meeting.rank].host
        for member in meeting.members:
            if member.host == here and member.rank != meeting.rank:
                self._pidfds[member.rank] = _pidfd(member.pid)

    def look(self, awaited: list[int]) -> None:
        """Raise `LostRank` if one of those that are waited for will never come."""
        now = time.monotonic()
        # Whoever was not waiting, or was itself asleep for a while, has no right to complain.
        passed = min(now - self._looked, 2 * TICK)
        self._looked = now
        # Whoever went first may have been followed by those who missed it: all are named.
        gone = [str(self._members[n]) for n in awaited if _has_gone(self._pidfds.get(n, UNKNOWN))]
        if gone:
            raise LostRank(f"{', '.join(gone)} {'has' if len(gone) == 1 else 'have'} gone")
        for rank in awaited:
            sign = self._sign(rank)
            same = sign == self._seen.get(rank)
            self._seen[rank] = sign
            self._quiet[rank] = self._quiet.get(rank, 0.0) + passed if same else 0.0
            if self._quiet[rank] >= self._timeout:
                error = LostRank(
                    f"{self._members[rank]} has shown no sign of life for "
                    f"{self._quiet[rank]:.0f} s (--rank-timeout)"
                )
                error.hangs = self._members[rank].pid
                raise error

    def close(self) -> None:
        for fd in self._pidfds.values():
            if fd >= 0:
                os.close(fd)
        self._pidfds = {}


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return GONE
    except (AttributeError, OSError):  # not on this system: its silence has to tell
        return UNKNOWN


def _has_gone(pidfd: int) -> bool:
    if pidfd < 0:
        return pidfd == GONE
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
