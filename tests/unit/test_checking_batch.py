"""`paceline check` of suites that step many environments as one."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from paceline.envs.native import NativeColumns
from paceline.tools.check import batch
from paceline.tools.check.batch import examine_batch
from paceline.tools.check.environment import EnvFactory
from paceline.tools.check.request import Request
from paceline.tools.findings import FindingLog


class Right:
    """Numbers from -1 to 1; episodes end by chance, each column's apart. Nothing is wrong."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    resume = "none"
    same_step_autoreset = False

    def __init__(self, num_envs, seed_of, threads):
        self.draws = [np.random.default_rng(self.seed(seed_of(i, 0))) for i in range(num_envs)]
        self.time = np.zeros(num_envs, int)
        self.over = np.zeros(num_envs, bool)

    def seed(self, given):
        return given

    def look(self):
        return np.array([draw.uniform(-1, 1, 2) for draw in self.draws], np.float32)

    def reset(self):
        return self.look()

    def ended(self):
        return np.array([draw.random() < 0.05 for draw in self.draws])

    def reward(self):
        return np.ones(len(self.draws), np.float32)

    def step(self, actions):
        begun = self.over
        self.time = np.where(begun, 0, self.time + 1)
        self.over = self.ended() & ~begun
        return self.look(), self.reward(), self.over, np.zeros_like(begun)

    def close(self):
        pass


class Outside(Right):
    def look(self):
        return 2 * super().look()


class Infinite(Right):
    def reward(self):
        return super().reward() * np.where(self.time == 3, np.inf, 1).astype(np.float32)


class Unseeded(Right):
    def seed(self, given):
        return None


class OneSeed(Right):
    def seed(self, given):
        return 1


class Limited(Right):
    def ended(self):
        return super().ended() | (self.time >= 40)


class Endless(Right):
    def ended(self):
        return np.zeros(len(self.draws), bool)


class ShowsNext(Right):
    same_step_autoreset = True


def examined(kind):
    """Findings about a kind of batch, and the facts."""
    factory, log = EnvFactory(Request(env_id="CartPole-v1", seconds=20.0)), FindingLog()
    factory.columns = lambda number, seed=None: NativeColumns(kind, number, seed or 0)
    return log.findings, examine_batch(factory, log, lambda _: None)


def test_a_batch_without_faults_has_none_and_its_spaces_are_named():
    findings, facts = examined(Right)
    assert [f.code for f in findings] == ["observation-ok", "ends-ok", "seeding-ok"]
    assert facts["observation"] == "Box(2,) float32" and facts["action"] == "Discrete(2)"
    assert facts["episodes"] > 100 and 4_500 < facts["steps"] < 5_000  # the other rows reset


@pytest.mark.parametrize(
    ("kind", "level", "code", "facts"),
    [
        (Outside, "risky", "observation-outside", {"high": 1.0}),
        (Infinite, "wrong", "reward-nan", {"value": "inf", "step": 3}),
        (Unseeded, "risky", "seeding-batch", {"row": 0}),
        (OneSeed, "note", "seeding-constant", {"results": batch.ROWS}),
        (Limited, "risky", "ends-time-limit", {"length": 40}),
        (Endless, "note", "ends-unseen", {}),
        (ShowsNext, "note", "ends-shows-next", {}),
    ],
)
def test_a_fault_of_a_batch_is_found_by_its_code(kind, level, code, facts):
    findings, _ = examined(kind)
    (finding,) = [f for f in findings if f.level != "ok"]
    assert (finding.level, finding.code) == (level, code)
    assert facts.items() <= finding.facts.items()
