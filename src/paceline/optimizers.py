"""Optimisers on one flat tensor. In place; numbers that change come as floats or 0-d tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class Optimizer(Protocol):
    @property
    def moments(self) -> int:
        """How many tensors of state it keeps, each as large as the weights."""

    def step(self, flat: Tensor, grad: Tensor, state: list[Tensor], lr: Any, count: Any) -> None:
        """Move `flat` against `grad`; `count` is 1 at the first step."""


@dataclass(frozen=True)
class Adam:
    """Kingma & Ba 2015, as torch.optim.Adam has it."""

    eps: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.999
    moments: int = 2

    def step(self, flat: Tensor, grad: Tensor, state: list[Tensor], lr: Any, count: Any) -> None:
        mean, square = state
        mean.lerp_(grad, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        unbias = (1 - self.beta2**count) ** 0.5
        deviation = square.sqrt().div_(unbias).add_(self.eps)
        flat.sub_(mean.div(deviation).mul_(lr / (1 - self.beta1**count)))


@dataclass(frozen=True)
class RMSprop:
    """Tieleman & Hinton 2012, as torch.optim.RMSprop has it: ε outside the root, from zero."""

    eps: float = 1e-5
    alpha: float = 0.99
    moments: int = 1

    def step(self, flat: Tensor, grad: Tensor, state: list[Tensor], lr: Any, count: Any) -> None:
        (square,) = state
        square.mul_(self.alpha).addcmul_(grad, grad, value=1 - self.alpha)
        flat.sub_(grad.div(square.sqrt().add_(self.eps)).mul_(lr))


OPTIMIZERS = {"adam": Adam, "rmsprop": RMSprop}
