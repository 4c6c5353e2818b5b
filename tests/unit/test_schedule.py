"""The learning rate over a run, read off real runs' reports."""

from __future__ import annotations

import pytest
from saved_runs import PLAIN, TINY

import paceline


def rates(tmp_path, **options):
    """(learning rate, steps so far) of every iteration."""
    run = {"env_id": "toy:constant", "lr": 0.25, "output_dir": str(tmp_path / "run")}
    config = paceline.Config(**PLAIN | TINY | run | {"rollout_steps": 6} | options)
    return [(report.lr, report.steps) for report in paceline.train(config)]


def test_an_annealed_rate_begins_at_its_full_value_and_never_reaches_zero(tmp_path):
    """lr·(1 − (i−1)/N) at update i of N (FACTS 1.1.7)."""
    found = [lr for lr, _ in rates(tmp_path, anneal_lr=True, total_iters=5)]
    assert found == pytest.approx([0.25 * (1 - i / 5) for i in range(5)])
    assert found[-1] == pytest.approx(0.25 / 5)


def test_a_budget_of_steps_anneals_by_the_steps_taken(tmp_path):
    """A rollout of 6 rows holds 5 steps of each of 2 environments, and 1 reset."""
    found = rates(tmp_path, anneal_lr=True, total_steps=35)
    assert [steps for _, steps in found] == [10, 20, 30, 40]
    assert [lr for lr, _ in found] == pytest.approx([0.25 * (1 - s / 35) for s in (0, 10, 20, 30)])


def test_a_rate_that_is_not_annealed_stays(tmp_path):
    assert [lr for lr, _ in rates(tmp_path, total_iters=3)] == [0.25] * 3
