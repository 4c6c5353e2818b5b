"""CartPole in other forms: slow on request, with odd spaces, with masks, as a picture."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


def note(phase: str) -> None:
    """Show to the outside that something happens."""
    if folder := os.environ.get("FAULT_PHASES"):
        Path(folder, phase).touch()


def _evaluating() -> bool:
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "paceline.run.evaluation":
            return True
        frame = frame.f_back
    return False


class Paced(gym.Wrapper[Any, Any, Any, Any]):
    """Every step takes FAULT_PACE seconds, an evaluation's first FAULT_EVALUATION more."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._pace = float(os.environ.get("FAULT_PACE", "0"))
        self._stepped = self._evaluated = False

    def reset(self, **options: Any) -> Any:
        if not self._evaluated and _evaluating():
            self._evaluated = True
            note("evaluating")
            time.sleep(float(os.environ.get("FAULT_EVALUATION", "0")))
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        if not self._stepped:
            self._stepped = True
            note("stepping")
        if self._pace:
            time.sleep(self._pace)
        return super().step(action)

    def close(self) -> None:
        note("closing")
        super().close()


SPACES: dict[str, Any] = {
    "one action": {"action_space": gym.spaces.Discrete(1)},
    "a billion actions": {"action_space": gym.spaces.Discrete(10**9)},
    "no actions": {"action_space": gym.spaces.MultiDiscrete([1])},
    "actions from -3": {"action_space": gym.spaces.Discrete(2, start=-3)},
    "empty Box": {"observation_space": gym.spaces.Box(-1, 1, (0,))},
    "empty Dict": {"observation_space": gym.spaces.Dict({})},
    "text": {"observation_space": gym.spaces.Text(5)},
    "sequence": {"observation_space": gym.spaces.Sequence(gym.spaces.Discrete(2))},
    "graph": {"observation_space": gym.spaces.Graph(gym.spaces.Discrete(2), None)},
    "not a space": {"observation_space": "Box(4)"},
    "None": {"observation_space": None},
    "no attribute": {"action_space": None},
    "complex Box": {"observation_space": None},
    "float16": {"observation_space": gym.spaces.Box(-1, 1, (4,), np.float16)},
    "int8 Box": {"observation_space": gym.spaces.Box(-5, 5, (4,), np.int8)},
    "changing": {},
    "unseeded": {},
}


class OddSpaces(CartPoleEnv):  # type: ignore[misc]
    made = 0

    def __init__(self, kind: str) -> None:
        super().__init__()
        OddSpaces.made += 1
        self._kind = kind
        for name, space in SPACES[kind].items():
            setattr(self, name, space)
        if kind == "complex Box":
            self.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
            self.observation_space.dtype = np.dtype(complex)
        if kind == "changing":
            self.observation_space = gym.spaces.Box(-9, 9, (3 + OddSpaces.made,))

    def reset(self, **options: Any) -> Any:
        if self._kind == "unseeded":
            options["seed"] = None
        obs, info = super().reset(**options)
        return self._fit(obs), info

    def step(self, action: Any) -> Any:
        number = int(np.asarray(action).reshape(-1)[0])
        obs, *rest = super().step(number if number < 0 else number % 2)
        return (self._fit(obs), *rest)

    def _fit(self, obs: Any) -> Any:
        space = self.observation_space
        if isinstance(space, gym.spaces.Box) and space.shape != obs.shape:
            return np.resize(obs, space.shape).astype(space.dtype)
        return obs.astype(getattr(space, "dtype", None) or obs.dtype)


gym.register("OddSpaces-v0", OddSpaces, max_episode_steps=500)


class MaskedPole(CartPoleEnv):  # type: ignore[misc]
    """A third action that is never allowed, and at times another one; the mask is in `info`."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Discrete(3)

    def _mask(self) -> dict[str, Any]:
        mask = np.array([1, 1, 0], np.int8)
        mask[int(self.np_random.integers(0, 2))] = self.np_random.integers(0, 4) > 0
        return {"action_mask": mask if mask.any() else np.array([1, 1, 0], np.int8)}

    def reset(self, **options: Any) -> Any:
        obs, _ = super().reset(**options)
        return obs, self._mask()

    def step(self, action: Any) -> Any:
        *found, _ = super().step(int(action) % 2)
        return (*found, self._mask())


class PicturePole(CartPoleEnv):  # type: ignore[misc]
    """CartPole seen as a picture of 24 × 24 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 255, (24, 24, 1), np.uint8)

    def _seen(self, obs: Any) -> Any:
        picture = np.zeros((24, 24, 1), np.uint8)
        place = np.clip((obs * 4 + 12).astype(int), 0, 23)
        picture[place[0], place[2]] = 255
        picture[place[1], place[3]] += 100
        return picture

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return self._seen(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return (self._seen(obs), *rest)


gym.register("MaskedPole-v0", MaskedPole, max_episode_steps=100)
gym.register("PicturePole-v0", PicturePole, max_episode_steps=100)
