"""Local: one learner, so every collective is a no-op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Episode
from . import Sync

if TYPE_CHECKING:
    from torch import Tensor


class Local(Sync):
    rank = 0
    size = 1
    path = ""

    def __init__(self) -> None:
        self.heartbeat: Heartbeat = Heartbeat()

    def share(self, tensor: Tensor) -> Tensor:
        return tensor

    def sum(self, buffer: Tensor) -> None:
        pass

    def gather(self, item: Any) -> list[Any]:
        return [item]

    def reduce_metrics(self, sums: Array, episodes: list[Episode]) -> tuple[Array, list[Episode]]:
        return sums, episodes

    def close(self) -> None:
        pass
