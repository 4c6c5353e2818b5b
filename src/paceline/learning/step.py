"""The minibatch step in two halves, between which ranks sum their gradients; eager until compiled.

`gradient(rows)` fills one buffer: [gradient sums | for each loss term: sum of its loss, sums of its
metrics, sum of row weights]. `apply` divides each term's group of parameters by its weight sum,
clips it, and takes the optimizer step. R = rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, functionalize, grad

from ..config.schedules import is_constant, make_schedule
from ..policy.actor_critic import ActorCritic
from ..policy.flat import FlatParameters
from ..policy.network import Prediction
from ..policy.recurrent import RecurrentInputs
from ..rollout import Array, Rollout
from .algorithms import Algorithm, Losses
from .batch import Rows
from .compiler import TensorFunction, inductor_compile, scalar
from .optimizers import Optimizer

Scheduled = Sequence[Any]
"""What changes over a run: `progress_remaining`, then a factor of each option of the algorithm that
has a schedule; numbers, or 0-d tensors in a compiled step."""


class LossTerm(Protocol):
    """A loss with its own parameters: a group that is averaged and clipped on its own."""

    name: str
    """prefix of its metrics `<name>_loss` and `<name>_grad_norm`; empty for the algorithm's"""

    @property
    def module(self) -> nn.Module:
        """Holds its parameters."""

    metrics: tuple[str, ...]
    """names of the metrics that `loss` returns"""
    max_grad_norm: float
    needs_next: bool
    """whether it reads `rows.next_inputs`"""

    def rows(self, rollout: Rollout) -> Mapping[str, Array]:
        """[T, B, ...] arrays by name that `loss` finds in `rows.extra`."""

    def loss(self, rows: Rows, progress_remaining: Any) -> Losses:
        """Per row; `progress_remaining` falls from 1 to 0 over the run."""

    def weight(self, rows: Rows) -> Tensor:
        """[R] weights of rows; gradient and metrics are divided by their sum."""


class PolicyLoss:
    """The loss term of the algorithm, on the actor-critic."""

    name, needs_next = "", False

    def __init__(self, module: ActorCritic, algorithm: Algorithm, max_grad_norm: float) -> None:
        self.module, self._algorithm, self.max_grad_norm = module, algorithm, max_grad_norm
        drift = () if module.spec.memory is None else ("state_drift",)
        self.metrics = (*algorithm.metrics, *drift)
        self._schedules = {
            name: (start, make_schedule(f"schedule of {name}", given))
            for name, (start, given) in getattr(algorithm, "schedules", {}).items()
            if not is_constant(given)
        }

    def scheduled(self, progress_remaining: float) -> Scheduled:
        factors = [one.factor(start, progress_remaining) for start, one in self._schedules.values()]
        return [progress_remaining, *factors]

    def loss(
        self, rows: Rows, scheduled: Scheduled, prediction: Prediction | None = None
    ) -> Losses:
        """`prediction` of these rows, if it was computed already."""
        if prediction is None:
            prediction = self.module.predict(rows.inputs, rows.action, recurrent_inputs(rows))
        remaining, *factors = scheduled
        named = dict(zip(self._schedules, factors, strict=True))
        loss, metrics = self._algorithm.loss(prediction, rows, remaining, **named)
        if prediction.carry is not None and rows.carry_after is not None:
            drift = (prediction.carry.detach() - rows.carry_after).norm(dim=-1)
            steps = len(loss) // len(drift)
            used = rows.weight.view(steps, -1)[-1]  # after a row that only resets nobody needs it
            metrics.append((drift * used).repeat(steps))
        return loss, metrics

    def rows(self, rollout: Rollout) -> Mapping[str, Array]:
        return {}

    def weight(self, rows: Rows) -> Tensor:
        return rows.weight


