"""`paceline check`: no false alarms, sound advice, and an order of what to mend first."""

from __future__ import annotations

import dataclasses
import json
import random
import sys

import gymnasium as gym
import numpy as np
import pytest
from worlds import ACTIONS, OBSERVATIONS, Anything

from paceline.envs.spaces import action_spec
from paceline.errors import BadInput
from paceline.tools.check import episodes, layout
from paceline.tools.check.acting import RandomActions, drawn, mask_of
from paceline.tools.check.compare import alike, brief
from paceline.tools.check.ends import shows_time
from paceline.tools.check.examine import Conformance
from paceline.tools.check.finding import LEVELS, TOPICS, Finding, Notebook, ordered
from paceline.tools.check.generators import states, touched
from paceline.tools.check.leaves import leaf_faults
from paceline.tools.check.report import Verdict
from paceline.tools.check.request import Request
from paceline.tools.check.speed import Measured, _growth, judged, measured
from paceline.tools.check.subject import Subject
from paceline.tools.check.suggest import Suggestion, suggested

WRONG = Finding("wrong", "reward", "it is NaN", "it spoils", "bound it")
NOTE = Finding("note", "observation", "it is large", "it is slow", "divide it")
OK = Finding("ok", "ends", "all is well")
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


def examined(env_id, seconds=20.0, **options):
    notebook = Notebook()
    request = Request(env_id=env_id, seconds=seconds, **options)
    assert Conformance(Subject(request), notebook).examine()
    return notebook.findings


def bad(findings):
    return [finding for finding in findings if finding.level in ("wrong", "risky")]


@pytest.mark.parametrize(
    "env_id",
    [
        *("CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Taxi-v4", "Blackjack-v1"),
        *("toy:identity", "toy:constant", "toy:memory", "toy:chain"),
        *("LunarLander-v3", "HalfCheetah-v5"),
    ],
)
def test_environments_that_are_right_raise_no_alarm(env_id, monkeypatch):
    monkeypatch.setattr(episodes, "STEPS", 1_000)
    assert bad(examined(env_id)) == []


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
def test_none_of_gymnasiums_own_raises_an_alarm(env_id, seed):
    assert bad(examined(env_id, seconds=3.0, seed=seed)) == []


def test_an_endless_environment_of_gymnasiums_needs_a_time_limit(monkeypatch):
    monkeypatch.setattr(episodes, "STEPS", 1_200)
    (finding,) = bad(examined("CliffWalking-v1"))
    assert "--env.time-limit" in finding.fix
    assert bad(examined("CliffWalking-v1", time_limit=200)) == []


def test_a_cheap_step_gains_nothing_from_workers():
    found = suggested(FAST, cpus=16, free_mb=16_000)
    assert (found.workers, found.envs) == (0, 16)
    assert "workers would gain nothing" in found.reason


@pytest.mark.parametrize(("rate", "each"), [(20_000.0, 8), (100.0, 4)])
def test_a_dear_step_is_shared_by_all_cpus(rate, each):
    slow = dataclasses.replace(FAST, steps_per_second=rate)
    found = suggested(slow, cpus=6, free_mb=16_000)
    assert (found.workers, found.envs) == (6, 6 * each)
    assert "bound by stepping" in found.reason
    assert suggested(slow, cpus=1, free_mb=16_000).workers == 0


def test_where_convolutions_take_longer_than_stepping_the_learner_keeps_the_cpus():
    quick = dataclasses.replace(FAST, steps_per_second=5000.0, step_us=200.0)
    assert suggested(quick, cpus=6, free_mb=16_000).workers == 6
    found = suggested(dataclasses.replace(quick, pictures=True), cpus=6, free_mb=16_000)
    assert found.workers == 0 and "pictures" in found.reason


def test_an_environment_that_waits_may_have_more_workers_than_cpus():
    waiting = dataclasses.replace(FAST, steps_per_second=500.0, cpu_share=0.25)
    assert suggested(waiting, cpus=4, free_mb=16_000).workers == 16


def test_a_suite_without_single_environments_is_known_as_one():
    pytest.importorskip("envpool")
    subject = Subject(Request(env_id="envpool:CartPole-v1"))
    assert not subject.single
    assert subject.make() is None
    assert Subject(Request(env_id="CartPole-v1")).single
    for env_id in ("Anything-v1", "gym:Anything-v1", "module:Anything-v1", "envpool:Anything-v1"):
        with pytest.raises(BadInput):
            Subject(Request(env_id=env_id))


