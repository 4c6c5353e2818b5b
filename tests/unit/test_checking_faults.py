"""`paceline check`: every fault that makes training go wrong unnoticed is found by its code."""

from __future__ import annotations

import random
import subprocess
import time
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple

from paceline.tools.check import episodes, seeding
from paceline.tools.check.environment import EnvFactory
from paceline.tools.check.examine import Examination
from paceline.tools.check.request import Request
from paceline.tools.check.rules import RULES
from paceline.tools.findings import FindingLog


class Right(gym.Env):
    """A walk on a line with a push and some noise; it ends where it gets too far out.

    Nothing is wrong with it; each fault below replaces one or two of its members.
    """

    observation_space = Box(-20, 20, (2,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.place = float(self.np_random.uniform(-1, 1))
        self.speed = 0.0
        return self.look(), self.info()

    def look(self):
        return np.array([self.place, self.speed], np.float32)

    def push(self, action):
        return 1.0 if action == 1 else -1.0

    def noise(self):
        return float(self.np_random.normal())

    def over(self):
        return bool(abs(self.place) > 5)

    def reward(self):
        return -abs(self.place)

    def info(self):
        return {}

    def step(self, action):
        self.time += 1
        self.speed = 0.8 * self.speed + 0.3 * self.push(action) + 0.1 * self.noise()
        self.speed = float(np.clip(self.speed, -3, 3))
        self.place += self.speed
        return self.look(), self.reward(), self.over(), False, self.info()


class Boxed(Right):
    """The push is a number."""

    action_space = Box(-2, 2, (1,), np.float32)

    def push(self, action):
        return float(action[0])


class NoEnd(Right):
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)

    def over(self):
        return False


def examined(kind, time_limit=200, **options):
    """Findings about a class of environments."""
    log = FindingLog()
    request = Request(env_id=kind, time_limit=time_limit, seconds=20.0, **options)
    Examination(EnvFactory(request), log).run()
    return log.findings


def bad(findings):
    return [finding for finding in findings if finding.level in ("wrong", "risky")]


class Case(NamedTuple):
    """A class with one fault, its time limit, and the code and facts of the finding."""

    kind: type
    code: str
    facts: dict
    limit: int | None


CASES = {}


def fault(name, code, facts=None, base=Right, limit=200, **members):
    """`base` with other members has this finding."""
    CASES[name] = Case(type("Faulty", (base,), members), code, facts or {}, limit)


def raising(error):
    def method(self, *_, **__):
        raise error

    return method


# Making it, reset() and step()


def old_step(self, action):
    obs, reward, terminated, _, info = Right.step(self, action)
    return obs, reward, terminated, info


def ends_process(self):
    raise SystemExit(4)


fault("raises in __init__", "make-raises", __init__=raising(RuntimeError("no license")))
fault("raises in reset", "reset-raises", reset=raising(KeyError("level")))
fault("raises in step", "step-raises", {"step": 7}, over=lambda self: 1 / (7 - self.time) < 0)
fault("exits in step", "step-raises", {"step": 1}, over=ends_process)
fault("old step", "step-form", {"value": "a tuple of 4"}, step=old_step)
fault(
    "old reset",
    *("reset-form", {"value": "an array of shape (2,)"}),
    reset=lambda self, seed=None, options=None: Right.reset(self, seed=seed)[0],
)
fault("no seed", "reset-seed", reset=lambda self: Right.reset(self))
fault("no space", "space-missing", {"name": "observation_space"}, observation_space=None)
fault("unusable space", "space-unusable", observation_space=Text(5))

# Observations


def look_with(change):
    return lambda self: change(self, Right.look(self))


def fill_same_array(self):
    if not hasattr(self, "seen"):
        self.seen = np.zeros(2, np.float32)
    self.seen[:] = self.place, self.speed
    return self.seen


STATE_AND_GOAL = Dict({"state": Right.observation_space, "goal": Discrete(2)})
fault("wrong shape", "observation-shape", {"shape": "(1, 2)"}, look=look_with(lambda _, o: o[None]))
fault(
    "shape that changes",
    *("observation-shape", {"shape": "(3,)", "expected": "(2,)", "step": 5}),
    look=look_with(lambda env, o: np.zeros(3, np.float32) if env.time == 5 else o),
)
fault(
    "outside",
    *("observation-outside", {"entry": 0, "low": -2.0, "high": 2.0}),
    observation_space=Box(-2, 2, (2,), np.float32),
)
fault(
    "a little outside",
    *("observation-near", {"high": 5.0}),
    observation_space=Box(-5, 5, (2,), np.float32),
)
fault(
    "choice outside",
    *("observation-choice", {"value": "3", "space": "Discrete(3)"}),
    observation_space=Discrete(3),
    look=lambda self: min(self.time, 3),
)
fault(
    "byte that wraps around",
    "observation-choice",
    observation_space=Box(0, 255, (2,), np.uint8),
    look=lambda self: np.array([self.time + 250, 0]),
)
fault(
    "image from 0 to 1",
    *("observation-fraction", {"dtype": "uint8"}),
    observation_space=Box(0, 255, (2,), np.uint8),
    look=look_with(lambda _, o: np.clip(o / 10, 0, 1)),
)
fault(
    "missing part",
    *("observation-missing", {"key": "'goal'"}),
    observation_space=STATE_AND_GOAL,
    look=look_with(lambda _, o: {"state": o}),
)
fault(
    "array for a dict",
    *("observation-structure", {"value": "an array of shape (2,)", "expected": "a dict"}),
    observation_space=STATE_AND_GOAL,
)
fault(
    "part beyond the space",
    *("observation-undeclared", {"key": "'clock'"}),
    observation_space=Dict({"state": Right.observation_space}),
    look=look_with(lambda _, o: {"state": o, "clock": 1}),
)
fault(
    "fault of a part",
    *("observation-shape", {"place": "['state'][0]"}),
    observation_space=Dict({"state": Tuple([Right.observation_space])}),
    look=look_with(lambda _, o: {"state": (o[:1],)}),
)
fault("text", "observation-type", {"value": "'far'"}, look=lambda self: "far")
fault(
    "nan",
    *("observation-nan", {"step": 9}),
    look=look_with(lambda env, o: o * (np.nan if env.time == 9 else 1)),
)
fault(
    "infinite",
    *("observation-nan", {"step": 3}),
    observation_space=NoEnd.observation_space,
    look=look_with(lambda env, o: o + (np.inf if env.time == 3 else 0)),
)
fault("aliased", "observation-aliased", look=fill_same_array)
fault(
    "float64",
    *("observation-dtype", {"type": "float64", "dtype": "float32"}),
    look=lambda self: np.array([self.place, self.speed]),
)
fault("list", "observation-dtype", {"type": "list"}, look=lambda self: [self.place, self.speed])
fault(
    "constant", "observation-constant", {"steps": 1_200}, look=lambda self: np.ones(2, np.float32)
)
fault(
    "large numbers",
    "observation-large",
    observation_space=Box(-1e6, 1e6, (2,), np.float32),
    look=look_with(lambda _, o: 1e4 * o),
)

# Rewards, flags, info and masks


def mask_at_step_4(self):
    return {"action_mask": np.ones(2, np.int8) * (self.time != 4)}


fault("nan reward", "reward-nan", {"step": 6}, reward=lambda self: np.nan if self.time == 6 else 1)
fault("no reward", "reward-type", reward=lambda self: None)
fault("text as reward", "reward-type", reward=lambda self: "1")
fault("array reward", "reward-array", reward=lambda self: np.array([self.place]))
fault("no reward ever", "reward-zero", {"steps": 1_200}, reward=lambda self: 0.0)
fault("large rewards", "reward-large", reward=lambda self: 1e5 * self.place)
fault(
    "flag",
    *("flag-value", {"place": "terminated"}),
    over=lambda self: 0.5 if Right.over(self) else 0.0,
)
fault("whole flag", "flag-type", {"place": "terminated"}, over=lambda self: int(Right.over(self)))
fault(
    "large info",
    *("info-large", {"megabytes": 0.8}),
    info=lambda self: {"map": np.zeros(100_000)} if self.time else {},
)
fault("mask without a choice", "mask-empty", {"step": 4}, info=mask_at_step_4)
fault(
    "mask of another length",
    *("mask-length", {"entries": "3 entries", "actions": 2}),
    info=lambda self: {"action_mask": np.ones(3 if self.time else 2, np.int8)},
)
fault(
    "mask in the first reset only",
    *("mask-lost", {"call": "step"}),
    info=lambda self: {} if self.time else {"action_mask": np.ones(2, np.int8)},
)
fault(
    "mask that comes later",
    *("mask-late", {"call": "step"}),
    info=lambda self: {"action_mask": np.ones(2, np.int8)} if self.time else {},
)

# Seeds


def reset_after(prepare):
    """Does something with the environment and the seed before Right's reset."""

    def reset(self, *, seed=None, options=None):
        prepare(self, seed)
        return Right.reset(self, seed=seed)

    return reset


def reset_with(seed_of):
    return lambda self, seed=None, options=None: Right.reset(self, seed=seed_of(seed))


def unseeded_start(self, *, seed=None, options=None):
    Right.reset(self, seed=seed)
    self.place = np.random.default_rng().uniform(-1, 1)
    return self.look(), {}


def keep_speed(self, *, seed=None, options=None):
    kept = getattr(self, "speed", 0.0)
    Right.reset(self, seed=seed)
    self.speed = kept
    return self.look(), {}


def aging_noise(self):
    self.age = getattr(self, "age", 0) + 1
    return Right.noise(self) + 1e-6 * self.age


def shared_noise(self):
    self.shared[0] += 0.1
    return self.shared[0]


def seed_numpy(self, seed):
    np.random.seed(seed)


fault(
    "np.random",
    *("seeding-differs", {"cause": "it draws from numpy's np.random"}),
    noise=lambda self: np.random.normal(),
)
fault(
    "random",
    *("seeding-differs", {"cause": "it draws from Python's random", "difference": "after step 1"}),
    noise=lambda self: random.gauss(0, 1),
)
fault(
    "own generator without a seed",
    *("seeding-differs", {"difference": "after reset"}),
    reset=unseeded_start,
)
fault(
    "seed not passed on",
    *("seeding-differs", {"cause": "reset() does not call super()"}),
    reset=reset_with(lambda seed: None),
)
fault("clock", "seeding-differs", noise=lambda self: 1e4 * time.perf_counter() % 1)
fault(
    "inexact",
    "seeding-inexact",
    noise=lambda self: Right.noise(self) + 1e-5 * np.random.default_rng().random(),
)
fault("drifts", "seeding-drifts", noise=aging_noise)
fault(
    "global generator, seeded",
    *("seeding-shared", {"call": "reset", "generators": "numpy's np.random"}),
    reset=reset_after(seed_numpy),
)
fault(
    "global generator, shared",
    "copies-interfere",
    reset=reset_after(seed_numpy),
    noise=lambda self: np.random.normal(),
)
fault(
    "class attribute",
    "copies-interfere",
    shared=np.zeros(1),
    reset=reset_after(lambda self, _: self.shared.fill(0)),
    noise=shared_noise,
)
fault(
    "generator seeded once",
    "seeding-carried-over",
    __init__=lambda self: setattr(self, "own", np.random.default_rng(3)),
    noise=lambda self: self.own.normal(),
)
fault("carried over", "seeding-carried-over", reset=keep_speed)
fault("one seed for all", "seeding-constant", {"seeds": 3}, reset=reset_with(lambda seed: 42))

# Ends


def both_flags(self, action):
    obs, reward, over, _, info = Right.step(self, action)
    return obs, reward, over, over, info


def self_resetting(self, action):
    obs, reward, over, *rest = Right.step(self, action)
    return self.reset()[0] if over else obs, reward, over, *rest


def stay_ended(self):
    self.ended = getattr(self, "ended", False) or Right.over(self)
    return self.ended


fault("no end", "ends-never", {"steps": 1_200}, base=NoEnd, limit=None)
fault(
    "limit as terminated",
    *("ends-time-limit", {"length": 50}),
    base=NoEnd,
    limit=None,
    over=lambda self: self.time >= 50,
)
fault(
    "limit beside ends",
    *("ends-time-limit", {"length": 30}),
    limit=None,
    over=lambda self: Right.over(self) or self.time >= 30,
)
fault(
    "limit that is shown",
    *("ends-horizon", {"length": 50}),
    base=NoEnd,
    limit=None,
    over=lambda self: self.time >= 50,
    look=lambda self: np.array([self.place, self.time], np.float32),
)
fault(
    "short task",
    *("ends-horizon", {"length": 6}),
    base=NoEnd,
    limit=None,
    over=lambda self: self.time >= 6,
)
fault("one flag for both", "ends-both-flags", step=both_flags)
fault("ends at once", "ends-first-step", over=lambda self: True)
fault("stays ended", "ends-stay-ended", over=stay_ended)
fault("resets itself", "ends-self-reset", step=self_resetting)
fault(
    "gives its last observation in info",
    "ends-self-reset",
    info=lambda self: {"final_observation": self.look()} if self.over() else {},
)

# Actions


def nine(low, high):
    return Box(low, high, (9,), np.float32)


def fail_at_top(self, action):
    if (action >= 2).all():
        raise ValueError("sqrt")
    return float(action[0])


def break_at_bottom(self, action):
    self.broken = bool((action <= -2).all())
    return float(action[0])


def clip_in_place(self, action):
    np.clip(action, -1, 1, out=action)
    return float(action[0])


fault(
    "fails at a bound",
    *("action-raises", {"name": "the highest action"}),
    action_space=nine(-2, 2),
    push=fail_at_top,
)
fault(
    "nan at a bound",
    *("action-nan", {"name": "the lowest action"}),
    action_space=nine(-2, 2),
    push=break_at_bottom,
    look=look_with(lambda env, o: o * (np.nan if getattr(env, "broken", False) else 1)),
)
fault("action changed", "action-changed", base=Boxed, push=clip_in_place)
fault(
    "unbounded action",
    *("action-unbounded", {"count": 1, "size": 1}),
    base=Boxed,
    action_space=Box(-np.inf, np.inf, (1,), np.float32),
)
fault(
    "absurd bounds",
    *("action-range", {"width": 2e9}),
    action_space=Box(-1e9, 1e9, (1,), np.float32),
    push=lambda self, action: float(np.clip(action[0], -1, 1)),
)
fault(
    "no range",
    *("action-empty-range", {"entry": 1, "low": 2.0}),
    base=Boxed,
    action_space=Box(np.array([-2, 2], np.float32), np.array([2, 2], np.float32)),
)
fault("actions without effect", "action-ignored", push=lambda self, action: 1.0)

# Closing

STARTED = []
"""processes of environments that do not end them"""
fault("close raises", "close-raises", close=raising(OSError("already closed")))
fault(
    "process left",
    *("close-processes", {"names": "sleep"}),
    __init__=lambda self: STARTED.append(subprocess.Popen(["sleep", "60"])),
)


@pytest.fixture(autouse=True)
def fewer_steps(monkeypatch):
    """As many as the faults take, so that it is the same on a slow machine."""
    monkeypatch.setattr(episodes, "STEPS", 1_200)
    monkeypatch.setattr(seeding, "RECORDS", 60)


@pytest.fixture(autouse=True)
def nothing_started():
    yield
    for process in STARTED:
        process.kill()
        process.wait()
    STARTED.clear()


def holds(finding, facts):
    """Texts need only start with the text that is expected."""

    def same(expected, value):
        return value.startswith(expected) if isinstance(expected, str) else value == expected

    return all(same(facts[name], finding.facts[name]) for name in facts)


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_found_by_its_code(name):
    kind, code, facts, limit = CASES[name]
    findings = examined(kind, limit)
    assert any(holds(finding, facts) for finding in findings if finding.code == code), findings
    for finding in bad(findings):
        assert finding.why and finding.fix, finding
    if RULES[code].level == "note":
        assert bad(findings) == []
        assert len([finding for finding in findings if finding.level == "note"]) <= 2, findings


def test_every_fault_of_an_environment_has_a_case():
    not_here = ("make-batch", "run-fails", "step-side-by-side", "memory-grows", "ends-unseen")
    not_here += ("ends-shows-next", "seeding-batch", "seeding-process", "output")
    claimed = {case.code for case in CASES.values()}
    rest = {code for code in set(RULES) - claimed if RULES[code].level != "ok"}
    assert {c for c in rest if not c.startswith(("process-", "speed-"))} == set(not_here)


def test_an_environment_without_faults_has_none():
    for kind in (Right, Boxed):
        codes = {finding.code for finding in examined(kind)}
        assert codes == {"observation-ok", "seeding-ok", "ends-ok"}


def test_errors_are_located_in_the_users_code():
    (finding,) = bad(examined(CASES["raises in reset"].kind))
    assert "KeyError: 'level' (" in finding.facts["error"]
    assert "test_checking_faults.py:" in finding.facts["error"]


class LimitFewReach(NoEnd):
    """It ends by chance, and only one episode in ten lasts until the limit."""

    def over(self):
        return bool(self.np_random.random() < 0.023) or self.time >= 100


class EndsByChance(NoEnd):
    def over(self):
        return bool(self.np_random.random() < 0.023)


class EndsInStrides(NoEnd):
    """By chance, but only after a multiple of ten steps."""

    def over(self):
        return self.time % 10 == 0 and bool(self.np_random.random() < 0.3)


def test_a_time_limit_as_terminated_is_found_where_few_episodes_reach_it(monkeypatch):
    monkeypatch.setattr(episodes, "STEPS", 5_000)
    for seed in (0, 1):
        (finding,) = bad(examined(LimitFewReach, None, seed=seed))
        assert (finding.code, finding.facts["length"]) == ("ends-time-limit", 100)


@pytest.mark.parametrize("kind", [EndsByChance, EndsInStrides])
def test_ends_that_come_by_chance_are_no_time_limit(monkeypatch, kind):
    monkeypatch.setattr(episodes, "STEPS", 5_000)
    for seed in range(4):
        assert bad(examined(kind, None, seed=seed)) == []


def test_ends_that_were_not_seen_were_not_checked():
    (finding,) = [f for f in examined(NoEnd, time_limit=5_000) if f.topic == "ends"]
    assert (finding.level, finding.code) == ("note", "ends-unseen")
    assert finding.facts["limit"] == 5_000
