"""The minibatch step, split at the gradient, where ranks agree: eager, or compiled.

`gradient(rows)` fills one buffer [sum of gradients | sums of terms | number of rows that count];
`apply` divides by that number, clips, and lets the optimiser move the weights. R = rows.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from .algorithms import Algorithm
from .batch import Rows
from .optimizers import Optimizer
from .policy.actor_critic import ActorCritic
from .policy.flat import Flat


class Objective(nn.Module):
    """A module and what an algorithm makes of its predictions."""

    def __init__(self, module: ActorCritic, algorithm: Algorithm) -> None:
        super().__init__()
        self.module = module
        self.algorithm = algorithm

    def forward(self, remaining: Any, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """The loss summed over rows that count; and [its terms summed…, number of such rows]."""
        rows = Rows(*tensors)
        prediction = self.module.predict(rows.inputs, rows.action)
        loss, terms = self.algorithm.loss(prediction, rows, remaining)
        reported = torch.stack([loss, *terms]).detach()
        sums = torch.cat([reported @ rows.weight, rows.weight.sum().unsqueeze(0)])
        return (loss * rows.weight).sum(), sums


class Step:
    """Owns the gradient buffer and the optimiser's state."""

    def __init__(
        self,
        objective: Objective,
        flat: Flat,
        optimizer: Optimizer,
        max_grad_norm: float,
        compiled: bool,
    ) -> None:
        self._objective, self._flat, self._optimizer = objective, flat, optimizer
        self._max_norm, self._compiled = max_grad_norm, compiled
        self.names = ("loss", *objective.algorithm.terms, "grad_norm")
        """what `apply` returns"""
        self._size = len(flat.weights)
        self.buffer = flat.weights.new_zeros(self._size + len(self.names))
        self.moments = [torch.zeros_like(flat.weights) for _ in range(optimizer.moments)]
        self.count = 0
        if compiled:
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_cache_directory()))
            torch._inductor.config.compile_threads = 1  # no pool of processes to leave behind
            self._gradient = torch.compile(self._pure_gradient, dynamic=False, fullgraph=True)
            self._move = torch.compile(self._move_weights, dynamic=False, fullgraph=True)
        else:
            self._gradient, self._move = self._eager_gradient, self._move_weights
            gradients = flat.layout.views(self.buffer[: self._size])
            for name, parameter in objective.module.named_parameters():
                parameter.grad = gradients[name]

    def gradient(self, rows: Rows, remaining: float) -> Tensor:
        """Fill and return the buffer; ranks add theirs before it is applied."""
        self._gradient(self._number(remaining), *rows.tensors())
        return self.buffer

    def apply(self, lr: float) -> Tensor:
        """Take one optimiser step; returns the mean of each term and the gradient's norm."""
        self.count += 1
        return self._move(self._number(lr), self._number(self.count))

    def mean_of(self, term: str) -> float:
        """A term's mean over the minibatch whose gradient is in the buffer."""
        index = self._size + self.names.index(term)
        return float(self.buffer[index] / self.buffer[-1].clamp(min=1.0))

    def _number(self, value: float) -> Any:
        """Python floats would be compiled in, and each new value compiled anew."""
        return torch.tensor(value, dtype=torch.float64) if self._compiled else value

    def _eager_gradient(self, remaining: Any, *tensors: Tensor) -> None:
        self.buffer[: self._size].zero_()
        total, sums = self._objective(remaining, *tensors)
        total.backward()  # adds into the buffer, of which every parameter's .grad is a view
        self.buffer[self._size :] = sums

    @torch.no_grad()
    def _pure_gradient(self, remaining: Any, *tensors: Tensor) -> None:
        def of_weights(flat: Tensor) -> tuple[Tensor, Tensor]:
            views = self._flat.layout.views(flat)
            named = {f"module.{name}": view for name, view in views.items()}
            return functional_call(self._objective, named, (remaining, *tensors))  # type: ignore[no-any-return]

        gradient, sums = grad(of_weights, has_aux=True)(self._flat.weights)
        self.buffer.copy_(torch.cat([gradient, sums]))

    @torch.no_grad()
    def _move_weights(self, lr: Any, count: Any) -> Tensor:
        rows = self.buffer[-1:].clamp(min=1.0)
        gradient = self.buffer[: self._size] / rows
        norm = gradient.norm()
        gradient.mul_((self._max_norm / (norm + 1e-6)).clamp(max=1.0))
        self._optimizer.step(self._flat.weights, gradient, self.moments, lr, count)
        return torch.cat([self.buffer[self._size : -1] / rows, norm.unsqueeze(0)])


def compiler_missing() -> str | None:
    """Why compiled steps can't be had here, or None."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        return "there is no C++ compiler (install g++ or clang)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python's C headers are missing (install python3-dev)"
    return None


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "paceline" / "compiled"
