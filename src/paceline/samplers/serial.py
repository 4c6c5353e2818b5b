"""Serial sampler: environments step in the learner's process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..envs.columns import ReplayMismatch
from ..envs.source import EnvInfo
from ..policy.network import NetworkSpec
from ..processes.heartbeat import Heartbeat
from ..processes.stopping import interruptible
from ..rollout import Array, Rollout, RolloutSpec
from .block import Block, make_block
from .ledger import Ledger, ledgers_state, restore_ledgers


class Serial:
    """One block of columns, or several, one after the other."""

    t_wait = 0.0
    restarts = 0

    def __init__(self, blocks: list[Block], ledgers: list[Ledger], out: Rollout) -> None:
        self._blocks, self._ledgers, self._out = blocks, ledgers, out
        width = out.columns // len(blocks)
        self._outs = [out.column_range(i * width, (i + 1) * width) for i in range(len(blocks))]
        self._begun = False

    @property
    def env_restarts(self) -> int:
        return sum(block.columns.failures for block in self._blocks)

    def publish(self, weights: Array, version: int) -> None:
        for block, ledger in zip(self._blocks, self._ledgers, strict=True):
            block.load(weights, version)
            ledger.published = ledger.latest

    def collect(self) -> Rollout:
        self.begin()
        episodes = []
        for block, ledger, out in zip(self._blocks, self._ledgers, self._outs, strict=True):
            with interruptible():
                episodes += block.fill(out)
            ledger.record(out, block.counters())
        return replace(self._out, episodes=episodes)

    def begin(self) -> None:
        if not self._begun:
            self._begin()

    def state(self) -> dict[str, Any] | None:
        return ledgers_state(self._ledgers)

    def restore(self, state: dict[str, Any]) -> list[ReplayMismatch]:
        restore_ledgers(self._ledgers, state)
        return self._begin()

    def _begin(self) -> list[ReplayMismatch]:
        """Start the first episodes, or replay those of the ledgers; returns replay mismatches."""
        different: list[ReplayMismatch] = []
        for block, ledger in zip(self._blocks, self._ledgers, strict=True):
            with interruptible():
                different += block.restore(ledger.state(ledger.latest))
            ledger.begin(block.snapshot())
        self._begun = True
        return different

    def skip(self, rollouts: int) -> None:
        """Start as if so many rollouts had been collected: with later seeds and noise."""
        for block in self._blocks:
            block.skip(rollouts)

    def close(self) -> None:
        for block in self._blocks:
            block.close()


def make_serial(
    env_info: EnvInfo,
    network: NetworkSpec,
    spec: RolloutSpec,
    seed: int,
    blocks: int = 1,
    first_column: int = 0,
    heartbeat: Heartbeat | None = None,
    threads: int = 1,
) -> Serial:
    """A sampler of the columns of `spec`, in equal blocks; `threads` step a native batch."""
    width = spec.columns // blocks
    heartbeat, each = heartbeat or Heartbeat(), replace(spec, columns=width)
    made: list[Block] = []
    try:
        for number in range(blocks):
            first = first_column + number * width
            made.append(make_block(env_info, network, each, seed, first, heartbeat, threads))
    except BaseException:
        for block in made:
            block.close()
        raise
    return Serial(made, [Ledger(env_info, each) for _ in made], Rollout.from_spec(spec).poisoned())
