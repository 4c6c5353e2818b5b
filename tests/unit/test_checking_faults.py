"""`paceline check`: every fault that makes training go wrong unnoticed is found and named."""

from __future__ import annotations

import random
import subprocess
import time

import gymnasium as gym
import numpy as np
import pytest

from paceline.tools.check import episodes, seeding
from paceline.tools.check.examine import Conformance
from paceline.tools.check.finding import Notebook
from paceline.tools.check.request import Request
from paceline.tools.check.subject import Subject


class Right(gym.Env):
    """A walk on a line with a push and some noise; it ends where it gets too far out.

    Nothing is wrong with it; each fault below is one change to it.
    """

    observation_space = gym.spaces.Box(-20, 20, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.place = float(self.np_random.uniform(-1, 1))
        self.speed = 0.0
        return self.look(), {}

    def look(self):
        return np.array([self.place, self.speed], np.float32)

    def push(self, action):
        return 1.0 if action == 1 else -1.0

    def noise(self):
        return float(self.np_random.normal())

    def over(self):
        return bool(abs(self.place) > 5)

    def step(self, action):
        self.time += 1
        self.speed = 0.8 * self.speed + 0.3 * self.push(action) + 0.1 * self.noise()
        self.speed = float(np.clip(self.speed, -3, 3))
        self.place += self.speed
        return self.look(), -abs(self.place), self.over(), False, {}


class Boxed(Right):
    """The push is a number."""

    action_space = gym.spaces.Box(-2, 2, (1,), np.float32)

    def push(self, action):
        return float(action[0])


def examined(kind, time_limit=200, **options):
    """Findings about a class of environments."""
    notebook = Notebook()
    request = Request(env_id=kind, time_limit=time_limit, seconds=20.0, **options)
    Conformance(Subject(request), notebook).examine()
    return notebook.findings


def bad(findings):
    return [finding for finding in findings if finding.level in ("wrong", "risky")]


def test_an_environment_without_faults_has_none():
    for kind in (Right, Boxed):
        findings = examined(kind)
        assert [finding for finding in findings if finding.level != "ok"] == []
        assert {finding.topic for finding in findings} == {"observation", "seeding", "ends"}


STARTED = []
"""processes of environments that do not end them"""
FAULTS = {}
"""name → (class, its time limit, the level, topic and words of its finding)"""


def fault(name, level, topic, *words, limit=200):
    def keep(kind):
        FAULTS[name] = (kind, limit, level, topic, words)
        return kind

    return keep


@fault("raises in __init__", "wrong", "make", "RuntimeError: no licence")
class RaisesWhenMade(Right):
    def __init__(self):
        raise RuntimeError("no licence")


@fault("raises in reset", "wrong", "reset", "KeyError: 'level'", "test_checking_faults.py:")
class RaisesInReset(Right):
    def reset(self, **_):
        return {}["level"], {}


@fault("raises in step", "wrong", "step", "ZeroDivisionError", "at step 7")
class RaisesInStep(Right):
    def over(self):
        return 1 / (7 - self.time) < 0


@fault("exits in step", "wrong", "step", "SystemExit")
class Exits(Right):
    def over(self):
        raise SystemExit(4)


@fault("old step", "wrong", "step", "a tuple of 4", "terminated, truncated")
class OldStep(Right):
    def step(self, action):
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


@fault("old reset", "wrong", "reset", "an array of shape (2,)", "observation, {}")
class OldReset(Right):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


@fault("no seed", "wrong", "reset", "seed", "super().reset(seed=seed)")
class NoSeed(Right):
    def reset(self):
        return super().reset()


@fault("no spaces", "wrong", "spaces", "no observation_space")
class NoSpace(Right):
    observation_space = None


@fault("unusable space", "wrong", "spaces", "Text")
class TextSpace(Right):
    observation_space = gym.spaces.Text(5)


@fault("wrong shape", "wrong", "observation", "shape (1, 2)", "(2,)")
class WrongShape(Right):
    def look(self):
        return super().look()[None]


@fault("shape that changes", "wrong", "observation", "shape (3,)", "step 5")
class ChangingShape(Right):
    def look(self):
        return np.zeros(3, np.float32) if self.time == 5 else super().look()


@fault("outside", "risky", "observation", "entry 0", "outside -2 to 2", "widen")
class Outside(Right):
    observation_space = gym.spaces.Box(-2, 2, (2,), np.float32)


@fault("a little outside", "note", "observation", "outside -5 to 5", "a little")
class LittleOutside(Right):
    observation_space = gym.spaces.Box(-5, 5, (2,), np.float32)


@fault("drifts", "note", "seeding", "drifts away", "anew")
class Drifts(Right):
    age = 0

    def noise(self):
        self.age += 1
        return super().noise() + 1e-6 * self.age


@fault("inexact", "note", "seeding", "drift apart", "threads")
class Inexact(Right):
    def noise(self):
        return super().noise() + 1e-5 * np.random.default_rng().random()


@fault("choice outside", "wrong", "observation", "Discrete(3)", "exit code 3")
class OutsideChoice(Right):
    observation_space = gym.spaces.Discrete(3)

    def look(self):
        return min(self.time, 3)


@fault("picture from 0 to 1", "wrong", "observation", "uint8", "after the point")
class FloatPicture(Right):
    observation_space = gym.spaces.Box(0, 255, (2,), np.uint8)

    def look(self):
        return np.clip(super().look() / 10, 0, 1)


@fault("missing part", "wrong", "observation", "lacks 'goal'")
class MissingPart(Right):
    observation_space = gym.spaces.Dict(
        {"state": Right.observation_space, "goal": gym.spaces.Discrete(2)}
    )

    def look(self):
        return {"state": super().look()}


@fault("fault of a part", "wrong", "observation", "observation['state'][0]", "shape")
class FaultyPart(Right):
    observation_space = gym.spaces.Dict({"state": gym.spaces.Tuple([Right.observation_space])})

    def look(self):
        return {"state": (super().look()[:1],)}


@fault("text", "wrong", "observation", "'far'")
class TextObservation(Right):
    def look(self):
        return "far"


@fault("nan", "wrong", "observation", "not finite", "step 9")
class NanObservation(Right):
    def look(self):
        return super().look() * (np.nan if self.time == 9 else 1)


@fault("infinite", "wrong", "observation", "not finite")
class InfiniteObservation(Right):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def look(self):
        return super().look() + (np.inf if self.time == 3 else 0)


@fault("nan reward", "wrong", "reward", "nan", "step 6")
class NanReward(Right):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, np.nan if self.time == 6 else reward, *rest


@fault("no reward", "wrong", "reward", "None", "return a float")
class NoReward(Right):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, None, *rest


@fault("array reward", "risky", "reward", "shape (1,)", "float(reward)")
class ArrayReward(Right):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward]), *rest


