"""A bonus of one's own, `--bonus module:Class`: counts of states, with a return that goes on over
the ends of episodes. Nothing in the package knows of it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from learners import iterate
from saved_runs import PLAIN, last_state, metrics_of
from torch import nn

import paceline
from paceline.cli import commands as cli
from paceline.learning.algorithms.ppo import PPO
from paceline.learning.batch import ValueHead
from paceline.learning.returns import reward_signals
from paceline.run.build import build

COUNTS = "test_own_bonus:Counts"
OPTIONS = {
    **PLAIN,
    "env_id": "toy:chain",
    "env": {"kwargs": {"length": 100}},
    "num_envs": 8,
    "rollout_steps": 128,
    "hidden": (),  # a table: what drifts in one state drifts nowhere else
    "gamma": 0.9,
    "lr": 3e-3,
}
pytestmark = pytest.mark.timeout(180)


class Counts:
    """1/√n of the state that a step leads to, n its visits; 0 for the first rollout."""

    @dataclass(frozen=True, kw_only=True)
    class Options:
        weight: float = 1.0
        """of the bonus' advantage"""
        gamma: float = 0.9
        """its discount"""

    term = None
    per_column = ()

    def __init__(self, context, options):
        self.head = ValueHead(options.gamma, weight=options.weight, episodic=False)
        self.metrics = {"counts_mean": "mean", "counts_seen": "max"}
        self._visits = np.zeros(context.network.obs.size)
        self._moments = context.moments

    def reward(self, rollout, observations):
        primed, after = self._visits.any(), rollout.obs[1:]
        counted = np.eye(len(self._visits))[after[rollout.valid]]
        mean, _, rows = self._moments(counted)
        self._visits = self._visits + mean * rows
        bonus = primed / np.sqrt(np.maximum(self._visits, 1))[after]
        metrics = {"counts_mean": float(bonus[rollout.valid].mean())}
        return bonus, metrics | {"counts_seen": float((self._visits > 0).sum())}

    def state(self):
        return {"visits": self._visits.copy()}

    def restore(self, state):
        self._visits = state["visits"].copy()


class Predictor(Counts):
    """Also learns something: to tell a state from the one before it."""

    per_column = ("rollouts",)

    def __init__(self, context, options):
        super().__init__(context, options)
        self.term = Next(context.network.obs.size)
        self._rollouts = np.zeros(context.columns)

    def reward(self, rollout, observations):
        self._rollouts = self._rollouts + 1
        return super().reward(rollout, observations)

    def state(self):
        return super().state() | {"rollouts": self._rollouts.copy()}

    def restore(self, state):
        super().restore(state)
        self._rollouts = state["rollouts"].copy()


class Next:
    name, metrics, max_grad_norm, needs_next = "next", ("next_right",), 1.0, True

    def __init__(self, size):
        self.module = nn.Embedding(size, size)

    def loss(self, rows, progress_remaining):
        found, wanted = self.module(rows.inputs[0]), rows.next_inputs[0]
        right = (found.argmax(-1) == wanted).to(torch.float32)
        return nn.functional.cross_entropy(found, wanted, reduction="none"), [right]

    def rows(self, rollout):
        """Every other step is learned from."""
        odd = np.arange(rollout.steps)[:, None] % 2
        return {"next_half": np.broadcast_to(odd, rollout.valid.shape)}

    def weight(self, rows):
        return rows.weight * rows.extra["next_half"]


config_of = partial(paceline.Config, **OPTIONS)


