"""What happens between `backward()` and the next forward. Trivial at size one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Sync(Protocol):
    rank: int
    size: int

    def share(self, tensor: Tensor) -> Tensor:
        """A tensor that all ranks see, starting with rank 0's content."""

    def sum(self, buffer: Tensor) -> None:
        """Replace `buffer` by its sum over all ranks."""

    def gather(self, item: Any) -> list[Any]:
        """Every rank's item, in the order of ranks."""

    def all(self, flag: bool) -> bool:
        """Whether `flag` holds on every rank."""

    def barrier(self) -> None:
        """Wait for every rank."""
