"""Whole runs on toys whose best result is known; the bars come from their docstrings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from saved_runs import PLAIN

import paceline

LENGTH = 10
"""Steps of an episode of toy:identity, and so its best return."""

PPO = {"algo": "ppo", "num_envs": 8, "rollout_steps": 64, "lr": 3e-3}
A2C = {"algo": "a2c", "num_envs": 8, "rollout_steps": 8, "lr": 3e-3, "log_every": 50}
IMPALA = A2C | {"algo": "impala"}
each_algorithm = pytest.mark.parametrize(
    "options", [PPO, A2C, IMPALA], ids=["ppo", "a2c", "impala"]
)


def trained(tmp_path, env_id, kwargs=None, **options):
    """Run `paceline.train` to its end; returns the policy and the directory's last report."""
    folder = tmp_path / "run"
    env = {"kwargs": kwargs or {}}
    config = paceline.Config(
        env_id=env_id, env=env, output_dir=str(folder), eval_episodes=1, **PLAIN, **options
    )
    *_, last = paceline.train(config)
    return paceline.load(folder), last


@pytest.mark.sampled(3)
@each_algorithm
def test_identity_is_solved(tmp_path, options):
    agent, last = trained(tmp_path, "toy:identity", total_steps=30_000, **options)
    result = paceline.evaluate(agent, "toy:identity", 50)
    assert result.mean >= 0.95 * LENGTH
    assert last.recent_return >= 0.9 * LENGTH  # sampled, over the last 100 episodes


def test_identity_is_solved_from_images(tmp_path):
    image = {"image": True}
    options = PPO | {"lr": 1e-3, "hidden": (64,)}
    agent, _ = trained(tmp_path, "toy:identity", image, total_steps=10_000, **options)
    result = paceline.evaluate(agent, "toy:identity", 50, kwargs=image)
    assert result.mean >= 0.95 * LENGTH


@pytest.mark.sampled(3)
@each_algorithm
def test_continuous_identity_is_solved(tmp_path, options):
    """Always answering 0 costs 1/3 per step, the variance of the question."""
    continuous = {"continuous": True}
    agent, _ = trained(tmp_path, "toy:identity", continuous, total_steps=40_000, **options)
    result = paceline.evaluate(agent, "toy:identity", 50, kwargs=continuous)
    assert result.mean > -0.05 * LENGTH


@pytest.mark.sampled(3)
@each_algorithm
def test_the_value_of_constant_reward_sees_through_the_time_limit(tmp_path, options):
    """1/(1−γ) = 10; without bootstrapping no more than 1 + γ + … + γ⁴ = 4.1."""
    gamma = 0.9
    agent, _ = trained(tmp_path, "toy:constant", gamma=gamma, total_steps=40_000, **options)
    with torch.no_grad():
        _, value = agent.module(torch.ones(1, 1))
    assert float(value) == pytest.approx(1 / (1 - gamma), rel=0.05)


@pytest.mark.sampled(3)
@each_algorithm
def test_the_value_before_a_terminal_state_has_no_future(tmp_path, options):
    """n steps from its end the chain is worth γⁿ⁻¹: one reward, and nothing behind it."""
    gamma = 0.9
    agent, _ = trained(
        tmp_path, "toy:chain", gamma=gamma, lr_schedule="linear", total_steps=40_000, **options
    )
    with torch.no_grad():
        _, value = agent.module(torch.arange(8))
    expected = [gamma**n for n in range(7, -1, -1)]
    assert value.squeeze(-1).tolist() == pytest.approx(expected, rel=0.01)


@pytest.mark.sampled(3)
@each_algorithm
def test_the_chain_is_walked_to_its_end_without_a_step_back(tmp_path, options):
    agent, _ = trained(tmp_path, "toy:chain", total_steps=40_000, **options)
    result = paceline.evaluate(agent, "toy:chain", 20)
    assert result.min == result.max == 1.0
    assert result.length_mean == 8


def test_without_memory_the_cue_stays_a_guess(tmp_path):
    """More than four standard errors above 0.5 would mean that the answer leaks somewhere."""
    agent, _ = trained(tmp_path, "toy:memory", total_steps=30_000, **PPO)
    episodes = 1000
    for sample in (False, True):
        result = paceline.evaluate(agent, "toy:memory", episodes, sample=sample)
        assert abs(result.mean - 0.5) < 4 * 0.5 / np.sqrt(episodes)
