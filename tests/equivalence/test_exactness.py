"""Equal to the bit: the same seed, a restored sampler, and columns split into blocks."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from environments import env_maker, serial_of
from saved_runs import PLAIN, assert_same

import paceline
from paceline.envs.env_columns import EnvColumns
from paceline.envs.suites.toy import Constant
from paceline.policy.actor import make_actor
from paceline.policy.network import NetworkSpec
from paceline.run.build import build


def config_of(env_id, kwargs=None, **options):
    defaults = {"num_envs": 3, "rollout_steps": 16, "total_iters": 1000, "minibatches": 1}
    env = {"env_id": env_id, "env": {"kwargs": kwargs or {}}}
    return paceline.Config(**(PLAIN | defaults | env | options))


def snapshot(rollout):
    """All of a rollout as bytes, with its episodes."""
    arrays = {name: array.tobytes() for name, array in rollout.arrays().items()}
    return arrays | {"episodes": rollout.episodes}


def turn(parts):
    """One turn of the ring; returns what was sampled."""
    rollout = parts.sampler.collect()
    seen = snapshot(rollout)
    parts.learner.update(rollout, 1.0)
    parts.sampler.publish(parts.learner.weights, parts.learner.version)
    return seen


NORMALIZED = {"normalize_obs": True, "normalize_return": True}
RUNS = {
    "CartPole": ("CartPole-v1", {}, {"minibatches": 4, **NORMALIZED}),
    "Pendulum": ("Pendulum-v1", {}, {"minibatches": 4, "normalize_return": True}),
    "a2c": ("CartPole-v1", {}, {"algo": "a2c"}),
    "impala": ("CartPole-v1", {}, {"algo": "impala", **NORMALIZED}),
    "image": ("toy:identity", {"image": True}, {"minibatches": 4}),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_same_seed_gives_the_same_weights_to_the_bit(name):
    env_id, kwargs, options = RUNS[name]
    results = []
    for seed in (3, 3, 4):
        with build(config_of(env_id, kwargs, seed=seed, **options)) as parts:
            rollouts = [turn(parts) for _ in range(4)]
            results.append((rollouts, parts.learner.state()))
    (one, ours), (again, theirs), (_, others) = results
    assert one == again
    assert_same(ours, theirs)
    assert ours["storage"].tobytes() != others["storage"].tobytes()


SAMPLED = {
    "CartPole": ("CartPole-v1", {}, 16),
    "CartPole-limited": ("CartPole-v1", {"max_episode_steps": 37}, 16),
    "Pendulum": ("Pendulum-v1", {}, 32),  # 200 steps: episodes span several rollouts
    "image": ("toy:identity", {"image": True}, 8),
    "FrozenLake": ("FrozenLake-v1", {}, 16),
    "just ended": ("toy:constant", {"length": 5}, 5),  # the first rollout ends with its episodes
}


@contextmanager
def restored(config, weights, state):
    """Another sampler that continues from `state`, which passes through a file's types."""
    with build(config) as parts:
        arrays = {name: np.array(array) for name, array in state.items()}
        assert parts.sampler.restore(arrays) == []
        parts.sampler.publish(weights, 0)
        yield parts.sampler


def advance(sampler, weights):
    """One turn without learning: sample, publish the same weights; returns what was sampled."""
    seen = snapshot(sampler.collect())
    sampler.publish(weights, 0)
    return seen


@contextmanager
def advanced(config, rollouts):
    """A sampler after so many rollouts, and the weights that it acts with."""
    with build(config) as parts:
        parts.sampler.begin()
        for _ in range(rollouts):
            advance(parts.sampler, parts.learner.weights)
        yield parts.sampler, parts.learner.weights


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("before", [0, 1, 2, 7])
def test_a_restored_sampler_continues_exactly(name, before):
    env_id, kwargs, steps = SAMPLED[name]
    config = config_of(env_id, kwargs, rollout_steps=steps)
    with advanced(config, before) as (sampler, weights):
        state = sampler.state()
        expected = [advance(sampler, weights) for _ in range(3)]
        last = sampler.state()
    with restored(config, weights, state) as twin:
        assert_same(twin.state(), state)
        assert [advance(twin, weights) for _ in range(3)] == expected
        assert_same(twin.state(), last)


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("before", [0, 1, 4])
def test_the_state_after_a_rollout_without_an_update_repeats_that_rollout(name, before):
    """As when the update diverged."""
    env_id, kwargs, steps = SAMPLED[name]
    config = config_of(env_id, kwargs, rollout_steps=steps)
    with advanced(config, before) as (sampler, weights):
        now = sampler.state()
        expected = snapshot(sampler.collect())
        state = sampler.state()
    assert_same(state, now)
    with restored(config, weights, state) as twin:
        assert snapshot(twin.collect()) == expected
        assert_same(twin.state(), now)


def test_a_state_holds_the_actions_of_open_episodes_only():
    """Pendulum's episodes of 200 steps never end at once with rollouts of 32."""
    config = config_of("Pendulum-v1", rollout_steps=32)
    with build(config) as parts:
        for rollouts in range(1, 20):
            advance(parts.sampler, parts.learner.weights)
            state = parts.sampler.state()
            rows = 32 * rollouts
            # 200 steps and 1 reset row make an episode; every column is at the same place.
            open_steps = 0 if rows % 201 == 200 else rows % 201
            assert len(state["0.actions"]) == 3 * open_steps


