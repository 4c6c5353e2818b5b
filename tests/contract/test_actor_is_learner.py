"""Actor and learner agree on every log-probability: for every space, before and after learning."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from learners import iterate
from saved_runs import PLAIN

import paceline
from paceline.learning.compiler import compiler_missing
from paceline.run.build import blank_rollout, build


class Probe(gym.Env):
    """Random observations of any kind, rewards that depend on the action, and both kinds of end.

    Vectors have features on very different scales, which is what normalizers are for.
    """

    def __init__(self, observation="vector", action="discrete"):
        self.kind = observation
        self.observation_space = {
            "vector": gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
            "matrix": gym.spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
            "scalar": gym.spaces.Box(-np.inf, np.inf, (), np.float32),
            "discrete": gym.spaces.Discrete(6, start=2),
            "image": gym.spaces.Box(0, 255, (9, 8, 2), np.uint8),
            "gray": gym.spaces.Box(0, 255, (8, 9), np.uint8),
            "channels-first": gym.spaces.Box(0, 255, (2, 10, 9), np.uint8),
        }[observation]
        self.action_space = {
            "discrete": gym.spaces.Discrete(3, start=1),
            "box": gym.spaces.Box(np.float32([-2, 0]), np.float32([2, np.inf])),
        }[action]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        reward = float(np.sum(action)) + self.np_random.normal()
        terminated, truncated = self.np_random.random(2) < 0.1
        return self._look(), reward, bool(terminated), bool(truncated), {}

    def _look(self):
        shape = self.observation_space.shape
        if self.kind == "discrete":
            return int(self.np_random.integers(2, 8))
        if self.observation_space.dtype == np.uint8:
            return self.np_random.integers(256, size=shape).astype(np.uint8)
        scale = np.array([1.0, 100.0, 0.01]) if self.kind != "scalar" else 1.0
        seen = self.np_random.normal(1.0, 2.0, size=shape) * scale
        return np.asarray(seen, np.float32)


CASES = [
    (observation, action, normalize)
    for observation in ("vector", "discrete", "image")
    for action in ("discrete", "box")
    for normalize in (False, True)
    if observation == "vector" or not normalize
]
SHAPES = [
    ("matrix", "discrete", True),
    ("matrix", "discrete", False),
    ("scalar", "discrete", True),  # a Box of shape () is a legal Gymnasium space
    ("scalar", "discrete", False),
    ("gray", "discrete", False),
    ("channels-first", "discrete", False),
]


def config_of(observation, action="discrete", **options):
    defaults = {
        **PLAIN,
        "num_envs": 4,
        "rollout_steps": 16,
        "epochs": 2,
        "minibatches": 2,
        "lr": 3e-3,
        "max_grad_norm": 100.0,
        "total_iters": 1000,
        "hidden": (32, 32),
        "env": {"kwargs": {"observation": observation, "action": action}},
    }
    return paceline.Config(env_id=Probe, **(defaults | options))


def learner_logp(learner, rollout):
    """The learner's own log-probabilities of a rollout's actions."""
    module = learner.module
    with torch.no_grad():
        parts = module.spec.obs.split(rollout.obs[:-1])
        inputs = module.inputs(
            {name: torch.from_numpy(part).flatten(0, 1) for name, part in parts.items()}
        )
        logp = module.predict(inputs, torch.from_numpy(rollout.action).flatten(0, 1)).logp
    return logp.numpy().reshape(rollout.logp.shape)


def assert_agreed_throughout(config):
    with build(config) as parts:
        rollout = parts.sampler.collect()
        np.testing.assert_allclose(
            rollout.logp, learner_logp(parts.learner, rollout), rtol=0, atol=1e-5
        )
        before = parts.learner.flat.weights.clone()
        iterate(parts, 25)
        rollout = parts.sampler.collect()
        assert (parts.learner.flat.weights - before).abs().max() > 0.01, "it should have learned"
        expected = learner_logp(parts.learner, rollout)
        error = np.abs(rollout.logp - expected) / (1 + np.abs(expected))
        assert error.max() < 1e-4


@pytest.mark.parametrize(("observation", "action", "normalize"), [*CASES, *SHAPES])
def test_actor_and_learner_agree_on_log_probabilities(observation, action, normalize):
    assert_agreed_throughout(config_of(observation, action, normalize_obs=normalize))


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("hidden", [(), (16,), (16, 8, 8)])
@pytest.mark.parametrize("observation", ["vector", "discrete"])
def test_actor_and_learner_agree_for_every_network(observation, hidden, activation):
    assert_agreed_throughout(config_of(observation, hidden=hidden, activation=activation))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
@pytest.mark.parametrize("shared", [False, True])
def test_actor_and_learner_agree_on_real_environments(env_id, shared):
    options = {"normalize_obs": True} if env_id != "FrozenLake-v1" else {}
    config = config_of("vector", shared_trunk=shared, **options)
    values = config.as_dict() | {"env_id": env_id, "env": {}, "normalize_return": True}
    assert_agreed_throughout(paceline.Config(**values))


def test_stored_log_probability_is_the_density_of_the_action_as_drawn():
    """Not of what the environment saw, which was stretched and clipped."""
    with build(config_of("vector", "box")) as parts:
        iterate(parts, 5)
        rollout = parts.sampler.collect()
        with torch.no_grad():
            mean, _ = parts.learner.module(torch.from_numpy(rollout.obs[:-1]).flatten(0, 1))
        std = parts.learner.module.policy.log_std.detach().exp().double().numpy()
        action = rollout.action.astype(np.float64)
        assert np.abs(action).max() > 1, "some draw should lie beyond the bounds"
        z = (action - mean.double().numpy().reshape(action.shape)) / std
        density = np.exp(-(z**2) / 2) / (std * np.sqrt(2 * np.pi))
        np.testing.assert_allclose(rollout.logp, np.log(density).sum(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("observation", "action", "normalize"), CASES)
def test_the_first_minibatch_of_an_update_sees_a_ratio_of_one(observation, action, normalize):
    """With one epoch and one minibatch, the update's own KL is that of its first minibatch."""
    config = config_of(
        observation, action, normalize_obs=normalize, epochs=1, minibatches=1, lr=1e-2
    )
    with build(config) as parts:
        for _ in range(8):
            rollout = parts.sampler.collect()
            ratio = np.exp(learner_logp(parts.learner, rollout) - rollout.logp)
            assert np.abs(ratio - 1).max() < 1e-4
            metrics = parts.learner.update(rollout, 1.0)
            assert abs(metrics["approx_kl"]) < 1e-6
            assert metrics["clip_frac"] == 0
            parts.sampler.publish(parts.learner.weights, parts.learner.version)


