"""IMPALA (Espeholt 2018): an actor-critic on rollouts of older weights, corrected by V-trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le

from ...config.schedules import SectionSchedule
from ...errors import BadInput
from ...policy.network import Prediction
from ...rollout import Array
from ..batch import Rows, Signals, Targets
from ..returns import vtrace
from . import Normalized, PolicyGradient

if TYPE_CHECKING:
    from torch import Tensor

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
    """V-trace ρ̄: upper limit of the importance weight ρ = π/μ of each step"""
    c_bar: Annotated[float, Gt(0)] = 1.0
    """V-trace c̄: upper limit of the trace weight c = π/μ; at most ρ̄"""
    vtrace_lambda: Annotated[float, Ge(0), Le(1)] = 1.0
    """V-trace λ: factor of every trace weight, as in generalized advantage estimation"""
    correction: bool = True
    """apply the V-trace correction; off, rollouts count as on-policy (ρ = c = 1)"""
    entropy_coef: Annotated[float, Ge(0)] = 0.01
    """coefficient of the entropy bonus"""
    entropy_schedule: SectionSchedule = "constant"
    """`entropy_coef` over the budget: constant, linear, cosine:0.001 …, as `lr_schedule`"""
    vf_coef: Annotated[float, Ge(0)] = 0.5
    """coefficient of the value loss ½·(V − R)²"""
    normalize_advantage: Normalized = "none"
    """normalize advantages to mean 0 and standard deviation 1 over the rollout or minibatch"""

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
        """On-policy these are n-step returns."""
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

    def weighted_logp(self, prediction: Prediction, rows: Rows) -> Tensor:
        """ρ·log π. The ρ of this minibatch: steps before it have moved π since `targets`."""
        if not self.correction:
            return prediction.logp
        rho = (prediction.logp.detach() - rows.logp).exp().clamp(max=self.rho_bar)
        return rho * prediction.logp
