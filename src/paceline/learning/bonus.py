"""Intrinsic reward: a bonus that the learner computes from rollouts.

T = steps, B = columns. A bonus is made as `Class(context)`, or `Class(context, options)` if the
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
"""How values of a metric from several ranks and iterations become one number."""
Metrics = dict[str, float]


@dataclass(frozen=True)
class BonusContext:
    """What a bonus is constructed with."""

    network: NetworkSpec
    columns: int
    """of this learner"""
    seed: int
    device: torch.device
    moments: Callable[[Array], tuple[Array, Array, float]]
    """rows [n, d] → mean [d] and variance [d] over all ranks, and the number of rows"""


class Bonus(Protocol):
    head: ValueHead | None
    """its own return and value; None: the bonus is added to the reward"""
    term: LossTerm | None
    """its own loss, if it learns"""
    metrics: Mapping[str, Reduction]
    """names of the metrics that `reward` returns"""
    per_column: tuple[str, ...]
    """names of the arrays of `state` whose first axis is this learner's columns"""

    def reward(self, rollout: Rollout, observations: RolloutObservations) -> tuple[Array, Metrics]:
        """The bonus [T, B] of each step, used where `rollout.valid`; and its metrics."""

    def state(self) -> dict[str, Array]:
        """Copies of its statistics; its parameters are saved with the learner's."""

    def restore(self, state: dict[str, Array]) -> None:
        """Load what `state` returned."""