def trained(folder, **options):
    return list(paceline.train(config_of(output_dir=str(folder), **options)))


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
def test_counts_solve_a_chain_that_plain_ppo_does_not(tmp_path, seed):
    last_returns = {}
    for name, bonus in (("plain", None), ("counts", COUNTS)):
        *_, last = trained(tmp_path / name, bonus=bonus, seed=seed, total_steps=100_000)
        last_returns[name] = last.recent_return
    assert last_returns["plain"] == 0
    assert last_returns["counts"] > 0.9
    first, *_, last = metrics_of(tmp_path / "counts")
    assert first["counts_mean"] == 0 < metrics_of(tmp_path / "counts")[1]["counts_mean"]
    assert last["counts_seen"] == 101
    assert "counts_mean" not in metrics_of(tmp_path / "plain")[-1]
    runs = [str(tmp_path / name) for name in ("plain", "counts")]
    assert cli.run(["compare", *runs, "--output-dir", str(tmp_path / "compared")]) == 0
    with (tmp_path / "compared" / "comparison_runs.csv").open() as file:
        compared = {row["name"].rpartition("/")[2]: row for row in csv.DictReader(file)}
    assert compared["plain"]["counts_mean"] == ""
    assert float(compared["counts"]["counts_mean"]) == last["counts_mean"]


def test_its_return_goes_on_over_the_ends_of_episodes():
    """Â[t] of a rollout with ends, against the sum written out; the environment's own stops."""
    options = {"env": {"kwargs": {"length": 3}}, "rollout_steps": 40, "num_envs": 3}
    with build(config_of(bonus=COUNTS, **options)) as parts:
        rollout, _ = iterate(parts, 2)
        assert (~rollout.valid).any()
        learner, rng = parts.learner, np.random.default_rng(0)
        bonus = rng.random(rollout.reward.shape)
        value = rng.normal(size=(41, 3, 2)).astype(np.float32)
        signals = reward_signals(
            rollout, rollout.reward, bonus, learner._heads, np.zeros((), np.float32)
        )
        lam = 0.8
        returns = PPO(gae_lambda=lam).targets(signals, value).returns - value[:-1]
        assert len(learner._heads) == 2
    for i in range(3):
        rows, after, expected = np.flatnonzero(rollout.valid[:, i]), 0.0, []
        for t, n in reversed(list(pairwise([*rows, 40]))):
            delta = bonus[t, i] + 0.9 * value[t + 1, i, 1] - value[t, i, 1]
            # From t to n, the next row that acts, no time passes but that of one step: the final
            # state's value becomes the next one's.
            after = delta + 0.9 * lam * (value[n, i, 1] - value[t + 1, i, 1] + after)
            expected.insert(0, after)
        np.testing.assert_allclose(returns[rows, i, 1], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiled", ["off", pytest.param("on", marks=pytest.mark.slow)])
def test_a_loss_of_its_own_has_parameters_and_a_gradient_of_its_own(tmp_path, compiled):
    """The policy learns as it does without that loss; what it predicts is learned beside it."""
    for name, bonus in (("without", COUNTS), ("with", "test_own_bonus:Predictor")):
        trained(tmp_path / name, bonus=bonus, total_iters=30, compile=compiled)
    one, other = metrics_of(tmp_path / "without"), metrics_of(tmp_path / "with")
    if compiled == "off":
        assert [line["loss"] for line in one] == [line["loss"] for line in other]
        assert [line["grad_norm"] for line in one] == [line["grad_norm"] for line in other]
    assert other[-1]["next_loss"] < 0.8 * other[0]["next_loss"]
    assert other[-1]["next_right"] > 10 / 101, "a guess is right once in 101 times"
    assert other[-1]["next_grad_norm"] > 0
    weights = last_state(tmp_path / "with")[0]
    assert len(weights) == len(last_state(tmp_path / "without")[0])


@pytest.mark.parametrize(
    ("bonus", "words"), [("json:dumps", "can't be made"), ("builtins:Exception", "has no head")]
)
def test_what_is_no_bonus_is_refused(bonus, words):
    with pytest.raises(paceline.BadInput, match=words), build(config_of(bonus=bonus)):
        pass


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_byte(tmp_path, ranks):
    options = {"bonus": "test_own_bonus:Predictor", "eval_episodes": 1, "ranks": ranks}
    for name, iters in (("whole", 6), ("cut", 3)):
        trained(tmp_path / name, total_iters=iters, **options)
    list(paceline.resume(tmp_path / "cut", total_iters=6))
    assert last_state(tmp_path / "whole") == last_state(tmp_path / "cut")
