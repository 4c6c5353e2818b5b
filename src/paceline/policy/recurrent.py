"""Memories as torch modules: what the learner trains, and actors of images use.

L = steps, N = segments, F = features, H = size, S = floats of memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import _VF, Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .memory import GRU, LSTM, Cell, MinGRU
from .network import NetworkSpec
from .user_modules import make_cell, reset_parameters

FAR = 1e4
"""From 0, the argument of a sigmoid that is to be 0 or 1."""


class RecurrentInputs(NamedTuple):
    """What a memory needs besides features."""

    first: Tensor
    """[L, N] the observation starts an episode"""
    carry: Tensor
    """[N, S] the memory before the segment, not yet zeroed where `first`"""


class Memory(nn.Module):
    """A recurrent cell over N segments of L steps, reset wherever an episode starts."""

    carry_size: int
    """S"""

    def forward(self, x: Tensor, first: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        """`x[L, N, F]`, `first[L, N]`, `carry[N, S]` → features [L, N, H], and the carry [N, S]
        after the last step."""
        raise NotImplementedError

    def initialize(self, generator: torch.Generator) -> None:
        """Draw new weights."""
        raise NotImplementedError


class OwnMemory(Memory):
    """The user's cell, which does the resets itself."""

    def __init__(self, spec: NetworkSpec, features: int) -> None:
        super().__init__()
        self.cell = make_cell(spec, features)
        self.carry_size = self.cell.carry_size

    def forward(self, x: Tensor, first: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        out, after = self.cell(x, first, carry)
        return out, after

    def initialize(self, generator: torch.Generator) -> None:
        reset_parameters(self.cell, generator)


class BuiltIn(Memory):
    """Has the weights of a `Cell`, each block of H rows orthogonal on its own, and biases of 0."""

    cell: type[Cell]
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.size, self.carry_size = size, self.cell.states * size
        for name, shape in self.cell.shapes(features, size).items():
            setattr(self, name, nn.Parameter(torch.zeros(shape)))

    def initialize(self, generator: torch.Generator) -> None:
        for weight in self.parameters():
            if weight.ndim > 1:
                for block in torch.split(weight.data, self.size):
                    block.copy_(nn.init.orthogonal_(torch.empty(block.shape), generator=generator))


class TorchLSTM(BuiltIn):
    """By torch's kernel, in one call. It knows no resets, so each is a row of its own between two
    episodes, which closes the input and the forget gate: h = c = 0 is left."""

    cell = LSTM

    def forward(self, x: Tensor, first: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        steps, count = first.shape
        resets = first.clone()
        resets[0] = False  # the carry is zeroed instead
        row = resets.cumsum(0) + torch.arange(steps, device=x.device)[:, None]
        length = int(row[-1].max()) + 1
        # A column with fewer resets than another ends earlier, and keeps its c from there on.
        ended = torch.arange(length, device=x.device)[:, None] > row[-1]
        marks = torch.stack([~ended, ended], -1).to(x.dtype)
        at = (row * count + torch.arange(count, device=x.device)).flatten()
        given = nn.functional.pad(marks, (x.shape[-1], 0)).flatten(0, 1)
        given = given.index_copy(0, at, nn.functional.pad(x.flatten(0, 1), (0, 2)))
        gates = x.new_zeros(4, self.size, 2)  # of the marks
        gates[0], gates[1, :, 0], gates[1, :, 1] = -FAR, -FAR, FAR
        weight_ih = torch.cat([self.weight_ih, gates.flatten(0, 1)], -1)
        weights = [weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]
        carry = carry.masked_fill(first[0, :, None], 0.0)
        h, c = (part.unsqueeze(0).contiguous() for part in carry.chunk(2, -1))
        given = given.view(length, count, -1)
        # With biases, 1 layer, no dropout, in training, in one direction, step by step.
        out, _, c = _VF.lstm(given, (h, c), weights, True, 1, 0.0, True, False, False)
        out = out.flatten(0, 1).index_select(0, at).view(steps, count, -1)
        return out, torch.cat([out[-1], c[0]], -1)


class TorchGRU(BuiltIn):
    """By a loop over the steps that knows its own gradient, which on a CPU takes a tenth of the
    time of torch's kernel for as few columns as a minibatch has."""

    cell = GRU

    def forward(self, x: Tensor, first: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        gates = nn.functional.linear(x, self.weight_ih, self.bias_ih)
        apply: Any = _GRUSteps.apply
        out = apply(gates, first, carry, self.weight_hh, self.bias_hh)
        return out, out[-1]


class _GRUSteps(Function):
    """What the input adds to the gates, [L, N, 3·H] → what is shown, [L, N, H]."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, first: Tensor, carry: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        size = carry.shape[1]
        keep = (~first).unsqueeze(-1).to(gates.dtype)
        opened, new = (part.clone() for part in torch.split(gates, [2 * size, size], -1))
        reset, update = torch.split(opened, size, -1)
        hidden = torch.empty_like(gates)
        asked, memory = torch.split(hidden, [2 * size, size], -1)
        before, shown = torch.empty_like(new), torch.empty_like(new)
        parts = keep, before, hidden, asked, memory, opened, reset, update, new, shown
        h, transposed = carry, weight.t()
        for k, b, u, a, m, o, r, z, n, out in zip(*(part.unbind() for part in parts), strict=True):
            torch.mul(h, k, out=b)
            torch.addmm(bias, b, transposed, out=u)
            o.add_(a).sigmoid_()
            n.addcmul_(r, m).tanh_()
            h = torch.lerp(n, b, z, out=out)
        ctx.save_for_backward(keep, before, memory, opened, new, weight)
        return shown

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        keep, before, memory, opened, new, weight = ctx.saved_tensors
        reset, update = torch.split(opened, new.shape[-1], -1)
        # Of d shown[t], all but what comes from later steps; the rest is added on the way.
        grad = grad.clone()
        through_new = (1.0 - update).mul_(1.0 - new * new)
        through = new.new_empty(*new.shape[:2], 3, new.shape[2])
        by_reset, by_update, by_memory = through.unbind(-2)
        torch.mul(through_new, reset, out=by_memory)
        torch.mul(by_memory, memory, out=by_reset).mul_(1.0 - reset)
        torch.mul(before - new, update, out=by_update).mul_(1.0 - update)
        hidden = torch.empty_like(through)  # gradient of before @ weight.T + bias
        parts = keep, update, through, grad, grad.unsqueeze(-2), hidden, hidden.flatten(-2)
        later = torch.zeros_like(new[0])
        for k, z, f, d, e, g, u in reversed(list(zip(*(p.unbind() for p in parts), strict=True))):
            d.add_(later)
            torch.mul(e, f, out=g)
            later = torch.addmm(d * z, u, weight).mul_(k)
        flat = hidden.flatten(-2).flatten(0, 1)
        by_weight, by_bias = flat.t() @ before.flatten(0, 1), flat.sum(0)
        torch.mul(grad, through_new, out=hidden[..., 2, :])  # from here on, that of the gates
        return hidden.flatten(-2), None, later, by_weight, by_bias


class TorchMinGRU(BuiltIn):
    """h[t] = keep[t]·h[t−1] + shown[t] as a scan."""

    cell = MinGRU

    def forward(self, x: Tensor, first: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        gates = nn.functional.linear(x, self.weight_ih, self.bias_ih)
        update, candidate = gates[..., : self.size].sigmoid(), gates[..., self.size :]
        keep = (1.0 - update).masked_fill(first.unsqueeze(-1), 0.0)
        shown = update * candidate
        out = _scan(keep, torch.cat([torch.addcmul(shown[:1], keep[:1], carry), shown[1:]]))
        return out, out[-1]


BLOCK = 4
"""Steps that a scan takes one after the other, all blocks side by side; 8 and 16 are slower."""


def _scan(keep: Tensor, shown: Tensor) -> Tensor:
    """h[t] = keep[t]·h[t−1] + shown[t] from h[−1] = 0, all [L, N, H]: within blocks of a few
    steps, then over the blocks in log₂ passes (Hillis 1986)."""
    steps, count, size = shown.shape
    if spare := -steps % BLOCK:
        keep = nn.functional.pad(keep, (0, 0, 0, 0, 0, spare))
        shown = nn.functional.pad(shown, (0, 0, 0, 0, 0, spare))
    keeps, showns = (part.view(-1, BLOCK, count, size).unbind(1) for part in (keep, shown))
    kept, within = [keeps[0]], [showns[0]]
    for k, s in zip(keeps[1:], showns[1:], strict=True):
        kept.append(kept[-1] * k)
        within.append(torch.addcmul(s, k, within[-1]))
    held, end, distance = kept[-1], within[-1], 1
    while distance < len(end):
        late = torch.addcmul(end[distance:], held[distance:], end[:-distance])
        end = torch.cat([end[:distance], late])
        held = torch.cat([held[:distance], held[distance:] * held[:-distance]])
        distance *= 2
    before = torch.cat([torch.zeros_like(end[:1]), end[:-1]]).unsqueeze(1)
    out = torch.addcmul(torch.stack(within, 1), torch.stack(kept, 1), before)
    return out.view(-1, count, size)[:steps]


BUILT_IN: dict[type[Cell], type[BuiltIn]] = {
    kind.cell: kind for kind in (TorchLSTM, TorchGRU, TorchMinGRU)
}


def make_memory(spec: NetworkSpec, features: int) -> Memory | None:
    """The memory of a network, if it has one."""
    if spec.memory is None:
        return None
    if spec.cell is not None:
        return BUILT_IN[spec.cell](features, spec.memory_size)
    return OwnMemory(spec, features)


def recall(
    memory: Memory | None, features: Tensor, given: RecurrentInputs | None
) -> tuple[Tensor, Tensor | None]:
    """Features [R, F] → what the memory shows of them [R, H], and the carry after them [N, S].

    Without `given` the rows are unrelated, each the start of an episode.
    """
    if memory is None:
        return features, None
    if given is None:
        zero = features.new_zeros(len(features), memory.carry_size)
        given = RecurrentInputs(zero.new_ones(1, len(features), dtype=torch.bool), zero)
    shown, carry = memory(features.reshape(*given.first.shape, -1), *given)
    return shown.flatten(0, 1), carry
