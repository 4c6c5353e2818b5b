"""Network: sums over ranks through torch.distributed, and heartbeats through the store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, _set_pg_timeout

from ..errors import LostRank
from ..processes.heartbeat import TICK, Heartbeat
from .rendezvous import RankGroup, RankMonitor

YIELDS = 2000
NAP = 1e-4
EXIT_SECONDS = 1.0
"""Seconds from the end of a process's connections to its own, at most."""
NO_TIMEOUT = timedelta(hours=24)
"""The monitor ends a wait, not torch."""
STORE_BEAT = 1.0
"""Seconds between two heartbeats that go through the store, at most."""


class Network:
    """Some `ranks` of a group, on any hosts. A thread publishes this rank's heartbeat."""

    def __init__(
        self,
        group: RankGroup,
        ranks: Sequence[int],
        backend: str,
        device: torch.device,
        timeout: float,
        heartbeat: Heartbeat,
    ) -> None:
        self._store, self._rank, self._device = group.store, group.rank, device
        self._others = [rank for rank in ranks if rank != group.rank]
        self._heartbeat = heartbeat
        self._latest: dict[int, bytes] = {}
        """heartbeats of other ranks; unchanged while the store does not answer"""
        self._monitor = RankMonitor(group, lambda rank: self._latest.get(rank, b""), timeout)
        self._aborted = False
        """whether a rank was lost during an operation, which then never ends"""
        self._closed = threading.Event()
        self._publish()
        self._thread = threading.Thread(
            target=self._exchange_heartbeats, args=(min(STORE_BEAT, timeout / 8),), daemon=True
        )
        self._thread.start()
        dist.init_process_group(
            backend,
            store=PrefixStore(f"group/{ranks[0]}", group.store),
            rank=ranks.index(group.rank),
            world_size=len(ranks),
            timeout=group.join_timeout,
        )
        _set_pg_timeout(NO_TIMEOUT)

    def _publish(self) -> None:
        self._store.set(f"heartbeat/{self._rank}", bytes(self._heartbeat).hex())

    def _exchange_heartbeats(self, interval: float) -> None:
        while not self._closed.wait(interval):
            try:
                self._publish()
                for rank in self._others:
                    self._latest[rank] = self._store.get(f"heartbeat/{rank}")
            except RuntimeError:
                return

    def sum(self, buffer: Tensor) -> None:
        """Replace `buffer` by its sum over these ranks."""
        there = buffer.to(self._device)
        self._finish(dist.all_reduce(there, async_op=True))
        if there is not buffer:
            buffer.copy_(there)

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
        self._closed.set()
        self._thread.join(STORE_BEAT)  # it may wait for a store that is gone
        self._monitor.close()
        if not self._aborted:  # else this would wait for the operation to end
            dist.destroy_process_group()
