"""What passes between learner and algorithm. R = rows, T = steps, B = columns, S = streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .rollout import Array

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Signals:
    """A rollout's rewards and episode ends, ready for a return. Numpy, [T, B, S]."""

    reward: Array
    discount: Array
    """γ, or 0 where the episode terminated"""
    trace: Array
    """1, or 0 where the episode ended either way"""
    log_ratio: Array
    """log π − log μ, of the policy that learns and the one that acted; 0 where nobody asked"""


@dataclass(frozen=True)
class Targets:
    """What the policy and the value are drawn towards. Numpy."""

    advantage: Array
    """[T, B]"""
    returns: Array
    """[T, B, S]"""


@dataclass(frozen=True)
class Prediction:
    """What the module says of a batch of rows."""

    logp: Tensor
    """[R]"""
    entropy: Tensor
    """[R]"""
    value: Tensor
    """[R, S]"""


@dataclass(frozen=True)
class Rows:
    """Rows to learn from; those with weight 0 count for nothing."""

    inputs: tuple[Tensor, ...]
    """the parts of an observation"""
    action: Tensor
    logp: Tensor
    """[R] under the policy that acted"""
    advantage: Tensor
    """[R]"""
    returns: Tensor
    """[R, S]"""
    value: Tensor
    """[R, S] predicted when the rollout came in"""
    weight: Tensor
    """[R] 1 or 0"""

    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of the fields."""
        return (
            *self.inputs,
            self.action,
            self.logp,
            self.advantage,
            self.returns,
            self.value,
            self.weight,
        )

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> Rows:
        """What `tensors()` took apart."""
        action, logp, advantage, returns, value, weight = tensors[-6:]
        inputs = tuple(tensors[:-6])
        return Rows(inputs, action, logp, advantage, returns, value, weight)

    def take(self, index: Tensor) -> Rows:
        return Rows.of([tensor.index_select(0, index) for tensor in self.tensors()])

    def split(self, size: int) -> Iterator[Rows]:
        """Consecutive pieces of `size` rows, without a copy."""
        pieces = (tensor.split(size) for tensor in self.tensors())  # type: ignore[no-untyped-call]
        return (Rows.of(piece) for piece in zip(*pieces, strict=True))


def permutation(
    seed: int,
    iteration: int,
    epoch: int,
    steps: int,
    columns: int,
    blocks: int,
    parts: int,
    first_block: int = 0,
) -> Array:
    """An order of all rows [T·B] whose `parts` equal pieces are the minibatches.

    Each of `blocks` equal groups of columns is shuffled for itself, keyed by its number, and gives
    every minibatch its share: so one process with W blocks learns from the same minibatches as W
    processes with one block each, the w-th beginning at block w.
    """
    width = columns // blocks
    pieces = []
    for block in range(blocks):
        order = np.random.default_rng([seed, iteration, epoch, first_block + block]).permutation(
            steps * width
        )
        row, column = np.divmod(order, width)
        pieces.append((row * columns + block * width + column).reshape(parts, -1))
    return np.concatenate(pieces, axis=1).ravel()
