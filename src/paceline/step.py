"""The minibatch step, split at the gradient, where ranks agree: eager, or compiled.

`gradient(rows)` fills one buffer [sum of gradients | sums of terms | number of rows that count];
`apply` divides by that number, clips, and lets the optimiser move the weights. R = rows.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, functionalize, grad
from torch.fx.experimental.proxy_tensor import make_fx

from .algorithms import Algorithm
from .batch import Prediction, Rows
from .machine import CACHE, compiled_cache, wanted_compiler
from .optimizers import Optimizer
from .policy.actor_critic import ActorCritic
from .policy.flat import Flat

Compiled = Callable[..., list[Tensor]]


class Objective(nn.Module):
    """A module and what an algorithm makes of its predictions."""

    def __init__(self, module: ActorCritic, algorithm: Algorithm) -> None:
        super().__init__()
        self.module = module
        self.algorithm = algorithm

    def forward(self, remaining: Any, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """The loss summed over rows that count; and [its terms summed…, number of such rows]."""
        rows = Rows.of(tensors)
        return self.judge(self.module.predict(rows.inputs, rows.action), rows, remaining)

    def judge(self, prediction: Prediction, rows: Rows, remaining: Any) -> tuple[Tensor, Tensor]:
        loss, terms = self.algorithm.loss(prediction, rows, remaining)
        with torch.no_grad():
            reported = torch.stack([loss, *terms, torch.ones_like(loss)])
            sums = reported @ rows.weight
        return loss @ rows.weight, sums


class Step:
    """Owns the gradient buffer and the optimiser's state.

    Gradients are taken at `flat`'s weights; `target` is what the optimiser moves, which is the
    same tensor unless several processes share it. `share` makes the optimiser's state.
    """

    def __init__(
        self,
        objective: Objective,
        flat: Flat,
        optimizer: Optimizer,
        max_grad_norm: float,
        compiled: bool,
        target: Tensor | None = None,
        share: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> None:
        self._objective, self._flat, self._optimizer = objective, flat, optimizer
        self._target = flat.weights if target is None else target
        self._max_norm, self._compile = max_grad_norm, compiled
        self.names = ("loss", *objective.algorithm.terms, "grad_norm")
        """what `apply` returns"""
        self._size = len(flat.weights)
        self.buffer = flat.weights.new_zeros(self._size + len(self.names))
        self.moments = [share(torch.zeros_like(flat.weights)) for _ in range(optimizer.moments)]
        self.count = 0
        self._gradient: Compiled | None = None
        self._both: Compiled | None = None
        self._move: Compiled | None = None
        gradients = flat.layout.views(self.buffer[: self._size])
        self._frozen: set[str] = set()
        """parameters of a user's encoder that are not to be trained"""
        for name, parameter in objective.module.named_parameters():
            if parameter.requires_grad:
                parameter.grad = gradients[name]
            else:
                self._frozen.add(name)

    def gradient(
        self, rows: Rows, remaining: float, prediction: Prediction | None = None
    ) -> Tensor:
        """Fill and return the buffer; ranks add theirs before it is applied.

        What is predicted of the rows may be known already, where steps are not compiled.
        """
        if not self._compile:
            self.buffer[: self._size].zero_()
            if prediction is None:
                total, sums = self._objective(remaining, *rows.tensors())
            else:
                total, sums = self._objective.judge(prediction, rows, remaining)
            total.backward()  # adds into the buffer, of which every parameter's .grad is a view
            self.buffer[self._size :] = sums
            return self.buffer
        inputs = [self._flat.weights, _scalar(remaining), *rows.tensors()]
        if self._gradient is None:
            self._gradient = compiled(self._pure_gradient, inputs)
        self.buffer.copy_(self._gradient(*inputs)[0])
        return self.buffer

    def apply(self, lr: float) -> Tensor:
        """Take one optimiser step; returns the mean of each term and the gradient's norm."""
        self.count += 1
        rate, floor = self._optimizer.numbers(lr, self.count)
        tensors = [self.buffer, self._target, *self.moments]
        if not self._compile:
            with torch.no_grad():
                return self._pure_move(rate, floor, *tensors)[0]
        inputs = [_scalar(rate), _scalar(floor), *tensors]
        if self._move is None:
            self._move = compiled(functionalize(self._pure_move), inputs)
        return self._move(*inputs)[0]

    def whole(
        self, rows: Rows, remaining: float, lr: float, prediction: Prediction | None = None
    ) -> Tensor:
        """`gradient` and `apply` at once, where nobody has a say in between."""
        if not self._compile:
            self.gradient(rows, remaining, prediction)
            return self.apply(lr)
        self.count += 1
        numbers = [*self._optimizer.numbers(lr, self.count), remaining]
        inputs = [*map(_scalar, numbers), self._flat.weights, *self.moments, *rows.tensors()]
        if self._both is None:
            self._both = compiled(functionalize(self._pure_whole), inputs)
        return self._both(*inputs)[0]

    def prepare(self, rows: Rows, whole: bool) -> None:
        """Compile for rows of this shape, for either way of taking a step; nothing is changed."""
        numbers = [_scalar(1.0)] * 3
        if whole:
            inputs = [*numbers, self._flat.weights, *self.moments, *rows.tensors()]
            self._both = compiled(functionalize(self._pure_whole), inputs)
            return
        inputs = [self._flat.weights, numbers[0], *rows.tensors()]
        self._gradient = compiled(self._pure_gradient, inputs)
        inputs = [*numbers[:2], self.buffer, self._target, *self.moments]
        self._move = compiled(functionalize(self._pure_move), inputs)

    def mean_of(self, term: str) -> float:
        """A term's mean over the minibatch whose gradient is in the buffer."""
        index = self._size + self.names.index(term)
        return float(self.buffer[index] / self.buffer[-1].clamp(min=1.0))

    def _pure_gradient(self, flat: Tensor, remaining: Any, *tensors: Tensor) -> list[Tensor]:
        """The buffer as a function of the weights and the rows."""

        def objective(flat: Tensor) -> tuple[Tensor, Tensor]:
            views = self._flat.layout.views(flat)
            named = {
                f"module.{name}": view.detach() if name in self._frozen else view
                for name, view in views.items()
            }
            return functional_call(self._objective, named, (remaining, *tensors))

        gradient, sums = grad(objective, has_aux=True)(flat)
        return [torch.cat([gradient, sums])]

    def _pure_whole(
        self, rate: Any, floor: Any, remaining: Any, weights: Tensor, *tensors: Tensor
    ) -> list[Tensor]:
        """Both of them, one after the other."""
        moments, rows = tensors[: len(self.moments)], tensors[len(self.moments) :]
        (buffer,) = self._pure_gradient(weights, remaining, *rows)
        return self._pure_move(rate, floor, buffer, weights, *moments)

    def _pure_move(self, rate: Any, floor: Any, *tensors: Tensor) -> list[Tensor]:
        """Divide, clip, move: changes the weights and moments among `tensors` and nothing else."""
        buffer, weights, *moments = tensors
        rows = buffer[-1:].clamp(min=1.0)
        gradient = buffer[: self._size] / rows
        norm = gradient.norm()
        gradient = gradient * (self._max_norm / (norm + 1e-6)).clamp(max=1.0)
        self._optimizer.step(weights, gradient, moments, rate, floor)
        return [torch.cat([buffer[self._size : -1] / rows, norm.unsqueeze(0)])]


