"""Actor and learner agree on every log-probability: for every space, before and after learning."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from environments import Anything
from gymnasium import spaces
from learners import iterate, needs_compiler
from saved_runs import PLAIN

import paceline
from paceline.run.build import blank_rollout, build

SPACES = {
    "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "matrix": spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
    "scalar": spaces.Box(-np.inf, np.inf, (), np.float32),  # a legal Gymnasium space
    "discrete": spaces.Discrete(6, start=2),
    "image": spaces.Box(0, 255, (9, 8, 2), np.uint8),
    "gray": spaces.Box(0, 255, (8, 9), np.uint8),
    "channels-first": spaces.Box(0, 255, (2, 10, 9), np.uint8),
}
BOX = spaces.Box(np.float32([-2, 0]), np.float32([2, np.inf]))
FEATURES = {"vector": [1.0, 100.0, 0.01], "matrix": [1.0, 100.0, 0.01], "scalar": 1.0}


class Probe(Anything):
    """Vectors have features on very different scales, which is what normalizers are for."""

    def __init__(self, observation="vector", action="discrete"):
        discrete = spaces.Discrete(3, start=1)
        super().__init__(SPACES[observation], BOX if action == "box" else discrete)
        self.scale = FEATURES.get(observation)

    def _look(self):
        seen, info = super()._look()
        return (seen if self.scale is None else np.float32((1 + 2 * seen) * self.scale)), info


CASES = [
    *product(("vector", "discrete", "image"), ("discrete", "box"), (False,)),
    *product(("vector",), ("discrete", "box"), (True,)),
]
SHAPES = [
    *product(("matrix", "scalar"), ("discrete",), (False, True)),
    *product(("gray", "channels-first"), ("discrete",), (False,)),
]


def config_of(observation, action="discrete", **options):
    small = {"num_envs": 4, "rollout_steps": 16, "epochs": 2, "minibatches": 2, "hidden": (32, 32)}
    fast = {"lr": 3e-3, "max_grad_norm": 100.0, "total_iters": 1000}
    env = {"kwargs": {"observation": observation, "action": action}}
    return paceline.Config(env_id=Probe, **PLAIN | small | fast | {"env": env} | options)


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
    options |= {"shared_trunk": shared, "normalize_return": True}
    config = config_of("vector", **options)
    assert_agreed_throughout(config.replace(env_id=env_id, env={"kwargs": {}}))


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
    one_step = {"epochs": 1, "minibatches": 1, "lr": 1e-2}
    config = config_of(observation, action, normalize_obs=normalize, **one_step)
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


@needs_compiler
@pytest.mark.parametrize("observation", ["discrete", "vector", "image"])
@pytest.mark.slow
def test_compiling_takes_a_blank_rollout_and_learns_nothing(observation):
    """Also where zero is not an observation, as with a Discrete that starts at 2."""
    with build(config_of(observation)) as parts:
        before = parts.learner.flat.storage.clone()
        parts.learner.warm_up(blank_rollout(parts.spec, parts.env_info.obs_spec))
        assert torch.equal(parts.learner.flat.storage, before)
