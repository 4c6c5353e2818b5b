"""Allreduce: every rank has environments and a learner; gradients are summed over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput
from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Episode
from . import Sync
from .network import Network
from .rank_memory import FUTEX, RankMemory
from .rendezvous import RankGroup
from .wire import gather

CPU = torch.device("cpu")
FEW_EPISODES, MANY_EPISODES = 8, -1
"""Episodes of a rank that travel with its sums; and what it sends in place of their number if it
has more."""


class Allreduce(Sync):
    """`backend` is `auto`, or what all ranks use: `shm`, `gloo` or `nccl`.

    `crowded`: there are more busy processes on this host than CPUs.
    """

    def __init__(
        self,
        group: RankGroup,
        backend: str = "auto",
        device: torch.device = CPU,
        timeout: float = 120.0,
        crowded: bool = False,
    ) -> None:
        self.rank, self.size = group.rank, group.size
        self._group = group
        """kept, since rank 0 hosts the store that others may still read"""
        if backend == "auto" and device.type == "cuda":
            backend = "nccl"
        self._memory: RankMemory | None = None
        self._network: Network | None = None
        self._steps: list[Callable[[Tensor], object]]
        """what makes a sum, one after the other"""
        if backend in ("auto", "shm"):
            self._memory = memory = _host_memory(group, timeout, crowded)
            if backend == "shm" and (memory is None or len(group.hosts) > 1):
                raise BadInput(
                    "backend is 'shm', and these ranks have no memory in common (they need one "
                    "host with Linux on x86); write --backend auto or gloo"
                )
        if self._memory is None:
            self.path = "gloo" if backend == "auto" else backend
            self.heartbeat = Heartbeat()
            on = device if backend == "nccl" else CPU
            everyone = range(self.size)
            self._network = Network(group, everyone, self.path, on, timeout, self.heartbeat)
            self._steps = [self._network.sum]
            return
        self.path, self.heartbeat = "shared memory", self._memory.heartbeat
        self._steps = [self._memory.sum]
        if len(group.hosts) > 1:  # through the network between the first ranks of hosts
            self.path = f"shared memory, gloo between {len(group.hosts)} hosts"
            first = [host[0] for host in group.hosts]
            if self.rank in first:
                self._network = Network(group, first, "gloo", CPU, timeout, self.heartbeat)
            between = self._network.sum if self._network is not None else Tensor.zero_
            self._steps = [self._memory.sum, between, self._memory.sum]

    def share(self, tensor: Tensor) -> Tensor:
        """The same tensor, now with rank 0's content."""
        if self.rank:
            tensor.zero_()
        self.sum(tensor)
        return tensor

    def sum(self, buffer: Tensor) -> None:
        for step in self._steps:
            step(buffer)

    def gather(self, item: Any) -> list[Any]:
        return gather(self.sum, self.rank, self.size, item)

    def reduce_metrics(self, sums: Array, episodes: list[Episode]) -> tuple[Array, list[Episode]]:
        """In one exchange, unless a rank has many episodes, or some with numbers of `info`."""
        buffer = np.zeros(len(sums) + self.size * (1 + 3 * FEW_EPISODES))
        buffer[: len(sums)] = sums
        places = buffer[len(sums) :].reshape(self.size, -1)  # each rank's own
        mine, plain = places[self.rank], not any(episode.info for episode in episodes)
        if plain and len(episodes) <= FEW_EPISODES:
            mine[0] = len(episodes)
            for n, one in enumerate(episodes):
                mine[3 * n + 1 : 3 * n + 4] = one.column, one.total, one.length
        else:
            mine[0] = MANY_EPISODES
        self.sum(torch.from_numpy(buffer))
        total, counts = buffer[: len(sums)], places[:, 0].astype(int).tolist()
        if MANY_EPISODES not in counts:
            rows = (places[rank, 1:].reshape(-1, 3)[:n] for rank, n in enumerate(counts) if n)
            found = [row for part in rows for row in part.tolist()]
            return total, [Episode(int(column), gain, int(n)) for column, gain, n in found]
        parts = self.gather([[e.column, e.total, e.length, dict(e.info)] for e in episodes])
        return total, [Episode(*values) for part in parts for values in part]

    def close(self) -> None:
        for part in (self._network, self._memory):
            if part is not None:
                part.close()


def _host_memory(group: RankGroup, timeout: float, crowded: bool) -> RankMemory | None:
    """Memory shared with the ranks of this host; None if any rank of the run has none."""
    here = next(host for host in group.hosts if group.rank in host)
    memory = None
    with suppress(OSError):  # the system may isolate processes from each other
        if FUTEX and min(len(host) for host in group.hosts) > 1:
            memory = RankMemory(group, here, timeout, crowded)
    group.store.set(f"has memory/{group.rank}", str(int(memory is not None)))
    if all(int(group.store.get(f"has memory/{n}")) for n in range(group.size)):
        return memory
    if memory is not None:
        memory.close()
    return None
