"""Where ranks meet: the store that a launcher points to, who is there, and who is still there."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlparse

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ..errors import LostRank
from ..processes.hardware import ready
from ..processes.launcher import check_init_method
from .beat import TICK

log = logging.getLogger("paceline")

PATIENCE = 60.0
"""Seconds that ranks have at least to come; they import torch first."""


@dataclass(frozen=True)
class Member:
    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid})"


@dataclass(frozen=True)
class Meeting:
    """A store that all ranks can write to, and its members in order of rank."""

    store: Store
    rank: int
    members: list[Member]
    patience: timedelta
    """for those that take long to come"""

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host, by their first."""
        found: dict[str, list[int]] = {}
        for member in self.members:
            found.setdefault(member.host, []).append(member.rank)
        return list(found.values())


def meet(
    init_method: str, rank: int, size: int, timeout: float, host: str = "", attempt: str = ""
) -> Meeting:
    """Wait for all ranks; `host` is whose memory and processes this one can see.

    A launcher that starts all ranks again, at another `attempt`, may offer the same store.
    """
    patience = timedelta(seconds=max(timeout, PATIENCE))
    check_init_method(init_method)
    try:
        store = _hosted(init_method, size, patience) if rank == 0 else None
        if store is None:
            store, _, _ = next(rendezvous(init_method, rank, size, timeout=patience))
        store = PrefixStore(f"paceline/{attempt}", store)
        store.set_timeout(patience)
        store.set(f"rank/{rank}", json.dumps([host or this_host(), os.getpid()]))
        members = [Member(n, *json.loads(store.get(f"rank/{n}"))) for n in range(size)]
    except (RuntimeError, ValueError, OSError) as error:
        cause = str(error).strip().splitlines()[0][:300]
        raise LostRank(
            f"rank {rank} of {size} did not meet the others at {init_method}: {cause}"
        ) from None
    return Meeting(store, rank, members, patience)


def _hosted(init_method: str, size: int, patience: timedelta) -> Store | None:
    """The store of rank 0, which listens at the address that was given and at no other.

    torch would listen at every address of the host. None where somebody else hosts the store, or
    the address is not this host's own (behind a gateway, say).
    """
    where = urlparse(init_method)
    host, port = where.hostname, where.port
    if not host or not port:
        return None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address, family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        log.warning(
            "rank 0 can't listen at %s alone (%s) and does so at every address of this host",
            host,
            (error.strerror or "").partition(" (while")[0],
        )
        return None
    with listening:
        return TCPStore(host, port, size, True, patience, master_listen_fd=listening.detach())


def this_host() -> str:
    """What two processes have in common that can see each other's memory and ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return os.uname().nodename


class Watch:
    """Tells a rank that takes its time from one that hangs or has gone.

    `sign(rank)` is read now and then; one that stays the same for `timeout` seconds hangs.
    """

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
