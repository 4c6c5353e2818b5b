"""Recurrent cells: torch modules and numpy actors against loops that are written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learners import needs_compiler
from torch import nn

from paceline.learning.compiler import inductor_compile
from paceline.policy.memory import GRU, LSTM, MinGRU
from paceline.policy.recurrent import BUILT_IN

CELLS = {"lstm": LSTM, "gru": GRU, "mingru": MinGRU}
F, H, L, N = 5, 6, 11, 4
every_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)


def memory_of(cell, seed=0):
    """A module whose weights and biases are all different from 0."""
    module = BUILT_IN[cell](F, H)
    module.initialize(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(seed + 1)
            )
    return module


def segments(cell, steps=L, columns=N, seed=0):
    """Features, episode starts (some inside, some at the very first step), and a carry."""
    draw = np.random.default_rng(seed)
    x = torch.from_numpy(draw.normal(size=(steps, columns, F)).astype(np.float32))
    first = torch.from_numpy(draw.random((steps, columns)) < 0.25)
    first[0] = torch.tensor([True, False] * columns)[:columns]
    carry = draw.normal(size=(columns, cell.states * H)).astype(np.float32)
    return x, first, torch.from_numpy(carry)


def looped(module, x, first, carry):
    """The same by one Python call per step, with torch's own cells where there are any."""
    names = dict(module.named_parameters())
    shown = []
    for now, starts in zip(x, first, strict=True):
        carry = carry.masked_fill(starts[:, None], 0.0)
        if module.cell is MinGRU:
            update, candidate = (now @ names["weight_ih"].T + names["bias_ih"]).chunk(2, -1)
            update = update.sigmoid()
            carry = (1 - update) * carry + update * candidate
            shown.append(carry)
            continue
        own = (nn.LSTMCell if module.cell is LSTM else nn.GRUCell)(F, H)
        state = carry.chunk(2, -1) if module.cell is LSTM else carry
        after = torch.func.functional_call(own, names, (now, state))
        carry = torch.cat(after, -1) if module.cell is LSTM else after
        shown.append(carry[:, :H])
    return torch.stack(shown), carry


@every_cell
def test_a_segment_with_resets_is_a_loop_over_its_steps_and_so_is_its_gradient(cell):
    module, (x, first, carry) = memory_of(cell), segments(cell)
    found = []
    for function in (module, lambda *given: looped(module, *given)):
        inputs = [x.clone().requires_grad_(), carry.clone().requires_grad_()]
        out, after = function(inputs[0], first, inputs[1])
        weight = torch.linspace(-1, 1, out.numel()).view_as(out)
        loss = (out * weight).sum() + after.square().sum()
        gradients = torch.autograd.grad(loss, [*inputs, *module.parameters()])
        found.append([out.detach(), after.detach(), *gradients])
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@every_cell
def test_the_numpy_cell_remembers_what_the_module_does(cell):
    module, (x, first, carry) = memory_of(cell), segments(cell)
    with torch.no_grad():
        expected, after = module(x, first, carry)
    actor = cell(H, N)
    actor.load(*(p.detach().numpy().T.copy() for p in module.parameters()))
    state = carry.numpy().copy()
    for t in range(L):
        state[first[t].numpy()] = 0.0
        shown = actor.step(x[t].numpy(), state, np.dot)
        np.testing.assert_allclose(shown, expected[t], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state, after, rtol=1e-5, atol=1e-5)


@every_cell
def test_two_segments_are_one_of_twice_the_length(cell):
    module, (x, first, carry) = memory_of(cell), segments(cell, steps=2 * L)
    whole, last = module(x, first, carry)
    one, between = module(x[:L], first[:L], carry)
    other, after = module(x[L:], first[L:], between)
    torch.testing.assert_close(torch.cat([one, other]), whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(after, last, rtol=1e-5, atol=1e-6)


@every_cell
def test_columns_know_nothing_of_each_other(cell):
    module, (x, first, carry) = memory_of(cell), segments(cell)
    order = torch.tensor([2, 0, 3, 1])
    out, after = module(x, first, carry)
    shuffled, last = module(x[:, order], first[:, order], carry[order])
    torch.testing.assert_close(shuffled, out[:, order], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(last, after[order], rtol=1e-6, atol=1e-6)


@every_cell
def test_what_lies_before_an_episodes_start_reaches_nothing_after_it(cell):
    """Neither its value nor its gradient: not the carry, not the row that only resets."""
    module, (x, first, carry) = memory_of(cell), segments(cell)
    first[:] = False
    first[5] = True
    garbage = x.clone()
    garbage[:5] = 1e6
    out, after = module(x, first, carry)
    other, last = module(garbage.requires_grad_(), first, 1e6 + carry)
    torch.testing.assert_close(other[5:], out[5:])
    torch.testing.assert_close(last, after)
    (other[5:].sum() + last.sum()).backward()
    assert garbage.grad[:5].eq(0).all() and garbage.grad[5:].ne(0).any()


@every_cell
def test_every_gate_has_orthogonal_weights_of_its_own_and_no_bias(cell):
    module = BUILT_IN[cell](F, H)
    module.initialize(torch.Generator().manual_seed(3))
    for name, parameter in module.named_parameters():
        if parameter.ndim == 1:
            assert not parameter.any(), name
            continue
        for block in parameter.detach().split(H):
            small = min(block.shape)
            product = block.T @ block if block.shape[1] == small else block @ block.T
            torch.testing.assert_close(product, torch.eye(small), rtol=0, atol=1e-5)


@needs_compiler
def test_a_compiled_mingru_is_the_eager_one():
    module, given = memory_of(MinGRU), segments(MinGRU)
    weights = [p.detach() for p in module.parameters()]

    def gradient(*tensors):
        names = dict(zip(dict(module.named_parameters()), tensors, strict=True))

        def loss(named):
            out, after = torch.func.functional_call(module, named, given)
            return out.square().sum() + after.sum()

        return list(torch.func.grad(loss)(names).values())

    compiled = inductor_compile(gradient, weights)(*weights)
    for one, other in zip(compiled, gradient(*weights), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
