"""Where ranks meet: the store that a launcher points to, and who is there, on which host."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ..errors import LostRank

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


def meet(init_method: str, rank: int, size: int, timeout: float, host: str = "") -> Meeting:
    """Wait for all ranks; `host` is whose memory and processes this one can see."""
    patience = timedelta(seconds=max(timeout, PATIENCE))
    try:
        store, _, _ = next(rendezvous(init_method, rank, size, timeout=patience))
        # A launcher that starts all ranks again may offer the store of those that have gone.
        attempt = [os.environ.get(f"TORCHELASTIC_{n}", "") for n in ("RUN_ID", "RESTART_COUNT")]
        store = PrefixStore(f"paceline/{'/'.join(attempt)}", store)
        store.set_timeout(patience)
        store.set(f"rank/{rank}", json.dumps([host or this_host(), os.getpid()]))
        members = [Member(n, *json.loads(store.get(f"rank/{n}"))) for n in range(size)]
    except (RuntimeError, ValueError, OSError) as error:
        cause = str(error).strip().splitlines()[0][:300]
        raise LostRank(
            f"rank {rank} of {size} did not meet the others at {init_method}: {cause}"
        ) from None
    return Meeting(store, rank, members, patience)


def this_host() -> str:
    """What two processes have in common that can see each other's memory and ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return os.uname().nodename
