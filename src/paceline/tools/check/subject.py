"""The one place where an environment under examination comes from: made as a run would make it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from ...envs.env_columns import EnvColumns
from ...envs.native import NativeColumns
from ...envs.source import single_agent_columns, source_of
from .request import CallHeartbeat, Request

Made = tuple[gym.Env[Any, Any], int | None]
"""An environment, and the time limit that is to be applied from outside, if any."""


class Subject:
    """An environment by its name and options, and the heartbeat that its calls are told to."""

    def __init__(self, request: Request, heartbeat: CallHeartbeat | None = None) -> None:
        self.request = request
        self.heartbeat = heartbeat or CallHeartbeat()
        self._make = source_of(request.env_id, **request.options).one
        self.batch = False
        """whether its columns come as one, and reset as one"""

    @property
    def single(self) -> bool:
        """Whether there is such a thing as one of them."""
        return self._make is not None

    def make(self) -> Made | None:
        """One of them; None where there is no such thing. Errors of the user's come as they are."""
        return None if self._make is None else self._make()

    def columns(self, num_envs: int, seed: int | None = None) -> EnvColumns | NativeColumns:
        """Some of them side by side, as a run steps them."""
        request = self.request
        seed = request.seed if seed is None else seed
        found = single_agent_columns(request.env_id, num_envs, seed=seed, **request.options)
        found.heartbeat = self.heartbeat
        self.batch = not isinstance(found, EnvColumns)
        return found
