"""A run that has learned nothing ends with a warning."""

from __future__ import annotations

import json

import pytest

ENDLESS = """
import gymnasium as gym


class Endless(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, -1.0, False, False, {}


gym.register("Endless-v0", Endless)
"""
SHORT = ("--output-dir", "run", "--track", "none", "--eval-episodes", 1)


def test_evaluation_episodes_that_never_end_are_warned_of(shell):
    (shell.folder / "endless.py").write_text(ENDLESS)
    ended = shell("train", "--env-id", "endless:Endless-v0", "--total-iters", 2, *SHORT)
    assert ended.code == 0
    assert "cut off after 100,000 steps" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    "options",
    [
        ("--lr", 0),
        ("--max-grad-norm", 1e-30),
        ("--algo", "a2c", "--lr", 0),
        ("--algo", "impala", "--lr", 0),
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_an_unchanged_policy_is_warned_of(command, options):
    ended = command("train", "--total-iters", 3, *SHORT, *options)
    assert ended.code == 0
    assert "nothing was learned" in " ".join(ended.out.split())


@pytest.mark.parametrize("algo", ["ppo", "a2c", "impala"])
def test_a_changed_policy_is_not_warned_of(command, algo):
    ended = command("train", "--total-iters", 3, "--algo", algo, *SHORT)
    assert ended.code == 0
    assert "nothing was learned" not in " ".join(ended.out.split())


def test_a_resumed_run_keeps_its_first_episodes(shell):
    given = ("--preset", "none", "--eval-episodes", 1, "--total-iters")
    whole = shell.train_here("whole", *given, 6)
    shell.train_here("parts", *given, 2)
    parts = shell.resume_here("parts", total_iters=6)
    facts, resumed = (json.loads(run.last("state.json")) for run in (whole, parts))
    assert facts["episodes"] > len(facts["recent"]) == len(facts["first"]) == 100
    for name in ("first", "recent", "episodes"):
        assert resumed[name] == facts[name]