@fault("flag", "wrong", "flags", "0.5", "bool")
class FlagIsNumber(Right):
    def over(self):
        return 0.5 if abs(self.place) > 5 else 0.0


@fault("whole flag", "note", "flags", "of type int")
class FlagIsInt(Right):
    def over(self):
        return int(abs(self.place) > 5)


@fault("aliased", "note", "observation", "same array", ".copy()")
class Aliased(Right):
    def look(self):
        if not hasattr(self, "seen"):
            self.seen = np.zeros(2, np.float32)
        self.seen[:] = self.place, self.speed
        return self.seen


@fault("float64", "note", "observation", "float64", "np.float32")
class Float64(Right):
    def look(self):
        return np.array([self.place, self.speed])


@fault("list", "note", "observation", "list")
class ListObservation(Right):
    def look(self):
        return [self.place, self.speed]


@fault("np.random", "wrong", "seeding", "numpy's np.random", "self.np_random")
class GlobalNumpy(Right):
    def noise(self):
        return np.random.normal()


@fault("random", "wrong", "seeding", "Python's random", "after step 1")
class GlobalRandom(Right):
    def noise(self):
        return random.gauss(0, 1)


@fault("own generator without a seed", "wrong", "seeding", "different episodes", "after reset")
class OwnGenerator(Right):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.random.default_rng().uniform(-1, 1)
        return self.look(), {}


@fault("seed not passed on", "wrong", "seeding", "does not call super().reset(seed=seed)")
class SeedNotPassedOn(Right):
    def reset(self, *, seed=None, options=None):
        return super().reset()


@fault("clock", "wrong", "seeding", "a clock")
class Clock(Right):
    def noise(self):
        return 1e4 * time.perf_counter() % 1


@fault("global generator, seeded", "risky", "seeding", "uses or seeds numpy's np.random")
class SeedsGlobal(Right):
    def reset(self, *, seed=None, options=None):
        np.random.seed(seed)
        return super().reset(seed=seed)


