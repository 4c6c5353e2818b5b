"""Where environments come from. A suite is one file with a function from name to environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from ..errors import BadInput
from ..registry import SUITES, imported
from .columns import EnvMaker

EnvId = str | Callable[..., gym.Env[Any, Any]]


def env_maker(
    env_id: EnvId,
    kwargs: dict[str, Any] | None = None,
    time_limit: int | None = None,
    frame_stack: int = 1,
    wrappers: tuple[str, ...] = (),
) -> EnvMaker:
    """Check `env_id` and its options, and return how to make one such environment."""
    kwargs = kwargs or {}
    suite, name = "gym", env_id
    if isinstance(env_id, str) and env_id.partition(":")[0] in SUITES:
        suite, _, name = env_id.partition(":")
    make: EnvMaker = imported(SUITES, suite)(name, kwargs, time_limit, wrappers)
    if frame_stack > 1:
        make = _stacked(make, frame_stack)
    return make


def _stacked(make: EnvMaker, frames: int) -> EnvMaker:
    def stacked() -> tuple[gym.Env[Any, Any], int | None]:
        env, limit = make()
        if not isinstance(env.observation_space, gym.spaces.Box):
            raise BadInput(
                f"--env.frame-stack {frames} needs a Box observation, "
                f"and this environment has {env.observation_space}"
            )
        return gym.wrappers.FrameStackObservation(env, frames), limit

    return stacked
