"""IMPALA: an actor-critic whose rollouts may come from older weights, corrected by V-trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le

from ...errors import BadInput
from ...rollout import Array
from ..batch import Signals, Targets
from ..returns import vtrace
from . import Normalized, PolicyGradient

if TYPE_CHECKING:
    from ...config.schema import Config


@dataclass(frozen=True, kw_only=True)
class IMPALA(PolicyGradient):
    defaults: ClassVar[Mapping[str, Any]] = {
        "rollout_steps": 20,
        "epochs": 1,
        "minibatches": 1,
        "lr": 6e-4,
        "optimizer": "rmsprop",
        "log_every": 20,
    }
    needs_log_ratio: ClassVar[bool] = True

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
    normalize_advantage: Normalized = "none"
    """over which rows advantages get mean 0 and deviation 1"""

    def refuse(self, config: Config) -> None:
        if config.epochs != 1:
            raise BadInput(
                f"impala passes over each rollout once, and epochs is {config.epochs}; leave it at "
                "1, or use --algo ppo"
            )
        if self.c_bar > self.rho_bar:
            raise BadInput(
                f"impala.c_bar is {self.c_bar} and impala.rho_bar {self.rho_bar}; c_bar may not be "
                f"the larger; write both, such as --impala.rho-bar {self.rho_bar} --impala.c-bar "
                f"{self.rho_bar}"
            )

    def targets(self, signals: Signals, value: Array) -> Targets:
        """The advantage carries its ρ; with the policy's own rollouts these are n-step returns."""
        log_ratio = signals.log_ratio if self.correction else 0.0 * signals.log_ratio
        each = signals.reward, signals.discount, signals.trace
        lam, idle = signals.lam(self.vtrace_lambda), signals.idle
        returns, advantage = vtrace(*each, value, log_ratio, self.rho_bar, self.c_bar, lam, idle)
        return Targets(signals.weighted(advantage), returns)
