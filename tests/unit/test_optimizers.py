"""The flat optimizers are torch's own, applied to one tensor instead of many."""

from __future__ import annotations

import pytest
import torch

from paceline.learning.optimizers import Adam, RMSprop

SHAPES = [(4, 64), (64,), (64, 64), (64,), (64, 2), (2,)]


def gradients(steps):
    """Of very different sizes, with some zeros, as policies have them."""
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        scale = 10.0 ** -(step % 6)
        yield [
            torch.randn(shape, generator=generator, dtype=torch.float64)
            * scale
            * (torch.rand(shape, generator=generator) > 0.2)
            for shape in SHAPES
        ]


def flattened(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@pytest.mark.parametrize("eps", [1e-5, 1e-8])
@pytest.mark.parametrize(
    ("ours", "theirs"), [(Adam, torch.optim.Adam), (RMSprop, torch.optim.RMSprop)]
)
def test_flat_optimizer_equals_torchs_own_over_many_steps(ours, theirs, eps):
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    flat = flattened(start)
    reference, optimizer = theirs(parameters, lr=1e-2, eps=eps), ours(eps=eps)
    state = [torch.zeros_like(flat) for _ in range(optimizer.moments)]
    for count, grads in enumerate(gradients(200), start=1):
        lr = 1e-2 * (1 - count / 400)
        for group in reference.param_groups:
            group["lr"] = lr
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad.clone()
        reference.step()
        optimizer.step(flat, flattened(grads), state, *optimizer.step_size_and_eps(lr, count))
    torch.testing.assert_close(flat, flattened(parameters), rtol=1e-10, atol=1e-12)
    moved = (flat - flattened(start)).abs().max()
    assert moved > 1e-2, "both must have gone somewhere"


@pytest.mark.parametrize("ours", [Adam, RMSprop])
def test_an_optimizer_without_a_gradient_or_history_stays_where_it_is(ours):
    flat, optimizer = torch.ones(5), ours()
    state = [torch.zeros(5) for _ in range(optimizer.moments)]
    optimizer.step(flat, torch.zeros(5), state, *optimizer.step_size_and_eps(0.1, 1))
    assert flat.tolist() == [1.0] * 5
