"""Rendezvous: the store that all ranks share, the members found there, and noticing their loss."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
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
from ..processes.heartbeat import HangDetector
from ..processes.launcher import check_init_method
from ..processes.lifetime import wait_readable

log = logging.getLogger("paceline")

MIN_JOIN_SECONDS = 60.0
"""Seconds that ranks have at least to join; they import torch first."""


@dataclass(frozen=True)
class Member:
    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid})"


@dataclass(frozen=True)
class RankGroup:
    """A store that all ranks can write to, and the ranks, in order."""

    store: Store
    rank: int
    members: list[Member]
    join_timeout: timedelta
    """for operations in which all ranks join"""

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host; hosts in order of their first rank."""
        found: dict[str, list[int]] = {}
        for member in self.members:
            found.setdefault(member.host, []).append(member.rank)
        return list(found.values())


def join_group(
    init_method: str, rank: int, size: int, timeout: float, host: str = "", attempt: str = ""
) -> RankGroup:
    """Wait for all ranks. Those with the same `host` can share memory and see each other's pids.

    A launcher that restarts all ranks, as another `attempt`, may offer the same store.
    """
    join_timeout = timedelta(seconds=max(timeout, MIN_JOIN_SECONDS))
    check_init_method(init_method)
    try:
        store = _host_store(init_method, size, join_timeout) if rank == 0 else None
        if store is None:
            store, _, _ = next(rendezvous(init_method, rank, size, timeout=join_timeout))
        store = PrefixStore(f"paceline/{attempt}", store)
        store.set_timeout(join_timeout)
        store.set(f"rank/{rank}", json.dumps([host or this_host(), os.getpid()]))
        members = [Member(n, *json.loads(store.get(f"rank/{n}"))) for n in range(size)]
    except (RuntimeError, ValueError, OSError) as error:
        cause = str(error).strip().splitlines()[0][:300]
        raise LostRank(
            f"rank {rank} of {size} did not meet the others at {init_method}: {cause}"
        ) from None
    return RankGroup(store, rank, members, join_timeout)


def _host_store(init_method: str, size: int, timeout: timedelta) -> Store | None:
    """The store of rank 0, which listens at the given address only.

    torch would listen at every address of the host. None where another process hosts the store, or
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
        return TCPStore(host, port, size, True, timeout, master_listen_fd=listening.detach())


def this_host() -> str:
    """Id shared by processes that can map each other's memory and see each other's pids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return os.uname().nodename


class RankMonitor:
    """Notices other ranks that are gone or hang.

    `heartbeat(rank)` is compared between checks; one that stays the same for `timeout` seconds
    means a hang.
    """

    def __init__(self, group: RankGroup, heartbeat: Callable[[int], bytes], timeout: float) -> None:
        self._members, self._heartbeat, self._timeout = group.members, heartbeat, timeout
        self._hangs = HangDetector()
        self._pidfds: dict[int, int] = {}
        """of ranks on this host, where the system has them; others are noticed by their silence"""
        self._gone: set[int] = set()
        here = group.members[group.rank].host
        for member in group.members:
            if member.host == here and member.rank != group.rank:
                with suppress(AttributeError, OSError):
                    try:
                        self._pidfds[member.rank] = os.pidfd_open(member.pid)
                    except ProcessLookupError:
                        self._gone.add(member.rank)

    def check(self, awaited: list[int]) -> None:
        """Raise `LostRank` if one of the ranks that are waited for is gone or hangs."""
        # All are named: after the first has gone, others may have ended because of it.
        gone = [str(self._members[rank]) for rank in awaited if self._is_gone(rank)]
        if gone:
            raise LostRank(f"{', '.join(gone)} {'has' if len(gone) == 1 else 'have'} gone")
        silence = self._hangs.look({rank: self._heartbeat(rank) for rank in awaited})
        for rank, seconds in silence.items():
            if seconds >= self._timeout:
                error = LostRank(
                    f"{self._members[rank]} has shown no sign of life for {seconds:.0f} s "
                    "(--rank-timeout)"
                )
                error.hangs = self._members[rank].pid
                raise error

    def _is_gone(self, rank: int) -> bool:
        pidfd = self._pidfds.get(rank)
        return rank in self._gone if pidfd is None else bool(wait_readable([pidfd], 0))

    def close(self) -> None:
        for fd in self._pidfds.values():
            os.close(fd)
        self._pidfds = {}
