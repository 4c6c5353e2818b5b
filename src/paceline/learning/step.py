"""The minibatch step, split at the gradient, where ranks agree: eager, or compiled.

`gradient(rows)` fills one buffer [sums of gradients | for each loss: its sum, sums of metrics, how
many rows count]; `apply` divides each group by that number, clips it, and lets the optimiser move
the weights. R = rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, functionalize, grad

from ..policy.actor_critic import ActorCritic, RecurrentInputs
from ..policy.flat import FlatParameters
from ..policy.prediction import Prediction
from ..rollout import Array, Rollout
from .algorithms import Algorithm, Losses
from .batch import Rows
from .compiler import Compiled, compiled, scalar
from .optimizers import Optimizer


class LossTerm(Protocol):
    """A loss with parameters of its own, which are a group: clipped and divided for themselves."""

    name: str
    """what its loss and the norm of its gradient are called after; empty for the algorithm's own"""

    @property
    def module(self) -> nn.Module:
        """Its parameters."""

    metrics: tuple[str, ...]
    """names of what `loss` returns beside the loss"""
    max_grad_norm: float
    needs_next: bool
    """whether it reads `rows.next_inputs`"""

    def rows(self, rollout: Rollout) -> Mapping[str, Array]:
        """[T, B, ...] what it needs of each row besides, by name: `rows.extra` in `loss`."""

    def loss(self, rows: Rows, remaining: Any) -> Losses:
        """Of each row; `remaining` falls from 1 to 0 over a run."""

    def weight(self, rows: Rows) -> Tensor:
        """[R] how much each row counts; gradients and metrics are divided by their sum."""


class PolicyLoss:
    """What an algorithm makes of an actor-critic's predictions."""

    name, needs_next = "", False

    def __init__(self, module: ActorCritic, algorithm: Algorithm, max_grad_norm: float) -> None:
        self.module, self._algorithm, self.max_grad_norm = module, algorithm, max_grad_norm
        self.metrics = algorithm.metrics

    def loss(self, rows: Rows, remaining: Any, prediction: Prediction | None = None) -> Losses:
        """What is predicted of the rows may be known already."""
        if prediction is None:
            prediction = self.module.predict(rows.inputs, rows.action, recurrent_inputs(rows))
        return self._algorithm.loss(prediction, rows, remaining)

    def rows(self, rollout: Rollout) -> Mapping[str, Array]:
        return {}

    def weight(self, rows: Rows) -> Tensor:
        return rows.weight


