"""IMPALA: an actor-critic whose rollouts may come from older weights, corrected by V-trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from ..batch import Signals, Targets
from ..returns import vtrace
from ..rollout import Array
from .advantage import PolicyGradient


@dataclass(frozen=True, kw_only=True)
class IMPALA(PolicyGradient):
    rho_bar: Annotated[float, Gt(0)] = 1.0
    """ρ̄: a step's own correction, the ratio of both policies, is cut off here"""
    c_bar: Annotated[float, Gt(0)] = 1.0
    """c̄: how much of later steps' surprise reaches back through a step; not above ρ̄"""
    vtrace_lambda: Annotated[float, Ge(0), Le(1)] = 1.0
    """λ: the trace is shortened by it, as in generalised advantage estimation"""
    correction: bool = True
    """correct for the policy's age; off, every rollout is taken for the current policy's own"""
    entropy_coef: Annotated[float, Ge(0)] = 0.01
    """weight of the entropy bonus"""
    vf_coef: Annotated[float, Ge(0)] = 0.5
    """weight of the value loss, which is itself half the mean squared error"""
    normalize_advantage: Literal["rollout", "minibatch", "none"] = "none"
    """over which rows advantages get mean 0 and deviation 1"""

    @property
    def needs_log_ratio(self) -> bool:
        return True

    def targets(self, signals: Signals, value: Array) -> Targets:
        """The advantage carries its ρ; with the policy's own rollouts these are n-step returns."""
        log_ratio = signals.log_ratio if self.correction else 0.0 * signals.log_ratio
        returns, advantage = vtrace(
            signals.reward,
            signals.discount,
            signals.trace,
            value,
            log_ratio,
            self.rho_bar,
            self.c_bar,
            signals.lam(self.vtrace_lambda),
            signals.idle,
        )
        return Targets(signals.weighted(advantage), returns)
