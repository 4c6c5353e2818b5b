"""Networks: how they begin, their tanh, and the one flat tensor that they live in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from paceline.envs.spaces import ActionSpec, observation_spec
from paceline.policy.actor_critic import ActorCritic
from paceline.policy.encoders import OneHotLinear, Tanh
from paceline.policy.flat import FlatParameters
from paceline.policy.network import NetworkSpec

OBS = {
    "vector": observation_spec(spaces.Box(-1, 1, (5,))),
    "discrete": observation_spec(spaces.Discrete(7)),
    "image": observation_spec(spaces.Box(0, 255, (12, 12, 3), np.uint8)),
    "nature": observation_spec(spaces.Box(0, 255, (4, 84, 84), np.uint8)),
}
ACT = {
    "discrete": ActionSpec("discrete", 3),
    "box": ActionSpec("box", 2, (2,), "float32", low=(-1, -1), high=(1, 1)),
}
CASES = [(obs, act) for obs in OBS for act in ACT if (obs, act) != ("nature", "box")]


def made(obs="vector", act="discrete", seed=0, **options):
    module = ActorCritic(NetworkSpec(OBS[obs], ACT[act], **options))
    module.initialize(seed)
    return module


def assert_orthogonal(layer, gain):
    """Rows or columns, whichever are fewer, are orthogonal and of length `gain`."""
    weight = layer.weight.detach().flatten(1).double()
    if weight.shape[0] > weight.shape[1]:
        weight = weight.T
    product = weight @ weight.T
    torch.testing.assert_close(
        product, gain**2 * torch.eye(len(product), dtype=torch.float64), rtol=1e-4, atol=1e-4
    )
    assert (layer.bias == 0).all()


@pytest.mark.parametrize(("obs", "act"), CASES)
@pytest.mark.parametrize("shared", [False, True])
def test_weights_begin_orthogonal_with_the_gains_of_ppo(obs, act, shared):
    module = made(obs, act, hidden=(32, 16), shared_trunk=shared)
    trunks = [*module.policy.trunk, *module.value_trunk]
    layers = [layer for layer in trunks if isinstance(layer, (nn.Linear, nn.Conv2d))]
    assert len(layers) == (2 + 3 * (OBS[obs].kind == "image")) * (1 if shared else 2)
    for layer in layers:
        assert_orthogonal(layer, math.sqrt(2))
    assert_orthogonal(module.policy.head, 0.01)
    assert_orthogonal(module.value_head, 1.0)
    if act == "box":
        assert module.policy.log_std.tolist() == [0.0, 0.0]


def test_initial_weights_depend_on_the_seed_alone_and_differ_between_policy_and_value():
    torch.manual_seed(1)
    one = made(seed=3)
    torch.manual_seed(2)
    same, other = made(seed=3), made(seed=4)
    for a, b in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.policy.head.weight, other.policy.head.weight)
    assert not torch.equal(one.policy.trunk[0].weight, one.value_trunk[0].weight)


def test_a_new_policy_is_nearly_uniform():
    obs = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    logits, _ = made(hidden=(64, 64))(obs)
    assert (logits.softmax(-1) - 1 / 3).abs().max() < 0.01


EXTREMES = torch.tensor([0.0, 1e-30, 1e-8, 20.0, 88.0, 1e4, 1e30, 3.4e38, math.inf])


def test_tanh_and_its_gradient_are_torchs_to_a_millionth_even_at_the_extremes():
    points = torch.cat([torch.linspace(-12, 12, 20_001), EXTREMES, -EXTREMES])
    values, gradients = [], []
    for function in (Tanh(), torch.tanh):
        x = points.clone().requires_grad_()
        y = function(x)
        y[x.isfinite()].sum().backward()
        values.append(y.detach())
        gradients.append(x.grad[x.isfinite()])
    torch.testing.assert_close(*values, rtol=0, atol=1e-6)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)
    assert torch.isnan(Tanh()(torch.tensor([math.nan]))).all()


def test_one_hot_layer_is_a_dense_layer_on_one_hot_vectors():
    layer, index = OneHotLinear(7, 4), torch.tensor([0, 6, 3, 3])
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    dense = nn.functional.one_hot(index, 7).float() @ layer.weight.T + layer.bias
    torch.testing.assert_close(layer(index), dense)


@pytest.mark.parametrize(("obs", "act"), CASES)
def test_moving_into_one_flat_tensor_changes_no_weight(obs, act):
    module, twin = made(obs, act, hidden=(16,)), made(obs, act, hidden=(16,))
    flat = FlatParameters(module, torch.device("cpu"))
    for ours, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    flat.weights.fill_(0.5)
    assert all((parameter == 0.5).all() for parameter in module.parameters())
    assert flat.weights.numel() == sum(p.numel() for p in twin.parameters())


def test_only_the_acting_half_and_the_normalizer_are_published():
    module = made(normalize_obs=True, hidden=(16,))
    flat = FlatParameters(module, torch.device("cpu"))
    acting = sum(p.numel() for p in module.policy.parameters())
    assert flat.published.numel() == acting + 2 * 5
    module.obs_mean.copy_(torch.arange(5.0))
    assert flat.published[:5].tolist() == [0, 1, 2, 3, 4]
    before = flat.published.clone()
    with torch.no_grad():
        for parameter in (*module.value_trunk.parameters(), *module.value_head.parameters()):
            parameter.fill_(9.0)
    assert torch.equal(flat.published, before)


@pytest.mark.parametrize("act", ACT)
def test_log_probability_and_entropy_are_those_of_torchs_distributions(act):
    module = made(act=act)
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(50, ACT[act].size, generator=generator)
    if act == "discrete":
        theirs = torch.distributions.Categorical(logits=parameters)
        action = torch.randint(3, (50,), generator=generator)
        logp, entropy = theirs.log_prob(action), theirs.entropy()
    else:
        with torch.no_grad():
            module.policy.log_std.copy_(torch.tensor([0.3, -1.2]))
        theirs = torch.distributions.Normal(parameters, module.policy.log_std.exp())
        action = torch.randn(50, 2, generator=generator)
        logp, entropy = theirs.log_prob(action).sum(-1), theirs.entropy().sum(-1)
    ours = module.policy.logp_and_entropy(parameters, action)
    torch.testing.assert_close(ours[0], logp)
    torch.testing.assert_close(ours[1], entropy)


@pytest.mark.parametrize(
    ("shape", "first"), [((3, 12, 12), True), ((12, 12, 3), False), ((12, 12), True)]
)
def test_images_reach_the_network_with_their_channels_first_and_between_zero_and_one(shape, first):
    obs = observation_spec(spaces.Box(0, 255, shape, np.uint8))
    assert obs.leaves[0].channels_first == first
    spec = NetworkSpec(obs, ACT["discrete"])
    pixels, first_layer, *_ = ActorCritic(spec).policy.trunk
    image = torch.randint(256, (2, *shape), dtype=torch.uint8, generator=torch.Generator())
    expected = image.double() / 255
    if len(shape) == 2:
        expected = expected[:, None]
    elif not first:
        expected = expected.movedim(-1, 1)
    torch.testing.assert_close(pixels(image).double() * pixels.scale, expected, rtol=0, atol=1e-7)
    # The division is left to the first layer, which has fewer numbers to divide.
    convolved = torch.nn.functional.conv2d(
        expected, first_layer.weight.double(), first_layer.bias.double(), padding=1
    )
    torch.testing.assert_close(first_layer(pixels(image)).double(), convolved, rtol=0, atol=1e-5)


@pytest.mark.parametrize("obs", ["vector", "discrete"])
@pytest.mark.parametrize("act", ACT)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hidden", [(), (4,), (4, 3)])
@pytest.mark.parametrize("state_std", [False, True])
def test_shapes_are_known_without_making_the_network(obs, act, shared, hidden, state_std):
    options = {"hidden": hidden, "shared_trunk": shared, "state_dependent_std": state_std}
    module = made(obs, act, normalize_obs=obs == "vector", **options)
    found = {name: tuple(weight.shape) for name, weight in module.named_weights().items()}
    assert list(module.spec.dense_shapes().items()) == list(found.items())
