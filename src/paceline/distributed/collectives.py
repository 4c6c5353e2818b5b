"""Collectives: `sum`, `gather` and `close` of `Sync` through shared memory, torch, or both."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, _set_pg_timeout

from ..errors import LostRank
from ..processes.heartbeat import TICK, Heartbeat
from ..rollout import Array
from .rank_memory import SLOT, RankMemory
from .rendezvous import RankGroup, RankMonitor
from .wire import decode, encode

YIELDS = 2000
NAP = 1e-4
EXIT_SECONDS = 1.0
"""Seconds from the end of a process's connections to its own, at most."""
NO_TIMEOUT = timedelta(hours=24)
"""The monitor ends a wait, not torch."""
STORE_BEAT = 1.0
"""Seconds between two heartbeats that go through the store, at most."""


class SharedMemoryCollectives:
    """Ranks of one host. Summed in the order of ranks, so that all get the same bits."""

    def __init__(self, memory: RankMemory) -> None:
        self._memory = memory

    def sum(self, buffer: Tensor) -> None:
        mine = buffer.numpy(force=True)
        flat = mine.reshape(-1)
        most = SLOT // flat.itemsize
        for begin in range(0, flat.size, most):
            self._sum(flat[begin : begin + most])
        if buffer.device.type != "cpu" or not buffer.is_contiguous():  # `flat` is a copy
            buffer.copy_(torch.from_numpy(flat.reshape(mine.shape)))

    def _sum(self, flat: Array) -> None:
        first, second, *rest = self._memory.exchange(flat)
        np.add(first, second, out=flat)
        for other in rest:
            flat += other

    def gather(self, item: Any) -> list[Any]:
        mine = np.frombuffer(encode(item), np.uint8)
        sizes = [int(n[0]) for n in self._memory.exchange(np.array([mine.size]))]
        found = [bytearray() for _ in sizes]
        padded = np.zeros(max(sizes), np.uint8)
        padded[: mine.size] = mine
        for begin in range(0, padded.size, SLOT):
            parts = self._memory.exchange(padded[begin : begin + SLOT])
            for whole, part in zip(found, parts, strict=True):
                whole += part.data
        return [decode(bytes(whole[:size])) for whole, size in zip(found, sizes, strict=True)]

    def close(self) -> None:
        self._memory.close()


class TorchCollectives:
    """Some `ranks` of a group, on any hosts, through torch.distributed.

    `published` is what other ranks take for this one's heartbeat.
    """

    def __init__(
        self,
        group: RankGroup,
        ranks: Sequence[int],
        backend: str,
        device: torch.device,
        timeout: float,
        heartbeat: Heartbeat,
        published: Heartbeat | memoryview,
    ) -> None:
        self._place, self._size, self._device = ranks.index(group.rank), len(ranks), device
        self._others = [rank for rank in ranks if rank != group.rank]
        self._heartbeat = heartbeat
        self._beats = StoreHeartbeats(group, published, timeout, self._others)
        self._monitor = RankMonitor(group, self._beats.latest, timeout)
        self._aborted = False
        """whether a rank was lost during an operation, which then never ends"""
        store = PrefixStore(f"group/{ranks[0]}", group.store)
        dist.init_process_group(
            backend,
            store=store,
            rank=self._place,
            world_size=self._size,
            timeout=group.join_timeout,
        )
        _set_pg_timeout(NO_TIMEOUT)

    def sum(self, buffer: Tensor) -> None:
        there = buffer.to(self._device)
        self._finish(dist.all_reduce(there, async_op=True))
        if there is not buffer:
            buffer.copy_(there)

    def gather(self, item: Any) -> list[Any]:
        mine = torch.frombuffer(bytearray(encode(item)), dtype=torch.uint8)
        sizes = torch.zeros(self._size, dtype=torch.int64)
        sizes[self._place] = len(mine)
        self.sum(sizes)
        table = torch.zeros(self._size, int(sizes.max()), dtype=torch.uint8)
        table[self._place, : len(mine)] = mine
        self.sum(table)
        found = zip(table, sizes.tolist(), strict=True)
        return [decode(row[:size].numpy().tobytes()) for row, size in found]

    def _finish(self, work: Any) -> None:
        """Wait without sleeping for as long as it usually takes; then sleep, checking others."""
        yields, checked = 0, time.monotonic()
        while not work.is_completed():
            if yields < YIELDS:
                yields += 1
                os.sched_yield()
                continue
            time.sleep(NAP)
            if time.monotonic() - checked >= TICK:
                checked = time.monotonic()
                self._heartbeat.beats += 1
                self._check_others()
        self._heartbeat.beats += 1
        try:
            work.wait()
        except RuntimeError as error:
            cause = str(error).strip().splitlines()[0][:200]
            end = time.monotonic() + EXIT_SECONDS  # connections break before the process ends
            while time.monotonic() < end:
                self._check_others()
                time.sleep(0.01)
            raise LostRank(f"another rank has gone: {cause}") from None

    def _check_others(self) -> None:
        self._aborted = True
        self._monitor.check(self._others)
        self._aborted = False

    def close(self) -> None:
        self._beats.close()
        self._monitor.close()
        if not self._aborted:  # else this would wait for the operation to end
            dist.destroy_process_group()


class HierarchicalCollectives:
    """Ranks on several hosts: memory within each of them, the network between their first ranks."""

    def __init__(
        self,
        here: SharedMemoryCollectives,
        between: TorchCollectives | None,
        hosts: list[list[int]],
    ) -> None:
        self._here, self._between = here, between
        self._order = [rank for host in hosts for rank in host]

    def sum(self, buffer: Tensor) -> None:
        self._here.sum(buffer)
        if self._between is not None:
            self._between.sum(buffer)
        else:
            buffer.zero_()
        self._here.sum(buffer)

    def gather(self, item: Any) -> list[Any]:
        found = self._here.gather(item)
        everywhere = self._between.gather(found) if self._between is not None else None
        by_host: list[list[Any]] = self._here.gather(everywhere)[0]
        items = [each for host in by_host for each in host]
        by_rank = dict(zip(self._order, items, strict=True))
        return [by_rank[rank] for rank in range(len(items))]

    def close(self) -> None:
        if self._between is not None:
            self._between.close()
        self._here.close()


class StoreHeartbeats:
    """Heartbeats that go through the store, for ranks that have no memory in common."""

    def __init__(
        self,
        group: RankGroup,
        published: Heartbeat | memoryview,
        timeout: float,
        others: list[int],
    ) -> None:
        self._store, self._rank, self._published = group.store, group.rank, published
        self._interval, self._others = min(STORE_BEAT, timeout / 8), others
        self._latest: dict[int, bytes] = {}
        self._over = threading.Event()
        self._publish()
        self._thread = threading.Thread(target=self._exchange, daemon=True)
        self._thread.start()

    def latest(self, rank: int) -> bytes:
        """Unchanged while the store does not answer."""
        return self._latest.get(rank, b"")

    def _publish(self) -> None:
        self._store.set(f"heartbeat/{self._rank}", bytes(self._published).hex())

    def _exchange(self) -> None:
        while not self._over.wait(self._interval):
            try:
                self._publish()
                for rank in self._others:
                    self._latest[rank] = self._store.get(f"heartbeat/{rank}")
            except RuntimeError:
                return

    def close(self) -> None:
        self._over.set()
        self._thread.join(STORE_BEAT)  # it may wait for a store that is gone
