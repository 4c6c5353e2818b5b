"""Random spaces, random policies: stored observations lose nothing, actor and learner agree."""

from __future__ import annotations

import numpy as np
import torch
from environments import Anything, serial_of
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.envs.adapters import ActionAdapter, ObservationAdapter, space_of
from paceline.envs.env_columns import EnvColumns
from paceline.envs.spaces import action_spec, observation_spec
from paceline.policy.actor import make_actor
from paceline.policy.actor_critic import ActorCritic
from paceline.policy.flat import FlatParameters
from paceline.policy.network import NetworkSpec

shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
starts = st.integers(-3, 3)
boxes = st.builds(
    lambda shape, bounds, dtype: spaces.Box(
        np.full(shape, bounds[0], dtype), np.full(shape, bounds[1], dtype), dtype=dtype
    ),
    shapes,
    st.sampled_from([(-3.0, 1.0), (0.0, 4.0), (-np.inf, np.inf), (-np.inf, 1.0), (0.0, np.inf)]),
    st.sampled_from([np.float32, np.float64]),
)
small = st.integers(1, 4)
discretes = st.builds(lambda n, start: spaces.Discrete(n, start=start), small, starts)
multi_discretes = st.lists(st.tuples(small, starts), min_size=1, max_size=4).map(
    lambda pairs: spaces.MultiDiscrete([n for n, _ in pairs], start=[first for _, first in pairs])
)
multi_binaries = st.integers(1, 4).map(spaces.MultiBinary)
images = st.sampled_from([(8, 9, 3), (1, 8, 8), (9, 8)]).map(
    lambda shape: spaces.Box(0, 255, shape, np.uint8)
)
leaves = st.one_of(boxes, discretes, multi_discretes, multi_binaries)
keys = st.sampled_from(["goal", "a", "z", "observation"])
observations = st.recursive(
    st.one_of(leaves, images),
    lambda inner: st.one_of(
        st.dictionaries(keys, inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)
actions = st.one_of(
    discretes,
    multi_discretes,
    multi_binaries,
    boxes.filter(lambda box: box.shape != ()),
    st.just(spaces.Box(-1, 2, (), np.float32)),
)
seeds = st.integers(0, 2**16)


def equal(one, other):
    """The same structure with the same numbers, as far as float32 can tell."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    single = np.asarray(one)
    if single.dtype.kind == "f":
        single = single.astype(np.float32)
    return np.array_equal(single, np.asarray(other))


def row(structure, index):
    """One observation of a batch."""
    if isinstance(structure, dict):
        return {key: row(value, index) for key, value in structure.items()}
    if isinstance(structure, tuple):
        return tuple(row(value, index) for value in structure)
    return structure[index]


@settings(deadline=None, max_examples=150)
@given(space=observations, seed=seeds)
def test_what_is_stored_reads_back_as_it_was_seen(space, seed):
    spec = observation_spec(space)
    adapter = ObservationAdapter(spec)
    shape, dtype = spec.stored
    stored = np.zeros((3, *shape), dtype)
    space.seed(seed)
    seen = [space.sample() for _ in range(3)]
    for i, observation in enumerate(seen):
        adapter.write(spec.split(stored), i, observation, {})
    again = adapter.read(stored)
    for i, observation in enumerate(seen):
        assert equal(observation, row(again, i))
    together = np.zeros_like(stored)
    adapter.write(spec.split(together), slice(None), again, {})
    for part, other in zip(spec.split(stored).values(), spec.split(together).values(), strict=True):
        np.testing.assert_array_equal(part, other)


@settings(deadline=None, max_examples=100)
@given(space=observations)
def test_a_space_rebuilt_from_its_description_is_described_the_same(space):
    spec = observation_spec(space)
    assert observation_spec(space_of(spec)).parts == spec.parts


@settings(deadline=None, max_examples=150)
@given(space=actions, seed=seeds)
def test_whatever_a_policy_draws_is_in_the_action_space(space, seed):
    spec = action_spec(space)
    generator = np.random.default_rng(seed)
    shape, _ = spec.stored
    if spec.kind == "box":
        drawn = generator.normal(size=(5, *shape), scale=2).astype(np.float32)
    else:
        sizes = spec.sizes or (spec.size,)
        drawn = np.stack([generator.integers(0, n, 5) for n in sizes], -1).reshape(5, *shape)
    seen = ActionAdapter(spec)(drawn)
    assert all(space.contains(action) for action in seen), (space, seen)
    assert space.shape != () or all(np.ndim(action) == 0 for action in seen)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    observation=observations,
    action=actions,
    masked=st.booleans(),
    shared=st.booleans(),
    normalize=st.booleans(),
    state_std=st.booleans(),
    hidden=st.sampled_from([(), (8,), (8, 5)]),
    activation=st.sampled_from(["tanh", "relu", "elu"]),
    seed=seeds,
)
def test_actor_and_learner_agree_on_every_log_probability(
    observation, action, masked, shared, normalize, state_std, hidden, activation, seed
):
    masked = masked and bool(action_spec(action).choices)
    with EnvColumns(lambda: (Anything(observation, action, masked), None), 3, seed) as columns:
        obs, act = columns.obs_spec, columns.act_spec
        assert bool(obs.mask) == masked
        network = NetworkSpec(
            obs,
            act,
            hidden,
            activation,
            shared_trunk=shared,
            normalize_obs=normalize and obs.kind != "discrete" and bool(obs.numeric.any()),
            state_dependent_std=state_std and act.kind == "box",
        )
        module = ActorCritic(network)
        module.initialize(seed)
        flat = FlatParameters(module, torch.device("cpu"))
        generator = torch.Generator().manual_seed(seed)
        # Where weights say the deviation, they stay small: divided by e^-10, rounding would show.
        spread = 0.03 if network.state_dependent_std else 0.3
        flat.weights += spread * torch.randn(flat.weights.shape, generator=generator)
        sampler = serial_of(columns, make_actor(network, 3), 6, seed)
        sampler.publish(flat.published.numpy(), 0)
        rollout = sampler.collect()
        parts = {
            name: torch.from_numpy(part[:-1]).flatten(0, 1)
            for name, part in obs.split(rollout.obs).items()
        }
        with torch.no_grad():
            prediction = module.predict(
                module.inputs(parts), torch.from_numpy(rollout.action).flatten(0, 1)
            )
        ours, theirs = rollout.logp.ravel(), prediction.logp.numpy()
        assert np.isfinite(ours).all() and np.isfinite(prediction.entropy.numpy()).all()
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * (1 + np.abs(ours).max()))
        if act.kind != "box":
            assert (prediction.entropy >= -1e-5).all()
