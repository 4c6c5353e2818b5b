"""MiniGrid: `minigrid:DoorKey-5x5` is MiniGrid-DoorKey-5x5-v0, without the text of its mission."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from ..source import Source, Wrappers
from . import MISSION, registered_id, registered_names
from .gym import environment as gym_environment

FAMILIES = ("MiniGrid-", "BabyAI-")


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: Wrappers
) -> Source:
    env_id = registered_id("minigrid", FAMILIES, name)
    wrappers = (f"{__name__}:without_mission", *wrappers)
    return gym_environment(env_id, kwargs, time_limit, wrappers)


def names() -> list[str]:
    return registered_names("minigrid", FAMILIES)


def without_mission(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Wrapper: the grid and the agent's direction alone."""
    assert isinstance(env.observation_space, gym.spaces.Dict)
    return gym.wrappers.FilterObservation(
        env, [key for key in env.observation_space if key != MISSION]
    )
