"""make_vec: the vector environment alone."""

from __future__ import annotations

import contextlib

import gymnasium as gym
import numpy as np
import pytest

import paceline
from paceline.envs.columns import episode_seed
from paceline.envs.source import inspect_env


class Closing(gym.Env):
    """Remembers which of its kind are open."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    opened: list[Closing] = []  # noqa: RUF012

    def __init__(self):
        self.opened.append(self)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def close(self):
        self.opened.remove(self)


class Stubborn(Closing):
    def close(self):
        super().close()
        raise RuntimeError("no")


@pytest.mark.parametrize("env_class", [Closing, Stubborn])
@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_leaving_the_context_closes_every_environment(env_class, error):
    """Also after an error inside, and where each of them fails to close."""
    expected = pytest.raises(error) if error else contextlib.nullcontext()
    with expected, paceline.make_vec(env_class, 3) as envs:
        envs.reset()
        assert len(Closing.opened) == 3
        if error:
            raise error
    assert Closing.opened == []


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_wrong_number_of_actions_is_refused_before_anything_is_stepped(count):
    with paceline.make_vec("CartPole-v1", 3) as envs:
        envs.reset()
        with pytest.raises(paceline.BadInput, match=f"{count} actions for 3 environments"):
            envs.step([0] * count)
        # Nothing moved: the first real step is the first of each episode.
        twin = gym.make("CartPole-v1")
        twin.reset(seed=episode_seed(0, 0, 0))
        np.testing.assert_array_equal(envs.step([1, 1, 1]).obs[0], twin.step(1)[0])


def test_stepping_before_a_reset_and_no_environments_at_all_are_refused():
    envs = paceline.make_vec("CartPole-v1", 1)
    with envs, pytest.raises(paceline.BadInput, match="reset"):
        envs.step([0])
    with pytest.raises(paceline.BadInput, match="num_envs is 0"):
        paceline.make_vec("CartPole-v1", 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_envs": "2"}, "num_envs is '2'"),
        ({"seed": None}, "seed is None"),
        ({"kwargs": [1]}, r"kwargs is '\[1\]'"),
        ({"time_limit": 0}, "time_limit is '0'"),
        ({"frame_stack": "many"}, "frame_stack is 'many'"),
        ({"wrappers": 5}, "wrappers is '5'"),
    ],
    ids=str,
)
def test_arguments_of_the_wrong_kind_are_refused_by_name(options, words):
    with pytest.raises(paceline.BadInput, match=words):
        paceline.make_vec(**{"env_id": "CartPole-v1", "num_envs": 2, **options})


def test_arguments_and_wrappers_may_be_any_python_objects():
    def scaled(env):
        return gym.wrappers.TransformReward(env, lambda reward: 3 * reward)

    made = []
    env_id, kwargs = lambda note: note.append(1) or Closing(), {"note": made}
    with paceline.make_vec(env_id, 2, kwargs=kwargs, wrappers=[scaled]) as envs:
        assert len(made) == 2
    with paceline.make_vec("toy:constant", np.int64(2), wrappers=[scaled]) as envs:
        envs.reset()
        assert envs.step(np.zeros(2, int)).reward.tolist() == [3, 3]
        with pytest.raises(paceline.BadInput, match="list or an array of 2"):
            envs.step(0)
    with pytest.raises(paceline.BadInput, match="closed"):
        envs.step([0, 0])


def test_steps_follow_the_next_step_contract():
    with paceline.make_vec("toy:constant", 2, kwargs={"length": 3}) as envs:
        obs = envs.reset()
        assert obs.shape == (2, 1)
        rows = [envs.step([0, 1]) for _ in range(8)]
    assert [row.valid.tolist() for row in rows] == [[v, v] for v in [1, 1, 1, 0, 1, 1, 1, 0]]
    assert [bool(row.truncated[0]) for row in rows] == [v == 1 for v in [0, 0, 1, 0, 0, 0, 1, 0]]
    assert [float(row.reward[0]) for row in rows] == [1, 1, 1, 0, 1, 1, 1, 0]
    assert not any(row.terminated.any() for row in rows)


def test_returned_arrays_are_the_callers_own():
    with paceline.make_vec("CartPole-v1", 2) as envs:
        first = envs.reset()
        kept = first.copy()
        step = envs.step(np.array([0, 1]))
        later = step.obs.copy()
        envs.step(np.array([1, 0]))
        np.testing.assert_array_equal(first, kept)
        np.testing.assert_array_equal(step.obs, later)


def test_box_actions_reach_the_environment_as_they_are():
    """make_vec speaks the environment's own action space: no stretching, no clipping."""
    with paceline.make_vec("Pendulum-v1", 2, seed=9) as envs:
        envs.reset()
        actions = np.array([[1.5], [-0.5]], np.float32)
        step = envs.step(actions)
    for i in range(2):
        twin = gym.make("Pendulum-v1")
        twin.reset(seed=episode_seed(9, i, 0))
        obs, reward, *_ = twin.step(actions[i])
        np.testing.assert_array_equal(step.obs[i], obs)
        assert step.reward[i] == np.float32(reward)


def test_a_callers_own_actions_are_still_checked_by_the_environment():
    """A policy's are right by construction, and Gymnasium's check of them costs time."""
    with paceline.make_vec("CartPole-v1", 2) as envs:
        envs.reset()
        assert not envs.step([7, 0]).valid[0]  # it raised, and was rebuilt


def test_a_policys_actions_are_checked_where_a_wrapper_may_change_them():
    class Shifted(gym.ActionWrapper):
        def action(self, action):
            return action + 5

    def wrapped():
        return Shifted(gym.make("CartPole-v1").unwrapped)

    for env_id, checked in ((wrapped, True), ("CartPole-v1", False)):
        info = inspect_env(env_id)
        with info.columns(1, 0) as columns:
            inner = columns._envs[0].unwrapped.action_space
            assert inner.contains(9) != checked
