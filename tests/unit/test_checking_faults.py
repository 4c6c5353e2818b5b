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
from paceline.tools.check.environment import EnvFactory, Request
from paceline.tools.check.examine import examine
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
    limit = {"time_limit": time_limit}
    examine(EnvFactory(Request(env_id=kind, options=limit, seconds=20.0, **options)), log)
    return log.findings


def bad(findings):
    return [finding for finding in findings if finding.level in ("wrong", "risky")]


class Case(NamedTuple):
    """A class with one fault, its time limit, and the code and facts of the finding."""

    code: str
    facts: dict
    kind: type
    limit: int | None


CASES = []


def fault(code, facts=None, base=Right, limit=200, space=..., actions=..., **members):
    """`base` with these members and spaces has this finding."""
    spaces = {"observation_space": space, "action_space": actions}
    members |= {name: given for name, given in spaces.items() if given is not ...}
    CASES.append(Case(code, facts or {}, type("Faulty", (base,), members), limit))


def raising(error):
    def method(self, *_, **__):
        raise error

    return method


def changed_step(change):
    """Right's step with other results."""
    return lambda self, action: change(self, *Right.step(self, action))


def changed_reset(seed_of=lambda seed: seed, before=lambda self, seed: None):
    """Right's reset with another seed, after something else."""

    def reset(self, *, seed=None, options=None):
        before(self, seed)
        return Right.reset(self, seed=seed_of(seed))

    return reset


def changed_look(change):
    return lambda self: change(self, Right.look(self))


# Making it, reset() and step()
fault("make-raises", __init__=raising(RuntimeError("no license")))
fault("reset-raises", reset=raising(KeyError("level")))
fault("step-raises", {"step": 7}, over=lambda env: 1 / (7 - env.time) < 0)
fault("step-raises", {"step": 1}, over=raising(SystemExit(4)))
fault("step-form", {"value": "a tuple of 4"}, step=lambda *given: Right.step(*given)[:4])
fault(
    "reset-form",
    {"value": "an array of shape (2,)"},
    reset=lambda self, seed=None, options=None: Right.reset(self, seed=seed)[0],
)
fault("reset-seed", reset=lambda env: Right.reset(env))
fault("space-missing", {"name": "observation_space"}, space=None)
fault("space-unusable", space=Text(5))

# Observations
BYTES, STATE = Box(0, 255, (2,), np.uint8), Right.observation_space
STATE_AND_GOAL = Dict({"state": STATE, "goal": Discrete(2)})


def same_array_again(self):
    if not hasattr(self, "seen"):
        self.seen = np.zeros(2, np.float32)
    self.seen[:] = self.place, self.speed
    return self.seen


fault("observation-shape", {"shape": "(1, 2)"}, look=changed_look(lambda _, o: o[None]))
fault(
    "observation-shape",
    {"shape": "(3,)", "expected": "(2,)", "step": 5},
    look=changed_look(lambda env, o: np.zeros(3, np.float32) if env.time == 5 else o),
)
fault(
    "observation-shape",
    {"place": "['state'][0]"},
    space=Dict({"state": Tuple([STATE])}),
    look=changed_look(lambda _, o: {"state": (o[:1],)}),
)
fault("observation-outside", {"entry": 0, "low": -2.0, "high": 2.0}, space=Box(-2, 2, (2,)))
fault("observation-near", {"high": 5.0}, space=Box(-5, 5, (2,)))
fault(
    "observation-choice",
    {"value": "3", "space": "Discrete(3)"},
    space=Discrete(3),
    look=lambda env: min(env.time, 3),
)
fault(  # the number wraps around
    "observation-choice",
    space=BYTES,
    look=lambda env: np.array([env.time + 250, 0]),
)
fault(
    "observation-fraction",
    {"dtype": "uint8"},
    space=BYTES,
    look=changed_look(lambda _, o: np.clip(o / 10, 0, 1)),
)
fault(
    "observation-missing",
    {"key": "'goal'"},
    space=STATE_AND_GOAL,
    look=changed_look(lambda _, o: {"state": o}),
)
fault(
    "observation-structure",
    {"value": "an array of shape (2,)", "expected": "a dict"},
    space=STATE_AND_GOAL,
)
fault(
    "observation-undeclared",
    {"key": "'clock'"},
    space=Dict({"state": STATE}),
    look=changed_look(lambda _, o: {"state": o, "clock": 1}),
)
fault("observation-type", {"value": "'far'"}, look=lambda env: "far")
for value, when in ((np.nan, 9), (np.inf, 3)):
    fault(
        "observation-nan",
        {"step": when},
        space=NoEnd.observation_space,
        look=lambda env, v=value, t=when: Right.look(env) + (v if env.time == t else 0),
    )
