"""Sync: what happens between `backward()` and the next forward pass. A no-op at size one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Episode

if TYPE_CHECKING:
    from torch import Tensor


class Sync:
    """What the ranks of a run exchange. The bodies here are those of a single process."""

    rank = 0
    size = 1
    """ranks that make every update together"""
    path = ""
    """how ranks communicate, for messages; empty for a single process"""

    def __init__(self) -> None:
        self.heartbeat: Heartbeat = Heartbeat()
        """of this rank, visible to the others"""

    @property
    def world_size(self) -> int:
        """Learners of the run, whether or not they wait for each other."""
        return self.size

    def share(self, tensor: Tensor) -> Tensor:
        """A tensor with rank 0's content: the same one, or one that all ranks share."""
        return tensor

    def sum(self, buffer: Tensor) -> None:
        """Replace `buffer` by its sum over all ranks."""

    def gather(self, item: Any) -> list[Any]:
        """Every rank's item, which is plain data (see `wire.py`), in the order of ranks."""
        return [item]

    def broadcast(self, item: Any) -> Any:
        """Rank 0's item."""
        return self.gather(item)[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.all(True)

    def all(self, flag: bool) -> bool:
        """Whether `flag` holds on every rank."""
        return all(self.gather(flag))

    def reduce_metrics(self, sums: Array, episodes: list[Episode]) -> tuple[Array, list[Episode]]:
        """`sums` added over all ranks, and all their episodes, since the last call."""
        return sums, episodes

    def max(self, value: float) -> float:
        """The largest `value` of any rank."""
        return max(self.gather(value))

    def pause(self, seconds: float) -> bool:
        """In a process that does not learn: sleep, and False once all learners have finished."""
        return False

    def finish(self) -> None:
        """This process has done its part of the run; returns when it is no longer needed."""

    def close(self) -> None:
        """Leave; ranks that still wait for this one notice it."""


class Local(Sync):
    """One learner."""
