"""Trouble: a CartPole that breaks its own worker, in a way and at a moment of one's choice.

Only in worker processes: where a policy is evaluated it is sound.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time
from pathlib import Path

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

IN_WORKER = any("paceline.processes" in word for word in sys.orig_argv)
LONG = 1000.0


def raise_error():
    raise RuntimeError("the rope broke")


def sleep():
    time.sleep(LONG)


def burn():
    """Busy in C, so that no other thread of this process ever runs."""
    sum(range(10**12))


WHAT = {
    "nothing": lambda: None,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(5),
    "sleep": sleep,
    "burn": burn,
    "raise": raise_error,
}


class Trouble(CartPoleEnv):
    """`what` happens in `where` (step, reset or init), under all of the conditions that are given.

    at: at this step of an episode (deterministic, so a replay meets it again)
    chance: with this probability, drawn from the episode's seed
    after: once this instance has made so many steps
    once: if this file can be made, which only the first can
    if_there: if this file is there, which is then removed
    only_with: as long as this file is there
    slow: seconds that every step takes
    """

    def __init__(
        self,
        what="nothing",
        where="step",
        at=None,
        chance=None,
        after=0,
        once=None,
        if_there=None,
        only_with=None,
        slow=0.0,
    ):
        super().__init__()
        self._what, self._where, self._at, self._chance = WHAT[what], where, at, chance
        self._after, self._once, self._if_there, self._only_with = after, once, if_there, only_with
        self._slow, self._taken, self._time = slow, 0, 0
        self._luck = random.Random(0)
        self._trouble("init")

    def reset(self, *, seed=None, options=None):
        self._time, self._luck = 0, random.Random(seed)
        self._trouble("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self._time += 1
        self._taken += 1
        if self._slow and IN_WORKER:
            time.sleep(self._slow)
        self._trouble("step")
        return super().step(action)

    def _trouble(self, where):
        if IN_WORKER and where == self._where and self._due():
            self._what()

    def _due(self):
        if self._at is not None and self._time != self._at:
            return False
        if self._chance is not None and self._luck.random() >= self._chance:
            return False
        if self._taken < self._after:
            return False
        if self._only_with is not None and not Path(self._only_with).exists():
            return False
        try:
            if self._once is not None:
                os.close(os.open(self._once, os.O_CREAT | os.O_EXCL))
            if self._if_there is not None:
                Path(self._if_there).unlink()
        except OSError:
            return False
        return True


class WithHelper(CartPoleEnv):
    """Starts a process of its own, as many simulators do; it ends when a file is there."""

    def __init__(self, how, until):
        super().__init__()
        if not IN_WORKER:
            return
        if how == "shell":
            os.system(f"while ! test -e {until}; do sleep 0.2; done &")
        elif os.fork() == 0:
            while not Path(until).exists():
                time.sleep(0.1)
            os._exit(0)


gym.register("Trouble-v0", Trouble, max_episode_steps=500)
