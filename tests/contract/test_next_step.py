"""The next-step contract: what `unroll` writes is what plain Gymnasium environments do.

Each column is replayed in an environment of its own, made without Paceline, with the same seeds
and actions.
"""

from __future__ import annotations

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from sampling import collected, joined, made_by, sampler_of
from worlds import env_maker

from paceline.envs.adapters import ActionAdapter
from paceline.envs.columns import episode_seed
from paceline.envs.spaces import action_spec
from paceline.envs.suites.toy import TOYS, Constant
from paceline.rollout import Episode

COLUMNS, SEED, FIRST_COLUMN = 3, 11, 5


def toy(name, **kwargs):
    return lambda: TOYS[name](**kwargs)


def registered(name, **kwargs):
    return lambda: gym.make(name, **kwargs)


def stacked(make, frames):
    return lambda: gym.wrappers.FrameStackObservation(make(), frames)


class Channels(gym.Wrapper):
    """The last `frames` images, oldest first, one after the other on the channels' axis."""

    def __init__(self, env, frames, axis):
        super().__init__(env)
        self.frames, self.axis = frames, axis

    def reset(self, **options):
        first, info = self.env.reset(**options)
        self.seen = [first] * self.frames
        return np.concatenate(self.seen, self.axis), info

    def step(self, action):
        obs, *rest = self.env.step(action)
        self.seen = [*self.seen[1:], obs]
        return np.concatenate(self.seen, self.axis), *rest


STATISTICS = "gymnasium.wrappers:RecordEpisodeStatistics"

# How Paceline makes each environment, and how anyone else would; and observations in a stack.
ENVS = {
    "identity": (env_maker("toy:identity"), toy("identity")),
    "identity-image": (
        env_maker("toy:identity", {"image": True}),
        toy("identity", image=True),
    ),
    "identity-continuous": (
        env_maker("toy:identity", {"continuous": True}),
        toy("identity", continuous=True),
    ),
    "constant": (env_maker("toy:constant"), toy("constant")),
    "memory": (env_maker("toy:memory"), toy("memory")),
    "chain": (env_maker("toy:chain"), toy("chain")),
    "CartPole": (env_maker("CartPole-v1"), registered("CartPole-v1")),
    "Pendulum": (env_maker("Pendulum-v1"), registered("Pendulum-v1")),
    "FrozenLake": (env_maker("FrozenLake-v1"), registered("FrozenLake-v1")),
    "stacked": (
        env_maker("CartPole-v1"),
        stacked(registered("CartPole-v1"), 4),
        4,
    ),
    "stacked-image": (
        env_maker("toy:identity", {"image": True}),
        lambda: Channels(TOYS["identity"](image=True), 3, axis=2),
        3,
    ),
    "stacked-short": (
        env_maker("Pendulum-v1", time_limit=7),
        stacked(registered("Pendulum-v1", max_episode_steps=7), 2),
        2,
    ),
    "short": (
        env_maker("CartPole-v1", time_limit=7),
        registered("CartPole-v1", max_episode_steps=7),
    ),
    "short-by-kwargs": (
        env_maker("CartPole-v1", {"max_episode_steps": 7}),
        registered("CartPole-v1", max_episode_steps=7),
    ),
    "wrapped": (env_maker("CartPole-v1", wrappers=(STATISTICS,)), registered("CartPole-v1")),
    "wrapped-short": (
        env_maker("CartPole-v1", time_limit=7, wrappers=(STATISTICS,)),
        registered("CartPole-v1", max_episode_steps=7),
    ),
}


def replayed(column, env, number):
    """Compare one column, row by row, with `env`; returns the episodes it holds."""
    adapt = ActionAdapter(action_spec(env.action_space))
    observation, _ = env.reset(seed=episode_seed(SEED, number, 0))
    np.testing.assert_array_equal(column["obs"][0], observation)
    assert column["first"][0]
    rewards, episodes, ended = [], [], False
    for t in range(len(column["reward"])):
        terminated = truncated = False
        valid, reward = not ended, 0.0
        if ended:
            observation, _ = env.reset(seed=episode_seed(SEED, number, len(episodes)))
            rewards = []
        else:
            (action,) = adapt(column["action"][t : t + 1])
            observation, reward, terminated, truncated, _ = env.step(action)
            rewards.append(np.float32(reward))
        ended = terminated or truncated
        if ended:
            episodes.append(Episode(number, float(np.sum(rewards, dtype=float)), len(rewards)))
        assert column["valid"][t] == valid
        assert column["reward"][t] == np.float32(reward)
        assert column["terminated"][t] == terminated
        # Where both happen at once, terminated wins and the other flag means nothing.
        assert terminated or column["truncated"][t] == truncated
        assert column["first"][t + 1] == (not valid)
        np.testing.assert_array_equal(
            column["obs"][t + 1], np.asarray(observation).astype(column["obs"].dtype)
        )
    env.close()
    return episodes


