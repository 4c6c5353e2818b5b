"""MiniGrid: `minigrid:DoorKey-5x5` is MiniGrid-DoorKey-5x5-v0, without its mission's words."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from ...errors import BadInput
from ..source import MISSION, Source, meant, needed
from .gym import environment as gym_environment

FAMILIES = ("MiniGrid-", "BabyAI-")


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: tuple[str, ...]
) -> Source:
    registered, short = _registered(), _short(name)
    if short not in registered:
        hint = meant("minigrid", short, registered)
        raise BadInput(f"env_id 'minigrid:{name}' does not exist; {hint}")
    wrappers = (f"{__name__}:silent", *wrappers)
    return gym_environment(registered[short], kwargs, time_limit, wrappers)


def names() -> list[str]:
    return sorted(_registered())


def _registered() -> dict[str, str]:
    """Gymnasium's ids, by what is left of them without what all have in common."""
    needed("minigrid", "minigrid")  # which registers them
    return {_short(name): name for name in gym.registry if name.startswith(FAMILIES)}


def _short(name: str) -> str:
    return name.removeprefix(FAMILIES[0]).removesuffix("-v0")


def silent(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """What the agent sees and where it looks; the mission is text that no policy here reads."""
    assert isinstance(env.observation_space, gym.spaces.Dict)
    shown = [key for key in env.observation_space if key != MISSION]
    return gym.wrappers.FilterObservation(env, shown)