@fault("global generator, shared", "wrong", "copies", "beside it", "keep all state in self")
class SharesGlobal(SeedsGlobal):
    def noise(self):
        return np.random.normal()


@fault("class attribute", "wrong", "copies", "beside it")
class SharedPlace(Right):
    shared = np.zeros(1)

    def reset(self, *, seed=None, options=None):
        self.shared[0] = 0.0
        return super().reset(seed=seed)

    def noise(self):
        self.shared[0] += 0.1
        return self.shared[0]


@fault("generator seeded once", "wrong", "seeding", "had been used", "seed every generator")
class SeededOnce(Right):
    def __init__(self):
        self.generator = np.random.default_rng(3)

    def noise(self):
        return self.generator.normal()


@fault("carried over", "wrong", "seeding", "carried over", "set everything back")
class CarriedOver(Right):
    speed = 0.0

    def reset(self, *, seed=None, options=None):
        kept = self.speed
        super().reset(seed=seed)
        self.speed = kept
        return self.look(), {}


@fault("one seed for all", "note", "seeding", "3 seeds gave the same", "by heart")
class OneSeed(Right):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=42)


@fault("no end", "risky", "ends", "no episode ended in 1,200", "--env.time-limit", limit=None)
class NoEnd(Right):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def over(self):
        return False


@fault("limit as terminated", "risky", "ends", "exactly 50 steps", "truncated", limit=None)
class LimitAsTerminated(NoEnd):
    def over(self):
        return self.time >= 50


@fault("limit beside ends", "risky", "ends", "exactly 30 steps", "--env.time-limit 30", limit=None)
class LimitBesideEnds(Right):
    def over(self):
        return super().over() or self.time >= 30


@fault("limit that is shown", "note", "ends", "exactly 50 steps", "own horizon", limit=None)
class LimitShown(LimitAsTerminated):
    def look(self):
        return np.array([self.place, self.time], np.float32)


class LimitFewReach(NoEnd):
    """It ends by chance, and only one episode in ten lasts until the limit."""

    def over(self):
        return bool(self.np_random.random() < 0.023) or self.time >= 100


class EndsByChance(LimitFewReach):
    def over(self):
        return bool(self.np_random.random() < 0.023)


class EndsInStrides(LimitFewReach):
    """The same, of lengths that only come in tens."""

    def over(self):
        return self.time % 10 == 0 and bool(self.np_random.random() < 0.3)


@fault("short task", "note", "ends", "exactly 6 steps", limit=None)
class ShortTask(NoEnd):
    def over(self):
        return self.time >= 6


@fault("one flag for both", "risky", "ends", "both true")
class BothFlags(Right):
    def step(self, action):
        obs, reward, over, _, info = super().step(action)
        return obs, reward, over, over, info


@fault("ends at once", "note", "ends", "their first step", "bandit")
class EndsAtOnce(Right):
    def over(self):
        return True


@fault("stays ended", "wrong", "ends", "only one")
class StaysEnded(Right):
    ended = False

    def over(self):
        self.ended = self.ended or super().over()
        return self.ended


@fault("resets itself", "wrong", "ends", "resets itself", "last observation")
class ResetsItself(Right):
    def step(self, action):
        obs, reward, over, *rest = super().step(action)
        return self.reset()[0] if over else obs, reward, over, *rest


@fault("tells its last observation in info", "wrong", "ends", "resets itself")
class TellsFinal(Right):
    def step(self, action):
        obs, reward, over, truncated, info = super().step(action)
        return obs, reward, over, truncated, info | ({"final_observation": obs} if over else {})


@fault("mask without a choice", "wrong", "mask", "no action at all")
class EmptyMask(Right):
    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {"action_mask": np.ones(2, np.int8) * (self.time != 4)}

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": np.ones(2, np.int8)}


@fault("mask of another length", "wrong", "mask", "3 entries", "2 actions")
class LongMask(EmptyMask):
    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {"action_mask": np.ones(3, np.int8)}


@fault("mask in the first reset only", "risky", "mask", "step() has none")
class LostMask(EmptyMask):
    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {}


@fault("mask that comes later", "wrong", "mask", "no action_mask", "step() has one")
class LateMask(EmptyMask):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {}