@pytest.mark.parametrize("name", ENVS)
def test_a_rollout_is_what_plain_environments_do_with_the_same_seeds_and_actions(name):
    """Over two rollouts: nothing is reset between them."""
    ours, theirs, *stack = ENVS[name]
    steps = 50 if "image" in name else 120  # Pendulum's limit is 200
    rollouts, episodes = collected(
        ours,
        steps,
        rollouts=2,
        columns=COLUMNS,
        seed=SEED,
        first_column=FIRST_COLUMN,
        stack=stack[0] if stack else 1,
    )
    whole = joined(rollouts)
    for i in range(COLUMNS):
        column = {key: array[:, i] for key, array in whole.items()}
        expected = replayed(column, theirs(), FIRST_COLUMN + i)
        found = [episode for episode in episodes if episode.column == FIRST_COLUMN + i]
        assert [episode.length for episode in found] == [episode.length for episode in expected]
        assert [episode.total for episode in found] == pytest.approx(
            [episode.total for episode in expected], rel=1e-9, abs=1e-9
        )
        assert expected, "a column without an end would prove little"


def test_stacked_frames_of_images_are_channels_of_one_image():
    """And each of them is stored once."""
    _, envs = sampler_of(env_maker("toy:identity", {"image": True}), 4, stack=3)
    envs.close()
    seen = envs.obs_spec.seen
    assert (seen.kind, seen.stored[0], envs.obs_spec.stored[0]) == (
        "image",
        (12, 12, 3),
        (12, 12, 1),
    )


def test_a_rollout_begins_with_the_observation_that_the_last_one_ended_in():
    rollouts, _ = collected(env_maker("CartPole-v1"), 17, rollouts=4)
    for before, after in pairwise(rollouts):
        np.testing.assert_array_equal(before["obs"][-1], after["obs"][0])
        np.testing.assert_array_equal(before["first"][-1], after["first"][0])


@pytest.mark.parametrize("length", [1, 5])
def test_episodes_of_fixed_length_leave_one_invalid_row_after_each(length):
    """Valid rows / rows = L/(L+1) (FACTS 1.2)."""
    ((rollout,), _) = collected(made_by(Constant, length=length), 10 * (length + 1))
    pattern = np.tile([True] * length + [False], 10)
    np.testing.assert_array_equal(rollout["valid"], np.repeat(pattern[:, None], 3, axis=1))
    assert rollout["valid"].mean() == length / (length + 1)


def test_first_marks_the_start_of_an_episode_and_nothing_else():
    (rollouts, _) = collected(env_maker("CartPole-v1"), 40, rollouts=3)
    whole = joined(rollouts)
    assert whole["first"][0].all()
    np.testing.assert_array_equal(whole["first"][1:], ~whole["valid"])


def test_environments_are_never_reset_between_rollouts():
    resets = []

    class Counted(Constant):
        def reset(self, **options):
            resets.append(1)
            return super().reset(**options)

    rollouts, _ = collected(made_by(Counted, length=50), 7, rollouts=30, columns=2)
    whole = joined(rollouts)
    assert len(resets) == whole["first"].sum()
    assert whole["first"].sum() == 2 * (1 + 210 // 51)


@pytest.mark.parametrize("wrappers", [(), (STATISTICS,)], ids=["bare", "wrapped"])
def test_a_time_limit_of_ones_own_replaces_the_environments(wrappers):
    """Pendulum never ends by itself, and its own limit is 200."""
    make = env_maker("Pendulum-v1", time_limit=300, wrappers=wrappers)
    ((rollout,), _) = collected(make, 310, columns=1)
    assert np.flatnonzero(rollout["truncated"]).tolist() == [299]


def test_gymnasiums_way_of_asking_for_no_time_limit_is_understood():
    """max_episode_steps=-1 (gymnasium.make)."""
    make = env_maker("Pendulum-v1", {"max_episode_steps": -1})
    ((rollout,), _) = collected(make, 250, columns=1)
    assert not (rollout["truncated"].any() or rollout["terminated"].any())


def test_the_time_limit_truncates_and_does_not_terminate():
    ((rollout,), _) = collected(env_maker("Pendulum-v1", time_limit=9), 30)
    assert not rollout["terminated"].any()
    assert np.flatnonzero(rollout["truncated"][:, 0]).tolist() == [8, 18, 28]


def test_the_same_seed_gives_the_same_rollouts_and_another_seed_others():
    make = env_maker("CartPole-v1")
    one, again, other = (collected(make, 30, rollouts=2, seed=seed)[0] for seed in (4, 4, 5))
    for a, b in zip(one, again, strict=True):
        for name in a:
            assert a[name].tobytes() == b[name].tobytes(), name
    assert (one[0]["obs"] != other[0]["obs"]).any()


def test_every_episode_of_every_column_has_a_seed_of_its_own():
    seeds = [
        episode_seed(run, column, episode)
        for run in range(3)
        for column in range(20)
        for episode in range(50)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_columns_and_episodes_differ_within_a_run():
    ((rollout,), _) = collected(env_maker("CartPole-v1"), 100)
    starts = rollout["obs"][rollout["first"]]
    assert len(np.unique(starts, axis=0)) == len(starts) > 6


def test_the_version_of_the_weights_that_acted_is_on_the_rollout():
    sampler, _ = sampler_of(env_maker("toy:constant"), 4)
    assert sampler.collect().version.tolist() == [3, 3, 3]
    sampler.close()
