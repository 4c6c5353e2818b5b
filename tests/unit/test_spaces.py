"""Which spaces are understood, and what an environment sees of the policy's actions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from gymnasium import spaces

from paceline.envs.adapters import ActionAdapter
from paceline.envs.spaces import action_spec, observation_spec, policy_mismatch
from paceline.errors import BadInput


def adapted(space, actions):
    """What the environment sees."""
    return ActionAdapter(action_spec(space))(np.asarray(actions, np.float32))


def box(low, high, dtype=np.float32):
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


@pytest.mark.parametrize(
    ("low", "high", "drawn", "seen"),
    [
        ([-2, 0, -1], [2, 10, 3], [[-1, -1, -1], [0, 0, 0]], [[-2, 0, -1], [0, 5, 1]]),
        ([-2, 0, -1], [2, 10, 3], [[1, 1, 1], [0.5, 0.5, 0.5]], [[2, 10, 3], [1, 7.5, 2]]),
        ([-2, 0], [2, 10], [[5, 5], [-5, -5]], [[2, 10], [-2, 0]]),
        ([-np.inf, -np.inf], [np.inf, np.inf], [[-300, 0.25]], [[-300, 0.25]]),
        ([0, -np.inf], [np.inf, 1], [[-3, -3], [3, 3]], [[0, -3], [3, 1]]),
        ([0, -np.inf], [np.inf, 1], [[0.5, 0.5]], [[0.5, 0.5]]),
        ([-2, -np.inf, 0], [2, np.inf, np.inf], [[0.5, 0.5, 0.5]], [[1, 0.5, 0.5]]),
        ([-2, -np.inf, 0], [2, np.inf, np.inf], [[-9, -9, -9]], [[-2, -9, 0]]),
    ],
)
def test_finite_bounds_are_stretched_over_and_any_bound_is_clipped_at(low, high, drawn, seen):
    np.testing.assert_array_equal(adapted(box(low, high), drawn), seen)


@pytest.mark.parametrize(
    ("low", "high"), [(-1, 1), (-np.inf, np.inf), (0, np.inf), (-np.inf, 0), (-3e38, 3e38)]
)
def test_no_kind_of_bounds_makes_numpy_complain(low, high):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = adapted(box([low], [high]), [[0.0]])
    np.testing.assert_array_equal(seen, [[0.0]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_the_environment_sees_lies_in_its_space(dtype):
    """With bounds that float32 does not hold exactly, an action must not fall just outside."""
    space = box([-0.1, -1 / 3, 1e-3], [0.1, 0.7, 1.1e-3], dtype)
    actions = np.random.default_rng(0).normal(scale=2.0, size=(500, 3))
    for action in adapted(space, actions):
        assert action.dtype == dtype
        assert space.contains(action)


def test_a_box_of_several_axes_gets_its_shape_back():
    space = spaces.Box(-1, 1, (2, 3), np.float32)
    spec = action_spec(space)
    assert spec.stored == ((6,), np.float32)
    (seen,) = adapted(space, np.arange(6)[None] / 10)
    np.testing.assert_allclose(seen, [[0, 0.1, 0.2], [0.3, 0.4, 0.5]], rtol=1e-6)


@pytest.mark.parametrize("start", [0, 3, -2])
def test_discrete_actions_begin_at_the_spaces_start_and_are_what_it_samples(start):
    space = spaces.Discrete(4, start=start)
    seen = ActionAdapter(action_spec(space))(np.arange(4))
    assert seen == [start, start + 1, start + 2, start + 3]
    assert all(type(action) is type(space.sample()) for action in seen)
    assert all(space.contains(action) for action in seen)


def test_the_policys_own_actions_are_not_changed():
    actions = np.float32([[5.0, -5.0]])
    ActionAdapter(action_spec(box([-1, -1], [1, 1])))(actions)
    assert actions.tolist() == [[5.0, -5.0]]


@pytest.mark.parametrize(
    ("shape", "dtype", "channels_first"),
    [
        ((84, 84, 3), np.uint8, False),
        ((3, 84, 84), np.uint8, True),
        ((4, 84, 84), np.uint8, True),
        ((84, 84), np.uint8, True),
        ((8, 8, 1), np.uint8, False),
        ((12, 12, 1), np.float32, False),
        ((64, 48, 3), np.uint8, False),
    ],
)
def test_images_are_recognised_with_their_channels(shape, dtype, channels_first):
    spec = observation_spec(spaces.Box(0, 255, shape, dtype))
    assert (spec.kind, spec.stored) == ("image", (shape, np.dtype(dtype)))
    assert spec.leaves[0].channels_first == channels_first


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((4,), np.float32),
        ((128,), np.uint8),  # Atari's RAM
        ((7, 7, 3), np.uint8),  # a grid too small to convolve over
        ((16, 16), np.float32),  # a matrix of numbers, or a stack of vectors
        ((4, 3), np.float32),
    ],
)
def test_every_other_box_is_a_vector_of_float32(shape, dtype):
    spec = observation_spec(spaces.Box(0, 1, shape, dtype))
    assert (spec.kind, spec.stored) == ("vector", (shape, np.float32))
    assert spec.size == np.prod(shape)


def test_a_discrete_observation_keeps_its_start():
    spec = observation_spec(spaces.Discrete(5, start=2))
    assert (spec.kind, spec.size, spec.start, spec.stored) == ("discrete", 5, 2, ((), np.int64))


@pytest.mark.parametrize(
    ("spec_of", "space"),
    [
        (observation_spec, spaces.Text(5)),
        (observation_spec, spaces.Graph(spaces.Box(-1, 1, (2,)), None)),
        (observation_spec, spaces.Sequence(spaces.Discrete(3))),
        (action_spec, spaces.Dict({"a": spaces.Discrete(2)})),
        (action_spec, spaces.Text(4)),
        (action_spec, spaces.Sequence(spaces.Discrete(2))),
        (action_spec, spaces.Box(0, 1, (0,))),
    ],
)
def test_a_refused_space_is_named(spec_of, space):
    with pytest.raises(BadInput) as refusal:
        spec_of(space)
    role = "observation" if spec_of is observation_spec else "action"
    assert str(space) in str(refusal.value) and f"{role} space" in str(refusal.value)


def specs(obs, act):
    found = action_spec(act)
    return observation_spec(obs, found), found


def test_a_policy_in_the_wrong_environment_is_told_in_the_words_of_gymnasium():
    image = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    first = specs(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    second = specs(spaces.Dict(a=image, b=spaces.Discrete(3)), spaces.MultiDiscrete([3, 2]))
    assert policy_mismatch(first, first, "Here-v1") is None
    assert policy_mismatch(first, second, "There-v1") == (
        "this policy takes observations of Box(4,) and gives actions of Discrete(2); There-v1 "
        "shows Dict('a': Box(64, 64, 3) of uint8, 'b': Discrete(3)) and takes "
        "MultiDiscrete([3, 2])"
    )
