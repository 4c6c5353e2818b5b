"""Allreduce: every rank has environments and a learner; gradients are added up over all of them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput
from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Episode
from . import Sync
from .groups import Hosts, Shared, Torch
from .rank_memory import FUTEX, Segment
from .rendezvous import Meeting

CPU = torch.device("cpu")


class Allreduce(Sync):
    """`backend` is `auto`, or what is to be used between all ranks: `shm`, `gloo` or `nccl`."""

    def __init__(
        self,
        meeting: Meeting,
        backend: str = "auto",
        device: torch.device = CPU,
        timeout: float = 120.0,
        crowded: bool = False,
    ) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        self._meeting = meeting
        """kept, since others may still read what rank 0 holds of it"""
        self._group: Shared | Torch | Hosts
        if backend == "auto" and device.type == "cuda":
            backend = "nccl"
        segment, hosts = None, meeting.hosts
        if backend in ("auto", "shm"):
            segment = _segment(meeting, timeout, crowded)
            if backend == "shm" and (segment is None or len(hosts) > 1):
                raise BadInput(
                    "backend is 'shm', and these ranks have no memory in common (they need one "
                    "host with Linux on x86); write --backend auto or gloo"
                )
        if segment is None:
            self.path = "gloo" if backend == "auto" else backend
            self.heartbeat = beat = Heartbeat()
            on = device if backend == "nccl" else CPU
            self._group = Torch(meeting, range(self.size), self.path, on, timeout, beat, beat)
            return
        self.path, self.heartbeat = "shared memory", segment.heartbeat
        self._group = Shared(segment)
        if len(hosts) > 1:
            self.path = f"shared memory, gloo between {len(hosts)} hosts"
            first, between = [host[0] for host in hosts], None
            if self.rank in first:
                shown = self.heartbeat, segment.line
                between = Torch(meeting, first, "gloo", CPU, timeout, *shown)
            self._group = Hosts(self._group, between, hosts)

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
        total = torch.tensor([float(flag)], dtype=torch.float64)
        self.sum(total)
        return float(total) == self.size

    def news(self, sums: Array, episodes: list[Episode]) -> tuple[Array, list[Episode]]:
        total = torch.from_numpy(np.append(sums, float(len(episodes))))
        self.sum(total)
        if total[-1]:
            parts = self.gather([[e.column, e.total, e.length] for e in episodes])
            episodes = [Episode(*values) for part in parts for values in part]
        return total[:-1].numpy(), episodes

    def close(self) -> None:
        self._group.close()


def _segment(meeting: Meeting, timeout: float, crowded: bool) -> Segment | None:
    """Memory in common with the ranks of this host; None if any rank of the run has none."""
    here = next(host for host in meeting.hosts if meeting.rank in host)
    segment = None
    with suppress(OSError):  # the system may keep processes from each other
        if FUTEX and min(len(host) for host in meeting.hosts) > 1:
            segment = Segment(meeting, here, timeout, crowded)
    meeting.store.set(f"has memory/{meeting.rank}", str(int(segment is not None)))
    if all(int(meeting.store.get(f"has memory/{n}")) for n in range(meeting.size)):
        return segment
    if segment is not None:
        segment.close()
    return None
