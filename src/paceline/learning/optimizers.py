"""Optimisers on one flat tensor, in place.

`step_size_and_eps(lr, count)` gives what changes with the `count` of steps, 1 at the first; a
compiled `step` takes both as 0-d tensors. `moments` is the number of state tensors, each as large
as the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Adam:
    """Kingma & Ba 2015, as torch.optim.Adam has it."""

    eps: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.999
    moments: int = 2

    def step_size_and_eps(self, lr: float, count: int) -> tuple[float, float]:
        """Both bias corrections, and ε scaled so that they need not touch the moments."""
        unbias = (1 - self.beta2**count) ** 0.5
        return lr * unbias / (1 - self.beta1**count), self.eps * unbias

    def step(self, flat: Tensor, grad: Tensor, state: list[Tensor], rate: Any, floor: Any) -> None:
        mean, square = state
        mean.lerp_(grad, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        flat.addcdiv_(mean * -rate, square.sqrt().add_(floor))


@dataclass(frozen=True)
class RMSprop:
    """Tieleman & Hinton 2012, as torch.optim.RMSprop has it: ε outside the root, from zero."""

    eps: float = 1e-5
    alpha: float = 0.99
    moments: int = 1

    def step_size_and_eps(self, lr: float, count: int) -> tuple[float, float]:
        return lr, self.eps

    def step(self, flat: Tensor, grad: Tensor, state: list[Tensor], rate: Any, floor: Any) -> None:
        (square,) = state
        square.mul_(self.alpha).addcmul_(grad, grad, value=1 - self.alpha)
        flat.addcdiv_(grad * -rate, square.sqrt().add_(floor))


Optimizer = Adam | RMSprop
OPTIMIZERS = {"adam": Adam, "rmsprop": RMSprop}
