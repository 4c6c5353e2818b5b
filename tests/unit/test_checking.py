"""`paceline check`: no false alarms, batches, sound suggestions, and its parts."""

from __future__ import annotations

import dataclasses
import random

import gymnasium as gym
import numpy as np
import pytest
from environments import ACTIONS, OBSERVATIONS, Anything

from paceline.envs.source import Source
from paceline.envs.spaces import action_spec, random_actions
from paceline.tools.check import episodes, seeding
from paceline.tools.check.compare import StepResult, brief, first_difference, identical
from paceline.tools.check.ends import shows_time
from paceline.tools.check.environment import CheckedEnv, EnvFactory, Request
from paceline.tools.check.examine import examine
from paceline.tools.check.player import Player, action_mask
from paceline.tools.check.report import heading
from paceline.tools.check.rules import RULES
from paceline.tools.check.seeding import generator_states, touched_generators
from paceline.tools.check.speed import (
    Measured,
    Suggestion,
    about_speed,
    growth,
    measure,
    suggest,
)
from paceline.tools.check.values import observation_faults
from paceline.tools.findings import FindingLog

FAST = Measured(
    envs=8,
    steps=100_000,
    episodes=1000,
    steps_per_second=100_000.0,
    step_us=9.0,
    reset_ms=0.1,
    memory_mb=0.1,
    growth_mb=0.0,
    cpu_share=1.0,
    queued_share=0.0,
    failures=0,
)


def examined(env_id, seconds=20.0, seed=0, **options):
    """Findings, and what was learned about an environment that can be measured or should be."""
    log = FindingLog()
    request = Request(env_id=env_id, seconds=seconds, seed=seed, options=options)
    return log.findings, examine(EnvFactory(request), log)


def to_fix(env_id, **options):
    findings, result = examined(env_id, **options)
    assert result.measurable
    return [finding.code for finding in findings if finding.level in ("wrong", "risky")]


RIGHT = """
CartPole-v1 Pendulum-v1 FrozenLake-v1 Taxi-v4 Blackjack-v1 LunarLander-v3 HalfCheetah-v5
toy:identity toy:constant toy:memory toy:chain
"""


@pytest.mark.parametrize("env_id", RIGHT.split())
def test_correct_environments_have_no_findings_to_fix(env_id, monkeypatch):
    monkeypatch.setattr(episodes, "STEPS", 1_000)
    assert to_fix(env_id) == []


ENDLESS = ("CliffWalking-v1", "CliffWalkingSlippery-v1")
"""Where random actions may not end an episode in thousands of steps, and no time limit does."""


def of_gymnasium():
    skipped = ("GymV", "phys2d/", "tabular/", *ENDLESS)
    for name, spec in sorted(gym.registry.items()):
        old = "mujoco" in str(spec.entry_point) and not name.endswith("v5")
        if not name.startswith(skipped) and not old:
            yield name


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("env_id", list(of_gymnasium()))
def test_gymnasiums_own_environments_have_no_findings_to_fix(env_id, seed):
    assert to_fix(env_id, seconds=3.0, seed=seed) == []


def test_an_endless_environment_of_gymnasiums_needs_a_time_limit(monkeypatch):
    monkeypatch.setattr(episodes, "STEPS", 1_200)
    assert to_fix("CliffWalking-v1") == ["ends-never"]
    assert to_fix("CliffWalking-v1", time_limit=200) == []