fault("observation-aliased", look=same_array_again)
fault("observation-dtype", {"type": "float64"}, look=changed_look(lambda _, o: o.astype(float)))
fault("observation-dtype", {"type": "list"}, look=lambda env: [env.place, env.speed])
fault("observation-constant", {"steps": 1_200}, look=lambda env: np.ones(2, np.float32))
fault("observation-large", space=Box(-1e6, 1e6, (2,)), look=changed_look(lambda _, o: 1e4 * o))

# Rewards, flags, info and masks


def masks(of_time):
    """An info with the mask that a step has, or without one."""
    return lambda env: {} if (mask := of_time(env.time)) is None else {"action_mask": mask}


ALL = np.ones(2, np.int8)
fault("reward-nan", {"step": 6}, reward=lambda env: np.nan if env.time == 6 else 1)
fault("reward-type", reward=lambda env: None)
fault("reward-type", reward=lambda env: "1")
fault("reward-array", reward=lambda env: np.array([env.place]))
fault("reward-zero", {"steps": 1_200}, reward=lambda env: 0.0)
fault("reward-large", reward=lambda env: 1e5 * env.place)
fault("flag-value", {"place": "terminated"}, over=lambda env: 0.5 * Right.over(env))
fault("flag-type", {"place": "terminated"}, over=lambda env: int(Right.over(env)))
fault("info-large", {"megabytes": 0.8}, info=lambda env: {"map": np.zeros(100_000)})
fault("mask-empty", {"step": 4}, info=masks(lambda time: ALL * (time != 4)))
fault(
    "mask-length",
    {"entries": "3 entries", "actions": 2},
    info=masks(lambda time: np.ones(3, np.int8) if time else ALL),
)
fault("mask-lost", {"call": "step"}, info=masks(lambda time: None if time else ALL))
fault("mask-late", {"call": "step"}, info=masks(lambda time: ALL if time else None))

# Seeds


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


def inexact_noise(self):
    return Right.noise(self) + 1e-5 * np.random.default_rng().random()


SEEDS_NUMPY = changed_reset(before=lambda _, seed: np.random.seed(seed))
fault(
    "seeding-differs",
    {"cause": "it draws from numpy's np.random"},
    noise=lambda env: np.random.normal(),
)
fault(
    "seeding-differs",
    {"cause": "it draws from Python's random", "difference": "after step 1"},
    noise=lambda env: random.gauss(0, 1),
)
fault("seeding-differs", {"difference": "after reset"}, reset=unseeded_start)
fault(
    "seeding-differs",
    {"cause": "reset() does not call super()"},
    reset=changed_reset(lambda seed: None),
)
fault("seeding-differs", noise=lambda env: 1e4 * time.perf_counter() % 1)
fault("seeding-inexact", noise=inexact_noise)
fault("seeding-drifts", noise=aging_noise)
fault("seeding-shared", {"call": "reset", "generators": "numpy's np.random"}, reset=SEEDS_NUMPY)
fault("copies-interfere", reset=SEEDS_NUMPY, noise=lambda env: np.random.normal())
fault(
    "copies-interfere",
    shared=np.zeros(1),
    reset=changed_reset(before=lambda self, _: self.shared.fill(0)),
    noise=shared_noise,
)
fault(
    "seeding-carried-over",
    __init__=lambda env: setattr(env, "own", np.random.default_rng(3)),
    noise=lambda env: env.own.normal(),
)
fault("seeding-carried-over", reset=keep_speed)
fault("seeding-constant", {"seeds": 3}, reset=changed_reset(lambda seed: 42))

# Ends


def stay_ended(self):
    self.ended = getattr(self, "ended", False) or Right.over(self)
    return self.ended


def reset_at_end(self, obs, reward, over, *rest):
    return self.reset()[0] if over else obs, reward, over, *rest


