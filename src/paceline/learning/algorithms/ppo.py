"""Proximal policy optimisation: several epochs on each rollout, kept near the old policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le

from ...policy.prediction import Prediction
from ...rollout import Array
from ..batch import Rows, Signals, Targets
from . import Losses, Normalized, PolicyGradient, advantages, gae_targets, value_error


@dataclass(frozen=True, kw_only=True)
class PPO:
    defaults: ClassVar[Mapping[str, Any]] = {"minibatches": 4}
    metrics: ClassVar[tuple[str, ...]] = (*PolicyGradient.metrics, "approx_kl", "clip_frac")
    needs_log_ratio: ClassVar[bool] = False

    clip: Annotated[float, Gt(0), Le(1)] = 0.2
    """how far the probability ratio may move from 1 before its gain stops counting"""
    anneal_clip: bool = False
    """let `clip` fall linearly to 0 over the run"""
    value_clip: Annotated[float, Gt(0)] | None = None
    """keep a new value this near the old one, as in the original code; seldom helps"""
    gae_lambda: Annotated[float, Ge(0), Le(1)] = 0.95
    """λ of generalised advantage estimation"""
    entropy_coef: Annotated[float, Ge(0)] = 0.0
    """weight of the entropy bonus"""
    anneal_entropy: bool = False
    """let `entropy_coef` fall linearly to 0 over the run: explore first, decide in the end"""
    vf_coef: Annotated[float, Ge(0)] = 0.5
    """weight of the value loss, which is itself half the mean squared error"""
    normalize_advantage: Normalized = "rollout"
    """over which rows advantages get mean 0 and deviation 1"""
    target_kl: Annotated[float, Gt(0)] | None = None
    """end a rollout's epochs once the policy has moved 1.5 times this far"""

    @property
    def stop_above(self) -> Mapping[str, float]:
        return {} if self.target_kl is None else {"approx_kl": 1.5 * self.target_kl}

    def targets(self, signals: Signals, value: Array) -> Targets:
        return gae_targets(signals, value, self.gae_lambda)

    def loss(self, prediction: Prediction, rows: Rows, remaining: Any) -> Losses:
        """−min(ρ·Â, clip(ρ)·Â) (Schulman 2017, eq. 7); KL is k3 = (ρ − 1) − log ρ ≥ 0."""
        cost = -advantages(rows, self.normalize_advantage)
        clip = self.clip * remaining if self.anneal_clip else self.clip
        log_ratio = prediction.logp - rows.logp
        ratio = log_ratio.exp()
        old = ratio.detach()
        near = old.clamp(1 - clip, 1 + clip)
        # The worse of both; where that is the limited one, the ratio is clipped: no gradient.
        plain, limited = ratio * cost, near * cost
        policy = plain.where(plain.detach() >= limited, limited)
        value = value_error(prediction.value, rows, self.value_clip)
        entropy = prediction.entropy
        bonus = entropy * remaining if self.anneal_entropy else entropy
        loss = policy.add(value, alpha=self.vf_coef).sub(bonus, alpha=self.entropy_coef)
        change = log_ratio.detach()
        kl, clipped = change.expm1() - change, (near != old).to(old.dtype)
        return loss, [policy, value, entropy, kl, clipped]
