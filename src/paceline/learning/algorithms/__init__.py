"""What is optimised. An algorithm is a frozen dataclass of its hyper-parameters with two pure
functions: `targets`, of a whole rollout, and `loss`, of each row of a minibatch.

It knows nothing of samplers and processes, and imports no torch: tensors bring their own methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from ...policy.prediction import Prediction
from ...rollout import Array
from ..batch import Rows, Signals, Targets
from ..returns import gae

if TYPE_CHECKING:
    from torch import Tensor


Losses = tuple["Tensor", list["Tensor"]]
"""The loss [R] of each row, and its metrics [R]."""
Normalized = Literal["rollout", "minibatch", "none"]
"""Over which rows advantages get mean 0 and deviation 1."""


class Algorithm(Protocol):
    """Besides, an algorithm may have `defaults`, values of options that suit it, and `name`, that
    of its section of options; and `refuse(config)` may raise BadInput."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `loss` returns beside the loss itself."""

    @property
    def normalize_advantage(self) -> Normalized: ...

    @property
    def stop_above(self) -> Mapping[str, float]:
        """Ends a rollout's epochs before a step on whose minibatch a metric's mean is above."""

    @property
    def needs_log_ratio(self) -> bool:
        """Whether `targets` needs log π − log μ of every action; with it, rollouts of older
        weights can be used."""

    def targets(self, signals: Signals, value: Array) -> Targets:
        """Advantages and returns, from `value[T+1, B, H]` of every observation."""

    def loss(self, prediction: Prediction, rows: Rows, remaining: Any) -> Losses:
        """Of each row; `remaining` falls from 1 to 0 over a run."""


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


def advantages(rows: Rows, normalized: Normalized) -> Tensor:
    """Of a minibatch: as they are, or with mean 0 and deviation 1 over the rows that count.

    A single one, which is its own mean, stays as it is: 0 would teach nothing.
    """
    if normalized != "minibatch":
        return rows.advantage
    count = rows.weight.sum().clamp(min=1.0)
    centered = rows.advantage - (rows.advantage * rows.weight).sum() / count
    deviation = ((centered.square() * rows.weight).sum() / count).sqrt()
    return (centered / (deviation + 1e-8)).where(count > 1, rows.advantage)


class PolicyGradient:
    """A2C and IMPALA but for their targets."""

    metrics: ClassVar[tuple[str, ...]] = ("policy_loss", "value_loss", "entropy")
    stop_above: ClassVar[Mapping[str, float]] = {}

    entropy_coef: float
    vf_coef: float
    normalize_advantage: Normalized

    def loss(self, prediction: Prediction, rows: Rows, remaining: Any) -> Losses:
        """−log π(a|s)·Â, and the value's error (Mnih 2016, §4; Espeholt 2018, §4.2)."""
        policy = -prediction.logp * advantages(rows, self.normalize_advantage)
        value, entropy = value_error(prediction.value, rows), prediction.entropy
        loss = policy.add(value, alpha=self.vf_coef).sub(entropy, alpha=self.entropy_coef)
        return loss, [policy, value, entropy]
