"""Algorithms: a frozen dataclass of hyperparameters with two pure functions, `targets` of a whole
rollout and `loss` of each row of a minibatch.

No imports of samplers, processes or torch (tensors bring their own methods). T = steps,
B = columns, H = value heads, R = rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from ...policy.network import Prediction
from ...rollout import Array
from ..batch import Rows, Signals, Targets
from ..returns import gae

if TYPE_CHECKING:
    from torch import Tensor


Losses = tuple["Tensor", list["Tensor"]]
"""The loss [R] of each row, and metrics [R] each."""
Normalized = Literal["rollout", "minibatch", "none"]
"""Rows over which advantages are normalized to mean 0 and standard deviation 1."""
Schedules = Mapping[str, tuple[float, str]]
"""Options that change over the run: the value that each is configured as, and its schedule."""


class Algorithm(Protocol):
    """Optional besides: `defaults` (values of run options that suit it), `name` (of its section
    of options), `refuse(config)`, which raises BadInput for a configuration it can't run, and
    `schedules` (options that change over the run), whose factors `loss` gets by name."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that `loss` returns."""

    @property
    def normalize_advantage(self) -> Normalized: ...

    @property
    def stop_above(self) -> Mapping[str, float]:
        """Limits of metrics: the first minibatch whose mean is above one ends the update before
        its step is taken."""

    @property
    def needs_log_ratio(self) -> bool:
        """Whether `targets` needs log π − log μ of every action. Such an algorithm corrects for
        off-policy data, so it can learn from rollouts of older weights."""

    def targets(self, signals: Signals, value: Array) -> Targets:
        """Advantages and returns, from `value[T+1, B, H]` of every observation."""

    def loss(
        self, prediction: Prediction, rows: Rows, progress_remaining: Any, **factors: Any
    ) -> Losses:
        """Per row; `progress_remaining` falls from 1 to 0 over the run, and each of `schedules`
        that is not constant has a factor here, by which its option is multiplied."""


def gae_targets(signals: Signals, value: Array, lam: float) -> Targets:
    """GAE advantages, and returns = advantage + V, which are TD(λ) targets."""
    advantage = gae(signals.reward, signals.discount, signals.trace, value, signals.lam(lam))
    return Targets(signals.weighted(advantage), advantage + value[:-1])


def value_error(value: Tensor, rows: Rows, clip: float | None = None) -> Tensor:
    """½·(V − return)² [R], summed over heads; with `clip` the larger of it and its clipped form."""
    error = (value - rows.returns).square()
    if clip is not None:
        clipped = rows.value + (value - rows.value).clamp(-clip, clip)
        error = error.maximum((clipped - rows.returns).square())
    return 0.5 * error.sum(-1)


def advantages(rows: Rows, normalized: Normalized) -> Tensor:
    """Advantages [R] of a minibatch, normalized over its rows with weight 1 if so configured.

    A single such row is its own mean; it is left as is, since 0 would give no gradient.
    """
    if normalized != "minibatch":
        return rows.advantage
    count = rows.weight.sum().clamp(min=1.0)
    centered = rows.advantage - (rows.advantage * rows.weight).sum() / count
    deviation = ((centered.square() * rows.weight).sum() / count).sqrt()
    return (centered / (deviation + 1e-8)).where(count > 1, rows.advantage)


class PolicyGradient:
    """Loss of A2C and IMPALA, which differ in their targets and in the weight of a row."""

    metrics: ClassVar[tuple[str, ...]] = ("policy_loss", "value_loss", "entropy")
    stop_above: ClassVar[Mapping[str, float]] = {}

    entropy_coef: float
    entropy_schedule: str
    vf_coef: float
    normalize_advantage: Normalized

    @property
    def schedules(self) -> Schedules:
        return {"entropy_coef": (self.entropy_coef, self.entropy_schedule)}

    def weighted_logp(self, prediction: Prediction, rows: Rows) -> Tensor:
        """log π(a|s) [R] with the weight of each row, here 1."""
        return prediction.logp

    def loss(
        self, prediction: Prediction, rows: Rows, progress_remaining: Any, **factors: Any
    ) -> Losses:
        """−log π(a|s)·Â, value error and entropy (Mnih 2016, §4; Espeholt 2018, §4.2)."""
        policy = -self.weighted_logp(prediction, rows) * advantages(rows, self.normalize_advantage)
        value, entropy = value_error(prediction.value, rows), prediction.entropy
        bonus = entropy * factors["entropy_coef"] if "entropy_coef" in factors else entropy
        loss = policy.add(value, alpha=self.vf_coef).sub(bonus, alpha=self.entropy_coef)
        return loss, [policy, value, entropy]
