"""Samplers: where rollouts come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from ..config.schema import Config
    from ..envs.columns import ReplayMismatch
    from ..rollout import Array, Rollout
    from .pool import PoolSpec


class Counters(Protocol):
    """Totals of waiting and faults, of a sampler or its workers."""

    @property
    def t_wait(self) -> float:
        """Seconds that the learner has waited for workers."""

    @property
    def restarts(self) -> int:
        """Workers that were replaced."""

    @property
    def env_restarts(self) -> int:
        """Environments that raised and were rebuilt."""


class SamplerEntry(Protocol):
    """What a registry names: here the class of a sampler itself. It may also have
    `refuse(config)`, which raises BadInput for what it can't run."""

    runs_ahead: ClassVar[bool]
    """whether it samples while the learner updates, so that rollouts have older weights"""

    @staticmethod
    def make(spec: PoolSpec, config: Config) -> Sampler: ...


class Sampler(Counters, Protocol):
    def begin(self) -> None:
        """Reset (or replay) every environment; otherwise the first `collect` does."""

    def collect(self) -> Rollout:
        """The next rollout; its arrays are overwritten by the next call."""

    def publish(self, weights: Array, version: int) -> None:
        """Act with these weights from the next rollout on."""

    def state(self) -> dict[str, Any] | None:
        """Arrays of a checkpoint to continue from the last `publish()`; None before the first
        rollout. A rollout collected after that `publish()` is not part of it."""

    def restore(self, state: dict[str, Any]) -> list[ReplayMismatch]:
        """Continue from `state`; returns the columns whose replay differs from the original."""

    def close(self) -> None: ...
