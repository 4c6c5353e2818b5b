"""Advantage actor-critic: one step on each short rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from ..batch import Signals, Targets
from ..rollout import Array
from .advantage import PolicyGradient, gae_targets


@dataclass(frozen=True, kw_only=True)
class A2C(PolicyGradient):
    gae_lambda: Annotated[float, Ge(0), Le(1)] = 1.0
    """λ of generalised advantage estimation; 1 gives n-step returns"""
    entropy_coef: Annotated[float, Ge(0)] = 0.0
    """weight of the entropy bonus"""
    vf_coef: Annotated[float, Ge(0)] = 0.5
    """weight of the value loss, which is itself half the mean squared error"""
    normalize_advantage: Literal["rollout", "minibatch", "none"] = "none"
    """over which rows advantages get mean 0 and deviation 1"""

    @property
    def needs_log_ratio(self) -> bool:
        return False

    def targets(self, signals: Signals, value: Array) -> Targets:
        return gae_targets(signals, value, self.gae_lambda)