class Objective(nn.Module):
    """Sum of all loss terms: the algorithm's first, then others."""

    def __init__(self, policy: PolicyLoss, *others: LossTerm) -> None:
        super().__init__()
        self.policy = policy
        self.terms: tuple[LossTerm, ...] = (policy, *others)
        self.parts = nn.ModuleList(term.module for term in self.terms)
        self.names: list[tuple[str, ...]] = []
        """for each term: its loss, its metrics, its gradient norm"""
        for term in self.terms:
            prefix = f"{term.name}_" if term.name else ""
            self.names.append((f"{prefix}loss", *term.metrics, f"{prefix}grad_norm"))

    def forward(
        self, scheduled: Scheduled, rows: Rows, prediction: Prediction | None = None
    ) -> tuple[Tensor, Tensor]:
        """All losses, summed over weighted rows; and for each term sums of [loss, metrics…, 1]."""
        total, sums = self._sum(self.policy, rows, *self.policy.loss(rows, scheduled, prediction))
        for term in self.terms[1:]:
            term_total, term_sums = self._sum(term, rows, *term.loss(rows, scheduled[0]))
            total, sums = total + term_total, torch.cat([sums, term_sums])
        return total, sums

    def _sum(
        self, term: LossTerm, rows: Rows, loss: Tensor, metrics: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        weight = term.weight(rows)
        with torch.no_grad():
            sums = torch.stack([loss, *metrics, torch.ones_like(loss)]) @ weight
        return loss @ weight, sums


class Step:
    """Owns the gradient buffer and the optimizer state.

    Gradients are taken at the weights of `flat`; the optimizer changes `target`, the same tensor
    unless processes share their weights (Hogwild). `share` places the optimizer state.
    """

    def __init__(
        self,
        objective: Objective,
        flat: FlatParameters,
        optimizer: Optimizer,
        target: Tensor | None = None,
        share: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> None:
        self._objective, self._flat, self._optimizer = objective, flat, optimizer
        self._target = flat.weights if target is None else target
        self.names = tuple(name for names in objective.names for name in names)
        """names of what `apply` returns"""
        self._groups = [sum(p.numel() for p in t.module.parameters()) for t in objective.terms]
        """number of parameters of each term, in the order of `flat`"""
        self._size = len(flat.weights)
        self._scheduled_size = len(self.scheduled(1.0))
        self.buffer = flat.weights.new_zeros(self._size + len(self.names))
        self.moments = [share(torch.zeros_like(flat.weights)) for _ in range(optimizer.moments)]
        self.count = 0
        self._compiled_gradient: TensorFunction | None = None
        self._compiled_apply: TensorFunction | None = None
        self._compiled_fused: TensorFunction | None = None
        self._structure: Rows | None = None
        """rows whose structure the step is compiled for; None: it is eager"""
        gradients = flat.layout.views(self.buffer[: self._size])
        self._frozen: set[str] = set()
        """parameters of a user's module with requires_grad False"""
        for name, parameter in objective.named_parameters():
            if parameter.requires_grad:
                parameter.grad = gradients[name]
            else:
                self._frozen.add(name)

    @property
    def compiled(self) -> bool:
        return self._structure is not None

    def scheduled(self, progress_remaining: float) -> Scheduled:
        """What the losses depend on besides rows; the same in all steps of an update."""
        return self._objective.policy.scheduled(progress_remaining)

    def gradient(
        self, rows: Rows, scheduled: Scheduled, prediction: Prediction | None = None
    ) -> Tensor:
        """Fill and return the buffer; ranks sum theirs before `apply`.

        An eager step can use a `prediction` of these rows that was computed already.
        """
        if self._compiled_gradient is None:
            self.buffer[: self._size].zero_()
            total, sums = self._objective(scheduled, rows, prediction)
            total.backward()  # adds into the buffer: every parameter's .grad is a view of it
            self.buffer[self._size :] = sums
            return self.buffer
        inputs = [self._flat.weights, *map(scalar, scheduled), *rows.tensors()]
        self.buffer.copy_(self._compiled_gradient(*inputs)[0])
        return self.buffer

    def apply(self, lr: float) -> Tensor:
        """Take one optimizer step; returns the mean of each metric, in the order of `names`."""
        self.count += 1
        step_size, eps = self._optimizer.step_size_and_eps(lr, self.count)
        tensors = [self.buffer, self._target, *self.moments]
        if self._compiled_apply is None:
            with torch.no_grad():
                return self._pure_apply(step_size, eps, *tensors)[0]
        return self._compiled_apply(scalar(step_size), scalar(eps), *tensors)[0]

    def fused(
        self, rows: Rows, scheduled: Scheduled, lr: float, prediction: Prediction | None = None
    ) -> Tensor:
        """`gradient` and `apply` in one, if nothing has to happen between them."""
        if self._compiled_fused is None:
            self.gradient(rows, scheduled, prediction)
            return self.apply(lr)
        self.count += 1
        step_size, eps = self._optimizer.step_size_and_eps(lr, self.count)
        scalars = [scalar(value) for value in (step_size, eps, *scheduled)]
        inputs = [*scalars, self._flat.weights, *self.moments, *rows.tensors()]
        return self._compiled_fused(*inputs)[0]

    def compile(self, rows: Rows, fused: bool) -> None:
        """Compile for rows of this shape; changes no weights."""
        one, self._structure = scalar(1.0), rows
        scheduled = [one] * self._scheduled_size
        if fused:
            inputs = [one, one, *scheduled, self._flat.weights, *self.moments, *rows.tensors()]
            self._compiled_fused = inductor_compile(functionalize(self._pure_fused), inputs)
            return
        inputs = [self._flat.weights, *scheduled, *rows.tensors()]
        self._compiled_gradient = inductor_compile(self._pure_gradient, inputs)
        inputs = [one, one, self.buffer, self._target, *self.moments]
        self._compiled_apply = inductor_compile(functionalize(self._pure_apply), inputs)

    def metric_mean(self, metric: str) -> float:
        """A metric's mean over the minibatch whose gradient is in the buffer."""
        at = self._size
        for names in self._objective.names:
            if metric in names:
                count = self.buffer[at + len(names) - 1].clamp(min=1.0)
                return float(self.buffer[at + names.index(metric)] / count)
            at += len(names)
        raise KeyError(metric)

    def _pure_gradient(self, flat: Tensor, *tensors: Tensor) -> list[Tensor]:
        """The buffer as a function of the weights, what is scheduled, and the rows."""
        assert self._structure is not None
        scheduled = tensors[: self._scheduled_size]
        rows = self._structure.like(tensors[self._scheduled_size :])

        def objective(flat: Tensor) -> tuple[Tensor, Tensor]:
            named = {
                name: view.detach() if name in self._frozen else view
                for name, view in self._flat.layout.views(flat).items()
            }
            return functional_call(self._objective, named, (scheduled, rows))

        gradient, sums = grad(objective, has_aux=True)(flat)
        return [torch.cat([gradient, sums])]

    def _pure_fused(self, step_size: Any, eps: Any, *tensors: Tensor) -> list[Tensor]:
        scheduled, tensors = tensors[: self._scheduled_size], tensors[self._scheduled_size :]
        weights, moments = tensors[0], tensors[1 : 1 + len(self.moments)]
        (buffer,) = self._pure_gradient(weights, *scheduled, *tensors[1 + len(self.moments) :])
        return self._pure_apply(step_size, eps, buffer, weights, *moments)

    def _pure_apply(self, step_size: Any, eps: Any, *tensors: Tensor) -> list[Tensor]:
        """Divide, clip and step; changes the weights and moments among `tensors`, nothing else."""
        buffer, weights, *moments = tensors
        gradients, metrics, begin, at = [], [], 0, self._size
        objective = self._objective
        for term, size, names in zip(objective.terms, self._groups, objective.names, strict=True):
            last = at + len(names) - 1
            count = buffer[last : last + 1].clamp(min=1.0)
            gradient = buffer[begin : begin + size] / count
            norm = gradient.norm()
            gradients.append(gradient * (term.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
            metrics += [buffer[at:last] / count, norm.unsqueeze(0)]
            begin, at = begin + size, last + 1
        gradient = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        self._optimizer.step(weights, gradient, moments, step_size, eps)
        return [torch.cat(metrics)]


def recurrent_inputs(rows: Rows) -> RecurrentInputs | None:
    """What a policy with memory needs of a minibatch besides its inputs."""
    if rows.carry is None or rows.first is None:
        return None
    return RecurrentInputs(rows.first.reshape(-1, len(rows.carry)), rows.carry)
