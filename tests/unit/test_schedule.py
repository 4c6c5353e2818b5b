"""Schedules: their values alone, and the learning rate read off real runs' reports."""

from __future__ import annotations

import math

import pytest
from saved_runs import PLAIN, TINY

import paceline
from paceline.config.schedules import make_schedule
from paceline.errors import BadInput
from paceline.run.budget import Budget, Progress

LEFT = [1.0, 0.95, 0.75, 0.5, 0.25, 0.0]
"""progress_remaining"""
VALUES = {
    "constant": [2.0] * 6,
    "linear": [2.0 * left for left in LEFT],
    "linear:0.5": [0.5 + 1.5 * left for left in LEFT],
    "linear:3": [3.0 - left for left in LEFT],
    "cosine": [1.0 + math.cos(math.pi * (1 - left)) for left in LEFT],
    "cosine:1": [1.5 + 0.5 * math.cos(math.pi * (1 - left)) for left in LEFT],
    "warmup:0.5": [0.0, 0.2, 1.0, 2.0, 2.0, 2.0],
    "warmup:0.5+constant": [0.0, 0.2, 1.0, 2.0, 2.0, 2.0],
    "warmup:0.5+linear:1e-1": [0.0, 0.2, 1.0, 2.0, 1.05, 0.1],
    "warmup:0.25+cosine": [0.0, 0.4, 2.0, 1.5, 0.5, 0.0],
}


@pytest.mark.parametrize("text", VALUES)
def test_values_over_the_budget(text):
    schedule = make_schedule("lr_schedule", text)
    assert [schedule.value(2.0, left) for left in LEFT] == pytest.approx(VALUES[text])
    factors = [schedule.factor(2.0, left) for left in LEFT]
    assert factors == pytest.approx([value / 2 for value in VALUES[text]])


@pytest.mark.parametrize("start", [3e-4, 0.2, 1e-3 / 3])
def test_linear_is_the_product_with_what_remains_to_the_bit(start):
    """Presets have always computed it so."""
    linear, constant = make_schedule("", "linear"), make_schedule("", "constant")
    for spent in range(1000):
        left = 1.0 - spent / 1000
        assert linear.value(start, left) == start * left
        assert linear.factor(start, left) == left
        assert constant.value(start, left) == start


def test_the_schedule_of_an_option_that_is_zero_stays_there():
    assert make_schedule("", "linear").factor(0.0, 0.5) == 0.5


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda left: "fast", "returned nan"),
        (lambda left: -1.0 + 2 * left, "returned -1.0 for progress_remaining 0;"),
        (lambda left: 1 / left, "raised ZeroDivisionError"),
    ],
)
def test_a_function_that_is_no_schedule_is_refused_before_the_run_starts(tmp_path, wrong, words):
    with pytest.raises(BadInput, match=f"lr_schedule: .*<lambda> {words}"):
        rates(tmp_path, lr_schedule=wrong)
    assert not (tmp_path / "run").exists()


def rates(tmp_path, **options):
    """(learning rate, steps so far) of every iteration."""
    run = {"env_id": "toy:constant", "lr": 0.25, "output_dir": str(tmp_path / "run")}
    config = paceline.Config(**PLAIN | TINY | run | {"rollout_steps": 6} | options)
    return [(report.lr, report.steps) for report in paceline.train(config)]


def test_a_linear_rate_begins_at_its_full_value_and_never_reaches_zero(tmp_path):
    """lr·(1 − (i−1)/N) at update i of N (FACTS 1.1.7)."""
    found = [lr for lr, _ in rates(tmp_path, lr_schedule="linear", total_iters=5)]
    assert found == pytest.approx([0.25 * (1 - i / 5) for i in range(5)])
    assert found[-1] == pytest.approx(0.25 / 5)


def test_a_budget_of_steps_is_followed_by_the_steps_taken(tmp_path):
    """A rollout of 6 rows holds 5 steps of each of 2 environments, and 1 reset."""
    found = rates(tmp_path, lr_schedule="linear", total_steps=35)
    assert [steps for _, steps in found] == [10, 20, 30, 40]
    assert [lr for lr, _ in found] == pytest.approx([0.25 * (1 - s / 35) for s in (0, 10, 20, 30)])


def test_a_rate_is_constant_unless_it_has_a_schedule(tmp_path):
    assert [lr for lr, _ in rates(tmp_path, total_iters=3)] == [0.25] * 3


def test_a_schedule_with_a_budget_of_its_own_stays_at_its_end(tmp_path):
    own = {"lr_schedule": "linear:0.05", "schedule_budget": "total_iters=2"}
    found = [lr for lr, _ in rates(tmp_path, total_iters=5, **own)]
    assert found == pytest.approx([0.25, 0.15, 0.05, 0.05, 0.05])


def test_the_first_budget_to_end_is_followed_and_no_score():
    progress = Progress(iter=4, steps=100, time=30.0, recent=[9.0] * 100)
    options = {"total_iters": 5, "total_steps": 1000, "duration": "1m", "stop_at_return": 1}
    budget = Budget.of(paceline.Config(**options))
    assert budget.fraction(progress) == 1.0
    assert budget.progress_remaining(progress) == pytest.approx(0.2)
