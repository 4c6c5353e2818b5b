"""POPGym: tasks that need memory. `popgym:RepeatPreviousEasy` is popgym-RepeatPreviousEasy-v0."""

from __future__ import annotations

from typing import Any

from ..source import Source, Wrappers
from . import registered_id, registered_names
from .gym import environment as gym_environment

PREFIXES = ("popgym-",)


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: Wrappers
) -> Source:
    return gym_environment(registered_id("popgym", PREFIXES, name), kwargs, time_limit, wrappers)


def names() -> list[str]:
    return registered_names("popgym", PREFIXES)
