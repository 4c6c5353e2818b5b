"""`paceline check` as a user calls it: whatever the environment does, there is an answer."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys

import pytest
from terminal import shown_on_terminal

from paceline.processes.hardware import available_cpus
from paceline.tools.check.speed import Measured, suggest
from paceline.tools.findings import STYLES

MODULE = """
import ctypes, os, sys, time
import gymnasium as gym
import numpy as np


class Right(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=20):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.normal(size=2).astype(np.float32), {}

    def step(self, action):
        self.time += 1
        self.trouble()
        place = self.np_random.normal(size=2).astype(np.float32)
        return place, float(action), False, self.time >= self.length, {}

    def trouble(self):
        pass


class LeavesFork(Right):
    def __init__(self):
        super().__init__()
        if os.fork() == 0:
            time.sleep(100)
            os._exit(0)

    def trouble(self):
        if self.time == 3:
            os._exit(7)


class Unordered(Right):
    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation + len(next(iter({"a", "bb", "ccc", "dddd", "eeeee"}))), info


class Raises(Right):
    def __init__(self):
        raise FileNotFoundError("map.dat")


KEPT = []
TROUBLES = {
    "Hangs": lambda env: time.sleep(1000 if env.time == 3 else 0),
    "HangsAtOnce": lambda env: (open("begun", "w").close(), time.sleep(1000)),
    "Crashes": lambda env: env.time == 3 and ctypes.string_at(0),
    "Leaves": lambda env: env.time == 3 and os._exit(7),
    "Prints": lambda env: print("a step!"),
    "Grows": lambda env: KEPT.append(np.ones(200)),
    "Waits": lambda env: time.sleep(0.002),
}
kinds = [type(name, (Right,), {"trouble": trouble}) for name, trouble in TROUBLES.items()]
for kind in (Right, LeavesFork, Unordered, Raises, *kinds):
    gym.register(f"{kind.__name__}-v0", kind)