def test_an_environment_with_threads_of_its_own_gets_no_workers():
    threaded = dataclasses.replace(FAST, steps_per_second=500.0, cpu_share=3.0)
    assert suggested(threaded, cpus=4, free_mb=16_000).workers == 0


@pytest.mark.parametrize("free", [100, 1_000, 4_000, 100_000])
@pytest.mark.parametrize("rate", [50.0, 1e5])
def test_what_is_suggested_fits_into_memory_and_divides_equally(free, rate):
    large = dataclasses.replace(FAST, steps_per_second=rate, memory_mb=300.0)
    found = suggested(large, cpus=4, free_mb=free)
    assert found.envs >= 1
    assert found.envs % max(1, found.workers) == 0
    assert found.envs * 300 <= max(300, free / 2)
    assert ("not fit" in found.reason) == (free < 10_000)


@pytest.mark.slow
def test_a_measurement_is_of_whole_columns():
    found = measured(Subject(Request(env_id="CartPole-v1")), seconds=0.3)
    assert found.envs == 8
    assert found.steps > 50
    assert found.episodes > 0
    assert 1_000 < found.steps_per_second < 1e6
    assert 0 < found.reset_ms < 50
    assert 0 < found.reset_share < 1
    assert found.failures == 0


@pytest.mark.slow
def test_masked_actions_are_kept_to_while_measuring():
    def masked():
        return Anything(OBSERVATIONS["dict"], ACTIONS["multidiscrete"], masked=True)

    assert measured(Subject(Request(env_id=masked)), seconds=0.1).failures == 0


def test_memory_that_settles_is_no_leak():
    assert _growth([0.0, 50e6, 60e6, 60e6, 60e6, 60e6, 60e6, 60e6, 60e6]) == 0
    assert _growth([float(n) for n in range(0, 90_000_000, 9_000_000)]) > 50e6
    assert _growth([0.0, 1e9]) == 0


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, None, ()),
        ({"growth_mb": 50.0}, "risky", ("50 MB", "ten million", "list")),
        ({"reset_ms": 10.0}, "note", ("resets", "__init__")),
        ({"steps_per_second": 20.0}, "note", ("20 steps/s", "14 hours")),
        ({"cpu_share": 3.5}, "note", ("3.5 CPUs", "threads")),
        ({"queued_share": 0.4}, "note", ("40%", "idle")),
        ({"failures": 2}, "wrong", ("raised 2 times",)),
    ],
)
def test_what_a_measurement_shows_is_judged(changes, level, words):
    findings = list(judged(dataclasses.replace(FAST, **changes)))
    assert [finding.level for finding in findings] == [level] * bool(level)
    for word in words:
        assert word in f"{findings[0].text} {findings[0].why} {findings[0].fix}"


def test_the_worst_comes_first_and_of_what_is_as_bad_what_hides_the_rest():
    findings = [Finding(level, topic, "") for topic in TOPICS for level in reversed(LEVELS)]
    shown = ordered(random.sample(findings, len(findings)))
    assert shown == [Finding(level, topic, "") for level in LEVELS for topic in TOPICS]


def test_what_was_said_is_not_said_again():
    told = []
    notebook = Notebook(told.append)
    notebook.add(WRONG, NOTE, WRONG)
    assert notebook.findings == told == [WRONG, NOTE]
    assert not notebook.quiet("reward")
    assert notebook.quiet("observation")


def test_the_verdict_in_plain_lines():
    verdict = Verdict(
        "My-v0", {"time_limit": 50}, [WRONG, NOTE, OK], FAST, Suggestion(0, 16, "cheap")
    )
    lines = layout.plain(verdict).splitlines()
    assert lines[0] == "env       My-v0, time limit 50"
    assert "100,000 steps/s" in lines[1]
    assert lines[3] == "suggested --num-workers 0 --num-envs 16: cheap"
    assert lines[5] == "wrong  reward       it is NaN"
    assert lines[6].split(maxsplit=1) == ["why:", "it spoils"]
    assert lines[7].split(maxsplit=1) == ["fix:", "bound it"]
    assert lines[-1] == "1 wrong, 1 note"


