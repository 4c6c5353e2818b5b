"""Groups: ranks that add up tensors and pass objects round, each kind in its own way.

Each has `sum`, `gather` and `close` of `Sync`, for its own ranks.
"""

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
from ..processes.heartbeat import Heartbeat
from ..rollout import Array
from .beat import TICK
from .rank_memory import SLOT, Segment
from .rendezvous import Meeting, Watch
from .wire import decode, encode

YIELDS = 2000
NAP = 1e-4
GOING = 1.0
"""Seconds from the end of a process's connections to its own, at most."""
HOURS = timedelta(hours=24)
"""Nothing ends a wait but the watch."""
BEAT = 1.0
"""Seconds between two signs of life that go through the store, at most."""


class Shared:
    """Ranks of one host, through memory. Sums in the order of ranks are the same to the bit."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def sum(self, buffer: Tensor) -> None:
        mine = buffer.numpy(force=True)
        flat = mine.reshape(-1)
        most = SLOT // flat.itemsize
        for begin in range(0, flat.size, most):
            self._sum(flat[begin : begin + most])
        if buffer.device.type != "cpu" or not buffer.is_contiguous():  # `flat` is a copy
            buffer.copy_(torch.from_numpy(flat.reshape(mine.shape)))

    def _sum(self, flat: Array) -> None:
        first, second, *rest = self._segment.exchange(flat)
        np.add(first, second, out=flat)
        for other in rest:
            flat += other

    def gather(self, item: Any) -> list[Any]:
        mine = np.frombuffer(encode(item), np.uint8)
        sizes = [int(n[0]) for n in self._segment.exchange(np.array([mine.size]))]
        found = [bytearray() for _ in sizes]
        padded = np.zeros(max(sizes), np.uint8)
        padded[: mine.size] = mine
        for begin in range(0, padded.size, SLOT):
            parts = self._segment.exchange(padded[begin : begin + SLOT])
            for whole, part in zip(found, parts, strict=True):
                whole += part.data
        return [decode(bytes(whole[:size])) for whole, size in zip(found, sizes, strict=True)]

    def close(self) -> None:
        self._segment.close()


class Torch:
    """Ranks anywhere, through torch.distributed; others see whether what this one shows changes."""

    def __init__(
        self,
        meeting: Meeting,
        ranks: Sequence[int],
        backend: str,
        device: torch.device,
        timeout: float,
        heartbeat: Heartbeat,
        shown: Heartbeat | memoryview,
    ) -> None:
        self._place, self._size, self._device = ranks.index(meeting.rank), len(ranks), device
        self._others = [rank for rank in ranks if rank != meeting.rank]
        self._heartbeat = heartbeat
        self._beats = Beats(meeting, shown, timeout, self._others)
        self._watch = Watch(meeting, self._beats.sign, timeout)
        self._given_up = False
        """whether an operation is still under way, whose end nobody will wait for"""
        store = PrefixStore(f"group/{ranks[0]}", meeting.store)
        dist.init_process_group(
            backend, store=store, rank=self._place, world_size=self._size, timeout=meeting.patience
        )
        _set_pg_timeout(HOURS)

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
        """Wait without sleeping for as long as it usually takes; then in naps, with looks."""
        yields, looked = 0, time.monotonic()
        while not work.is_completed():
            if yields < YIELDS:
                yields += 1
                os.sched_yield()
                continue
            time.sleep(NAP)
            if time.monotonic() - looked >= TICK:
                looked = time.monotonic()
                self._heartbeat.beats += 1
                self._look()
        self._heartbeat.beats += 1
        try:
            work.wait()
        except RuntimeError as error:
            cause = str(error).strip().splitlines()[0][:200]
            end = time.monotonic() + GOING  # connections break before the process has gone
            while time.monotonic() < end:
                self._look()
                time.sleep(0.01)
            raise LostRank(f"another rank has gone: {cause}") from None

    def _look(self) -> None:
        self._given_up = True
        self._watch.look(self._others)
        self._given_up = False

    def close(self) -> None:
        self._beats.close()
        self._watch.close()
        if not self._given_up:  # else it would wait for the operation to end
            dist.destroy_process_group()


class Hosts:
    """Ranks on several hosts: memory within each of them, the network between their first ranks."""

    def __init__(self, here: Shared, between: Torch | None, hosts: list[list[int]]) -> None:
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


class Beats:
    """Signs of life that go through the store, for ranks that have no memory in common."""

    def __init__(
        self, meeting: Meeting, shown: Heartbeat | memoryview, timeout: float, others: list[int]
    ) -> None:
        self._store, self._rank, self._shown = meeting.store, meeting.rank, shown
        self._every, self._others = min(BEAT, timeout / 8), others
        self._signs: dict[int, bytes] = {}
        self._over = threading.Event()
        self._tell()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def sign(self, rank: int) -> bytes:
        """The latest; a store that does not answer leaves it as it was."""
        return self._signs.get(rank, b"")

    def _tell(self) -> None:
        self._store.set(f"sign/{self._rank}", bytes(self._shown).hex())

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
