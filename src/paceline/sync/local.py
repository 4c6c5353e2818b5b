"""One learner: everything is agreed already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..heartbeat import Heartbeat
from ..rollout import Array, Episode

if TYPE_CHECKING:
    from torch import Tensor


class Local:
    rank = 0
    size = 1
    world_size = 1
    path = ""
    watcher = None

    def __init__(self) -> None:
        self.heartbeat: Heartbeat = Heartbeat()

    def share(self, tensor: Tensor) -> Tensor:
        return tensor

    def sum(self, buffer: Tensor) -> None:
        pass

    def gather(self, item: Any) -> list[Any]:
        return [item]

    def all(self, flag: bool) -> bool:
        return flag

    def news(self, sums: Array, episodes: list[Episode]) -> tuple[Array, list[Episode]]:
        return sums, episodes

    def peak(self, value: float) -> float:
        return value

    def close(self) -> None:
        pass
