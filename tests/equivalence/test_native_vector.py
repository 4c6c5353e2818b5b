"""An environment's own vector implementation: the same rows, exact resume, or a word about it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import paceline
from paceline.envs.maker import make_columns
from paceline.envs.native import NativeColumns
from paceline.errors import BadInput
from paceline.rollout import Rollout


def config_of(folder, **options):
    defaults = {
        "env_id": "CartPole-v1",
        "preset": "none",
        "num_envs": 6,
        "rollout_steps": 20,
        "minibatches": 4,
        "total_steps": 1400,
        "threads": 1,
        "compile": "off",
        "track": "none",
        "eval_episodes": 2,
        "env": {"vector": True},
    }
    return paceline.Config(output_dir=str(folder), **(defaults | options))


def test_rows_are_those_of_the_vector_environment_with_resets_marked():
    columns = make_columns("CartPole-v1", 5, seed=3, vector=True, time_limit=12)
    assert isinstance(columns, NativeColumns) and columns.resume == "state"
    out = Rollout.allocate(60, 5, columns.obs_spec.stored, columns.act_spec.stored)
    twin = gym.make_vec(
        "CartPole-v1", 5, vectorization_mode="vector_entry_point", max_episode_steps=12
    )
    columns.reset(out.obs[-1])
    seen, _ = twin.reset(seed=columns._seed)
    np.testing.assert_array_equal(out.obs[-1], seen)
    out.turn()
    before = np.zeros(5, bool)
    actions = np.random.default_rng(0).integers(0, 2, (60, 5))
    for t in range(60):
        columns.step(t, actions[t], out)
        seen, reward, terminated, truncated, _ = twin.step(actions[t])
        np.testing.assert_array_equal(out.obs[t + 1], seen)
        np.testing.assert_array_equal(out.valid[t], ~before)
        np.testing.assert_array_equal(out.first[t + 1], before)
        np.testing.assert_array_equal(out.terminated[t], terminated)
        np.testing.assert_array_equal(out.truncated[t], truncated)
        np.testing.assert_array_equal(out.reward[t], np.where(before, 0, reward))
        before = terminated | truncated
    assert out.truncated.any() and not out.valid.all()
    # One row in thirteen only resets: an episode is cut off after its twelfth step.
    assert (columns.row - columns.started <= 13).all()
    columns.close()
    twin.close()


def test_a_run_resumes_to_the_byte(tmp_path):
    list(paceline.train(config_of(tmp_path / "whole")))
    for report in paceline.train(config_of(tmp_path / "parts")):
        if report.iter == 4:
            break
    list(paceline.resume(tmp_path / "parts"))
    one, other = (paceline.load(tmp_path / name).weights for name in ("whole", "parts"))
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), name


class Hidden(gym.vector.VectorEnv):
    """Keeps a part of its state where no one would look."""

    def __init__(self, num_envs=1, max_episode_steps=None, render_mode=None):
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(
            self.single_observation_space, num_envs
        )
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = iter(np.random.default_rng(seed).normal(size=(100_000, self.num_envs, 2)))
        return np.float32(next(self.place)), {}

    def step(self, action):
        never = np.zeros(self.num_envs, bool)
        return np.float32(next(self.place)), np.ones(self.num_envs), never, never, {}


@pytest.fixture
def hidden():
    gym.register("Hidden-v0", vector_entry_point=Hidden, entry_point="paceline.envs.toy:Identity")
    yield "Hidden-v0"
    del gym.registry["Hidden-v0"]


def test_a_state_that_can_not_be_captured_is_announced_and_the_run_goes_on(
    tmp_path, hidden, caplog
):
    with make_columns(hidden, 2, vector=True) as columns:
        assert columns.resume == "none"
    assert "can't be saved" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env_id": "Acrobot-v1"}, "CartPole-v1"),
        ({"env_id": lambda: gym.make("CartPole-v1")}, "no vector implementation"),
        ({"env": {"vector": True, "frame_stack": 2}}, "frame_stack"),
        ({"env": {"vector": True, "wrappers": ("gymnasium.wrappers:FlattenObservation",)}}, "wrap"),
    ],
)
def test_where_there_is_none_it_is_refused(tmp_path, options, words):
    with pytest.raises(BadInput, match=words):
        list(paceline.train(config_of(tmp_path / "run", **options)))


def test_make_vec_steps_it_too():
    with paceline.make_vec("CartPole-v1", 4, vector=True) as envs:
        assert envs.reset().shape == (4, 4)
        step = envs.step([0, 1, 0, 1])
    assert step.valid.all() and step.reward.tolist() == [1, 1, 1, 1]