def compiled(function: Callable[..., list[Tensor]], inputs: list[Tensor]) -> Compiled:
    """Trace `function` on inputs of the right shapes, and compile it for these shapes alone.

    Straight to Inductor: `torch.compile` checks its guards at every call, which takes longer than
    a whole optimiser step, and is three times as long in compiling.
    """
    from torch._inductor import codecache, config
    from torch._inductor import compile as inductor
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # torch may have put its own choice there, in /tmp, which nobody asked for or cleans up.
    if os.environ.get(CACHE) in (None, default_cache_dir()):
        os.environ[CACHE] = compiled_cache()

    config.compile_threads = 1  # no pool of processes to leave behind
    headers = Path(os.environ[CACHE]) / "precompiled_headers"  # else in /tmp, come what may
    codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(headers), str(headers / "locks")
    with torch.no_grad():
        # Tracing executes the function, and what that changes must not be ours.
        copies = [tensor.clone() for tensor in inputs]
        return inductor(make_fx(function)(*copies), inputs)  # type: ignore[arg-type]


def _scalar(value: float) -> Tensor:
    """A Python float would be compiled in as a constant."""
    return torch.tensor(value, dtype=torch.float64)


def compiler_missing() -> str | None:
    """Why compiled steps can't be had here, or None."""
    wanted = wanted_compiler(os.environ.get("CXX"))
    if not shutil.which(wanted):
        return f"there is no C++ compiler {wanted} (install it, or name another with CXX)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python's C headers are missing (install python3-dev)"
    return None
