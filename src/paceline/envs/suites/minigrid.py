"""MiniGrid: `minigrid:DoorKey-5x5` is MiniGrid-DoorKey-5x5-v0, without the text of its mission."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from ..source import Source, Wrappers
from . import MISSION, require, unknown_name
from .gym import environment as gym_environment

PREFIX = "MiniGrid-"
FAMILIES = (PREFIX, "BabyAI-")


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: Wrappers
) -> Source:
    env_ids = _env_ids()
    short = _short(name)
    if short not in env_ids:
        raise unknown_name("minigrid", short, env_ids)
    wrappers = (f"{__name__}:without_mission", *wrappers)
    return gym_environment(env_ids[short], kwargs, time_limit, wrappers)


def names() -> list[str]:
    return sorted(_env_ids())


def _env_ids() -> dict[str, str]:
    """Gymnasium's ids, by their short names."""
    require("minigrid", "minigrid")  # importing it registers them
    return {_short(name): name for name in gym.registry if name.startswith(FAMILIES)}


def _short(name: str) -> str:
    return name.removeprefix(PREFIX).removesuffix("-v0")


def without_mission(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Wrapper: the grid and the agent's direction alone."""
    assert isinstance(env.observation_space, gym.spaces.Dict)
    return gym.wrappers.FilterObservation(
        env, [key for key in env.observation_space if key != MISSION]
    )