class Unsteady(Constant):
    """Its observations depend on how many were made before it, which no seed restores."""

    made = 0

    def __init__(self):
        super().__init__(length=50)
        Unsteady.made += 1  # the first of every build is only looked at
        self.number = Unsteady.made

    def step(self, action):
        obs, *rest = super().step(action)
        return obs * np.float32(1 + self.number // 4 * (self.number % 4 == 2)), *rest


def test_a_column_that_does_not_replay_to_its_observation_is_named():
    Unsteady.made = 0
    config = config_of(Unsteady, rollout_steps=4)
    with advanced(config, 1) as (sampler, _):
        state = sampler.state()
    with build(config) as parts:
        assert parts.sampler.restore(state) == [(0, "observation")]


class Remembering(Constant):
    """Carries state over episodes that shows only in its rewards, or in its end."""

    def __init__(self, what="reward", length=50):
        super().__init__(length=length)
        self.what, self.begun = what, 0

    def reset(self, **options):
        self.begun += 1
        return super().reset(**options)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        old = self.begun > 1
        if self.what == "reward" and old:  # by one bit of a float32
            reward = float(np.nextafter(np.float32(reward), np.float32(9)))
        truncated = truncated or (self.what == "end" and not old and self.time == 5)
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize(("what", "said"), [("reward", "reward"), ("end", "ended")])
def test_rewards_and_ends_that_do_not_replay_are_named(what, said):
    config = config_of(Remembering, {"what": what, "length": 20}, rollout_steps=35)
    with advanced(config, 1) as (sampler, _):
        state = sampler.state()
    with build(config) as parts:
        different = parts.sampler.restore(state)
        assert different == [(i, said) for i in range(config.num_envs)]
        parts.sampler.publish(parts.learner.weights, 0)
        rollout = parts.sampler.collect()
        assert rollout.first[1].all() and not rollout.valid[0].any()
        assert {episode.length for episode in rollout.episodes} <= {5, 20}


def test_a_failed_environment_does_not_disturb_a_restore():
    """The rebuilt environment's episode is replayed like any other."""

    class Fragile(gym.make("CartPole-v1").unwrapped.__class__):
        steps = 0

        def step(self, action):
            Fragile.steps += 1
            if Fragile.steps == 31:
                raise RuntimeError
            return super().step(action)

    config = config_of(Fragile)
    with advanced(config, 1) as (sampler, weights):
        state = sampler.state()
        expected = snapshot(sampler.collect())
    with restored(config, weights, state) as twin:
        assert snapshot(twin.collect()) == expected


def block(make, columns, first_column, hidden, steps=24, seed=2):
    """Rollouts of some columns of a run, acted with weights that are always the same."""
    envs = EnvColumns(make, columns, seed, first_column)
    network = NetworkSpec(envs.obs_spec, envs.act_spec, hidden)
    sizes = [network.obs.size, *hidden, network.act.size]
    size = sum(a * b + b for a, b in pairwise(sizes))
    size += network.act.size * (network.act.kind == "box")
    actor = make_actor(network, columns)
    sampler = serial_of(envs, actor, steps, seed)
    weights = np.random.default_rng(0).normal(scale=0.5, size=size)
    sampler.publish(weights.astype(np.float32), 0)
    rollouts = []
    for _ in range(3):
        rollout = sampler.collect()
        kept = [name for name in rollout.arrays() if name not in ("version", "column")]
        arrays = {name: rollout.arrays()[name].copy() for name in kept}
        rollouts.append((arrays, rollout.episodes))
    sampler.close()
    return rollouts


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "toy:identity", "toy:chain"])
def test_two_blocks_of_columns_sample_what_one_block_samples(env_id):
    """To the bit: a table look-up rounds the same for any number of rows."""
    make = env_maker(env_id)
    whole = block(make, 5, 0, ())
    parts = block(make, 2, 0, ()), block(make, 3, 2, ())
    for (arrays, episodes), (left, left_ended), (right, right_ended) in zip(
        whole, *parts, strict=True
    ):
        for name, array in arrays.items():
            both = np.concatenate([left[name], right[name]], axis=1)
            assert array.tobytes() == both.tobytes(), name
        assert sorted(episodes, key=repr) == sorted([*left_ended, *right_ended], key=repr)


def test_two_blocks_of_columns_draw_the_same_noise_for_dense_networks():
    """Pendulum's action is mean + noise, and a product of matrices rounds by its shape."""
    make = env_maker("Pendulum-v1")
    whole, left, right = (
        block(make, *columns, (16,))[0][0] for columns in ((5, 0), (2, 0), (3, 2))
    )
    both = np.concatenate([left["action"], right["action"]], axis=1)
    np.testing.assert_allclose(whole["action"], both, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", "LunarLander-v3", "BipedalWalker-v3", "BipedalWalkerHardcore-v3"],
)
def test_an_episode_depends_on_its_seed_and_actions_alone(env_id):
    """Else it could not be replayed; unwrapped, BipedalWalker keeps its world over resets."""

    def played(env, seed):
        env.action_space.seed(seed)
        seen = [env.reset(seed=seed)[0].tobytes()]
        for _ in range(200):
            obs, reward, *ends, _ = env.step(env.action_space.sample())
            seen.append((obs.tobytes(), float(reward), *ends))
            if any(ends):
                break
        return seen

    make = env_maker(env_id)
    used, _ = make()
    for seed in range(6):
        fresh, _ = make()
        assert played(used, seed) == played(fresh, seed)
        fresh.close()
    used.close()