@fault("fails at a bound", "wrong", "actions", "the highest action", "ValueError: sqrt")
class FailsAtBound(Boxed):
    action_space = gym.spaces.Box(-2, 2, (9,), np.float32)

    def push(self, action):
        if (action >= 2).all():
            raise ValueError("sqrt")
        return super().push(action)


@fault("nan at a bound", "wrong", "actions", "the lowest action", "NaN")
class NanAtBound(Boxed):
    action_space = gym.spaces.Box(-2, 2, (9,), np.float32)
    broken = False

    def look(self):
        return super().look() * (np.nan if self.broken else 1)

    def push(self, action):
        self.broken = bool((action <= -2).all())
        return super().push(action)


@fault("action changed", "note", "actions", "changed the action")
class ChangesAction(Boxed):
    def push(self, action):
        np.clip(action, -1, 1, out=action)
        return super().push(action)


@fault("unbounded action", "note", "actions", "1 of 1", "finite bounds")
class Unbounded(Boxed):
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


@fault("absurd bounds", "risky", "actions", "2e+09", "stretched")
class AbsurdBounds(Boxed):
    action_space = gym.spaces.Box(-1e9, 1e9, (1,), np.float32)

    def push(self, action):
        return float(np.clip(action[0], -1, 1))


@fault("actions without effect", "note", "actions", "same", "nothing to learn")
class NoEffect(Right):
    def push(self, action):
        return 1.0


@fault("large info", "note", "info", "0.8 MB")
class LargeInfo(Right):
    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {"map": np.zeros(100_000)}


@fault("no reward ever", "note", "reward", "0 in all 1,200")
class NothingToGain(Right):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 0.0, *rest


@fault("constant", "note", "observation", "same in all")
class SeesNothing(Right):
    def look(self):
        return np.ones(2, np.float32)


@fault("large numbers", "note", "observation", "--normalize-obs")
class LargeNumbers(Right):
    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)

    def look(self):
        return 1e4 * super().look()


@fault("large rewards", "note", "reward", "--normalize-return")
class LargeRewards(Right):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, 1e5 * reward, *rest


@fault("close raises", "risky", "close", "close() raised")
class RaisesInClose(Right):
    def close(self):
        raise OSError("already closed")


@fault("process left", "risky", "close", "outlived close()", "sleep")
class LeavesProcess(Right):
    def __init__(self):
        STARTED.append(subprocess.Popen(["sleep", "60"]))


@pytest.fixture(autouse=True)
def fewer_steps(monkeypatch):
    """As many as the faults take, so that it is the same on a slow machine."""
    monkeypatch.setattr(episodes, "STEPS", 1_200)
    monkeypatch.setattr(seeding, "MOMENTS", 60)


@pytest.fixture(autouse=True)
def nothing_started():
    yield
    for process in STARTED:
        process.kill()
        process.wait()
    STARTED.clear()


def test_a_time_limit_as_terminated_is_found_where_few_episodes_reach_it(monkeypatch):
    monkeypatch.setattr(episodes, "STEPS", 5_000)
    for seed in (0, 1):
        (finding,) = bad(examined(LimitFewReach, None, seed=seed))
        assert finding.topic == "ends" and "exactly 100 steps, by terminated" in finding.text


@pytest.mark.parametrize("kind", [EndsByChance, EndsInStrides])
def test_ends_that_come_by_chance_are_no_time_limit(monkeypatch, kind):
    monkeypatch.setattr(episodes, "STEPS", 5_000)
    for seed in range(4):
        assert bad(examined(kind, None, seed=seed)) == []


def test_ends_that_were_not_seen_were_not_checked():
    (finding,) = [f for f in examined(NoEnd, time_limit=5_000) if f.topic == "ends"]
    assert finding.level == "note" and "not checked; the time limit is 5,000" in finding.text
    assert "--seconds 20" in finding.fix


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name):
    kind, limit, level, topic, words = FAULTS[name]
    findings = examined(kind, limit)
    alike = [finding for finding in findings if (finding.level, finding.topic) == (level, topic)]
    said = [f"{finding.text} {finding.why} {finding.fix}" for finding in alike]
    assert any(all(word in text for word in words) for text in said), findings
    if level == "note":
        assert bad(findings) == []
        assert len([finding for finding in findings if finding.level == "note"]) <= 2, findings
    for finding in bad(findings):
        assert finding.why, finding
        assert finding.fix, finding
