"""Where rollouts come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..envs.columns import ReplayMismatch
    from ..rollout import Array, Rollout


class Counters(Protocol):
    """What waiting and faults have come to, of a sampler or of its workers."""

    @property
    def t_wait(self) -> float:
        """Seconds that the trainer has waited for workers, ever."""

    @property
    def restarts(self) -> int:
        """Workers that were replaced, ever."""

    @property
    def env_restarts(self) -> int:
        """Environments that raised and were rebuilt, ever."""


class Sampler(Counters, Protocol):
    def begin(self) -> None:
        """Have every environment ready for its first step, as the first rollout would."""

    def collect(self) -> Rollout:
        """The next rollout; its arrays hold until the next call."""

    def publish(self, weights: Array, version: int) -> None:
        """Act with these weights from the next rollout on."""

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint needs to go on from the last `publish()`; None at first.

        A rollout that failed, or from which no update could be made, is thereby taken back.
        """

    def restore(self, state: dict[str, Any]) -> list[ReplayMismatch]:
        """Go on from `state`; returns the columns that did not come out as they were."""

    def close(self) -> None: ...
