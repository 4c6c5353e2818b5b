"""What actor-critics share: targets by GAE, the error of the value, the plain loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..batch import Prediction, Rows, Signals, Targets
from ..returns import gae
from ..rollout import Array

if TYPE_CHECKING:
    from torch import Tensor

    from . import Losses


def gae_targets(signals: Signals, value: Array, lam: float) -> Targets:
    """returns = advantage + the value it was measured against, so TD(λ)."""
    each = signals.reward, signals.discount, signals.trace
    advantage = gae(*each, value, signals.lam(lam))
    return Targets(signals.weighted(advantage), advantage + value[:-1])


def value_error(value: Tensor, rows: Rows, clip: float | None = None) -> Tensor:
    """½·(V − return)², summed over heads; with `clip` the worse of it and its clipped form."""
    error = (value - rows.returns).square()
    if clip is not None:
        clipped = rows.value + (value - rows.value).clamp(-clip, clip)
        error = error.maximum((clipped - rows.returns).square())
    return 0.5 * error.sum(-1)


def standardized(rows: Rows) -> Tensor:
    """Advantages with mean 0 and deviation 1 over the rows that count.

    A single one, which is its own mean, stays as it is: 0 would teach nothing.
    """
    count = rows.weight.sum().clamp(min=1.0)
    centered = rows.advantage - (rows.advantage * rows.weight).sum() / count
    deviation = ((centered.square() * rows.weight).sum() / count).sqrt()
    return (centered / (deviation + 1e-8)).where(count > 1, rows.advantage)


class PolicyGradient:
    """What A2C and IMPALA share: all but their targets."""

    entropy_coef: float
    vf_coef: float
    normalize_advantage: Literal["rollout", "minibatch", "none"]

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("policy_loss", "value_loss", "entropy")

    @property
    def stop_above(self) -> Mapping[str, float]:
        return {}

    def loss(self, prediction: Prediction, rows: Rows, remaining: Any) -> Losses:
        """−log π(a|s)·Â, and the value's error (Mnih 2016, §4; Espeholt 2018, §4.2)."""
        minibatch = self.normalize_advantage == "minibatch"
        policy = -prediction.logp * (standardized(rows) if minibatch else rows.advantage)
        value, entropy = value_error(prediction.value, rows), prediction.entropy
        loss = policy.add(value, alpha=self.vf_coef).sub(entropy, alpha=self.entropy_coef)
        return loss, [policy, value, entropy]
