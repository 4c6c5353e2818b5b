"""MiniGrid: `minigrid:DoorKey-5x5` is MiniGrid-DoorKey-5x5-v0, without its mission's words."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from ..errors import BadInput
from .gym import environment as gym_environment
from .source import Source, needed

MISSION = "mission"


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: tuple[str, ...]
) -> Source:
    needed("minigrid", "minigrid", "minigrid")
    own = f"{__name__}:Silent"
    return gym_environment(full_name(name), kwargs, time_limit, (own, *wrappers))


def full_name(name: str) -> str:
    """The id under which MiniGrid registers it."""
    for found in (name, f"MiniGrid-{name}-v0", f"{name}-v0"):
        if found in names():
            return found
    raise BadInput(f"env_id 'minigrid:{name}' does not exist; see `paceline list envs minigrid`")


def names() -> list[str]:
    import minigrid  # noqa: F401  registers them

    return sorted(name for name in gym.registry if name.startswith(("MiniGrid-", "BabyAI-")))


class Silent(gym.ObservationWrapper[Any, Any, Any]):
    """What the agent sees and where it looks; the mission is text that no policy here reads."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, gym.spaces.Dict)
        shown = {key: space for key, space in env.observation_space.items() if key != MISSION}
        self.observation_space = gym.spaces.Dict(shown)

    def observation(self, observation: Any) -> Any:
        return {key: value for key, value in observation.items() if key != MISSION}
