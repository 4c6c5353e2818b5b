"""Toy environments with known answers: each class states what a correct learner reaches."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from ..source import Source, Wrappers
from . import unknown_name
from .gym import environment as gym_environment

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Identity(gym.Env[Any, Any]):
    """The right action is the observation. Best return: `length`; with `continuous`, 0.

    The observation is one of `size` numbers; with `image` a picture of it, one bright bar among
    dark ones; with `continuous` a number in [-1, 1], rewarded by minus the squared difference.
    """

    def __init__(
        self, size: int = 4, length: int = 10, image: bool = False, continuous: bool = False
    ) -> None:
        self.size, self.length, self.image, self.continuous = size, length, image, continuous
        self.observation_space: gym.Space[Any] = gym.spaces.Discrete(size)
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(size)
        if image:
            self._side = max(12, 3 * size)
            self.observation_space = gym.spaces.Box(0, 255, (self._side, self._side, 1), np.uint8)
        if continuous:
            self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
            self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def _look(self) -> Any:
        if self.continuous:
            self.answer = float(self.np_random.uniform(-1, 1))
            return np.array([self.answer], np.float32)
        self.answer = int(self.np_random.integers(self.size))
        if not self.image:
            return self.answer
        picture = np.zeros((self._side, self._side, 1), np.uint8)
        width = self._side // self.size
        picture[:, self.answer * width : (self.answer + 1) * width] = 255
        return picture

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action: Any) -> Step:
        if self.continuous:
            reward = -float((action[0] - self.answer) ** 2)
        else:
            reward = float(action == self.answer)
        self.time += 1
        return self._look(), reward, False, self.time >= self.length, {}


class Constant(gym.Env[Any, Any]):
    """Reward 1 per step, truncated after `length` steps. The value of its state is 1/(1−γ)."""

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.time = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Step:
        self.time += 1
        return np.ones(1, np.float32), 1.0, False, self.time >= self.length, {}


class Memory(gym.Env[Any, Any]):
    """A cue is shown once and asked for after `delay` steps. Best return 1; without memory 0.5."""

    def __init__(self, delay: int = 4) -> None:
        self.delay = delay
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.time = 0
        self.cue = int(self.np_random.integers(2))
        return np.array([2.0 * self.cue - 1, 0], np.float32), {}

    def step(self, action: Any) -> Step:
        self.time += 1
        if self.time > self.delay:
            return np.zeros(2, np.float32), float(action == self.cue), True, False, {}
        asked = float(self.time == self.delay)
        return np.array([0, asked], np.float32), 0.0, False, False, {}


class Chain(gym.Env[Any, Any]):
    """The only reward, 1, is `length` steps to the right; truncated after 4·`length` steps."""

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.observation_space = gym.spaces.Discrete(length + 1)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.place = self.time = 0
        return self.place, {}

    def step(self, action: Any) -> Step:
        self.time += 1
        self.place = self.place + 1 if action == 1 else max(0, self.place - 1)
        arrived = self.place == self.length
        return self.place, float(arrived), arrived, self.time >= 4 * self.length, {}


TOYS: dict[str, type[gym.Env[Any, Any]]] = {
    "identity": Identity,
    "constant": Constant,
    "memory": Memory,
    "chain": Chain,
}


def names() -> list[str]:
    return list(TOYS)


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: Wrappers
) -> Source:
    """The toy called `name`; options are those of a Gymnasium environment."""
    if name not in TOYS:
        raise unknown_name("toy", name, TOYS)
    return gym_environment(TOYS[name], kwargs, time_limit, wrappers)
