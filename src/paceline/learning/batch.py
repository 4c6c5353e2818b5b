"""What passes between learner and algorithm. R = rows, T = steps, B = columns, H = value heads.

A minibatch is N segments of L successive steps of one column each, as R = L·N rows, [L, N]
flattened. Only a policy with memory needs L > 1: of others every row is a segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ..policy.prediction import Inputs
from ..rollout import Array

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ValueHead:
    """One return that the value predicts."""

    gamma: float
    """its discount"""
    lam: float | None = None
    """λ of its advantage; None: the algorithm's"""
    weight: float = 1.0
    """of its advantage in that of the policy"""
    episodic: bool = True
    """whether the end of an episode ends it; else it goes on in the next episode"""


@dataclass(frozen=True)
class Signals:
    """A rollout's rewards and episode ends, ready for a return. Numpy, [T, B, H]."""

    reward: Array
    discount: Array
    """γ; 0 where the episode terminated; 1 where no time passes"""
    trace: Array
    """1, or 0 where the episode ended either way"""
    log_ratio: Array
    """log π − log μ, of the policy that learns and the one that acted; 0 where nobody asked"""
    heads: tuple[ValueHead, ...]
    idle: Array | None = None
    """[T, B, H] where no time passes: rows that only reset, for heads that are not episodic"""

    def lam(self, default: float) -> Array:
        """λ of every head; 1 where no time passes."""
        each = np.array([default if h.lam is None else h.lam for h in self.heads], np.float32)
        return each if self.idle is None else np.where(self.idle, np.float32(1), each)

    def weighted(self, advantage: Array) -> Array:
        """[T, B] of all heads together."""
        return (advantage * np.array([h.weight for h in self.heads], np.float32)).sum(-1)


@dataclass(frozen=True)
class Targets:
    """What the policy and the value are drawn towards. Numpy."""

    advantage: Array
    """[T, B]"""
    returns: Array
    """[T, B, H]"""


@dataclass(frozen=True)
class Rows:
    """Rows to learn from; those with weight 0 count for nothing."""

    inputs: Inputs
    action: Tensor
    logp: Tensor
    """[R] under the policy that acted"""
    advantage: Tensor
    """[R]"""
    returns: Tensor
    """[R, H]"""
    value: Tensor
    """[R, H] predicted when the rollout came in"""
    weight: Tensor
    """[R] 1 or 0"""
    next_inputs: Inputs = ()
    """of the observation after each action, where a loss needs them"""
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """[R, ...] what else losses have asked for, by name"""
    first: Tensor | None = None
    """[R] the observation starts an episode; with a memory only"""
    carry: Tensor | None = None
    """[N, S] the memory before each segment; with a memory only"""

    def tensors(self) -> list[Tensor]:
        """All of them, in the order of the fields."""
        core = self.action, self.logp, self.advantage, self.returns, self.value, self.weight
        memory = [tensor for tensor in (self.first, self.carry) if tensor is not None]
        return [*self.inputs, *core, *self.next_inputs, *self.extra.values(), *memory]

    def like(self, tensors: Iterable[Tensor]) -> Rows:
        """Of the same structure, from what `tensors()` gave."""
        left = iter(tensors)
        inputs = tuple(islice(left, len(self.inputs)))
        action, logp, advantage, returns, value, weight = islice(left, 6)
        return Rows(
            *(inputs, action, logp, advantage, returns, value, weight),
            next_inputs=tuple(islice(left, len(self.next_inputs))),
            extra={name: next(left) for name in self.extra},
            first=None if self.first is None else next(left),
            carry=None if self.carry is None else next(left),
        )

    def take(self, index: Tensor, segments: Tensor | None = None) -> Rows:
        """These rows; what the memory held is that of `segments`, or else stays."""
        rows = replace(self, carry=None)
        taken = rows.like([tensor.index_select(0, index) for tensor in rows.tensors()])
        if self.carry is None:
            return taken
        carry = self.carry if segments is None else self.carry.index_select(0, segments)
        return replace(taken, carry=carry)

    def split(self, size: int) -> Iterator[Rows]:
        """Consecutive pieces of `size` rows, without a copy."""
        parts = len(self.weight) // size
        if parts == 1:
            return iter((self,))
        pieces = (tensor.split(len(tensor) // parts) for tensor in self.tensors())  # type: ignore[no-untyped-call]
        return (self.like(piece) for piece in zip(*pieces, strict=True))


def segment_rows(segments: Array, columns: int, length: int, parts: int) -> Array:
    """The rows of segments, of which `parts` equal pieces are minibatches: [L, N] each."""
    if length == 1:
        return segments
    number, column = np.divmod(segments.reshape(parts, 1, -1), columns)
    return ((number * length + np.arange(length)[:, None]) * columns + column).ravel()


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
    """An order of all rows [T·B], or of the segments [K·B], whose `parts` equal pieces are the
    minibatches.

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