"""


@pytest.fixture
def check(command, shell, monkeypatch):
    """The code, and the JSON about an environment of the module above."""
    (shell.folder / "worlds_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(shell.folder))

    def ask(name, *arguments, seconds=0.3):
        env = name if ":" in name else f"worlds_of_mine:{name}-v0"
        ended = command("check", env, "--json", "--seconds", seconds, *arguments)
        assert not ended.err, ended
        return ended.code, json.loads(ended.out)

    return ask


def facts(content, code):
    """Of the one finding with this code."""
    found = [finding for finding in content["findings"] if finding["code"] == code]
    assert len(found) == 1, content["findings"]
    return found[0]["facts"]


def test_an_environment_without_faults_is_measured_and_nothing_is_to_fix(shell):
    ended = shell("check", "CartPole-v1", "--seconds", 0.5)
    assert ended.code == 0, ended
    assert not ended.err
    assert "\x1b" not in ended.out
    lines = ended.out.splitlines()
    names = ["env", "spaces", "played", "speed", "memory", "suggested"]
    assert [line.split()[0] for line in lines[:6]] == names
    assert "time limit 500" in lines[0]
    assert "--num-workers" in lines[5]
    assert lines[-1].startswith("nothing to fix")  # a busy machine is noted


def test_json_is_one_object_with_the_worst_finding_first(check):
    code, content = check("Right")
    assert code == 0
    keys = {"env", "findings", "measured", "suggested", "wrong", "risky", "notes"}
    assert content.keys() == keys
    assert content["env"]["id"] == "worlds_of_mine:Right-v0"
    measured = Measured(**content["measured"])
    assert (measured.envs, measured.failures) == (8, 0)
    assert measured.steps > 50 and measured.episodes > 0
    assert 1_000 < measured.steps_per_second < 1e6
    assert 0 < measured.reset_ms < 50 and 0 < measured.reset_share < 1
    rule = suggest(measured, available_cpus(), free_mb=1e5)
    assert content["suggested"] == dataclasses.asdict(rule)
    levels = [finding["level"] for finding in content["findings"]]
    assert levels == sorted(levels, key=list(STYLES).index)
    for level in ("wrong", "risky", "note"):
        assert content["notes" if level == "note" else level] == levels.count(level)
    for finding in content["findings"]:
        assert finding.keys() == {"level", "topic", "code", "text", "why", "fix", "facts"}


def test_options_reach_the_environment(check):
    options = {
        "--env.kwargs": '{"length": 7}',
        "--env.wrappers": "gymnasium.wrappers:FlattenObservation",
        "--seed": 3,
    }
    code, content = check("Right", *itertools.chain(*options.items()))
    assert code == 0
    assert facts(content, "ends-ok")["longest"] == 7
    code, content = check("Right", "--env.time-limit", 5)
    assert facts(content, "ends-ok")["longest"] == 5
    assert content["env"]["time_limit"] == 5


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("Hangs", "process-hangs", {"call": "step", "seconds": 1}),
        ("Crashes", "process-died", {"call": "step", "code": -signal.SIGSEGV}),
        ("Leaves", "process-died", {"call": "step", "code": 7}),
        ("LeavesFork", "process-died", {"call": "step", "code": 7}),
        ("Unordered", "seeding-process", {}),
    ],
)
def test_what_a_process_of_its_own_shows_is_a_finding(check, name, code, expected):
    exit_code, content = check(name, "--worker-timeout", "1s")
    assert exit_code == 3
    assert expected.items() <= facts(content, code).items()
    assert (content["measured"] is None) == (code != "seeding-process")


def test_an_environment_that_cannot_be_made_is_a_finding(check):
    code, content = check("Raises")
    assert code == 3
    assert "FileNotFoundError: map.dat" in facts(content, "make-raises")["error"]
    assert content["measured"] is content["suggested"] is None


def test_what_it_prints_is_kept_from_the_report_and_noted(check):
    code, content = check("Prints")
    assert code == 0
    assert facts(content, "output")["first"] == "a step!"


def test_memory_that_grows_without_end_is_found(check):
    code, content = check("Grows", seconds=1)
    assert code == 3
    assert facts(content, "memory-grows")["grown"] > 2 * 2**20
    assert content["measured"]["growth_mb"] > 2


def test_an_environment_that_waits_gets_more_workers_than_cpus(check):
    code, content = check("Waits")
    assert code == 0
    assert content["measured"]["cpu_share"] < 0.6
    assert content["suggested"]["workers"] > len(os.sched_getaffinity(0))


@pytest.mark.slow
def test_a_suite_without_single_environments_is_looked_at_as_a_batch(check, command):
    pytest.importorskip("envpool")
    assert command("check", "envpool:Anything-v1").code == 2
    code, content = check("envpool:CartPole-v1")
    assert code == 0
    codes = {finding["code"] for finding in content["findings"]}
    assert codes >= {"make-batch", "seeding-ok", "ends-ok"}
    assert content["env"]["observation"] == "Box(4,) float32"
    assert content["measured"]["steps_per_second"] > 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("name an environment",)),
        (("CartPole-v7",), ("CartPole-v7", "did you mean")),
        (("gym:Anything-v1",), ("Anything-v1",)),
        (("no.such.module:Thing-v0",), ("no.such.module", "can't be imported")),
        (("toy:nothing",), ("toy:nothing", "toy:identity")),
        (("CartPole-v1", "--secnds", "1"), ("--secnds", "did you mean --seconds")),
        (("CartPole-v1", "--seconds", "long"), ("--seconds", "long")),
        (("CartPole-v1", "--seconds", "1e9"), ("--seconds", "3600")),
        (("CartPole-v1", "--env.kwargs", "{"), ("env.kwargs",)),
        (("CartPole-v1", "--env.kwargs", '{"gravity": 1}'), ("gravity", "refuses")),
        (("CartPole-v1", "--env.time-limit", "0"), ("env.time_limit",)),
        (("CartPole-v1", "--env.wrappers", "nothing:Here"), ("nothing:Here",)),
        (("CartPole-v1", "--seed", "-1"), ("seed",)),
        (("CartPole-v1", "--worker-timeout", "60"), ("worker_timeout", "60s")),
        (("CartPole-v1", "Pendulum-v1"), ("Pendulum-v1", "no such argument")),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(command, arguments, words):
    ended = command("check", *arguments)
    assert ended.code == 2, ended
    assert not ended.out
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.err


def test_help_tells_the_options_and_the_exit_codes(command):
    for arguments in (("--help",), ("CartPole-v1", "-h")):
        ended = command("check", *arguments)
        assert ended.code == 0
        for word in ("paceline check", "--env.kwargs", "--seconds", "--json", "exit code is 3"):
            assert word in ended.out


def test_the_command_itself_never_imports_torch(shell):
    program = (
        "import sys; from paceline.tools.check import command; "
        "command(['toy:chain', '--seconds', '0.1']); print('torch' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=shell.folder, capture_output=True, text=True
    )
    assert ended.stdout.splitlines()[-1] == "False", ended


def test_ctrl_c_ends_the_environment_too(shell, until):
    """What is left behind, the fixture of all tests of commands would find."""
    (shell.folder / "worlds_of_mine.py").write_text(MODULE)
    process = shell.start("check", "worlds_of_mine:HangsAtOnce-v0")
    until((shell.folder / "begun").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 75
    assert "interrupted" in process.stderr.read()
    process.stdout.close()
    process.stderr.close()


@pytest.mark.slow
def test_a_terminal_gets_colors_and_columns_that_fit(shell):
    shown = shown_on_terminal(shell, "check", "toy:constant", "--seconds", "0.2")
    assert b"\x1b[" in shown
    assert b"nothing to fix, " in shown