def test_the_verdict_in_columns_that_fit(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    long = dataclasses.replace(WRONG, text="it is " + "not " * 40 + "[bold]right[/bold]")
    layout.show(Verdict("My-v0", {}, [long, OK], FAST, Suggestion(0, 16, "cheap")))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 50
    for words in ("[bold]right[/bold]", "why: it spoils", "fix: bound it", "1 wrong"):
        assert words in shown


def test_the_verdict_as_json():
    content = json.loads(layout.as_json(Verdict("My-v0", {}, [WRONG, NOTE, OK], FAST, None)))
    assert (content["wrong"], content["risky"], content["notes"]) == (1, 0, 1)
    assert content["measured"]["steps_per_second"] == 100_000
    assert content["suggested"] is None


@pytest.mark.parametrize(
    ("findings", "said", "faulty"),
    [
        ([], "nothing to fix", False),
        ([NOTE, OK], "nothing to fix, 1 note", False),
        ([dataclasses.replace(WRONG, level="risky")], "1 risky", True),
    ],
)
def test_only_what_is_to_be_fixed_is_a_fault(findings, said, faulty):
    verdict = Verdict("My-v0", findings=findings)
    assert (layout.summary(verdict), verdict.faulty) == (said, faulty)


def test_whoever_draws_from_a_shared_generator_is_named():
    before = states()
    assert touched(before, states()) == []
    random.random()
    np.random.normal()
    assert touched(before, states()) == ["Python's random", "numpy's np.random"]


def test_torchs_generator_is_watched_where_torch_is():
    torch = pytest.importorskip("torch")
    assert "torch" in sys.modules
    before = states()
    torch.rand(1)
    assert touched(before, states()) == ["torch's global generator"]


def test_observations_are_alike_to_the_bit():
    seen = {"a": np.array([1.0, np.nan]), "b": (1, [2.0, "x"])}
    assert alike(seen, {"a": np.array([1.0, np.nan]), "b": (1, [2.0, "x"])})
    assert not alike(seen, {"a": np.array([1.0, 2.0]), "b": (1, [2.0, "x"])})
    assert not alike(np.zeros(2, np.float32), np.zeros(2))
    assert not alike(1, None)
    assert alike(float("nan"), np.nan)


def test_values_are_told_briefly():
    assert brief(np.float32(0.5)) == "0.5"
    assert brief(np.array([1.0, 2.5])) == "[1, 2.5]"
    assert len(brief(np.zeros((96, 96, 3)))) < 60
    assert len(brief("x" * 1000)) < 100
    assert brief("\x1b[31m") == r"'\x1b[31m'"


@pytest.mark.parametrize("name", ["discrete", "multidiscrete", "multibinary", "box", "number"])
def test_every_action_that_is_tried_is_in_its_space(name):
    space = ACTIONS[name]
    actions = RandomActions(action_spec(space), 0, ints=False)
    tried = [actions.next(None, {}) for _ in range(50)]
    tried += [action for _, action in actions.corners()]
    assert len(tried) >= 52
    for action in tried:
        assert space.contains(action), action


def test_a_masked_action_is_never_drawn():
    space = gym.spaces.MultiDiscrete([3, 2])
    spec = action_spec(space)
    allowed = (np.array([0, 1, 0], np.int8), np.array([0, 1], np.int8))
    mask = mask_of(None, {"action_mask": allowed}, spec)
    chosen = drawn(np.random.default_rng(0), spec, np.tile(mask, (100, 1)), 100)
    assert (chosen == [1, 1]).all()
    assert mask_of(None, {"action_mask": np.ones(4)}, spec) is None


@pytest.mark.parametrize("name", ["box", "number", "discrete", "dict", "tuple", "two images"])
def test_what_a_space_samples_has_no_faults(name):
    space = OBSERVATIONS[name]
    for _ in range(20):
        assert list(leaf_faults(space, space.sample())) == []


def test_a_wrong_type_is_told_also_where_the_value_is_out_of_bounds():
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    kinds = [fault.kind for fault in leaf_faults(space, np.array([5.0, 0.0]))]
    assert kinds == ["outside", "dtype"]


def test_a_clock_in_the_observation_is_seen():
    draw = np.random.default_rng(0)
    clock = [[np.array([t, draw.random()]) for t in range(9)] for _ in range(4)]
    assert shows_time(clock)
    assert shows_time([[-step for step in track] for track in clock])
    assert not shows_time([[step[1:] for step in track] for track in clock])
    assert not shows_time([])