def test_a_stale_normalizer_would_be_noticed():
    """The statistics do move between updates, so that the test above can fail."""
    config = config_of("vector", normalize_obs=True, epochs=1, minibatches=1, lr=1e-2)
    with build(config) as parts:
        stale = parts.learner.module.obs_mean.clone()
        iterate(parts, 3)
        rollout = parts.sampler.collect()
        parts.learner.module.obs_mean.copy_(stale)
        assert np.abs(np.exp(learner_logp(parts.learner, rollout) - rollout.logp) - 1).max() > 1e-3


@pytest.mark.parametrize("observation", ["discrete", "image"])
def test_normalizing_what_is_no_vector_is_refused(observation):
    with (
        pytest.raises(paceline.BadInput, match="normalize_obs"),
        build(config_of(observation, normalize_obs=True)),
    ):
        pass


@pytest.mark.skipif(bool(compiler_missing()), reason=str(compiler_missing()))
@pytest.mark.parametrize(
    "observation",
    [
        "discrete",
        pytest.param("vector", marks=pytest.mark.slow),
        pytest.param("image", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_compiling_takes_a_blank_rollout_and_learns_nothing(observation):
    """Also where zero is not an observation, as with a Discrete that starts at 2."""
    config = config_of(observation)
    with build(config) as parts:
        before = parts.learner.flat.storage.clone()
        parts.learner.warm_up(blank_rollout(parts.spec, parts.env_info.obs_spec))
        assert torch.equal(parts.learner.flat.storage, before)
