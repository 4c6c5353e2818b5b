"""What tests of `scale`, `bench` and `tune` share: the tables they write, a training that fails."""

from __future__ import annotations

import csv

from paceline.tools.bench.metrics import PHASES

FAILING = """
import os

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Failing(CartPoleEnv):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, float("nan") if {when} else reward, *rest

gym.register("Failing-v0", Failing, max_episode_steps=500)
"""
FAILURE = "is not a finite number"
"""What such a training says."""


def csv_rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_failing(folder, when="True"):
    """Makes `failing:Failing-v0`, whose rewards are NaN where the expression `when` holds."""
    (folder / "failing.py").write_text(FAILING.format(when=when))
    return "--env-id", "failing:Failing-v0"


def report(iteration, t_iter=0.1, steps=100, covered=1, **phases):
    """A line of metrics in which learning takes what the phases given do not."""
    times = {f"t_{phase}": phases.get(phase, 0.0) for phase in PHASES}
    times["t_learn"] = t_iter - sum(phases.values()) + phases.get("wait", 0.0)
    return {
        "iter": iteration,
        "steps_global": steps * covered,
        "steps": steps * iteration,
        "time": t_iter * iteration,
        "t_iter": t_iter,
        "memory_mb": 100.0 + iteration,
        **times,
    }
