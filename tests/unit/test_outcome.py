"""The warnings at the end of a run that has learned nothing."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

import paceline
from paceline.run.budget import Progress
from paceline.run.evaluation import NO_LIMIT, EvalResult, Outcome

CONFIG = paceline.Config()


def result_of(returns, length=10.0):
    seen = np.asarray(returns, float)
    numbers = (seen.mean(), seen.std(), np.median(seen), seen.min(), seen.max())
    return EvalResult(
        len(seen), *map(float, numbers), length, 0.0, 0.0, seen.tolist(), list(range(len(seen)))
    )


@pytest.fixture
def said(caplog):
    """Levels and messages logged after these episodes and this evaluation."""

    def say(episodes, evaluated, length=10.0, moved=True, config=CONFIG):
        caplog.clear()
        policy, progress = torch.nn.Linear(2, 2), Progress()
        outcome = Outcome(policy, progress)
        for total in episodes:
            progress.add_episode(float(total))
        progress.iter = 5
        if moved:
            with torch.no_grad():
                policy.weight += 1e-3
        with caplog.at_level(logging.INFO, "paceline"):
            outcome.warn(config, progress, result_of(evaluated, length))
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    return say


def noise(mean, count, seed=0):
    return np.random.default_rng(seed).normal(mean, 10.0, count)


@pytest.mark.parametrize(("last", "evaluated"), [(100, 100.0), (40, 9.0)], ids=["good", "bad"])
def test_a_run_that_improved_is_not_warned_of_however_its_evaluation_was(said, last, evaluated):
    assert said([*noise(20, 150), *noise(last, 150)], [evaluated] * 20) == []


WORSE = {
    "training": ([*noise(100, 150), *noise(20, 150)], ("the last 100", "worse than the first 100")),
    "evaluation": (noise(100, 300), ("the evaluation (20) is worse than the first 100",)),
    # No episode is on both sides: of 60, the first 30 and the last 30.
    "few episodes": ([*noise(100, 30), *noise(20, 30)], ("the last 30", "the first 30")),
    "no difference": ([20.0] * 300, ("all returned the same",)),
}


@pytest.mark.parametrize("case", WORSE)
def test_a_run_that_got_worse_or_stayed_the_same_is_warned_of(said, case):
    episodes, words = WORSE[case]
    ((level, text),) = said(episodes, [20.0] * 20)
    assert level == "WARNING"
    for word in words:
        assert word in text


@pytest.mark.parametrize("episodes", [1, 9])
def test_an_evaluation_of_a_few_episodes_is_not_compared(said, episodes):
    assert not any(level == "WARNING" for level, _ in said(noise(100, 300), [20.0] * episodes))


def test_a_few_episodes_are_not_compared(said):
    assert said([100.0] * 9 + [20.0] * 9, [20.0] * 20) == []
    assert said([], [20.0]) == []


def test_unchanged_runs_are_seldom_taken_for_worse(said):
    """At three standard errors fewer than one in 400 is expected."""
    levels = [said(noise(50, 200, seed), noise(50, 20, seed + 10_000)) for seed in range(400)]
    warned = sum(level == "WARNING" for found in levels for level, _ in found)
    assert warned <= 6, "both comparisons together, of which each may err"
    assert sum(bool(found) for found in levels) > 300, "that they are no better is said"


@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_a_difference_in_the_last_digits_is_no_difference(said, mean):
    found = said([mean + 1e-4 * (mean > 0)] * 150 + [mean] * 150, [mean] * 20)
    assert not any("worse" in text for _, text in found)


def test_an_unchanged_policy_is_warned_of_with_the_likely_options(said):
    config = paceline.Config(lr=0.0, ppo={"target_kl": 1e-9})
    ((level, text),) = said([], [1.0], moved=False, config=config)
    assert level == "WARNING"
    for word in ("5 updates", "lr 0", "max_grad_norm 0.5", "ppo.target_kl 1e-09"):
        assert word in text


def test_an_evaluation_that_never_ends_by_itself_is_warned_of(said):
    ((level, text),) = said([], [-1e5] * 20, length=float(NO_LIMIT))
    assert level == "WARNING"
    assert "cut off after 100,000 steps" in text
    assert "--env.time-limit" in text
