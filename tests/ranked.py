"""Runs of several ranks, as tests see them from outside; and a CartPole that breaks one rank.

Commands import it too, from a copy, for its environment.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

PACELINE = (sys.executable, "-m", "paceline")
WHAT = ("nothing", "raise", "exit", "nan reward", "nan obs", "eat")
RANK = os.environ.get("RANK")


class Ranked(CartPoleEnv):
    """Slow if wanted. `what` happens on `rank` alone, once its process has made `after` steps.

    shown: name of a variable that has to be in the environment of every process
    forks: a process of the environment's own that outlives it, until this file is there
    """

    taken, eaten = 0, []
    """steps of all instances together, and memory that they keep"""

    def __init__(self, what="nothing", rank=1, after=0, slow=0.0, shown=None, forks=None):
        super().__init__()
        assert what in WHAT
        self._what, self._after, self._slow = what, after, slow
        self._mine = str(rank) == RANK
        if shown is not None and RANK is not None:
            assert shown in os.environ, f"{shown} is not in the environment of rank {RANK}"
        if forks is not None and RANK is not None and os.fork() == 0:
            while not Path(forks).exists():
                time.sleep(0.05)
            os._exit(0)

    def step(self, action):
        Ranked.taken += 1
        if self._slow:
            time.sleep(self._slow)
        now = self._mine and Ranked.taken > self._after
        if now and self._what == "raise":
            raise RuntimeError("the rope broke")
        if now and self._what == "exit":
            os._exit(5)
        if now and self._what == "eat":
            Ranked.eaten.append(b"x" * 2**20)
        obs, reward, *rest = super().step(action)
        if now and self._what == "nan obs":
            obs = np.full_like(obs, np.nan)
        if now and self._what == "nan reward":
            reward = float("nan")
        return obs, reward, *rest


gym.register("Ranked-v0", Ranked, max_episode_steps=500)


def named(parent, word):
    """Children of a process, or of none, that have `word` in their command."""
    found = []
    try:
        for child in psutil.Process(parent).children():
            if child.is_running() and word in " ".join(child.cmdline()):
                found.append(child)
    except psutil.NoSuchProcess:
        pass
    return found


def agent_of(parent):
    """The process that starts ranks, if it is there."""
    return next(iter(named(parent, "paceline.ranks.elastic")), None)


def by_rank(processes):
    """Processes that have a rank of their own, by its number."""
    found = {}
    for process in processes:
        try:
            found[int(process.environ()["RANK"])] = process
        except (psutil.Error, OSError, KeyError):
            continue
    return found


class Command:
    """A command at work in the directory of a shell, with what it says in two files."""

    def __init__(self, shell, *arguments, name="run", prefix=PACELINE, **variables):
        self.folder, self.run = shell.folder, shell.run(name)
        self._out, self._err = self.folder / f"{name}.out", self.folder / f"{name}.err"
        command = [*prefix, *map(str, arguments)]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=shell.environment(**variables),
            )
        self.pid = self.process.pid

    @property
    def out(self):
        return self._out.read_text()

    @property
    def err(self):
        return self._err.read_text()

    def count(self):
        """Reports written so far."""
        file = self.run.path / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def ranks(self, number=2, of=None):
        """The rank processes by their number, once there are so many that may be told apart."""
        parent = agent_of(self.pid) if of is None else of
        found = by_rank(named(parent.pid, "paceline")) if parent is not None else {}
        return found if len(found) == number else {}

    def await_(self, condition, timeout=100.0, what="it"):
        """Poll; a command that ends before has failed."""
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            assert self.process.poll() is None, f"it ended\n{self.out}\n{self.err}"
            assert time.monotonic() < deadline, f"not within {timeout} s: {what}\n{self.out}"
            time.sleep(0.005)
        return found

    def await_reports(self, number, timeout=100.0):
        self.await_(lambda: self.count() >= number, timeout, f"{number} reports")

    def family(self):
        return psutil.Process(self.pid).children(recursive=True)

    def signal(self, kind):
        self.process.send_signal(kind)

    def end(self, timeout=100.0):
        """Wait for its end; the exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.abandon()
            raise AssertionError(
                f"it did not end within {timeout} s\n{self.out}\n{self.err}"
            ) from None

    def abandon(self):
        """Kill what is left of it, children first, so that none outlives who watches it."""
        if self.process.poll() is not None:
            return
        if agent := agent_of(self.pid):
            agent.suspend()
        for process in (*reversed(self.family()), self.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


@contextlib.contextmanager
def commands(shell):
    """`start(*arguments, **options)` makes a `Command`; what is left of it at the end is ended."""
    (shell.folder / "ranked.py").write_text(Path(__file__).read_text())
    started = []

    def start(*arguments, **options):
        started.append(Command(shell, *arguments, **options))
        return started[-1]

    yield start
    for command in started:
        command.abandon()


def left_after(processes, seconds):
    """Those that have not gone by then."""
    _, stayed = psutil.wait_procs(processes, timeout=seconds)
    return [process for process in stayed if process.status() != psutil.STATUS_ZOMBIE]
