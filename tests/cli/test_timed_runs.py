"""Runs with a budget of time: when their clock starts and ends, and what is counted in it.

The environment tells by itself when it was stepped, on a clock of its own.
"""

from __future__ import annotations

import json
import math
import re
import time

import gymnasium as gym
import numpy as np
import pytest

pytestmark = pytest.mark.timeout(115)

SECONDS = 2.0
SLOW = 0.3
"""Seconds that the first reset of each environment takes."""
SLACK = 0.2
"""Seconds that a process may have to wait for a CPU on a busy machine."""
MODES = {
    "sequential": ("--algo", "ppo"),
    "workers": ("--algo", "ppo", "--num-workers", 2),
    "ranks": ("--algo", "ppo", "--ranks", 2, "--num-envs", 2),
    "a3c": ("--algo", "a3c", "--num-workers", 2),
    "stream": ("--algo", "impala", "--num-workers", 2),
}
SMALL = ("--num-envs", 4, "--hidden", "16", "--log-every", 1, "--eval-episodes", 1)
SHORT = (*SMALL, "--env-id", "watched:Watched-v0", "--compile", "off")
WATCHED = f"""
import os
import struct
import time
import uuid
from pathlib import Path

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Watched(CartPoleEnv):
    '''Writes down when it was stepped.'''

    file = None
    fresh = True

    def reset(self, *, seed=None, options=None):
        if self.fresh:
            time.sleep({SLOW})
            self.fresh = False
        return super().reset(seed=seed, options=options)

    def step(self, action):
        now = time.time()
        if self.file is None:
            place = Path(os.environ["WATCHED"]) / uuid.uuid4().hex
            self.file = os.open(place, os.O_CREAT | os.O_WRONLY)
        os.write(self.file, struct.pack("d", now))
        return super().step(action)

    def close(self):
        if self.file is not None:
            os.close(self.file)
            self.file = None


gym.register("Watched-v0", Watched, max_episode_steps=500)
"""


class Timed:
    """A run in a folder of its own, with what its environments saw."""

    def __init__(self, shell, name, *arguments, resumed=False):
        self.shell, self.name = shell, name
        self.watched = shell.folder / f"{name}-watched{'-again' if resumed else ''}"
        self.watched.mkdir()
        (shell.folder / "watched.py").write_text(WATCHED)
        given = ("resume", name) if resumed else ("train", "--output-dir", name, "--track", "none")
        self.asked = time.time()
        self.process = shell.start(
            *given, *arguments, env=shell.environment(WATCHED=str(self.watched))
        )
        self.run = shell.run(name)
        self.began = math.inf
        """when its clock started, as its reports tell; of a late one it would be too late"""

    def look(self):
        """At the newest report, which was written no later than its file was."""
        file = self.run.path / "metrics.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        if lines:
            told = file.stat().st_mtime - json.loads(lines[-1])["time"]
            self.began = min(self.began, told)

    def end(self):
        self.out, self.err = self.process.communicate(timeout=90)
        assert self.process.returncode == 0, self.err
        self.lines = self.run.metrics()
        self.reported = (self.run.path / "metrics.jsonl").stat().st_mtime
        """when the last report was written"""
        seen = [np.fromfile(path) for path in self.watched.iterdir()]
        self.steps = np.sort(np.concatenate([s for s in seen if s[0] < self.reported]))
        """when environments were stepped for training"""
        self.first, self.last = self.steps[0], self.steps[-1]
        return self

    @property
    def iteration(self):
        """Seconds of the longest one, of one learner."""
        learners = 2 if self.name == "a3c" else 1
        return learners * max(line["t_iter"] for line in self.lines)


@pytest.fixture(autouse=True)
def known():
    """What a test registers is not for other tests' workers, which could not import it."""
    before = set(gym.registry)
    yield
    for name in set(gym.registry) - before:
        del gym.registry[name]


@pytest.fixture(scope="module")
def timed(tmp_path_factory, shell_in):
    """All modes at the same time: on a crowded machine it has to hold as well."""
    shell = shell_in(tmp_path_factory.mktemp("timed"))
    budget = ("--duration", f"{SECONDS:g}s")
    begun = {name: Timed(shell, name, *SHORT, *mode, *budget) for name, mode in MODES.items()}
    follow(*begun.values())
    return {name: run.end() for name, run in begun.items()}


def follow(*runs):
    """Look at all of them until they have ended."""
    going = True
    while going:
        going = any(run.process.poll() is None for run in runs)
        for run in runs:
            run.look()
        time.sleep(0.02)


@pytest.mark.parametrize("mode", MODES)
def test_the_clock_starts_with_the_first_step_and_not_before(timed, mode):
    """What comes before, such as two slow resets in each worker, is start-up."""
    run = timed[mode]
    late = run.first - run.began
    assert abs(late) < SLACK, f"first step {late:.3f} s after the clock"


@pytest.mark.parametrize("mode", MODES)
def test_a_timed_run_ends_within_one_iteration_of_its_budget(timed, mode):
    run = timed[mode]
    assert run.lines[-1]["time"] >= SECONDS
    assert all(line["time"] < SECONDS for line in run.lines[:-1])
    over = run.last - run.first - SECONDS
    assert over <= run.iteration + SLACK, f"{over:.3f} s, an iteration {run.iteration:.3f} s"
    assert over >= -run.iteration - SLACK, f"it stopped {-over:.3f} s too early"
    assert run.lines[-1]["time"] - SECONDS <= run.iteration


