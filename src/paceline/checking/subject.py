"""The one place where an environment under examination comes from: made as a run would make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from ..envs.columns import EnvColumns
from ..envs.maker import env_maker, make_columns
from ..errors import BadInput
from ..registry import SUITES
from ..rollout import Pulse, still
from .request import Request

if TYPE_CHECKING:
    from ..envs import Columns

CALLS = ("import", "__init__", "reset", "step", "close", "measure")
"""What may be going on; the last entry of a pulse says which."""
KIND = 3
SINGLE = ("gym", "toy")
"""Suites of plain environments, whose refusals are final."""

Made = tuple[gym.Env[Any, Any], int | None]
"""An environment, and the time limit that is to be applied from outside, if any."""


class Subject:
    """An environment by its name and options, and the pulse that its calls are told to."""

    def __init__(self, request: Request, pulse: Pulse | None = None) -> None:
        self.request = request
        self.pulse = [*still(), 0] if pulse is None else pulse
        suite = str(request.env_id).partition(":")[0]
        self.native = suite in SUITES and suite not in SINGLE
        """of a suite that may have nothing but columns"""
        self.batch = False
        """whether its columns come as one, and reset as one"""
        self._make: Callable[[], Any] | None = None
        try:
            self._make = env_maker(request.env_id, **request.options)
        except BadInput:
            if not self.native:
                raise

    def make(self) -> Made | None:
        """One of them; None where there is no such thing. Errors of the user's come as they are."""
        if self._make is None:
            return None
        try:
            env, limit = self._make()
        except BadInput:
            if self.native:
                return None
            raise
        return None if self.native and not isinstance(env, gym.Env) else (env, limit)

    @property
    def single(self) -> bool:
        """Whether there is such a thing as one of them."""
        if not self.native:
            return True
        try:
            made = self.make()
        except Exception:  # of which the columns will tell
            return False
        if made is not None:
            made[0].close()
        return made is not None

    def columns(self, num_envs: int) -> Columns:
        """Some of them side by side, as a run steps them."""
        request = self.request
        found = make_columns(request.env_id, num_envs, request.seed, **request.options)
        found.pulse = self.pulse
        self.batch = not isinstance(found, EnvColumns)
        return found
