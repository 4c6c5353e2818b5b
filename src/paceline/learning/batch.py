"""What passes between learner and algorithm. R = rows, T = steps, B = columns, H = value heads.

A minibatch is N segments of L successive steps of one column each: R = L·N rows, flattened from
[L, N]. L > 1 only for a policy with memory; otherwise every row is its own segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ..policy.network import Inputs
from ..rollout import Array

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ValueHead:
    """One return that the value function predicts."""

    gamma: float
    """discount γ"""
    lam: float | None = None
    """λ of its advantage; None: the algorithm's"""
    weight: float = 1.0
    """weight of its advantage in the policy's"""
    episodic: bool = True
    """False: its return does not end with the episode but continues in the next one"""


@dataclass(frozen=True)
class Signals:
    """Rewards, discounts and episode ends of a rollout, input of a return. Numpy, [T, B, H]."""

    reward: Array
    discount: Array
    """γ; 0 where the episode terminated; 1 where `idle`"""
    trace: Array
    """1; 0 where the episode terminated or was truncated"""
    log_ratio: Array
    """log π − log μ (learner's policy, acting policy); 0 unless the algorithm `needs_log_ratio`"""
    heads: tuple[ValueHead, ...]
    idle: Array | None = None
    """reset rows, for heads that are not episodic: no transition, so the return passes through"""

    def lam(self, default: float) -> Array:
        """λ of every head, [H] or [T, B, H]; 1 where `idle`."""
        each = np.array([default if h.lam is None else h.lam for h in self.heads], np.float32)
        return each if self.idle is None else np.where(self.idle, np.float32(1), each)

    def weighted(self, advantage: Array) -> Array:
        """[T, B, H] → [T, B], summed by the weights of the heads."""
        return (advantage * np.array([h.weight for h in self.heads], np.float32)).sum(-1)


@dataclass(frozen=True)
class Targets:
    """What policy and value are trained on. Numpy."""

    advantage: Array
    """[T, B]"""
    returns: Array
    """[T, B, H]"""


@dataclass(frozen=True)
class Rows:
    """Rows of a batch or minibatch, as tensors."""

    inputs: Inputs
    action: Tensor
    logp: Tensor
    """[R] under the policy that acted"""
    advantage: Tensor
    """[R]"""
    returns: Tensor
    """[R, H]"""
    value: Tensor
    """[R, H] predicted before the first epoch"""
    weight: Tensor
    """[R] 1; 0 for rows that enter no loss and no metric"""
    next_inputs: Inputs = ()
    """inputs of the next observation, if a loss term `needs_next`"""
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """[R, ...] what loss terms add in `LossTerm.rows`, by name"""
    first: Tensor | None = None
    """[R] the observation starts an episode; only with a memory"""
    carry: Tensor | None = None
    """[N, S] the memory before each segment; only with a memory"""
    carry_after: Tensor | None = None
    """[N, S] and after it, as it was when the rollout was collected"""

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order of the fields."""
        core = self.action, self.logp, self.advantage, self.returns, self.value, self.weight
        memory = self.first, self.carry, self.carry_after
        given = [tensor for tensor in memory if tensor is not None]
        return [*self.inputs, *core, *self.next_inputs, *self.extra.values(), *given]

    def like(self, tensors: Iterable[Tensor]) -> Rows:
        """Rows of the same structure, from tensors in the order of `tensors()`."""
        left = iter(tensors)
        return Rows(
            inputs=tuple(islice(left, len(self.inputs))),
            action=next(left),
            logp=next(left),
            advantage=next(left),
            returns=next(left),
            value=next(left),
            weight=next(left),
            next_inputs=tuple(islice(left, len(self.next_inputs))),
            extra={name: next(left) for name in self.extra},
            first=None if self.first is None else next(left),
            carry=None if self.carry is None else next(left),
            carry_after=None if self.carry_after is None else next(left),
        )

    def take(self, index: Tensor, segments: Tensor | None = None) -> Rows:
        """The rows `index[R]`; the memory is taken at `segments[N]`, or left as it is."""
        rows = replace(self, carry=None, carry_after=None)
        taken = rows.like([tensor.index_select(0, index) for tensor in rows.tensors()])
        carry, after = self.carry, self.carry_after
        if carry is not None and after is not None and segments is not None:
            carry, after = carry.index_select(0, segments), after.index_select(0, segments)
        return replace(taken, carry=carry, carry_after=after)

    def split(self, size: int) -> Iterator[Rows]:
        """Consecutive pieces of `size` rows, without a copy."""
        parts = len(self.weight) // size
        if parts == 1:
            return iter((self,))
        pieces = (tensor.split(len(tensor) // parts) for tensor in self.tensors())  # type: ignore[no-untyped-call]
        return (self.like(piece) for piece in zip(*pieces, strict=True))