class Objective(nn.Module):
    """All that a step minimises: the algorithm's loss, and those of others, each on its group."""

    def __init__(self, policy: PolicyLoss, *others: LossTerm) -> None:
        super().__init__()
        self._policy = policy
        self.terms: tuple[LossTerm, ...] = (policy, *others)
        self.parts = nn.ModuleList(term.module for term in self.terms)
        self.names: list[tuple[str, ...]] = []
        """of each term: its loss, its metrics, and the norm of its gradient"""
        for term in self.terms:
            prefix = f"{term.name}_" if term.name else ""
            self.names.append((f"{prefix}loss", *term.metrics, f"{prefix}grad_norm"))

    def forward(
        self, remaining: Any, rows: Rows, prediction: Prediction | None = None
    ) -> tuple[Tensor, Tensor]:
        """The losses summed over rows that count; and of each [loss, metrics…, count], summed."""
        total, sums = self._summed(
            self._policy, rows, *self._policy.loss(rows, remaining, prediction)
        )
        for term in self.terms[1:]:
            more, sums_of_term = self._summed(term, rows, *term.loss(rows, remaining))
            total, sums = total + more, torch.cat([sums, sums_of_term])
        return total, sums

    def _summed(
        self, term: LossTerm, rows: Rows, loss: Tensor, metrics: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        weight = term.weight(rows)
        with torch.no_grad():
            sums = torch.stack([loss, *metrics, torch.ones_like(loss)]) @ weight
        return loss @ weight, sums


class Step:
    """Owns the gradient buffer and the optimiser's state.

    Gradients are taken at `flat`'s weights; `target` is what the optimiser moves, which is the
    same tensor unless several processes share it. `share` makes the optimiser's state.
    """

    def __init__(
        self,
        objective: Objective,
        flat: FlatParameters,
        optimizer: Optimizer,
        compiled: bool,
        target: Tensor | None = None,
        share: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> None:
        self._objective, self._flat, self._optimizer = objective, flat, optimizer
        self._target = flat.weights if target is None else target
        self._compile = compiled
        self.names = tuple(name for names in objective.names for name in names)
        """what `apply` returns"""
        self._groups = [sum(p.numel() for p in t.module.parameters()) for t in objective.terms]
        """sizes of the groups, one after the other"""
        self._size = len(flat.weights)
        self.buffer = flat.weights.new_zeros(self._size + len(self.names))
        self.moments = [share(torch.zeros_like(flat.weights)) for _ in range(optimizer.moments)]
        self.count = 0
        self._gradient: Compiled | None = None
        self._both: Compiled | None = None
        self._move: Compiled | None = None
        self._structure: Rows | None = None
        """of the rows that it is compiled for"""
        gradients = flat.layout.views(self.buffer[: self._size])
        self._frozen: set[str] = set()
        """parameters of a user's module that are not to be trained"""
        for name, parameter in objective.named_parameters():
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
            total, sums = self._objective(remaining, rows, prediction)
            total.backward()  # adds into the buffer, of which every parameter's .grad is a view
            self.buffer[self._size :] = sums
            return self.buffer
        if self._gradient is None:
            self.prepare(rows, whole=False)
        assert self._gradient is not None
        inputs = [self._flat.weights, scalar(remaining), *rows.tensors()]
        self.buffer.copy_(self._gradient(*inputs)[0])
        return self.buffer

    def apply(self, lr: float) -> Tensor:
        """Take one optimiser step; returns the mean of each metric and each gradient's norm."""
        self.count += 1
        rate, floor = self._optimizer.step_size_and_eps(lr, self.count)
        tensors = [self.buffer, self._target, *self.moments]
        if self._move is None:  # steps are not compiled
            with torch.no_grad():
                return self._pure_move(rate, floor, *tensors)[0]
        return self._move(scalar(rate), scalar(floor), *tensors)[0]

    def fused(
        self, rows: Rows, remaining: float, lr: float, prediction: Prediction | None = None
    ) -> Tensor:
        """`gradient` and `apply` at once, where nobody has a say in between."""
        if not self._compile:
            self.gradient(rows, remaining, prediction)
            return self.apply(lr)
        if self._both is None:
            self.prepare(rows, whole=True)
        assert self._both is not None
        self.count += 1
        numbers = [*self._optimizer.step_size_and_eps(lr, self.count), remaining]
        inputs = [*map(scalar, numbers), self._flat.weights, *self.moments, *rows.tensors()]
        return self._both(*inputs)[0]

    def prepare(self, rows: Rows, whole: bool) -> None:
        """Compile for rows of this shape, for either way of taking a step; nothing is changed."""
        numbers, self._structure = [scalar(1.0)] * 3, rows
        if whole:
            inputs = [*numbers, self._flat.weights, *self.moments, *rows.tensors()]
            self._both = compiled(functionalize(self._pure_whole), inputs)
            return
        inputs = [self._flat.weights, numbers[0], *rows.tensors()]
        self._gradient = compiled(self._pure_gradient, inputs)
        inputs = [*numbers[:2], self.buffer, self._target, *self.moments]
        self._move = compiled(functionalize(self._pure_move), inputs)

    def metric_mean(self, metric: str) -> float:
        """A metric's mean over the minibatch whose gradient is in the buffer."""
        at = self._size
        for names in self._objective.names:
            if metric in names:
                count = self.buffer[at + len(names) - 1].clamp(min=1.0)
                return float(self.buffer[at + names.index(metric)] / count)
            at += len(names)
        raise KeyError(metric)

    def _pure_gradient(self, flat: Tensor, remaining: Any, *tensors: Tensor) -> list[Tensor]:
        """The buffer as a function of the weights and the rows."""
        assert self._structure is not None
        rows = self._structure.like(tensors)

        def objective(flat: Tensor) -> tuple[Tensor, Tensor]:
            named = {
                name: view.detach() if name in self._frozen else view
                for name, view in self._flat.layout.views(flat).items()
            }
            return functional_call(self._objective, named, (remaining, rows))

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
        gradients, found, begin, at = [], [], 0, self._size
        objective = self._objective
        for term, size, names in zip(objective.terms, self._groups, objective.names, strict=True):
            last = at + len(names) - 1
            rows = buffer[last : last + 1].clamp(min=1.0)
            gradient = buffer[begin : begin + size] / rows
            norm = gradient.norm()
            gradients.append(gradient * (term.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
            found += [buffer[at:last] / rows, norm.unsqueeze(0)]
            begin, at = begin + size, last + 1
        whole = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        self._optimizer.step(weights, whole, moments, rate, floor)
        return [torch.cat(found)]


def recurrent_inputs(rows: Rows) -> RecurrentInputs | None:
    """What a memory needs of a minibatch, beside its inputs."""
    if rows.carry is None or rows.first is None:
        return None
    return RecurrentInputs(rows.first.reshape(-1, len(rows.carry)), rows.carry)
