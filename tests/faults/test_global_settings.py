"""Environments that change settings of their process: the run ends as if they had not."""

from __future__ import annotations

import gc
import logging
import random
import shlex
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch

SETTINGS = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "no gradients": lambda: torch.set_grad_enabled(False),
    "threads": lambda: torch.set_num_threads(2),
    "matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "floating-point errors": lambda: np.seterr(all="raise"),
    "warnings as errors": lambda: warnings.simplefilter("error"),
    "seed of numpy": lambda: np.random.seed(0),
    "seed of random": lambda: random.seed(0),
    "seed of torch": lambda: torch.manual_seed(0),
    "no garbage collection": gc.disable,
    "no logging": logging.disable,
}
FLAGS = shlex.split(
    "--env-id settings_world:Setting-v0 --preset none --num-envs 4 --rollout-steps 32 "
    "--total-iters 3 --eval-episodes 2 --threads 1 --hidden 16 --compile off"
)


class Setting(gym.Env):
    """Changes a setting when it is made, at every reset and in every step; masks one action."""

    change = staticmethod(lambda: None)
    """of all instances"""
    kept = True
    """whether a step has always found the setting as the latest call had left it"""

    def __init__(self, image=False):
        shape = (9, 9, 1) if image else (3,)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8 if image else np.float32)
        self.action_space = gym.spaces.Discrete(3)
        Setting.change()
        self.left = torch.get_default_dtype()

    def _look(self):
        space = self.observation_space
        seen = self.np_random.integers(0, 9, space.shape).astype(space.dtype)
        mask = np.ones(3, np.int8)
        mask[self.np_random.integers(3)] = 0
        return seen, {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Setting.change()
        return self._look()

    def step(self, action):
        Setting.kept &= torch.get_default_dtype() == self.left
        Setting.change()
        seen, info = self._look()
        return seen, float(action), self.np_random.random() < 0.1, False, info


@pytest.fixture
def put_back():
    """All of it as it was, afterwards."""
    threads, errors, precision = (
        torch.get_num_threads(),
        np.geterr(),
        torch.get_float32_matmul_precision(),
    )
    with warnings.catch_warnings():
        yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.set_autocast_enabled("cpu", False)
    np.seterr(**errors)
    gc.enable()
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def plain():
    """What runs come to whose environments change nothing, by their flags."""
    return {}


@pytest.fixture
def trained(shell, put_back, monkeypatch):
    monkeypatch.setitem(sys.modules, "settings_world", sys.modules[__name__])
    monkeypatch.setitem(
        gym.registry, "Setting-v0", gym.envs.registration.EnvSpec("Setting-v0", Setting)
    )
    monkeypatch.setattr(Setting, "kept", True)

    def train(name, change, *more):
        monkeypatch.setattr(Setting, "change", staticmethod(change))
        return shell.train_here(name, *FLAGS, *more).result()

    return train


@pytest.mark.parametrize("image", [False, True], ids=["vector", "image"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_an_environment_sets_for_its_process_changes_no_run(trained, plain, setting, image):
    own = '--env.kwargs {"image":true}' if image else "--normalize-obs --normalize-return"
    if image not in plain:
        plain[image] = trained("plain", lambda: None, *own.split())
    assert trained("changed", SETTINGS[setting], *own.split()) == plain[image]
    assert Setting.kept
