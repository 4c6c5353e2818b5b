"""Whether the learner's threads hinder each other: a short trial before the first update.

Threads of one computation wait for each other after every layer. Beside other busy programs one of
them is often not running, the others wait for it, and all of them are slower than one alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from ..distributed import Sync
from ..policy.actor_critic import ActorCritic
from ..policy.network import NetworkSpec
from ..policy.settings import standard_settings
from ..processes.heartbeat import beating
from .choices import Choices
from .topology import Topology

log = logging.getLogger("paceline")

HINDER = 1.25
"""How many times slower than one thread all threads are, from which on one is used. Not 1: runs of
the same seed would differ by chance where threads gain nothing and lose nothing."""
FIRST_ROWS = 8
"""Rows of the first gradient that is timed."""
ENOUGH_SECONDS = 0.01
"""Of a gradient with one thread: more rows are tried until it takes as long."""
FEW, MOST = 4, 20
"""Comparisons; after a few the trial ends when its time is up."""
TRIAL_SECONDS, LONGEST_SECONDS = 0.5, 3.0
"""After a few comparisons, and after one: threads that hinder each other can take long."""

Seconds = tuple[float, float]
"""Of the same work with all threads, and with one."""


def without_hindering_threads(
    choices: Choices, network: NetworkSpec, rows: int, sync: Sync, topology: Topology
) -> Choices:
    """Choices with one thread for the learner, if that is faster now; the same on all ranks.

    `rows` are those of a minibatch. All ranks have to call it.
    """
    taken = (0.0, 0.0)
    with beating(sync.heartbeat):
        if topology.learns:
            taken = trial(choices.threads, network, rows)
        slowdown = slowdown_of_ranks(sync.gather(list(taken)))
    if slowdown < HINDER:
        return choices
    if topology.writes:
        log.warning(
            f"{choices.threads} threads of the learner were {slowdown:.1f} times slower than one, "
            "as they are beside other busy programs: this run goes on with one thread (--threads "
            "sets another number)"
        )
    return replace(choices, threads=1)


def slowdown_of_ranks(taken: list[list[float]]) -> float:
    """How many times slower all threads are than one: ranks wait for the slowest of them."""
    many, one = (max(seconds) for seconds in zip(*taken, strict=True))
    return many / one


@standard_settings()
def trial(threads: int, network: NetworkSpec, rows: int) -> Seconds:
    """Time gradients of at most `rows` rows with all threads and with one, in turns."""
    with torch.random.fork_rng(devices=[]), _restored_threads():
        module = ActorCritic(network)
        torch.set_num_threads(1)
        count = min(FIRST_ROWS, rows)
        work = _gradient(module, count)
        work()
        while _seconds(work) < ENOUGH_SECONDS and count < rows:
            count = min(4 * count, rows)
            work = _gradient(module, count)
            work()
        return compare(work, threads)


def compare(work: Callable[[], None], threads: int) -> Seconds:
    """Seconds of `work`, as often with all threads as with one.

    Sums, not medians: beside busy programs most rounds may be fast and some a hundred times slower,
    and a run takes the time of all.
    """
    taken = {threads: 0.0, 1: 0.0}
    began = time.perf_counter()
    for compared in range(MOST + 1):
        for number in taken:
            torch.set_num_threads(number)
            seconds = _seconds(work)
            if compared:  # the first time threads are started
                taken[number] += seconds
        limit = TRIAL_SECONDS if compared >= FEW else LONGEST_SECONDS
        if compared and time.perf_counter() - began > limit:
            break
    return taken[threads], taken[1]


def _gradient(module: ActorCritic, rows: int) -> Callable[[], None]:
    """The gradient of a minibatch of zeros, nearly all of a learner's work."""
    spec = module.spec
    parts = {
        name: torch.from_numpy(np.full((rows, *shape), spec.obs.start, dtype))
        for name, (shape, dtype) in spec.obs.parts.items()
    }
    inputs = module.inputs(parts)
    shape, dtype = spec.act.stored
    action = torch.from_numpy(np.zeros((rows, *shape), dtype))

    def work() -> None:
        predicted = module.predict(inputs, action)
        total = predicted.logp.sum() + predicted.entropy.sum() + predicted.value.sum()
        total.backward()  # type: ignore[no-untyped-call]
        module.zero_grad()

    return work


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextmanager
def _restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
