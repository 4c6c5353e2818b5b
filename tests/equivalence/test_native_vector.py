"""An environment's own vector implementation: the same rows, and exact resume or a warning."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from saved_runs import PLAIN, last_state

import paceline
from paceline.envs.native import NativeColumns
from paceline.envs.suites.gym_vector import vector_maker
from paceline.errors import BadInput


def config_of(folder, **options):
    defaults = {
        **PLAIN,
        "env_id": "CartPole-v1",
        "num_envs": 6,
        "rollout_steps": 20,
        "minibatches": 4,
        "total_steps": 1400,
        "eval_episodes": 2,
        "env": {"vector": True},
    }
    return paceline.Config(output_dir=str(folder), **(defaults | options))


def left_after(config, iteration):
    for report in paceline.train(config):
        if report.iter == iteration:
            return


def assert_resumes_to_the_byte(tmp_path, iteration, **options):
    list(paceline.train(config_of(tmp_path / "whole", **options)))
    left_after(config_of(tmp_path / "parts", **options), iteration)
    list(paceline.resume(tmp_path / "parts"))
    assert last_state(tmp_path / "whole") == last_state(tmp_path / "parts")


def test_a_run_resumes_to_the_byte(tmp_path):
    assert_resumes_to_the_byte(tmp_path, 4)


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env_id": "Acrobot-v1"}, "CartPole-v1"),
        ({"env_id": lambda: gym.make("CartPole-v1")}, "no vector implementation"),
        ({"env": {"vector": True, "wrappers": ("gymnasium.wrappers:FlattenObservation",)}}, "wrap"),
    ],
)
def test_where_there_is_none_it_is_refused(tmp_path, options, words):
    with pytest.raises(BadInput, match=words):
        list(paceline.train(config_of(tmp_path / "run", **options)))


class Stepping(Hidden):
    """Counts its steps in a list, where a copy that is stepped alongside would agree by chance."""

    def reset(self, *, seed=None, options=None):
        gym.vector.VectorEnv.reset(self, seed=seed)
        self.count = [0]
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, action):
        self.count[0] += 1
        seen = np.full((self.num_envs, 2), self.count[0] % 7, np.float32)
        never = np.zeros(self.num_envs, bool)
        return seen, np.ones(self.num_envs), never, never, {}


class Varied(Stepping):
    """All of its state is numbers: one starts infinite, one changes its type. Beside it, text."""

    def reset(self, *, seed=None, options=None):
        gym.vector.VectorEnv.reset(self, seed=seed)
        self.best, self.score, self.labels = -np.inf, 0, np.array(["left", "right"])
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, action):
        noise = self.np_random.random(self.num_envs)
        self.score = self.score + 0.5
        self.best = max(self.best, float(noise.max()))
        seen = np.stack([noise, np.full(self.num_envs, self.score % 9)], -1).astype(np.float32)
        never = np.zeros(self.num_envs, bool)
        return seen, noise, never, noise > 0.9, {}


class Plain(gym.Env):
    """The single form of those above."""

    observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time == 5, False, {}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for kind in (Hidden, Stepping, Varied):
        name = f"{kind.__name__}-v0"
        single = "paceline.envs.suites.toy:Identity" if kind is Hidden else Plain
        spec = gym.envs.registration.EnvSpec(name, single, vector_entry_point=kind)
        monkeypatch.setitem(gym.registry, name, spec)


@pytest.mark.parametrize("kind", [Hidden, Stepping])
def test_a_state_that_can_not_be_restored_is_found_out(kind):
    """Hidden in a generator, or equal only by chance."""
    maker = vector_maker(f"{kind.__name__}-v0", {}, None)
    with NativeColumns(maker, 2) as columns:
        assert columns.resume == "none"


def test_numbers_of_any_kind_are_restored(tmp_path):
    options = {"env_id": "Varied-v0", "total_steps": 1000, "normalize_obs": True}
    assert_resumes_to_the_byte(tmp_path, 3, **options)


def test_without_a_state_new_episodes_begin_and_a_warning_says_so(tmp_path, caplog):
    left_after(config_of(tmp_path / "run", env_id="Stepping-v0", total_steps=400), 2)
    reports = list(paceline.resume(tmp_path / "run"))
    assert "they start new episodes" in caplog.text
    assert reports[-1].steps >= 400


def test_what_differs_from_the_single_environment_is_refused_before_training(tmp_path):
    with pytest.raises(BadInput, match="shows something else"):
        list(paceline.train(config_of(tmp_path / "run", env_id="Hidden-v0")))


def test_arguments_it_does_not_take_are_refused(tmp_path):
    env = {"vector": True, "kwargs": {"gravitas": 3}}
    with pytest.raises(BadInput, match="gravitas"):
        list(paceline.train(config_of(tmp_path / "run", env=env)))
