"""env_maker: from an env_id and its options to how one such environment is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from ..errors import BadInput
from ..registry import SUITES, imported
from ..spaces import observation_spec
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
    """The last `frames` observations as one; those of images become its channels."""

    def stacked() -> tuple[gym.Env[Any, Any], int | None]:
        env, limit = make()
        space = env.observation_space
        if not isinstance(space, gym.spaces.Box):
            raise BadInput(
                f"env.frame_stack is {frames}, which needs a Box observation, "
                f"and this environment has {space}"
            )
        spec = observation_spec(space)
        env = gym.wrappers.FrameStackObservation(env, frames)
        if spec.kind == "image" and len(spec.shape) == 3:
            axis = 0 if spec.channels_first else 2
            low, high = (
                np.concatenate([bound] * frames, axis) for bound in (space.low, space.high)
            )
            channels = gym.spaces.Box(low, high, dtype=space.dtype.type)
            env = gym.wrappers.TransformObservation(
                env, lambda stack: np.concatenate(stack, axis), channels
            )
        return env, limit

    return stacked