class RightBatch:
    """Numbers from -1 to 1; episodes end by chance, each column's apart. Nothing is wrong."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    resume = "none"
    same_step_autoreset = False

    def __init__(self, num_envs, seed_of, threads):
        self.draws = [np.random.default_rng(self.seed(seed_of(i, 0))) for i in range(num_envs)]
        self.time = np.zeros(num_envs, int)
        self.over = np.zeros(num_envs, bool)
        self.place = np.zeros(num_envs)

    def seed(self, given):
        return given

    def look(self):
        drawn = np.array([draw.uniform(-1, 1) for draw in self.draws])
        return np.stack([drawn, self.place], 1).astype(np.float32)

    def reset(self):
        return self.look()

    def ended(self):
        return np.array([draw.random() < 0.05 for draw in self.draws])

    def reward(self):
        return np.ones(len(self.draws), np.float32)

    def step(self, actions):
        begun = self.over
        self.time = np.where(begun, 0, self.time + 1)
        self.place = actions / 2
        self.over = self.ended() & ~begun
        return self.look(), self.reward(), self.over, np.zeros_like(begun)

    def close(self):
        pass


class Outside(RightBatch):
    def look(self):
        return 2 * super().look()


class Infinite(RightBatch):
    def reward(self):
        return super().reward() * np.where(self.time == 6, np.inf, 1).astype(np.float32)


class Raises(RightBatch):
    def reward(self):
        raise OSError("no connection")


class Unseeded(RightBatch):
    def seed(self, given):
        return None


class OneSeed(RightBatch):
    def seed(self, given):
        return 1


class Limited(RightBatch):
    def ended(self):
        return super().ended() | (self.time >= 40)


class Endless(RightBatch):
    def ended(self):
        return np.zeros(len(self.draws), bool)


class ShowsNext(RightBatch):
    same_step_autoreset = True


def test_a_batch_without_faults_has_none_and_its_spaces_are_named():
    findings, result = examined(Source(many=RightBatch))
    codes = ["observation-ok", "make-batch", "seeding-ok", "ends-ok"]
    assert [finding.code for finding in findings] == codes
    facts = result.facts
    assert (facts["observation"], facts["action"]) == ("Box(2,) float32", "Discrete(2)")
    assert facts["episodes"] > 100 and facts["steps"] == 5_000


@pytest.mark.parametrize(
    ("kind", "level", "code", "facts"),
    [
        (Outside, "risky", "observation-outside", {"high": 1.0}),
        (Infinite, "wrong", "reward-nan", {"value": "inf", "step": 6}),
        (Raises, "wrong", "step-raises", {"step": 1}),
        (Unseeded, "risky", "seeding-batch", {"seed": 0}),
        (OneSeed, "note", "seeding-constant", {"results": seeding.RESULTS}),
        (Limited, "risky", "ends-time-limit", {"length": 40}),
        (Endless, "note", "ends-unseen", {"limit": "unknown"}),
        (ShowsNext, "note", "ends-shows-next", {}),
    ],
)
def test_a_fault_of_a_batch_is_found_by_its_code(kind, level, code, facts):
    findings, _ = examined(Source(many=kind))
    (finding,) = [f for f in findings if f.level != "ok" and f.code != "make-batch"]
    assert (finding.level, finding.code) == (level, code)
    assert facts.items() <= finding.facts.items()


@pytest.mark.parametrize(
    ("changes", "cpus", "workers", "envs"),
    [
        pytest.param({}, 16, 0, 16, id="cheap steps gain nothing from workers"),
        pytest.param({"steps_per_second": 20_000.0}, 6, 6, 48, id="costly steps are shared"),
        pytest.param({"steps_per_second": 100.0}, 6, 6, 24, id="slow steps, by smaller workers"),
        pytest.param({"steps_per_second": 100.0}, 1, 0, 4, id="the learner needs the one CPU"),
        pytest.param({"steps_per_second": 5e3}, 6, 6, 48, id="no images"),
        pytest.param({"steps_per_second": 5e3, "pictures": True}, 6, 0, 16, id="convolutions"),
        pytest.param({"steps_per_second": 500.0, "cpu_share": 0.25}, 4, 16, 64, id="it waits"),
        pytest.param({"steps_per_second": 500.0, "cpu_share": 3.0}, 4, 0, 16, id="own threads"),
    ],
)
def test_workers_are_suggested_where_they_pay(changes, cpus, workers, envs):
    found = suggest(dataclasses.replace(FAST, **changes), cpus, free_mb=16_000)
    assert (found.workers, found.envs) == (workers, envs)


@pytest.mark.parametrize("free", [100, 1_000, 4_000, 100_000])
@pytest.mark.parametrize("rate", [50.0, 1e5])
def test_what_is_suggested_fits_into_memory_and_divides_equally(free, rate):
    large = dataclasses.replace(FAST, steps_per_second=rate, memory_mb=300.0)
    found = suggest(large, cpus=4, free_mb=free)
    assert found.envs >= 1
    assert found.envs % max(1, found.workers) == 0
    assert found.envs * 300 <= max(300, free / 2)
    assert ("not fit" in found.reason) == (free < 10_000)


@pytest.mark.slow
def test_masked_actions_are_kept_to_while_measuring():
    def masked():
        return Anything(OBSERVATIONS["dict"], ACTIONS["multidiscrete"], masked=True)

    assert measure(EnvFactory(Request(env_id=masked)), seconds=0.1).failures == 0


def test_memory_that_settles_is_no_leak():
    assert growth([0.0, 50e6, 60e6, 60e6, 60e6, 60e6, 60e6, 60e6, 60e6]) == 0
    assert growth([float(n) for n in range(0, 90_000_000, 9_000_000)]) > 50e6
    assert growth([0.0, 1e9]) == 0


@pytest.mark.parametrize(
    ("changes", "level", "code", "facts"),
    [
        ({"growth_mb": 50.0}, "risky", "memory-grows", {"steps": 100_000}),
        ({"growth_mb": 50.0, "reset_ms": 0.0}, "note", "memory-grows", {}),  # of a batch
        ({"reset_ms": 10.0}, "note", "speed-resets", {"reset_ms": 10.0}),
        ({"steps_per_second": 20.0}, "note", "speed-slow", {"rate": 20.0}),
        ({"cpu_share": 3.5}, "note", "speed-threads", {"cpus": 3.5}),
        ({"queued_share": 0.4}, "note", "speed-busy", {"share": 0.4}),
        ({"failures": 2}, "wrong", "step-side-by-side", {"count": 2}),
    ],
)
def test_a_measurement_is_judged(changes, level, code, facts):
    (finding,) = about_speed(dataclasses.replace(FAST, **changes))
    assert (finding.level, finding.code) == (level, code)
    assert facts.items() <= finding.facts.items()
    assert list(about_speed(FAST)) == []


def test_the_same_error_at_another_step_is_reported_once():
    reported = []
    log = FindingLog(reported.append)
    error = RULES.found("step-raises", error="KeyError", step=3, action="1")
    again = RULES.found("step-raises", error="KeyError", step=5, action="0")
    other = RULES.found("step-raises", error="ValueError", step=5, action="0")
    log.add(error, again, other)
    assert log.findings == reported == [error, other]
    assert log.has("wrong", "step", "reset")
    assert not log.has("wrong", "reset")


def test_the_heading_shows_what_was_measured_and_suggested():
    lines = dict(heading("My-v0", {"time_limit": 50}, FAST, Suggestion(0, 16, "cheap")))
    assert list(lines) == ["env", "speed", "memory", "suggested"]
    assert "time limit 50" in lines["env"]
    assert "100,000 steps/s" in lines["speed"]
    assert lines["suggested"] == "--num-workers 0 --num-envs 16: cheap"
    assert list(dict(heading("My-v0", {}, None, None))) == ["env", "speed"]


def test_a_shared_generator_that_was_drawn_from_is_named():
    torch = pytest.importorskip("torch")
    before = generator_states()
    assert touched_generators(before, generator_states()) == []
    random.random()
    assert touched_generators(before, generator_states()) == ["Python's random"]
    before = generator_states()
    np.random.normal()
    torch.rand(1)
    names = ["numpy's np.random", "torch's global generator"]
    assert touched_generators(before, generator_states()) == names


def test_observations_are_compared_to_the_bit():
    seen = {"a": np.array([1.0, np.nan]), "b": (1, [2.0, "x"])}
    assert identical(seen, {"a": np.array([1.0, np.nan]), "b": (1, [2.0, "x"])})
    assert not identical(seen, {"a": np.array([1.0, 2.0]), "b": (1, [2.0, "x"])})
    assert not identical(seen, {"a": np.array([1.0, np.nan])})
    assert not identical(np.zeros(2, np.float32), np.zeros(2))
    assert not identical(1, None)
    assert identical(float("nan"), np.nan)


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        (np.zeros(2), np.ones(2), " is [0, 0] and [1, 1]"),
        (np.zeros((4, 4)), np.eye(4), " is 0 and 1 at entry (0, 0)"),
        ({"a": 1, "b": (2, 3)}, {"a": 1, "b": (2, 4)}, "['b'][1] is 3 and 4"),
        ({"a": 1}, {"c": 1}, " is {'a': 1} and {'c': 1}"),
    ],
    ids=["array", "large array", "part", "structure"],
)
def test_the_first_difference_of_two_histories_is_shown(one, other, shown):
    histories = [[StepResult(obs, {}, first=True)] for obs in (one, other)]
    assert first_difference(*histories) == f"after reset the observation{shown}"
    assert first_difference(histories[0], histories[0]) is None


def test_values_are_shown_briefly():
    assert brief(np.float32(0.5)) == "0.5"
    assert brief(np.array([1.0, 2.5])) == "[1, 2.5]"
    assert len(brief(np.zeros((96, 96, 3)))) < 60
    assert len(brief("x" * 1000)) < 100
    assert brief("\x1b[31m") == r"'\x1b[31m'"


@pytest.mark.parametrize("name", ["discrete", "multidiscrete", "multibinary", "box", "number"])
def test_every_action_that_is_tried_is_in_its_space(name):
    space = ACTIONS[name]
    factory = EnvFactory(Request(env_id=lambda: Anything(OBSERVATIONS["box"], space)))
    player = Player(CheckedEnv(factory), action_spec(space), 0)
    tried = [player.random_action(StepResult(None, {})) for _ in range(50)]
    tried += player.extreme_actions().values()
    assert len(tried) >= 52
    for action in tried:
        assert space.contains(action), action


def test_a_masked_action_is_never_drawn():
    space = gym.spaces.MultiDiscrete([3, 2])
    spec = action_spec(space)
    allowed = (np.array([0, 1, 0], np.int8), np.array([0, 1], np.int8))
    mask = action_mask(StepResult(None, {"action_mask": allowed}), spec)
    chosen = random_actions(np.random.default_rng(0), spec, np.tile(mask, (100, 1)), 100)
    assert (chosen == [1, 1]).all()
    assert action_mask(StepResult(None, {"action_mask": np.ones(4)}), spec) is None


@pytest.mark.parametrize("name", ["box", "number", "discrete", "dict", "tuple", "two images"])
def test_what_a_space_samples_has_no_faults(name):
    space = OBSERVATIONS[name]
    for _ in range(20):
        assert list(observation_faults(space, space.sample())) == []


def test_a_wrong_type_is_found_also_where_the_value_is_out_of_bounds():
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    codes = [fault.code for fault in observation_faults(space, np.array([5.0, 0.0]))]
    assert codes == ["observation-outside", "observation-dtype"]


def test_a_clock_in_the_observation_is_seen():
    draw = np.random.default_rng(0)
    clock = [[np.array([t, draw.random()]) for t in range(9)] for _ in range(4)]
    assert shows_time(clock)
    assert shows_time([[-step for step in track] for track in clock])
    assert not shows_time([[step[1:] for step in track] for track in clock])
    assert not shows_time([])
