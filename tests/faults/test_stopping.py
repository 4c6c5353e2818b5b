"""One signal ends a run within seconds, whatever it is doing, with what it has; nothing is left."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from ranked import Command

pytestmark = pytest.mark.timeout(120)
slow = partial(pytest.param, marks=pytest.mark.slow)

PACELINE = (sys.executable, "-m", "paceline")
HANGING = """
import os, subprocess, threading, time
import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


def forever():
    while True:
        pass


def stubborn():
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass


WHAT = {
    "sleep": lambda: time.sleep(1000),
    "loop": forever,
    "stubborn": stubborn,
    "burn": lambda: sum(range(10**12)),
    "exit": lambda: os._exit(3),
    "nothing": lambda: None,
}


class Hanging(CartPoleEnv):
    taken = 0

    def __init__(self, what="nothing", after=0, where="step", starts=None):
        super().__init__()
        self._what, self._after, self._where = WHAT[what], after, where
        if starts == "thread":
            threading.Thread(target=time.sleep, args=(1000,)).start()
        if starts == "process":
            subprocess.Popen(["sleep", "1000"])
        if starts == "daemon":
            subprocess.run("setsid sleep 1000 & exit 0", shell=True)

    def _hang(self, where):
        if where == self._where and Hanging.taken >= self._after:
            open("hanging", "w").close()
            self._what()

    def reset(self, **options):
        self._hang("reset")
        return super().reset(**options)

    def step(self, action):
        Hanging.taken += 1
        self._hang("step")
        return super().step(action)

    def close(self):
        self._hang("close")


gym.register("Hanging-v0", Hanging, max_episode_steps=500)
"""
FLAGS = shlex.split(
    "--env-id hanging:Hanging-v0 --preset none --num-envs 2 --rollout-steps 16 --compile off "
    "--track none --eval-episodes 1 --output-dir run"
)


@pytest.fixture
def start(shell):
    (shell.folder / "hanging.py").write_text(HANGING)
    started = []

    def begin(what, *more, prefix=(), **kwargs):
        given = json.dumps({"what": what, **kwargs})
        flags = ("train", *FLAGS, "--env.kwargs", given, *more)
        started.append(Command(shell, *flags, prefix=(*prefix, *PACELINE)))
        return started[-1]

    yield begin
    for command in started:
        command.abandon()


def hangs(command):
    command.await_((command.folder / "hanging").exists)
    time.sleep(0.2)


def stopped(command, within=12.0, code=75):
    """Seconds until one signal has ended it, with this exit code."""
    began = time.monotonic()
    command.signal(signal.SIGTERM)
    assert command.end(within) == code, command.err
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("what", "flags", "after", "within"),
    [
        ("sleep", ("--total-iters", 4), 70, 8),
        slow("loop", ("--total-iters", 4), 70, 8),
        slow("sleep", ("--total-iters", 4, "--num-workers", 2), 40, 10),
        ("sleep", ("--total-iters", 2), 64, 8),
    ],
    ids=["asleep", "busy", "in workers", "in the last evaluation"],
)
def test_an_environment_that_hangs_is_left_and_what_was_learned_saved(
    start, what, flags, after, within
):
    command = start(what, *flags, after=after)
    hangs(command)
    assert stopped(command) < within
    assert command.err == "paceline: stopped by SIGTERM\n"
    assert "saved; go on with" in command.out and "paceline resume run" in command.out
    assert command.run.checkpoints()[-1].name == "00000002"
    assert len(command.run.metrics()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("where", ["reset", "close"])
def test_wherever_it_hangs(start, where):
    command = start("sleep", "--total-iters", 4, where=where)
    hangs(command)
    assert stopped(command) < 8
    assert "Traceback" not in command.err


@pytest.mark.slow
def test_ranks_that_hang_do_not_keep_a_run_from_ending(start):
    command = start("sleep", "--total-iters", 4, "--ranks", 2, after=70)
    hangs(command)
    assert stopped(command, within=40) < 35
    assert "last checkpoint" in command.err


@pytest.mark.slow
def test_an_environment_that_keeps_every_exception_is_ended_all_the_same(start):
    command = start("stubborn", "--total-iters", 4, after=70)
    hangs(command)
    assert stopped(command, within=15) < 13
    assert "did not return" in command.err


@pytest.mark.slow
def test_native_code_that_keeps_the_interpreter_is_ended_by_the_watchdog(start):
    command = start("burn", "--total-iters", 4, after=70)
    hangs(command)
    assert stopped(command, within=25, code=-signal.SIGKILL) < 20
    assert "no signal reached the process" in command.err


def test_a_process_that_is_ended_by_its_environment_does_not_end_without_a_word(start):
    command = start("exit", "--total-iters", 4, after=70)
    assert command.end() == 3
    deadline = time.monotonic() + 5
    while "paceline resume" not in command.err and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "ended in the middle of its work" in command.err


@pytest.mark.parametrize("what", ["thread", "process", "daemon"])
def test_what_an_environment_has_started_does_not_outlive_the_run(start, what):
    """Nor does it keep it from ending; that no process is left is what every test here claims."""
    command = start("nothing", "--total-iters", 2, starts=what)
    assert command.end(60) == 0, command.err
    assert (command.run.path / "eval.json").exists()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_signal_while_compiling_is_acknowledged_and_ends_the_compiler(shell):
    flags = ("--compile", "on", "--total-iters", 1000, "--output-dir", "run", "--track", "none")
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(shell.folder / "cache")}
    command = Command(shell, "train", *flags, prefix=PACELINE, **cache)
    command.await_(lambda: "compiling" in command.out)
    time.sleep(1.0)
    assert stopped(command, within=20) < 12
    assert "stopped by SIGTERM" in command.err and "Traceback" not in command.err


# What was there before.


def test_nohup_is_respected(start):
    command = start("nothing", "--total-iters", 30, prefix=("nohup",))
    command.await_reports(3)
    command.signal(signal.SIGHUP)
    assert command.end() == 0, command.err
    assert len(command.run.metrics()) == 30


def test_a_terminal_that_is_closed_stops_the_run_with_its_own_code(start, shell):
    (shell.folder / "hanging.py").write_text(HANGING)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PACELINE, "train", *map(str, FLAGS), "--total-iters", "100000"],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        cwd=shell.folder,
        env=shell.environment(),
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    metrics = shell.folder / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 3:
        assert time.monotonic() < deadline and process.poll() is None
        os.set_blocking(ours, False)
        try:
            os.read(ours, 65536)
        except BlockingIOError:
            time.sleep(0.02)
    os.close(ours)
    try:
        assert process.wait(30) == 75
    finally:
        process.kill()
    assert shell.run("run").checkpoints()


def _take_terminal():
    """Standard input becomes that of the session; its end is heard, whatever runs the tests."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("flags", [["--ranks", 2], [], ["--num-workers", 2]], ids=str)
