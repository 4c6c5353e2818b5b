"""What happens between `backward()` and the next forward. Trivial at size one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Episode

if TYPE_CHECKING:
    from torch import Tensor

    from ..learning.learner import Learner
    from ..run.budget import Budget, Progress
    from ..run.meter import Meter
    from ..run.report import Report

    Stopping = Callable[[], bool]
    Watch = Callable[[Learner, Meter, Budget, Progress, int, Stopping], Iterator[Report]]


class Sync(Protocol):
    """What has a body here is right where ranks wait for each other."""

    rank: int
    size: int
    """ranks that make every update together"""
    heartbeat: Heartbeat
    """this rank's signs of life, for the others to see"""
    path: str
    """how ranks talk, for a reader; empty where there is nobody to talk to"""

    @property
    def watch(self) -> Watch | None:
        """Yields what the ring would, in a process that only watches others collect and learn."""
        return None

    @property
    def world_size(self) -> int:
        """Learners of the run, whether or not they wait for each other."""
        return self.size

    def share(self, tensor: Tensor) -> Tensor:
        """A tensor that all ranks see, starting with rank 0's content; perhaps the same one."""

    def sum(self, buffer: Tensor) -> None:
        """Replace `buffer` by its sum over all ranks."""

    def gather(self, item: Any) -> list[Any]:
        """Every rank's item, which is plain data (see `wire.py`), in the order of ranks."""

    def all(self, flag: bool) -> bool:
        """Whether `flag` holds on every rank."""
        return all(self.gather(flag))

    def news(self, sums: Array, episodes: list[Episode]) -> tuple[Array, list[Episode]]:
        """What all ranks have to tell since the last time: `sums` added up, all their episodes."""

    def peak(self, value: float) -> float:
        """The largest `value` of any rank."""
        return max(self.gather(value))

    def close(self) -> None:
        """Leave; whoever still waits for this rank is not held up."""
