"""Advantage actor-critic (Mnih 2016): one step per short rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge, Le

from ...config.schedules import SectionSchedule
from ...errors import BadInput
from ...rollout import Array
from ..batch import Signals, Targets
from . import Normalized, PolicyGradient, gae_targets

if TYPE_CHECKING:
    from ...config.schema import Config


@dataclass(frozen=True, kw_only=True)
class A2C(PolicyGradient):
    defaults: ClassVar[Mapping[str, Any]] = {
        "rollout_steps": 5,
        "epochs": 1,
        "minibatches": 1,
        "lr": 7e-4,
        "optimizer": "rmsprop",
        "log_every": 100,
    }
    needs_log_ratio: ClassVar[bool] = False

    gae_lambda: Annotated[float, Ge(0), Le(1)] = 1.0
    """λ of generalized advantage estimation; 1 gives n-step returns"""
    entropy_coef: Annotated[float, Ge(0)] = 0.0
    """coefficient of the entropy bonus"""
    entropy_schedule: SectionSchedule = "constant"
    """`entropy_coef` over the budget: constant, linear, cosine:0.001 …, as `lr_schedule`"""
    vf_coef: Annotated[float, Ge(0)] = 0.5
    """coefficient of the value loss ½·(V − R)²"""
    normalize_advantage: Normalized = "none"
    """normalize advantages to mean 0 and standard deviation 1 over the rollout or minibatch"""

    def refuse(self, config: Config) -> None:
        if (config.epochs, config.minibatch_count) != (1, 1):
            raise BadInput(
                f"{config.algo_name} takes one step per rollout, and epochs is {config.epochs} "
                f"with {config.minibatch_count} minibatches; leave both at 1, or use --algo ppo"
            )

    def targets(self, signals: Signals, value: Array) -> Targets:
        return gae_targets(signals, value, self.gae_lambda)
