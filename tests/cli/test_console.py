"""The progress that a run shows: live on a terminal, plain lines in a pipe."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from terminal import parts, resize

from paceline.cli.console import Console
from paceline.run.report import Report

CORE = ["steps", "steps/s", "return", "elapsed", "left"]
LEARNING = ["episode length", "KL", "entropy", "value loss", "explained variance"]
COLUMNS = {60: 0, 80: 2, 100: 4, 120: 5, 160: 5}
"""How many of `LEARNING` each width has room for."""
EXTRA = {"success": 0.25, "a_name_far_longer_than_most_that_users_give_to_a_metric": 2.0}
SENTENCE = "a warning that says at length what is wrong, the value that was seen, and what to write"
WAITING = """
import gymnasium as gym


class Waiting(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    held = True

    def reset(self, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        if Waiting.held:
            open("seen").read()
            Waiting.held = False
        return self.observation_space.sample(), 0.0, True, False, {}


gym.register("Waiting-v0", Waiting)
"""
ON_A_TERMINAL = """
import sys
from terminal import resize
from test_console import *

console = Console()
console.show(report(fraction=0.5))
for columns in map(int, sys.argv[1:]):
    resize(1, columns)
    console.say(f"{columns} columns")
    console.say(SENTENCE)
console.progress("evaluating: 7 of 20 episodes")
console.say("evaluating")
console.show(report(fraction=1.0))
console.close()
"""


def report(fraction, **changes):
    """One with large numbers, which need room."""
    phases = {"t_iter": 1.0, "t_rollout": 0.5, "t_wait": 0.2, "t_learn": 0.3}
    phases |= {"t_sync": 0.1, "t_other": 0.1}
    learned = {"approx_kl": 1.23e-5, "entropy": -1.23e-5, "value_loss": 1234.5}
    values = {
        **phases,
        "time": 40_000.0 * fraction,
        "iter": 1,
        "steps": int(987_654_321 * fraction),
        "steps_global": 1000,
        "world_size": 1,
        "fps": 123_456.0,
        "restarts": 0,
        "env_restarts": 0,
        "lag_mean": 0.0,
        "lag_max": 0,
        "episodes": 1,
        "episode_return": -12345.6,
        "episode_length": 1000.0,
        "metrics": {**learned, "explained_variance": 0.5, **EXTRA},
        "recent_return": -12345.6,
        "fraction": fraction,
    }
    return Report(**values | changes)


@pytest.fixture(scope="module")
def screens():
    """The lines drawn after each line that was said, by that line."""
    reader, writer = pty.openpty()
    resize(writer, 200)
    command = [sys.executable, "-c", ON_A_TERMINAL, *map(str, COLUMNS)]
    given = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    given |= {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdin=writer, stdout=writer, stderr=writer, env=given)
    os.close(writer)
    shown = b"".join(parts(reader)).decode()
    os.close(reader)
    assert process.wait(timeout=60) == 0, shown
    lines = re.split("[\r\n]+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown))
    drawn, current = {}, []
    for line in map(str.rstrip, lines):
        if re.fullmatch(r"\d+ columns|evaluating", line):
            current = drawn[line] = []
        current.append(line)
    return drawn


@pytest.mark.parametrize("columns", COLUMNS)
def test_the_live_display_drops_what_does_not_fit_and_cuts_nothing(screens, columns):
    drawn = screens[f"{columns} columns"][1:6]
    assert max(map(len, drawn)) <= columns
    bar, labels, values, phases, extra = drawn
    assert len(bar) == columns and bar.endswith(" 50%")
    wanted = [*CORE, *LEARNING[: COLUMNS[columns]]]
    assert re.split("  +", labels.strip()) == wanted
    numbers = values.split()
    assert len(numbers) == len(wanted)
    assert numbers[:3] == ["493,827,160", "123,456", "-12345.6"]
    assert phases == "rollout 50%  (waiting 20%)  learn 30%  sync 10%  other 10%"
    long = "" if columns < 80 else f"  {list(EXTRA)[1]} 2"
    assert extra == f"success 0.25{long}"


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_sentence_is_broken_between_words(screens, columns):
    lines = screens[f"{columns} columns"]
    begun = next(index for index, line in enumerate(lines) if line.startswith("a warning"))
    end = next(index for index, line in enumerate(lines) if index > begun and "━" in line)
    broken = lines[begun:end]
    assert max(map(len, broken)) <= columns
    assert " ".join(line.strip() for line in broken) == SENTENCE


def test_an_evaluation_shows_its_progress_until_the_next_report(screens):
    lines = screens["evaluating"]
    assert "evaluating: 7 of 20 episodes" in lines
    last = max(index for index, line in enumerate(lines) if "━" in line)
    assert lines[last].endswith("100%") and "evaluating: 7 of 20 episodes" not in lines[last:]


def test_something_is_shown_before_the_first_iteration_ends(shell):
    """The environment does not step until it was seen."""
    (shell.folder / "waiting.py").write_text(WAITING)
    os.mkfifo(shell.folder / "seen")
    reader, writer = pty.openpty()
    small = ("--num-envs", 1, "--rollout-steps", 4, "--minibatches", 1, "--eval-episodes", 1)
    arguments = ("train", "--env-id", "waiting:Waiting-v0", "--total-steps", 4, *small)
    process = shell.start(*arguments, "--track", "none", stdout=writer)
    os.close(writer)
    output, shown = parts(reader), b""
    while "starting … 0:0" not in shown.decode(errors="ignore"):
        shown += next(output)
    assert b"steps/s" not in shown
    (shell.folder / "seen").write_text("go on")
    shown += b"".join(output)
    os.close(reader)
    assert process.wait(timeout=60) == 0, process.stderr.read()
    process.stderr.close()
    assert b"steps/s" in shown


def test_a_pipe_gets_plain_lines_with_the_evaluation_in_the_time_left(monkeypatch):
    stream = io.StringIO()
    console = Console(stream)
    console.starting("starting")
    console.show(report(0.5, time=100.0, evaluation_left=60.0))
    console.progress("evaluating: 7 of 20 episodes")  # too soon after the line before
    monkeypatch.setattr(Console, "INTERVAL", 0.0)
    console.progress("evaluating: 8 of 20 episodes")
    console.close()
    line, *others = stream.getvalue().splitlines()
    assert others == ["evaluating: 8 of 20 episodes"]
    assert " 50%  493,827,160 steps " in line and "2:40 left" in line and "success 0.25" in line
