"""Next-step autoreset: what `unroll` writes is what plain Gymnasium environments do."""

from __future__ import annotations

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from sampling import assert_rows_are, collected, joined, made_by, sampler_of
from suites import Singles, clipped
from worlds import env_maker

from paceline.envs.columns import episode_seed
from paceline.envs.suites.toy import TOYS, Constant

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
