"""Optimizers on one flat tensor, in place.

`step_size_and_eps(lr, count)` gives what changes with the number of steps (`count` is 1 at the
first); a compiled `step` takes both as 0-d tensors. `moments` is the number of state tensors, each
as large as the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Adam:
    """Kingma & Ba 2015, equal to torch.optim.Adam."""

    eps: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.999
    moments: int = 2

    def step_size_and_eps(self, lr: float, count: int) -> tuple[float, float]:
        """Both bias corrections folded into the step size and ε, so that moments stay as is."""
        correction = (1 - self.beta2**count) ** 0.5
        return lr * correction / (1 - self.beta1**count), self.eps * correction

    def step(
        self, flat: Tensor, grad: Tensor, state: list[Tensor], step_size: Any, eps: Any
    ) -> None:
        mean, square = state
        mean.lerp_(grad, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        flat.addcdiv_(mean * -step_size, square.sqrt().add_(eps))


@dataclass(frozen=True)
class RMSprop:
    """Tieleman & Hinton 2012, equal to torch.optim.RMSprop: ε outside the root, state from 0."""

    eps: float = 1e-5
    alpha: float = 0.99
    moments: int = 1

    def step_size_and_eps(self, lr: float, count: int) -> tuple[float, float]:
        return lr, self.eps

    def step(
        self, flat: Tensor, grad: Tensor, state: list[Tensor], step_size: Any, eps: Any
    ) -> None:
        (square,) = state
        square.mul_(self.alpha).addcmul_(grad, grad, value=1 - self.alpha)
        flat.addcdiv_(grad * -step_size, square.sqrt().add_(eps))


Optimizer = Adam | RMSprop
OPTIMIZERS = {"adam": Adam, "rmsprop": RMSprop}
"""Names of `Config.optimizer` in `config/schema.py`."""
