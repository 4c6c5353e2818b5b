"""A world of two agents who leave at different times, as a suite of one's own: its columns say who
is there. Nothing in the package knows of it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from environments import serial_in_blocks
from gymnasium import spaces
from saved_runs import PLAIN, last_state, metrics_of

import paceline
from paceline.envs import Columns
from paceline.envs.adapters import ActionAdapter
from paceline.envs.columns import episode_seed
from paceline.envs.source import Source
from paceline.envs.spaces import action_spec, observation_spec
from paceline.run.build import build

LIMIT, AGENTS = 12, 2
OPTIONS = {
    **PLAIN,
    "env_id": "test_own_team:suite:pair",
    "num_envs": 4,
    "rollout_steps": 32,
    "hidden": (16,),
    "lr": 3e-3,
}
pytestmark = pytest.mark.timeout(180)


class Pair:
    """Each agent has to say the sign that it is shown, and lives for a time of its own.

    Whoever dies has terminated; whoever still lives after `LIMIT` steps is cut off.
    """

    def reset(self, seed):
        self._draw = np.random.default_rng(seed)
        self.lives = self._draw.integers(3, LIMIT + 4, AGENTS)
        self.time = 0
        self._sign = self._draw.choice([-1.0, 1.0], AGENTS)
        return self._seen()

    def _seen(self):
        return np.stack([self._sign, np.arange(AGENTS)], -1).astype(np.float32)

    def step(self, actions):
        reward = (actions == (self._sign > 0)).astype(float)
        self.time += 1
        self._sign = self._draw.choice([-1.0, 1.0], AGENTS)
        return self._seen(), reward, self.time >= self.lives, self.time >= LIMIT


class Pairs(Columns):
    """Columns 2e and 2e + 1 are the agents of environment e."""

    resume, columns_per_env = "replay", AGENTS
    obs_spec = observation_spec(spaces.Box(-1, 1, (2,), np.float32))
    act_spec = action_spec(spaces.Discrete(2))

    def __init__(self, num_envs, seed, first_column):
        super().__init__(num_envs, seed, first_column)
        self.adapt = ActionAdapter(self.act_spec)
        self.ended = np.ones(num_envs, bool)
        self._alive = np.zeros((num_envs, AGENTS), bool)
        self._pairs = [Pair() for _ in range(num_envs)]

    def _begin(self, e, row):
        self.episode[e] += 1
        self.started[e], self.ended[e], self._alive[e] = row, False, True
        return self._reset(e)

    def _reset(self, e):
        column = self.first_column + AGENTS * e
        return self._pairs[e].reset(episode_seed(self.seed, column, int(self.episode[e])))

    def reset(self, obs):
        for e in range(self.num_envs):
            obs[AGENTS * e : AGENTS * (e + 1)] = self._begin(e, self.row)

    def step(self, t, actions, out):
        actions = np.asarray(actions).reshape(self.num_envs, AGENTS)
        for e, pair in enumerate(self._pairs):
            own, alive = slice(AGENTS * e, AGENTS * (e + 1)), self._alive[e].copy()
            out.obs[t + 1, own], out.reward[t, own] = out.obs[t, own], 0.0
            if self.ended[e]:
                out.valid[t, own] = out.stepped[t, own] = False
                out.obs[t + 1, own], out.first[t + 1, own] = self._begin(e, self.row + 1), True
                continue
            seen, reward, dead, late = pair.step(actions[e])
            out.obs[t + 1, own][alive] = seen[alive]
            out.reward[t, own] = np.where(alive, reward, 0.0)
            out.valid[t, own], out.terminated[t, own] = alive, alive & dead
            out.truncated[t, own] = alive & ~dead & late
            self._alive[e] = alive & ~dead
            self.ended[e] = out.over[t, own] = late or not self._alive[e].any()
        self.row += 1

    def replay(self, actions, expected, returns):
        different = []
        for e, taken in enumerate(actions):
            if taken is None:
                continue
            last, total, dead = self._reset(e), 0.0, np.zeros(AGENTS, bool)
            for each in np.asarray(taken).reshape(-1, AGENTS):
                seen, reward, now_dead, _ = self._pairs[e].step(each)
                total += float(np.where(dead, 0.0, reward).mean())
                last = np.where(dead[:, None], last, seen)
                dead = dead | now_dead
            self._alive[e] = ~dead
            same = (last == expected[AGENTS * e : AGENTS * (e + 1)]).all()
            if not same or abs(total - returns[e]) > 1e-6:
                different.append((e, "observation"))
        return different


def suite(name, kwargs, time_limit, wrappers):
    assert name == "pair"
    return Source(columns=Pairs)


config_of = partial(paceline.Config, **OPTIONS)


def test_an_agent_that_has_died_counts_no_more_until_the_next_episode():
    with build(config_of(rollout_steps=200)) as parts:
        rollout = parts.sampler.collect()
    assert rollout.columns == 8 and rollout.columns_per_env == 2
    alone = together = 0
    for e in range(4):
        alive = np.ones(2, bool)
        for t in range(200):
            own = slice(2 * e, 2 * e + 2)
            reset = not rollout.stepped[t, 2 * e]
            assert (rollout.valid[t, own] == (alive & (not reset))).all()
            alone += alive.sum() == 1 and not reset
            together += alive.all() and not reset
            dead = ~rollout.valid[t, own] & (not reset)
            assert (rollout.reward[t, own][dead] == 0).all()
            assert (rollout.obs[t + 1, own][dead] == rollout.obs[t, own][dead]).all()
            alive = alive & ~rollout.done[t, own]
            if reset:
                assert rollout.first[t + 1, own].all()
                alive = np.ones(2, bool)
    assert alone > 50 and together > 50
    assert rollout.truncated.any() and rollout.terminated.any()


def test_garbage_in_rows_of_the_dead_changes_nothing_that_is_learnt():
    found = []
    for garbage in (0.0, 1e30):
        with build(config_of(minibatches=4)) as parts:
            rollout = parts.sampler.collect()
            assert (~rollout.valid).sum() > 20
            obs = rollout.obs.copy()
            gone = ~rollout.valid & (np.roll(~rollout.valid, 1, 0))  # never a successor
            gone[0] = False
            obs[:-1][gone] += garbage
            reward = np.where(rollout.valid, rollout.reward, garbage).astype(np.float32)
            metrics = parts.learner.update(replace(rollout, obs=obs, reward=reward), 1.0)
            found.append((metrics, parts.learner.weights.copy()))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_steps_are_those_of_environments_and_returns_those_of_a_mean_agent(tmp_path):
    config = config_of(total_iters=12, output_dir=str(tmp_path / "run"), eval_episodes=50)
    reports = list(paceline.train(config))
    last = reports[-1]
    assert last.steps == sum(report.steps_global for report in reports)
    for report in reports:
        assert 1.2 * report.steps_global < report.metrics["agent_steps"] < 2 * report.steps_global
    scores = [report for report in reports if report.episodes]
    for report in scores:
        assert report.metrics["team_return"] == pytest.approx(2 * report.episode_return)
        assert report.episode_return <= report.episode_length <= LIMIT
    assert metrics_of(tmp_path / "run")[-1]["agent_steps"] == last.metrics["agent_steps"]


def test_what_each_agent_is_shown_is_learnt(tmp_path):
    """Both live for 7 steps and more on average; a random one is right half of the time."""
    config = config_of(total_steps=40_000, output_dir=str(tmp_path / "run"), eval_episodes=100)
    list(paceline.train(config))
    found = json.loads((tmp_path / "run" / "eval.json").read_text())
    draws = [np.random.default_rng(seed).integers(3, LIMIT + 4, AGENTS) for seed in range(4000)]
    best = np.minimum(draws, LIMIT).mean()
    assert found["mean"] == pytest.approx(best, rel=0.15)


def rollouts_of(sampler, times=1):
    """Copies of the arrays of its next rollouts."""
    collected = (sampler.collect().arrays() for _ in range(times))
    return [{name: array.copy() for name, array in arrays.items()} for arrays in collected]


def assert_same_rollouts(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_a_source_from_python_is_what_its_name_is():
    made = []
    for env_id in (OPTIONS["env_id"], Source(columns=Pairs)):
        with build(config_of(env_id=env_id)) as parts:
            made.append(rollouts_of(parts.sampler))
    assert_same_rollouts(*made)


def test_blocks_and_workers_hold_whole_environments_and_sample_the_same():
    config = config_of()
    with build(config) as parts:
        parts.sampler.close()
        serial = serial_in_blocks(parts, config.seed, 2)
        serial.publish(parts.learner.weights, 0)
        expected = rollouts_of(serial, 3)
        serial.close()
    with build(config_of(num_workers=2)) as parts:
        assert_same_rollouts(expected, rollouts_of(parts.sampler, 3))


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"num_workers": 2}, marks=pytest.mark.slow),
        pytest.param({"ranks": 2}, marks=pytest.mark.slow),
    ],
    ids=["serial", "workers", "ranks"],
)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_byte(tmp_path, options):
    """Also where one of the two had died before the cut."""
    for name, iters in (("whole", 6), ("cut", 3)):
        given = config_of(total_iters=iters, output_dir=str(tmp_path / name), **options)
        list(paceline.train(given))
    list(paceline.resume(tmp_path / "cut", total_iters=6))
    assert last_state(tmp_path / "whole") == last_state(tmp_path / "cut")
