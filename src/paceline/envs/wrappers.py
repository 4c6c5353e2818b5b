"""Wrappers of single environments for policies with memory: hidden velocities, and the previous
action and reward as part of the observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import gymnasium as gym
import numpy as np

from ..errors import BadInput
from ..rollout import Array

VELOCITIES: dict[str, tuple[int, ...]] = {
    "Acrobot": (4, 5),
    "CartPole": (1, 3),
    "LunarLander": (2, 3, 5),
    "LunarLanderContinuous": (2, 3, 5),
    "MountainCar": (1,),
    "MountainCarContinuous": (1,),
    "Pendulum": (2,),
}
"""Entries of the observation that are velocities, by the environment's name without version."""
OBSERVATION, ACTION, REWARD = "observation", "previous_action", "previous_reward"
"""Keys of an observation with memory inputs."""
MEMORY_INPUTS = {"action": ACTION, "reward": REWARD}
"""What may be shown, and under which key."""


class MaskVelocity(gym.ObservationWrapper[Any, Any, Any]):
    """Shows 0 in place of every velocity."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        name = "" if env.spec is None else env.spec.id.rpartition("-v")[0]
        if name not in VELOCITIES:
            raise BadInput(
                f"env.mask_velocity knows which entries are velocities in "
                f"{', '.join(sorted(VELOCITIES))}, and this environment is "
                f"{name or 'none that is registered'}; leave it out, or hide them in a wrapper of "
                "your own (--env.wrappers module:Class)"
            )
        self._hidden = list(VELOCITIES[name])

    def observation(self, observation: Array) -> Array:
        shown = observation.copy()
        shown[self._hidden] = 0.0
        return shown


class MemoryInputs(gym.Wrapper[Any, Any, Any, Any]):
    """The observation with the previous action, the previous reward, or both.

    At an episode's start there is neither: choices then show 0, which no action has, and numbers 0.
    """

    def __init__(self, env: gym.Env[Any, Any], inputs: tuple[str, ...]) -> None:
        super().__init__(env)
        spaces: dict[str, gym.Space[Any]] = {}
        self._before: dict[str, Any] = {}
        if "action" in inputs:
            self._choices = _Choices(env.action_space)
            spaces[ACTION] = self._choices.space
            self._before[ACTION] = self._choices.none
        if "reward" in inputs:
            spaces[REWARD] = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
            self._before[REWARD] = np.zeros(1, np.float32)
        self._inputs = tuple(spaces)
        inner = env.observation_space
        own = inner.spaces if isinstance(inner, gym.spaces.Dict) else {OBSERVATION: inner}
        if taken := own.keys() & spaces.keys():
            raise BadInput(
                f"memory_inputs: the environment's observation has {', '.join(sorted(taken))} "
                "already; leave it out"
            )
        self.observation_space = gym.spaces.Dict({**own, **spaces})

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return joined(observation, self._before), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        shown: dict[str, Any] = {}
        if ACTION in self._inputs:
            shown[ACTION] = self._choices(action)
        if REWARD in self._inputs:
            shown[REWARD] = np.array([reward], np.float32)
        return joined(observation, shown), reward, terminated, truncated, info


def joined(observation: Any, shown: Mapping[str, Any]) -> dict[str, Any]:
    """An observation with memory inputs."""
    own = observation if isinstance(observation, Mapping) else {OBSERVATION: observation}
    return {**own, **shown}


class _Choices:
    """Actions as parts of an observation: choices count from 1, since 0 is none."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space, self._start, self.none = space, cast(Any, None), cast(Any, None)
        if isinstance(space, gym.spaces.Discrete):
            self._start = space.start
            self.space, self.none = gym.spaces.Discrete(int(space.n) + 1), 0
        elif isinstance(space, gym.spaces.MultiDiscrete):
            self._start = space.start
            self.space = gym.spaces.MultiDiscrete(space.nvec + 1)
            self.none = np.zeros(space.shape, space.dtype)
        elif isinstance(space, gym.spaces.MultiBinary):
            self._start = 0
            self.space = gym.spaces.MultiDiscrete(np.full(space.shape, 3))
            self.none = np.zeros(space.shape, np.int64)
        elif isinstance(space, gym.spaces.Box):
            self.space = gym.spaces.Box(-np.inf, np.inf, space.shape, np.float32)
            self.none = np.zeros(space.shape, np.float32)

    def __call__(self, action: Any) -> Any:
        return action if self._start is None else action - self._start + 1
