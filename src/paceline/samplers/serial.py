"""Serial sampler: environments step in the learner's process."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..envs.columns import ReplayMismatch
from ..errors import BadInput
from ..processes.stopping import interruptible
from ..rollout import Array, Rollout
from .block import Block
from .ledger import Ledger, ledgers_state, restore_ledgers
from .pool import PoolSpec

if TYPE_CHECKING:
    from ..config.schema import Config


class Serial:
    """One block of columns, or several, one after the other."""

    runs_ahead = False
    t_wait = 0.0
    restarts = 0

    @staticmethod
    def refuse(config: Config) -> None:
        if config.workers:
            raise BadInput(
                f"sampler is 'serial', which has no workers, and num_workers is {config.workers}"
            )

    @staticmethod
    def make(spec: PoolSpec, config: Config) -> Serial:
        return make_serial(replace(spec, workers=1))

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


def make_serial(spec: PoolSpec) -> Serial:
    """A sampler with a block of columns for each of the workers that `spec` names."""
    with ExitStack() as stack:
        blocks = [
            stack.enter_context(closing(spec.make_block(number, spec.heartbeat, spec.threads)))
            for number in range(spec.workers)
        ]
        stack.pop_all()
    return Serial(blocks, spec.make_ledgers(), Rollout.from_spec(spec.rollout).poisoned())
