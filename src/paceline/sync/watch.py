"""Watch: tells a rank that takes its time from one that hangs or has gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from ..errors import LostRank
from ..machine import ready
from .beat import TICK
from .meeting import Meeting


class Watch:
    """`sign(rank)` is read now and then; one that stays the same for `timeout` seconds hangs."""

    def __init__(self, meeting: Meeting, sign: Callable[[int], bytes], timeout: float) -> None:
        self._members, self._sign, self._timeout = meeting.members, sign, timeout
        self._looked = time.monotonic()
        self._seen: dict[int, bytes] = {}
        self._quiet: dict[int, float] = {}
        self._pidfds: dict[int, int] = {}
        """of ranks on this host, where the system has them; elsewhere their silence has to tell"""
        self._gone: set[int] = set()
        here = meeting.members[meeting.rank].host
        for member in meeting.members:
            if member.host == here and member.rank != meeting.rank:
                with suppress(AttributeError, OSError):
                    try:
                        self._pidfds[member.rank] = os.pidfd_open(member.pid)
                    except ProcessLookupError:
                        self._gone.add(member.rank)

    def look(self, awaited: list[int]) -> None:
        """Raise `LostRank` if one of those that are waited for will never come."""
        now = time.monotonic()
        # Whoever was not waiting, or was itself asleep for a while, has no right to complain.
        passed = min(now - self._looked, 2 * TICK)
        self._looked = now
        # Whoever went first may have been followed by those who missed it: all are named.
        gone = [str(self._members[rank]) for rank in awaited if self._has_gone(rank)]
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

    def _has_gone(self, rank: int) -> bool:
        pidfd = self._pidfds.get(rank)
        return rank in self._gone if pidfd is None else bool(ready([pidfd], 0))

    def close(self) -> None:
        for fd in self._pidfds.values():
            os.close(fd)
        self._pidfds = {}
