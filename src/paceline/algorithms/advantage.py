"""What actor-critics share: targets by GAE, the error of the value, the plain loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..batch import Prediction, Rows, Signals, Targets
from ..returns import gae
from ..rollout import Array

if TYPE_CHECKING:
    from torch import Tensor

    from . import Losses


def gae_targets(signals: Signals, value: Array, lam: float) -> Targets:
    """returns = advantage + the value it was measured against, so TD(λ)."""
    advantage = gae(signals.reward, signals.discount, signals.trace, value, lam)
    return Targets(advantage.sum(-1), advantage + value[:-1])


def value_error(value: Tensor, rows: Rows, clip: float | None = None) -> Tensor:
    """½·(V − return)², summed over streams; with `clip` the worse of it and its clipped form."""
    error = (value - rows.returns).square()
    if clip is not None:
        clipped = rows.value + (value - rows.value).clamp(-clip, clip)
        error = error.maximum((clipped - rows.returns).square())
    return 0.5 * error.sum(-1)


def actor_critic_loss(
    prediction: Prediction, rows: Rows, minibatch: bool, vf_coef: float, entropy_coef: float
) -> Losses:
    """−log π(a|s)·Â, and the value's error (Mnih 2016, §4); `minibatch` standardises Â first."""
    policy = -prediction.logp * (standardized(rows) if minibatch else rows.advantage)
    value = value_error(prediction.value, rows)
    loss = policy.add(value, alpha=vf_coef).sub(prediction.entropy, alpha=entropy_coef)
    return loss, [policy, value, prediction.entropy]


def standardized(rows: Rows) -> Tensor:
    """Advantages with mean 0 and deviation 1 over the rows that count."""
    count = rows.weight.sum().clamp(min=1.0)
    centered = rows.advantage - (rows.advantage * rows.weight).sum() / count
    deviation = ((centered.square() * rows.weight).sum() / count).sqrt()
    return centered / (deviation + 1e-8)
