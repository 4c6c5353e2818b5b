"""Next-step autoreset: what `unroll` writes is what plain Gymnasium environments do."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from environments import env_maker
from sampling import assert_rows_are, collected, joined, sampler_of
from suites import Singles, clipped

from paceline.envs.columns import episode_seed
from paceline.envs.suites.toy import TOYS

COLUMNS, SEED, FIRST_COLUMN = 3, 11, 5
STATISTICS = "gymnasium.wrappers:RecordEpisodeStatistics"
LIMITED = {"max_episode_steps": 7}

# Arguments by which Paceline makes an environment, and how anyone else would. Others are among the
# cases of test_suites.
ENVS = {
    "identity": (("toy:identity",), TOYS["identity"]),
    "identity-image": (("toy:identity", {"image": True}), lambda: TOYS["identity"](image=True)),
    "identity-continuous": (
        ("toy:identity", {"continuous": True}),
        lambda: TOYS["identity"](continuous=True),
    ),
    "constant": (("toy:constant",), TOYS["constant"]),
    "one-step": (("toy:constant", {"length": 1}), lambda: TOYS["constant"](length=1)),
    "memory": (("toy:memory",), TOYS["memory"]),
    "chain": (("toy:chain",), TOYS["chain"]),
    "FrozenLake": (("FrozenLake-v1",), lambda: gym.make("FrozenLake-v1")),
    "short-by-kwargs": (("CartPole-v1", LIMITED), lambda: gym.make("CartPole-v1", **LIMITED)),
    "wrapped": (
        ("CartPole-v1", None, None, None, (STATISTICS,)),
        lambda: gym.make("CartPole-v1"),
    ),
    "wrapped-short": (
        ("CartPole-v1", None, 7, None, (STATISTICS,)),
        lambda: gym.make("CartPole-v1", **LIMITED),
    ),
}


@pytest.mark.parametrize("name", ENVS)
def test_a_rollout_is_what_plain_environments_do_with_the_same_seeds_and_actions(name):
    """Over two rollouts: nothing is reset between them."""
    arguments, theirs = ENVS[name]
    where = {"columns": COLUMNS, "seed": SEED, "first_column": FIRST_COLUMN}
    steps = 50 if "image" in name else 120
    rollouts, episodes = collected(env_maker(*arguments), steps, rollouts=2, **where)
    assert len({episode.column for episode in episodes}) == COLUMNS
    action = clipped() if name == "identity-continuous" else None
    oracle = Singles(theirs, COLUMNS, SEED, FIRST_COLUMN, action)
    assert_rows_are(oracle, joined(rollouts), episodes, FIRST_COLUMN)


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


def test_every_episode_of_every_column_has_a_seed_of_its_own():
    seeds = [
        episode_seed(run, column, episode)
        for run in range(3)
        for column in range(20)
        for episode in range(50)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_the_version_of_the_weights_that_acted_is_on_the_rollout():
    sampler, _ = sampler_of(env_maker("toy:constant"), 4)
    assert sampler.collect().version.tolist() == [3, 3, 3]
    sampler.close()
