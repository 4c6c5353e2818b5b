"""What reads pictures: shapes, the networks of the papers written out, layouts, and precision."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from environments import Anything
from gymnasium import spaces
from saved_runs import small_config
from torch import nn
from torch.nn import functional

from paceline.envs.frame_stack import with_stack
from paceline.envs.spaces import ActionSpec, observation_spec
from paceline.errors import BadInput
from paceline.policy.actor_critic import ActorCritic
from paceline.policy.encoders import make_trunk
from paceline.policy.network import NetworkSpec
from paceline.run import choices
from paceline.run.build import build

ACT = ActionSpec("discrete", 5)


def image(*shape, dtype=np.uint8):
    return spaces.Box(0, 255 if dtype == np.uint8 else 1, shape, dtype)


def network_of(space, pictures=None, stack=1, hidden=(16,), **options):
    obs = with_stack(observation_spec(space), stack).seen
    given = {"activation": "relu", "shared_trunk": True} | options
    return NetworkSpec(obs, ACT, hidden, pictures=pictures, **given)


def initialized(spec, seed=0):
    module = ActorCritic(spec)
    module.initialize(seed)
    return module


def pixels_of(space, rows=4, seed=0):
    rng = np.random.default_rng(seed)
    drawn = rng.uniform(space.low, space.high, (rows, *space.shape))
    return torch.from_numpy(drawn.astype(space.dtype))


# Side lengths by hand: nature's convolutions have no padding, the others halve and round up.
FEATURES = {
    ("nature", (84, 84), 4): 64 * 7 * 7,
    ("nature", (64, 64, 3), 1): 64 * 4 * 4,
    ("nature", (3, 36, 40), 1): 64 * 1 * 1,
    ("impala", (64, 64, 3), 1): 32 * 8 * 8,
    ("impala", (84, 84), 4): 32 * 11 * 11,
    ("impala", (3, 9, 13), 1): 32 * 2 * 2,
    ("small", (8, 8, 1), 1): 32 * 2 * 2,
    ("small", (15, 10, 3), 2): 32 * 4 * 3,
    ("mlp", (8, 9, 3), 1): 8 * 9 * 3,
    ("mlp", (12, 10), 4): 12 * 10 * 4,
    (None, (84, 84), 4): 64 * 7 * 7,
    (None, (35, 84, 3), 1): 32 * 9 * 21,
}


@pytest.mark.parametrize("case", FEATURES, ids=str)
@pytest.mark.parametrize("hidden", [(), (16,)])
def test_features_are_as_many_as_said(case, hidden):
    pictures, shape, stack = case
    spec = network_of(image(*shape), pictures, stack, hidden)
    trunk, features = make_trunk(spec)
    assert features == (hidden[-1] if hidden else FEATURES[case])
    seen = pixels_of(image(*spec.obs.leaves[0].shape))
    found = trunk(seen)
    assert (found.shape, found.dtype) == ((4, features), torch.float32)
    logits, value = initialized(spec)(seen)
    assert (logits.shape, value.shape) == ((4, ACT.size), (4, 1))


def impala(weights, pixels):
    """Espeholt et al. 2018, figure 3, the larger network: from [R, C, H, W] in 0…1."""
    weights = iter(weights)

    def conv(x):
        return functional.conv2d(x, next(weights), next(weights), padding=1)

    x = pixels
    for _ in range(3):
        x = conv(x)
        x = functional.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for _ in range(2):
            inner = conv(torch.relu(x))
            inner = conv(torch.relu(inner))
            x = x + inner
    x = torch.relu(x).flatten(1)
    x = torch.relu(functional.linear(x, next(weights), next(weights)))
    assert next(weights, None) is None
    return x


def nature(weights, pixels):
    """Mnih et al. 2015, methods: from [R, C, H, W] in 0…1."""
    weights = iter(weights)
    x = pixels
    for stride in (4, 2, 1):
        x = torch.relu(functional.conv2d(x, next(weights), next(weights), stride=stride))
    x = torch.relu(functional.linear(x.flatten(1), next(weights), next(weights)))
    assert next(weights, None) is None
    return x


@pytest.mark.parametrize(
    ("pictures", "written", "channels"),
    [("impala", impala, (16, 32, 32)), ("nature", nature, (32, 64, 64))],
)
@pytest.mark.parametrize("shape", [(64, 64, 3), (45, 38, 3)])
def test_the_networks_are_those_of_the_papers(pictures, written, channels, shape):
    spec = network_of(image(*shape), pictures, hidden=(20,))
    trunk = initialized(spec, seed=3).policy.trunk
    seen = pixels_of(image(*shape))
    weights = [parameter.detach() for parameter in trunk.parameters()]
    expected = written(weights, seen.permute(0, 3, 1, 2).float() / 255)
    assert expected.std() > 1e-3
    with torch.no_grad():
        torch.testing.assert_close(trunk(seen), expected, rtol=1e-4, atol=1e-5)
    outputs = [w.shape[0] for w in weights if w.ndim == 4]
    assert sorted(set(outputs)) == sorted(set(channels))
    assert len(outputs) == (15 if pictures == "impala" else 3)


@pytest.mark.parametrize("pictures", ["impala", "nature", "small", "mlp"])
@pytest.mark.parametrize("shared", [True, False])
def test_weights_start_orthogonal_and_biases_at_zero(pictures, shared):
    """Rows, or where there are more of them columns, are at right angles and √2 long."""
    spec = network_of(image(36, 36, 3), pictures, hidden=(24,), shared_trunk=shared)
    module = initialized(spec)
    gains = {module.policy.head: 0.01, module.value_head: 1.0}
    layers = [m for m in module.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    convolutions = {"impala": 15, "nature": 3, "small": 3, "mlp": 0}[pictures]
    assert len(layers) == (convolutions + 1) * (1 if shared else 2) + 2
    for layer in layers:
        gain, matrix = gains.get(layer, math.sqrt(2)), layer.weight.detach().flatten(1)
        matrix = matrix if len(matrix) <= matrix.shape[1] else matrix.T
        product = matrix.double() @ matrix.double().T
        unit = gain**2 * torch.eye(len(matrix), dtype=torch.float64)
        torch.testing.assert_close(product, unit, rtol=0, atol=1e-5 * gain)
        assert not layer.bias.any()


LAYOUTS = {"HWC": (0, 1, 2), "CHW": (2, 0, 1)}


@pytest.mark.parametrize("pictures", ["impala", "nature", "small"])
def test_activations_lie_channels_last_in_memory(pictures):
    """Through every convolution and pooling, whatever the layout of the picture."""
    for axes in LAYOUTS.values():
        space = image(*np.array((40, 40, 3))[list(axes)])
        module, seen = initialized(network_of(space, pictures)), []

        def note(layer, given, found, seen=seen):
            seen.append((type(layer).__name__, given[0], found))

        for layer in module.policy.trunk.modules():
            if isinstance(layer, (nn.Conv2d, nn.MaxPool2d)):
                layer.register_forward_hook(note)
        module.policy.trunk(pixels_of(space))
        assert len(seen) == {"impala": 18, "nature": 3, "small": 3}[pictures]
        for name, *tensors in seen:
            for tensor in tensors:
                assert tensor.dtype == torch.float32
                assert tensor.is_contiguous(memory_format=torch.channels_last), name


@pytest.mark.parametrize("pictures", ["impala", "nature", "small", "mlp"])
def test_the_same_picture_gives_the_same_features_in_any_layout(pictures):
    grey = pixels_of(image(40, 42), rows=3)
    forms = {
        "grey": (image(40, 42), grey),
        "HWC": (image(40, 42, 1), grey[..., None]),
        "CHW": (image(1, 40, 42), grey[:, None]),
        "float": (image(40, 42, 1, dtype=np.float32), grey[..., None].float() / 255),
    }
    assert_alike(forms, pictures)
    color = pixels_of(image(40, 42, 3), rows=3)
    forms = {
        "HWC": (image(40, 42, 3), color),
        "CHW": (image(3, 40, 42), color.permute(0, 3, 1, 2).contiguous()),
    }
    assert_alike(forms, pictures)


def assert_alike(forms, pictures):
    found = {}
    for name, (space, seen) in forms.items():
        with torch.no_grad():
            found[name] = initialized(network_of(space, pictures)).policy.trunk(seen)
    first, *others = found.values()
    assert first.std() > 1e-4
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-4 * float(first.std()))


def test_a_stack_of_grey_frames_is_an_image_with_as_many_channels():
    seen = pixels_of(image(4, 40, 42))
    stacked = initialized(network_of(image(40, 42), "nature", stack=4))
    plain = initialized(network_of(image(4, 40, 42), "nature"))
    turned = initialized(network_of(image(40, 42, 4), "nature"))
    last = seen.permute(0, 2, 3, 1).contiguous()
    with torch.no_grad():
        expected = plain(seen)[0]
        torch.testing.assert_close(stacked(seen)[0], expected)
        torch.testing.assert_close(turned(last)[0], expected)


def test_pictures_of_too_few_pixels_for_nature_are_refused_with_a_sentence():
    make_trunk(network_of(image(36, 36, 3), "nature"))
    for shape in ((35, 84, 3), (84, 35, 3), (3, 20, 84), (8, 8)):
        with pytest.raises(BadInput, match=r"36 × 36 .* --encoder small"):
            make_trunk(network_of(image(*shape), "nature"))


def config_of(space, **options):
    make = partial(Anything, space, spaces.Discrete(3)) if not isinstance(space, str) else space
    return small_config(make, **({"minibatches": 4} | options))


@pytest.mark.parametrize("encoder", ["impala", "nature", "small"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1"])
def test_an_encoder_of_images_is_refused_where_there_are_none(encoder, env_id):
    with (
        pytest.raises(BadInput, match=f"encoder is '{encoder}', which reads images"),
        build(config_of(env_id, encoder=encoder)),
    ):
        pass


def test_mlp_is_for_vectors_too():
    with build(config_of("CartPole-v1", encoder="mlp")) as parts:
        assert not parts.network.needs_torch


MIXED = spaces.Dict({"camera": image(12, 12, 3), "speed": spaces.Box(-1, 1, (2,), np.float32)})


@pytest.mark.parametrize("encoder", ["impala", "small", "mlp"])
def test_pictures_stay_bytes_in_the_rollout_and_on_their_way_to_the_learner(encoder):
    for space in (image(12, 12, 3), MIXED):
        with build(config_of(space, encoder=encoder)) as parts:
            rollout, learner = parts.sampler.collect(), parts.learner
            stored = parts.env_info.obs_spec.split(rollout.obs)["image0"]
            assert stored.dtype == np.uint8
            seen = learner.observations(rollout)
            given = learner.module.inputs(seen.parts)
            names = list(parts.env_info.obs_spec.parts)
            looked = dict(zip(names, seen.gather_images(given), strict=True))
            assert looked["image0"].dtype == torch.uint8
            learner.update(rollout, 1.0)


@pytest.mark.parametrize("encoder", ["impala", "nature", "small"])
def test_a_learners_convolutions_lie_channels_last_too(encoder):
    with build(config_of(image(40, 40, 3), encoder=encoder, rollout_steps=4)) as parts:
        for layer in parts.learner.module.modules():
            if isinstance(layer, nn.Conv2d):
                assert layer.weight.is_contiguous(memory_format=torch.channels_last)
        parts.learner.update(parts.sampler.collect(), 1.0)


def test_clipped_rewards_are_learnt_from_and_never_shown():
    """−3, 0, 2.5 become −1, 0, 1 for the learner; rollout and episodes keep what they have."""
    with build(config_of(image(8, 8), encoder="mlp", clip_reward=True)) as parts:
        rollout = parts.sampler.collect()
        rollout.reward[:] = np.random.default_rng(0).choice([-3.0, 0.0, 2.5], rollout.reward.shape)
        before = rollout.reward.copy()
        np.testing.assert_array_equal(parts.learner._scaled_reward(rollout), np.sign(before))
        parts.learner.update(rollout, 1.0)
        np.testing.assert_array_equal(rollout.reward, before)


# bfloat16


def test_bf16_is_refused_where_the_processor_has_none(monkeypatch):
    monkeypatch.setattr(choices, "bf16_abilities", list)
    with (
        pytest.raises(BadInput, match=r"precision is 'bf16'.*no instructions.*--precision fp32"),
        build(config_of(image(12, 12, 3), precision="bf16")),
    ):
        pass


@pytest.fixture
def allowed(monkeypatch):
    """As on a processor that has it; here it is only slow."""
    monkeypatch.setattr(choices, "bf16_missing", lambda gpu: None)


def test_bf16_is_refused_for_vectors_whose_actor_computes_in_float32(allowed):
    with (
        pytest.raises(
            BadInput, match=r"precision is 'bf16'.*neither convolutions.*--precision fp32"
        ),
        build(config_of("CartPole-v1", precision="bf16")),
    ):
        pass


@pytest.mark.parametrize("pictures", ["impala", "nature", "small", "mlp"])
def test_features_in_bf16_are_close_to_those_in_float32(pictures):
    """And are computed in it; the heads are not."""
    spec, seen = network_of(image(40, 40, 3), pictures, hidden=(64,)), pixels_of(image(40, 40, 3))
    module, half = initialized(spec), initialized(replace(spec, precision="bf16"))
    inside, heads = [], []
    for layer in half.policy.trunk.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(lambda layer, given, found: inside.append(found.dtype))
    for head in (half.policy.head, half.value_head):
        head.register_forward_hook(
            lambda layer, given, found: heads.extend([given[0].dtype, found.dtype])
        )
    with torch.no_grad():
        ours, theirs = half.policy.trunk(seen), module.policy.trunk(seen)
        half(seen)
    assert ours.dtype == torch.float32
    assert not torch.equal(ours, theirs)
    error = (ours - theirs).norm() / theirs.norm()
    assert error < 2e-2
    assert inside and set(inside) == {torch.bfloat16}
    assert heads and set(heads) == {torch.float32}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("space", "options"),
    [
        (image(40, 40, 3), {"encoder": "nature"}),
        (image(16, 16, 3), {"encoder": "impala"}),
        (image(12, 12), {"encoder": "small", "env": {"frame_stack": 4}}),
        (MIXED, {"encoder": "small"}),
    ],
    ids=["nature", "impala", "stack", "mixed"],
)
def test_ratios_start_near_one_in_bf16_and_weights_stay_float32(allowed, space, options):
    """On average within 1e-3, nowhere beyond 2e-2, before a rollout's first step."""
    with build(config_of(space, precision="bf16", hidden=(64,), **options)) as parts:
        learner = parts.learner
        for _ in range(3):
            rollout = parts.sampler.collect()
            batch = learner.prepare_batch(rollout)
            found = []
            for minibatch in learner.descent.shuffled(batch.rows, rollout, 0, 0).split(16):
                looked = batch.with_images(minibatch).inputs
                with torch.no_grad():
                    logp = learner.module.predict(looked, minibatch.action).logp
                assert logp.dtype == torch.float32
                found.append((logp - minibatch.logp)[minibatch.weight > 0].exp())
            error = (torch.cat(found) - 1).abs()
            assert error.mean() <= 1e-3 and error.max() <= 2e-2
            learner.update(rollout, 1.0)
            parts.sampler.publish(learner.weights, learner.version)
        assert learner.flat.storage.dtype == torch.float32
        assert learner._step.buffer.dtype == torch.float32
        for parameter in learner.module.parameters():
            assert parameter.dtype == torch.float32
            assert parameter.grad is None or parameter.grad.dtype == torch.float32
        assert learner._step.moments
        for moment in learner._step.moments:
            assert moment.dtype == torch.float32 and moment.any()


def test_bf16_changes_what_is_learnt_only_a_little(allowed):
    """The same rollout, learned from in both; and it is not float32 under another name."""
    weights = {}
    for precision in ("fp32", "bf16"):
        config = config_of(image(16, 16, 3), encoder="small", precision=precision)
        with build(config) as parts:
            rollout = parts.sampler.collect()
            if precision == "fp32":
                kept = {name: array.copy() for name, array in rollout.arrays().items()}
            rollout = replace(rollout, **kept)
            before = parts.learner.flat.weights.clone()
            parts.learner.update(rollout, 1.0)
            weights[precision] = parts.learner.flat.weights.clone(), before
    (plain, start), (half, _) = weights["fp32"], weights["bf16"]
    moved, apart = (plain - start).norm(), (plain - half).norm()
    assert 0 < apart < 0.5 * moved