@pytest.mark.parametrize("closed", ["1", slow("2")])
def test_closed_streams_change_nothing(shell, flags, closed):
    (shell.folder / "hanging.py").write_text(HANGING)
    command = [*PACELINE, "train", *FLAGS, "--total-iters", 3, *flags]
    line = f'exec "$@" {closed}>&- <&-'
    assert shell.execute("sh", "-c", line, "sh", *command, timeout=100).code == 0
    assert len(shell.run("run").metrics()) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("what", ["eval", "list", "train --help"])
def test_standard_output_that_is_full_is_said(shell, what):
    if what == "eval":
        shell.train_here("run", "--total-iters", 1, "--compile", "off", "--eval-episodes", 1)
        what = "eval run --episodes 2"
    with Path("/dev/full").open("w") as full:
        ended = shell(*what.split(), stdout=full)
    assert ended.code == 2
    assert ended.err == "paceline: standard output can't be written: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--ranks", 2], ["--num-workers", 2]], ids=str)
def test_ends_of_processes_are_known_though_their_signal_was_ignored(start, flags):
    command = start("nothing", "--total-iters", 3, *flags, prefix=("env", "--ignore-signal=CHLD"))
    assert command.end() == 0
    assert command.err == ""


def test_a_directory_that_is_gone_is_said(shell):
    line = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    ended = shell.execute("sh", "-c", line, "sh", *PACELINE, "train")
    assert ended.code == 2
    assert ended.err == "paceline: the current directory has been removed; change to another\n"


# The launcher of ranks.


@pytest.mark.slow
@pytest.mark.parametrize("killed", [True, False], ids=["a rank killed", "to the end"])
def test_a_launcher_of_ranks_that_was_stopped_goes_on_when_it_is_needed(start, killed):
    command = start("nothing", "--total-iters", 60, "--ranks", 2, "--save-every", 200)
    command.await_reports(5)
    ranks = command.ranks()
    psutil.Process(command.pid).children()[0].suspend()
    time.sleep(0.3)
    if killed:
        ranks[1].kill()
    assert command.end(60) == 0, command.err
    assert "the launcher of ranks was stopped" in command.out
