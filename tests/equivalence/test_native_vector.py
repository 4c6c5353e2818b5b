"""An environment's own vector implementation: exact resume or a warning. Its rows are those of a
case of test_suites."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from saved_runs import PLAIN, assert_resumes_to_the_byte, left_after

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
        "total_steps": 1000,
        "eval_episodes": 2,
        "env": {"vector": True},
    }
    return paceline.Config(output_dir=str(folder), **(defaults | options))


class Batch(gym.vector.VectorEnv):
    """Next-step autoreset; observations of two numbers."""

    def __init__(self, num_envs=1, max_episode_steps=None, render_mode=None):
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        self.num_envs, self.never = num_envs, np.zeros(num_envs, bool)
        self.single_observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(
            self.single_observation_space, num_envs
        )
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.begin(seed)
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, action):
        seen, reward, truncated = self.advance()
        return np.float32(seen), reward, self.never, truncated, {}


class Hidden(Batch):
    """Keeps a part of its state where no one would look."""

    def begin(self, seed):
        self.place = iter(np.random.default_rng(seed).normal(size=(100_000, self.num_envs, 2)))

    def advance(self):
        return next(self.place), np.ones(self.num_envs), self.never


class Stepping(Batch):
    """Counts its steps in a list, where a copy that is stepped alongside would agree by chance."""

    def begin(self, seed):
        self.count = [0]

    def advance(self):
        self.count[0] += 1
        seen = np.full((self.num_envs, 2), self.count[0] % 7)
        return seen, np.ones(self.num_envs), self.never


class Varied(Batch):
    """All of its state is numbers: one starts infinite, one changes its type. Beside it, text."""

    def begin(self, seed):
        self.best, self.score, self.labels = -np.inf, 0, np.array(["left", "right"])

    def advance(self):
        noise = self.np_random.random(self.num_envs)
        self.score = self.score + 0.5
        self.best = max(self.best, float(noise.max()))
        seen = np.stack([noise, np.full(self.num_envs, self.score % 9)], -1)
        return seen, noise, noise > 0.9


class Single(gym.Env):
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
    entries = {
        "Hidden-v0": (Single, Hidden),
        "Stepping-v0": (Single, Stepping),
        "Varied-v0": (Single, Varied),
        "Different-v0": ("paceline.envs.suites.toy:Identity", Varied),
    }
    for name, (single, batch) in entries.items():
        spec = gym.envs.registration.EnvSpec(name, single, vector_entry_point=batch)
        monkeypatch.setitem(gym.registry, name, spec)


@pytest.mark.parametrize("options", [{}, {"env_id": "Varied-v0", "normalize_obs": True}])
def test_a_run_resumes_to_the_byte(tmp_path, options):
    assert_resumes_to_the_byte(config_of(tmp_path, **options), tmp_path, iteration=3)


@pytest.mark.parametrize("name", ["Hidden-v0", "Stepping-v0"])
def test_a_state_that_can_not_be_restored_is_found_out(name):
    """Hidden in a generator, or equal only by chance."""
    with NativeColumns(vector_maker(name, {}, None), 2) as columns:
        assert columns.resume == "none"


def test_without_a_state_new_episodes_begin_and_a_warning_says_so(tmp_path, caplog):
    left_after(config_of(tmp_path / "run", env_id="Stepping-v0", total_steps=400), 2)
    reports = list(paceline.resume(tmp_path / "run"))
    assert "they start new episodes" in caplog.text
    assert reports[-1].steps >= 400


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env_id": "Acrobot-v1"}, "CartPole-v1"),
        ({"env_id": lambda: gym.make("CartPole-v1")}, "no vector implementation"),
        ({"env": {"vector": True, "wrappers": ("gymnasium.wrappers:FlattenObservation",)}}, "wrap"),
        ({"env": {"vector": True, "kwargs": {"gravitas": 3}}}, "gravitas"),
        ({"env_id": "Different-v0"}, "shows something else"),
    ],
    ids=["without one", "a callable", "wrappers", "arguments", "another space"],
)
def test_what_it_has_no_place_for_is_refused_before_training(tmp_path, options, words):
    with pytest.raises(BadInput, match=words):
        list(paceline.train(config_of(tmp_path / "run", **options)))
