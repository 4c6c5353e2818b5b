"""What is optimised. An algorithm is a frozen dataclass of its hyper-parameters with two pure
functions: `targets`, of a whole rollout, and `loss`, of each row of a minibatch.

It knows nothing of samplers and processes, and imports no torch: tensors bring their own methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..batch import Prediction, Rows, Signals, Targets
from ..rollout import Array

if TYPE_CHECKING:
    from torch import Tensor


Losses = tuple["Tensor", list["Tensor"]]
"""The loss [R] of each row, and its metrics [R]."""


class Algorithm(Protocol):
    """Besides, an algorithm may have `defaults`, values of options that suit it, and `name`, that
    of its section of options; and `refuse(config)` may raise BadInput."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `loss` returns beside the loss itself."""

    @property
    def normalize_advantage(self) -> Literal["rollout", "minibatch", "none"]: ...

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