@pytest.mark.parametrize("mode", MODES)
def test_the_seconds_of_the_start_are_told_apart(timed, mode):
    run = timed[mode]
    startup = run.run.json("run.json")["startup"]
    assert set(startup) == {"seconds", "compile_seconds"} and startup["compile_seconds"] == 0
    took = run.first - run.asked
    assert 0.5 * took <= startup["seconds"] <= took + SLACK  # but for the start of Python itself
    assert startup["seconds"] >= 2 * SLOW
    said = re.search(r"start-up (\d+\.\d) s", run.err + run.out)
    assert float(said[1]) == pytest.approx(startup["seconds"], abs=0.06)


@pytest.mark.parametrize("mode", MODES)
def test_a_timed_run_counts_as_done_and_is_evaluated(timed, mode):
    from paceline.tools.bench.compare.history import read_run

    found = read_run(timed[mode].run.path)
    assert found.state == "done" and found.evaluation is not None


def test_without_evaluations_and_checkpoints_none_are_timed(timed):
    for run in timed.values():
        assert sum(line["t_eval"] + line["t_save"] for line in run.lines) == 0


# Evaluations and checkpoints


def covered(lines):
    """Of each report, its iterations."""
    return [
        now["iter"] - before["iter"]
        for before, now in zip([{"iter": 0}, *lines], lines, strict=False)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_evaluations_and_checkpoints_are_counted_and_told(shell, mode):
    """Each evaluation takes at least the reset of its environment."""
    more = ("--duration", "3s", "--eval-every", 1500, "--save-every", 1500)
    run = Timed(shell, mode, *SHORT, *MODES[mode], *more).end()
    each = covered(run.lines)
    spent = {
        part: sum(line[f"t_{part}"] * n for line, n in zip(run.lines, each, strict=True))
        for part in ("eval", "save")
    }
    made = sum(line["eval_return"] is not None for line in run.lines[:-1])
    assert made >= 1 and spent["eval"] >= made * SLOW and spent["save"] > 0
    for before, line, n in zip(run.lines, run.lines[1:], each[1:], strict=False):
        # Of ranks, only the first one evaluates and saves: what else they do is a mean.
        rest = line["t_iter"] if mode == "ranks" else line["t_other"]
        assert line["t_eval"] + line["t_save"] <= rest + 1e-3
        if before["eval_return"] is not None:
            assert line["t_eval"] * n >= SLOW  # told in the report that follows
            took, seen = line["t_eval"] * n, 1e-3
            if mode == "a3c":  # whose learners go on meanwhile, until the clock stops them
                took, seen = min(took, 3.0 - before["time"]), run.iteration
            assert line["time"] - before["time"] >= took - seen  # and counted
    said = re.search(
        r"training time (\S+) s \(evaluations (\S+) s, checkpoints (\S+) s\)",
        run.err + run.out,
    )
    expected = (run.lines[-1]["time"], spent["eval"], spent["save"])
    for text, value in zip(said.groups(), expected, strict=True):
        assert float(text) == pytest.approx(value, abs=0.07)
    assert run.lines[-2]["time"] < 3.0 <= run.lines[-1]["time"]
    total = sum(line["t_iter"] * n for line, n in zip(run.lines, each, strict=True))
    assert total == pytest.approx(run.lines[-1]["time"], abs=SLACK)


# Interrupted


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_killed_and_resumed_it_goes_on_with_the_time_that_is_left(shell, until, mode):
    run = Timed(
        shell, mode, *SHORT, *MODES[mode], "--duration", "4s", "--save-every", 500, "--keep", 99
    )

    def old_enough():
        return run.run.checkpoints() and run.run.metrics()[-1]["time"] > 1.5

    until(lambda: (run.run.path / "metrics.jsonl").exists() and old_enough())
    run.process.kill()
    run.process.communicate(timeout=10)
    before = run.run.json("run.json")["startup"]
    state = json.loads((run.run.checkpoints()[-1] / "state.json").read_text())
    saved, saved_steps = state["time"], state["steps"]
    assert 0 < saved < 4.0
    again = Timed(shell, mode, resumed=True).end()
    again.name = mode
    assert all(line["time"] < 4.0 for line in again.lines[:-1]) and again.lines[-1]["time"] >= 4.0
    left = 4.0 - saved
    made = again.lines[-1]["steps"] - saved_steps
    took = again.last - again.steps[-made]  # the steps before were a replay, of open episodes
    assert abs(took - left) <= again.iteration + SLACK, f"{took:.3f} s, of {left:.3f} s left"
    times = [line["time"] for line in again.lines]
    assert times == sorted(times)
    assert again.run.json("run.json")["startup"] == before  # is that of the beginning


def test_a_budget_that_is_spent_can_be_extended_by_more_time(timed, command, monkeypatch):
    run = timed["sequential"]
    monkeypatch.chdir(run.shell.folder)
    monkeypatch.setenv("WATCHED", str(run.watched))
    monkeypatch.syspath_prepend(str(run.shell.folder))
    ended = command("resume", "sequential", "--duration", "2.5s")
    assert ended.code == 0, ended
    lines = run.run.metrics()
    assert lines[: len(run.lines)] == run.lines
    assert lines[-1]["time"] >= 2.5 and lines[-2]["time"] < 2.5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_compiling_is_done_before_the_clock_starts_and_told_apart(shell):
    compiled = [*SHORT[:-1], "on"]
    run = Timed(shell, "sequential", *compiled, "--algo", "ppo", "--duration", "2s")
    follow(run)
    run.end()
    startup = run.run.json("run.json")["startup"]
    assert 0 < startup["compile_seconds"] < startup["seconds"]
    assert abs(run.first - run.began) < SLACK
    steady = sorted(line["t_iter"] for line in run.lines)[len(run.lines) // 2]
    assert run.lines[0]["t_iter"] < 5 * steady + SLACK  # nothing was left to compile
