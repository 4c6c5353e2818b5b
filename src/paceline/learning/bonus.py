"""Bonus: a reward for exploring, made by the learner from what a rollout shows.

T = steps, B = columns. A bonus is made as `Class(context)`, or `Class(context, options)` where the
class has a dataclass `Options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from ..policy.network import NetworkSpec
from ..rollout import Array, Rollout
from .batch import ValueHead
from .observations import RolloutObservations
from .step import LossTerm

Reduction = Literal["mean", "sum", "max"]
"""How a metric of several ranks and iterations becomes one number."""
Metrics = dict[str, float]


@dataclass(frozen=True)
class BonusContext:
    """What a bonus may need to know of the run."""

    network: NetworkSpec
    columns: int
    """of this learner"""
    seed: int
    device: torch.device
    moments: Callable[[Array], tuple[Array, Array, float]]
    """mean and variance of each column of rows [n, d] over all ranks, and the number of rows"""


class Bonus(Protocol):
    head: ValueHead | None
    """a return of its own; without one the bonus is added to the reward"""
    term: LossTerm | None
    """what it learns itself, if anything"""
    metrics: Mapping[str, Reduction]
    """names of what `reward` returns beside the bonus"""
    per_column: tuple[str, ...]
    """names of the arrays of `state` whose first axis is this learner's columns"""

    def reward(self, rollout: Rollout, seen: RolloutObservations) -> tuple[Array, Metrics]:
        """The bonus [T, B] of each step, which counts where `rollout.valid`; and its metrics."""

    def state(self) -> dict[str, Array]:
        """Copies of what it has gathered, but for its parameters."""

    def restore(self, state: dict[str, Array]) -> None:
        """What `state` gave."""