def after(steps):
    """Terminated after so many steps, whatever the state."""
    return {"base": NoEnd, "limit": None, "over": lambda env: env.time >= steps}


fault("ends-never", {"steps": 1_200}, base=NoEnd, limit=None)
fault("ends-time-limit", {"length": 50}, **after(50))
fault(
    "ends-time-limit",
    {"length": 30},
    limit=None,
    over=lambda env: Right.over(env) or env.time >= 30,
)
fault(  # the observation shows the time
    "ends-horizon",
    {"length": 50},
    look=lambda env: np.array([env.place, env.time], np.float32),
    **after(50),
)
fault("ends-horizon", {"length": 6}, **after(6))
fault(
    "ends-both-flags", step=changed_step(lambda _, o, r, over, __, info: (o, r, over, over, info))
)
fault("ends-first-step", over=lambda env: True)
fault("ends-stay-ended", over=stay_ended)
fault("ends-self-reset", step=changed_step(reset_at_end))
fault("ends-self-reset", info=lambda env: {"final_observation": env.look()} if env.over() else {})

# Actions


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


NINE = Box(-2, 2, (9,), np.float32)
fault("action-raises", {"name": "the highest action"}, actions=NINE, push=fail_at_top)
fault(
    "action-nan",
    {"name": "the lowest action"},
    actions=NINE,
    push=break_at_bottom,
    look=changed_look(lambda env, o: o * (np.nan if getattr(env, "broken", False) else 1)),
)
fault("action-changed", base=Boxed, push=clip_in_place)
fault("action-unbounded", {"count": 1, "size": 1}, base=Boxed, actions=Box(-np.inf, np.inf, (1,)))
fault(
    "action-range",
    {"width": 2e9},
    actions=Box(-1e9, 1e9, (1,)),
    push=lambda env, action: float(np.clip(action[0], -1, 1)),
)
fault(
    "action-empty-range",
    {"entry": 1, "low": 2.0},
    base=Boxed,
    actions=Box(np.array([-2, 2], np.float32), np.array([2, 2], np.float32)),
)
fault("action-ignored", push=lambda env, action: 1.0)

# Closing
STARTED = []
"""processes of environments that do not end them"""
fault("close-raises", close=raising(OSError("already closed")))
fault(
    "close-processes",
    {"names": "sleep"},
    __init__=lambda env: STARTED.append(subprocess.Popen(["sleep", "60"])),
)


@pytest.fixture(autouse=True)
def fewer_steps(monkeypatch):
    """As many as the faults take, so that it is the same on a slow machine."""
    monkeypatch.setattr(episodes, "STEPS", 1_200)
    monkeypatch.setattr(seeding, "RESULTS", 60)


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_a_fault_is_found_by_its_code(case):
    findings = examined(case.kind, case.limit)
    assert any(holds(f, case.facts) for f in findings if f.code == case.code), findings
    for finding in bad(findings):
        assert finding.why and finding.fix, finding
    if RULES[case.code].level == "note":
        assert bad(findings) == []
        assert len([finding for finding in findings if finding.level == "note"]) <= 2, findings


def test_every_fault_of_an_environment_has_a_case():
    not_here = {"make-batch", "run-fails", "step-side-by-side", "memory-grows", "ends-unseen"}
    not_here |= {"ends-shows-next", "seeding-batch", "seeding-process", "output"}
    claimed = not_here | {case.code for case in CASES}
    rest = {code for code in set(RULES) - claimed if RULES[code].level != "ok"}
    assert all(code.startswith(("process-", "speed-")) for code in rest), rest


def test_an_environment_without_faults_has_none():
    for kind in (Right, Boxed):
        codes = {finding.code for finding in examined(kind)}
        assert codes == {"observation-ok", "seeding-ok", "ends-ok"}


def test_errors_are_located_in_the_users_code():
    (finding,) = bad(examined(type("Faulty", (Right,), {"reset": raising(KeyError("level"))})))
    assert "KeyError: 'level' (" in finding.facts["error"]
    assert "test_checking_faults.py:" in finding.facts["error"]


class EndsByChance(NoEnd):
    def over(self):
        return bool(self.np_random.random() < 0.023)


class LimitFewReach(EndsByChance):
    """Only one episode in ten lasts until the limit."""

    def over(self):
        return super().over() or self.time >= 100


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
