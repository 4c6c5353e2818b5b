"""Numbers in the `info` of a step that ended an episode: those that `log_info` asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..config.schema import LogInfo

MOST_FOUND = 32
"""Numbers of an episode that are read if none were chosen; more would only cost time."""
BOOKKEEPING = frozenset(
    (
        "action_mask",
        "elapsed_step",
        "env_id",
        "episode",
        "episode_frame_number",
        "frame_number",
        "level_seed",
        "players.env_id",
        "prev_level_seed",
        "prob",
        "seed",
        "terminal_observation",
        "TimeLimit.truncated",
    )
)
"""Keys of wrappers and suites that say nothing of how an episode went."""
NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
InfoReader = Callable[[Any], dict[str, float]]
"""info → the numbers in it that are logged, by name"""


def info_reader(log_info: LogInfo) -> InfoReader | None:
    """Reads what `log_info` asks for; None if that is nothing."""
    if log_info == "auto":
        return found_numbers
    return partial(chosen_numbers, log_info) if log_info else None


def found_numbers(info: Any) -> dict[str, float]:
    """All numbers at the top of `info`, without bookkeeping."""
    found: dict[str, float] = {}
    if not _is_mapping(info):
        return found
    for key, value in info.items():
        number = _number(value)
        if number is None or not isinstance(key, str) or key in BOOKKEEPING:
            continue
        private = key.startswith(("_", "final_")) or not key.isprintable()
        if not private and len(found) < MOST_FOUND:
            found[key] = number
    return found


def chosen_numbers(keys: tuple[str, ...], info: Any) -> dict[str, float]:
    """The numbers with these keys, as far as `info` has them; `a.b` is `info["a"]["b"]`."""
    found = {key: _number(_at(info, key)) for key in keys}
    return {key: number for key, number in found.items() if number is not None}


def _at(info: Any, key: str) -> Any:
    """The value of a key, or of a path through nested mappings; None if there is none."""
    if not _is_mapping(info):
        return None
    if key in info:
        return info[key]
    first, _, rest = key.partition(".")
    return _at(info.get(first), rest) if rest else None


def _is_mapping(value: Any) -> bool:
    return type(value) is dict or isinstance(value, Mapping)  # the first is much faster


def _number(value: Any) -> float | None:
    """A finite number, also as an array of one; None for anything else."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())[()]
    if not isinstance(value, NUMBERS):
        return None
    try:
        number = float(value)
    except OverflowError:  # of a whole number
        return None
    return number if math.isfinite(number) else None
