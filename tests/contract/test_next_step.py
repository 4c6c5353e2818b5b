"""The next-step contract: what `unroll` writes is what plain Gymnasium environments do.

Each column is replayed in an environment of its own, made without Paceline, with the same seeds
and actions.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from paceline.envs import env_maker
from paceline.envs.columns import EnvColumns, episode_seed
from paceline.envs.toy import WORLDS
from paceline.policy.actor import make_actor
from paceline.policy.network import NetworkSpec
from paceline.rollout import Episode
from paceline.samplers.serial import Serial
from paceline.spaces import ActionAdapter

COLUMNS = 3


def toy(name, **kwargs):
    return lambda: WORLDS[name](**kwargs)


def registered(name, **kwargs):
    return lambda: gym.make(name, **kwargs)


def stacked(make, frames):
    return lambda: gym.wrappers.FrameStackObservation(make(), frames)


# How Paceline makes each environment, and how anyone else would.
ENVS = {
    "identity": ({"env_id": "toy:identity"}, toy("identity")),
    "identity-image": (
        {"env_id": "toy:identity", "kwargs": {"image": True}},
        toy("identity", image=True),
    ),
    "identity-continuous": (
        {"env_id": "toy:identity", "kwargs": {"continuous": True}},
        toy("identity", continuous=True),
    ),
    "constant": ({"env_id": "toy:constant"}, toy("constant")),
    "memory": ({"env_id": "toy:memory"}, toy("memory")),
    "chain": ({"env_id": "toy:chain"}, toy("chain")),
    "CartPole": ({"env_id": "CartPole-v1"}, registered("CartPole-v1")),
    "Pendulum": ({"env_id": "Pendulum-v1"}, registered("Pendulum-v1")),
    "FrozenLake": ({"env_id": "FrozenLake-v1"}, registered("FrozenLake-v1")),
    "CartPole-stacked": (
        {"env_id": "CartPole-v1", "frame_stack": 4},
        stacked(registered("CartPole-v1"), 4),
    ),
    "CartPole-short": (
        {"env_id": "CartPole-v1", "time_limit": 7},
        registered("CartPole-v1", max_episode_steps=7),
    ),
    "CartPole-short-by-kwargs": (
        {"env_id": "CartPole-v1", "kwargs": {"max_episode_steps": 7}},
        registered("CartPole-v1", max_episode_steps=7),
    ),
    "CartPole-wrapped": (
        {"env_id": "CartPole-v1", "wrappers": ("gymnasium.wrappers:RecordEpisodeStatistics",)},
        registered("CartPole-v1"),
    ),
}


def sampler_of(options, steps, columns=COLUMNS, seed=0, first_column=0):
    """A serial sampler with a policy of random weights, so that actions depend on observations."""
    envs = EnvColumns(env_maker(**options), columns, seed, first_column)
    network = NetworkSpec(envs.obs_spec, envs.act_spec, (16,))
    sampler = Serial(envs, make_actor(network, columns), steps, seed)
    sampler.publish(random_weights(network), 3)
    return sampler, envs


def random_weights(network):
    from paceline.policy.actor_critic import Policy

    size = sum(parameter.numel() for parameter in Policy(network).parameters())
    return np.random.default_rng(0).normal(scale=0.3, size=size).astype(np.float32)


def copied(rollout):
    return {
        name: np.copy(getattr(rollout, name))
        for name in ("obs", "first", "action", "reward", "terminated", "truncated", "valid", "logp")
    }


def joined(rollouts):
    """Several rollouts as one; each begins with the observation that the last one ended in."""
    for before, after in zip(rollouts, rollouts[1:], strict=False):
        np.testing.assert_array_equal(before["obs"][-1], after["obs"][0])
        np.testing.assert_array_equal(before["first"][-1], after["first"][0])
    whole = {name: np.concatenate([r[name] for r in rollouts]) for name in rollouts[0]}
    for name in ("obs", "first"):
        inner = [r[name][:-1] for r in rollouts]
        whole[name] = np.concatenate([*inner, rollouts[-1][name][-1:]])
    return whole


@pytest.mark.parametrize("name", ENVS)
def test_a_rollout_is_what_plain_environments_do_with_the_same_seeds_and_actions(name):
    options, make = ENVS[name]
    seed, first_column = 11, 5
    steps = 100 if name == "identity-image" else 220  # Pendulum's limit is 200
    sampler, envs = sampler_of(options, steps // 2, seed=seed, first_column=first_column)
    adapt = ActionAdapter(envs.act_spec)
    rollouts, episodes = [], []
    for _ in range(2):
        rollout = sampler.collect()
        rollouts.append(copied(rollout))
        episodes += rollout.episodes
    sampler.close()
    whole, expected = joined(rollouts), []
    for i in range(COLUMNS):
        column = {key: array[:, i] for key, array in whole.items()}
        expected += replayed(column, make(), adapt, seed, first_column + i)
    assert sorted(map(repr, episodes)) == sorted(map(repr, expected))
    assert len(expected) >= COLUMNS, "every column should have ended at least once"


def replayed(column, env, adapt, seed, number):
    """Compare one column, row by row, with `env`; returns the episodes it holds."""
    episode, ended, score, length, episodes = 0, False, 0.0, 0, []
    observation, _ = env.reset(seed=episode_seed(seed, number, episode))
    np.testing.assert_array_equal(column["obs"][0], observation)
    assert column["first"][0]
    for t in range(len(column["reward"])):
        flags = [bool(column[flag][t]) for flag in ("terminated", "truncated")]
        if ended:
            episode += 1
            observation, _ = env.reset(seed=episode_seed(seed, number, episode))
            assert not column["valid"][t]
            assert column["reward"][t] == 0
            assert flags == [False, False]
            assert column["first"][t + 1]
            ended, score, length = False, 0.0, 0
        else:
            (action,) = adapt(column["action"][t : t + 1])
            observation, reward, terminated, truncated, _ = env.step(action)
            assert column["valid"][t]
            assert column["reward"][t] == np.float32(reward)
            assert flags[0] == terminated
            assert terminated or flags[1] == truncated
            assert not column["first"][t + 1]
            ended, score, length = terminated or truncated, score + np.float32(reward), length + 1
            if ended:
                episodes.append(Episode(number, pytest.approx(score, rel=1e-5), length))
        expected = np.asarray(observation).astype(column["obs"].dtype)
        np.testing.assert_array_equal(column["obs"][t + 1], expected)
    env.close()
    return [Episode(e.column, float(e.total.expected), e.length) for e in episodes]
