"""Allreduce: every rank has environments and a learner; gradients are added up over all of them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput
from ..heartbeat import Heartbeat
from ..rollout import Array, Episode
from . import futex
from .groups import Group, Hosts, Shared, Torch, showing_life
from .meeting import Meeting
from .segment import Segment
from .watch import Sign, Watch

BEAT = 1.0
"""Seconds between two signs of life that go through the store, at most."""


class Allreduce:
    """`backend` is `auto`, or what is to be used between all ranks: `shm`, `gloo` or `nccl`."""

    watcher = None

    def __init__(
        self,
        meeting: Meeting,
        backend: str = "auto",
        device: torch.device | None = None,
        timeout: float = 120.0,
        crowded: bool = False,
    ) -> None:
        device = device or torch.device("cpu")
        self.rank, self.size = meeting.rank, meeting.size
        self._meeting = meeting
        """kept, since others may still read what rank 0 holds of it"""
        self.heartbeat: Heartbeat = Heartbeat()
        self._beats: Beats | None = None
        self._group: Group
        everyone = list(range(self.size))
        if backend == "auto" and device.type == "cuda":
            backend = "nccl"
        segment = None
        if backend in ("auto", "shm"):
            segment = _segment(meeting, timeout, crowded)
            if backend == "shm" and (segment is None or len(meeting.hosts) > 1):
                raise BadInput(
                    "backend is 'shm', and these ranks have no memory in common (they need one "
                    "host with Linux on x86); write --backend auto or gloo"
                )
        if segment is None:
            self.path = backend if backend != "auto" else "gloo"
            self._beats = Beats(meeting, self.heartbeat, timeout, everyone)
            watch = Watch(meeting, self._beats.sign, timeout)
            on = device if backend == "nccl" else torch.device("cpu")
            alive = showing_life(self.heartbeat)
            self._group = Torch(meeting, everyone, self.path, on, watch, alive)
            return
        self.heartbeat = segment.heartbeat
        here = next(host for host in meeting.hosts if self.rank in host)
        shared = Shared(segment)
        self._group, self.path = shared, "shared memory"
        if len(meeting.hosts) > 1:
            self.path = f"shared memory, gloo between {len(meeting.hosts)} hosts"
            between = None
            if self.rank == here[0]:
                first = [host[0] for host in meeting.hosts]
                self._beats = Beats(meeting, segment.line, timeout, first)
                watch = Watch(meeting, self._beats.sign, timeout)
                cpu = torch.device("cpu")
                between = Torch(meeting, first, "gloo", cpu, watch, showing_life(self.heartbeat))
            self._group = Hosts(shared, between, meeting.hosts)

    @property
    def world_size(self) -> int:
        return self.size

    def share(self, tensor: Tensor) -> Tensor:
        """The same tensor, now with rank 0's content."""
        if self.rank:
            tensor.zero_()
        self.sum(tensor)
        return tensor

    def sum(self, buffer: Tensor) -> None:
        self._group.sum(buffer)

    def gather(self, item: Any) -> list[Any]:
        return self._group.gather(item)

    def all(self, flag: bool) -> bool:
        return self._total(flag) == self.size

    def news(self, sums: Array, episodes: list[Episode]) -> tuple[Array, list[Episode]]:
        total = torch.from_numpy(np.append(sums, float(len(episodes))))
        self.sum(total)
        if total[-1]:
            parts = self.gather([[e.column, e.total, e.length] for e in episodes])
            episodes = [Episode(*values) for part in parts for values in part]
        return total[:-1].numpy(), episodes

    def peak(self, value: float) -> float:
        return max(self.gather(value))

    def _total(self, value: float) -> float:
        total = torch.tensor([float(value)], dtype=torch.float64)
        self.sum(total)
        return float(total)

    def close(self) -> None:
        if self._beats is not None:
            self._beats.close()
        self._group.close()


def _segment(meeting: Meeting, timeout: float, crowded: bool) -> Segment | None:
    """Memory in common with the ranks of this host; None if any rank of the run has none."""
    here = next(host for host in meeting.hosts if meeting.rank in host)
    segment = None
    try:
        if futex.AVAILABLE and min(len(host) for host in meeting.hosts) > 1:
            segment = Segment(meeting, here, timeout, crowded)
    except OSError:  # the system may keep processes from each other
        pass
    meeting.store.set(f"has memory/{meeting.rank}", str(int(segment is not None)))
    if all(int(meeting.store.get(f"has memory/{n}")) for n in range(meeting.size)):
        return segment
    if segment is not None:
        segment.close()
    return None


class Beats:
    """Signs of life that go through the store, for ranks that have no memory in common."""

    def __init__(
        self, meeting: Meeting, heartbeat: Heartbeat | memoryview, timeout: float, ranks: list[int]
    ) -> None:
        self._store, self._rank, self._heartbeat = meeting.store, meeting.rank, heartbeat
        self._every = min(BEAT, timeout / 8)
        self._others = [rank for rank in ranks if rank != meeting.rank]
        self._signs: dict[int, Sign] = {}
        self._over = threading.Event()
        self._tell()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def sign(self, rank: int) -> Sign:
        """The latest; a store that does not answer leaves it as it was."""
        return self._signs.get(rank, b"")

    def _tell(self) -> None:
        self._store.set(f"sign/{self._rank}", bytes(self._heartbeat).hex())

    def _go_on(self) -> None:
        while not self._over.wait(self._every):
            try:
                self._tell()
                for rank in self._others:
                    self._signs[rank] = self._store.get(f"sign/{rank}")
            except RuntimeError:
                return

    def close(self) -> None:
        self._over.set()
        self._thread.join(BEAT)  # it may wait for a store that has gone
