"""Proximal policy optimization (Schulman 2017): clipped ratio, several epochs per rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le

from ...config.schedules import SectionSchedule
from ...policy.network import Prediction
from ...rollout import Array
from ..batch import Rows, Signals, Targets
from . import Losses, Normalized, PolicyGradient, Schedules, advantages, gae_targets, value_error


@dataclass(frozen=True, kw_only=True)
class PPO:
    defaults: ClassVar[Mapping[str, Any]] = {"minibatches": 4}
    metrics: ClassVar[tuple[str, ...]] = (*PolicyGradient.metrics, "approx_kl", "clip_frac")
    needs_log_ratio: ClassVar[bool] = False

    clip: Annotated[float, Gt(0), Le(1)] = 0.2
    """PPO clip range ε: the probability ratio is limited to [1 − ε, 1 + ε]"""
    clip_schedule: SectionSchedule = "constant"
    """`clip` over the budget: constant, linear, cosine:0.05 …, as `lr_schedule`"""
    value_clip: Annotated[float, Gt(0)] | None = None
    """clip range of the value function, in units of returns; off by default, seldom helps"""
    gae_lambda: Annotated[float, Ge(0), Le(1)] = 0.95
    """λ of generalized advantage estimation"""
    entropy_coef: Annotated[float, Ge(0)] = 0.0
    """coefficient of the entropy bonus"""
    entropy_schedule: SectionSchedule = "constant"
    """`entropy_coef` over the budget: constant, linear, cosine:0.001 …, as `lr_schedule`"""
    vf_coef: Annotated[float, Ge(0)] = 0.5
    """coefficient of the value loss ½·(V − R)²"""
    normalize_advantage: Normalized = "rollout"
    """normalize advantages to mean 0 and standard deviation 1 over the rollout or minibatch"""
    target_kl: Annotated[float, Gt(0)] | None = None
    """stop a rollout's epochs early once the approximate KL divergence exceeds 1.5 × this"""

    @property
    def stop_above(self) -> Mapping[str, float]:
        return {} if self.target_kl is None else {"approx_kl": 1.5 * self.target_kl}

    @property
    def schedules(self) -> Schedules:
        return {
            "clip": (self.clip, self.clip_schedule),
            "entropy_coef": (self.entropy_coef, self.entropy_schedule),
        }

    def targets(self, signals: Signals, value: Array) -> Targets:
        return gae_targets(signals, value, self.gae_lambda)

    def loss(
        self, prediction: Prediction, rows: Rows, progress_remaining: Any, **factors: Any
    ) -> Losses:
        """−min(ρ·Â, clip(ρ)·Â) (Schulman 2017, eq. 7); KL is k3 = (ρ − 1) − log ρ ≥ 0."""
        cost = -advantages(rows, self.normalize_advantage)
        clip = self.clip * factors.get("clip", 1.0)
        log_ratio = prediction.logp - rows.logp
        ratio = log_ratio.exp()
        fixed_ratio = ratio.detach()
        clipped_ratio = fixed_ratio.clamp(1 - clip, 1 + clip)
        # The larger of both losses; the clipped one carries no gradient.
        plain, limited = ratio * cost, clipped_ratio * cost
        policy = plain.where(plain.detach() >= limited, limited)
        value = value_error(prediction.value, rows, self.value_clip)
        entropy = prediction.entropy
        bonus = entropy * factors["entropy_coef"] if "entropy_coef" in factors else entropy
        loss = policy.add(value, alpha=self.vf_coef).sub(bonus, alpha=self.entropy_coef)
        change = log_ratio.detach()
        kl = change.expm1() - change
        clip_frac = (clipped_ratio != fixed_ratio).to(fixed_ratio.dtype)
        return loss, [policy, value, entropy, kl, clip_frac]
