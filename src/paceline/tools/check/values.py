"""One result of reset() or step() against the spaces: observation, reward, flags, mask, info."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ...config.text import printable
from ...envs.spaces import ActionSpec
from ...rollout import Array
from .compare import StepResult, brief, flat_numbers
from .environment import describe_type
from .player import action_mask, given_mask

ROUNDING = 1e-5
"""By how much, relative to a bound, rounding may pass it."""
SLIGHT = 0.1
"""By how much, relative to its range, an observation may pass it without harm."""
HUGE_INFO = 100_000
"""Bytes of an info that cost time at every step."""


class Fault(NamedTuple):
    """A value that is not as it should be: the code of its rule, and facts."""

    code: str
    facts: dict[str, Any]
    place: str = ""
    """which part of the observation, or which flag"""


def faults(result: StepResult, space: gym.Space[Any], spec: ActionSpec) -> Iterator[Fault]:
    yield from observation_faults(space, result.obs)
    yield from _reward_faults(result.reward)
    for name in ("terminated", "truncated"):
        yield from _flag_faults(name, getattr(result, name))
    yield from _mask_faults(result, spec)
    if (size := _bytes(result.info)) > HUGE_INFO:
        yield Fault("info-large", {"megabytes": size / 1e6})


def observation_faults(space: gym.Space[Any], obs: Any, place: str = "") -> Iterator[Fault]:
    """Of an observation, or of the part of it at `place`."""
    what = {"what": f"observation{place}" if place else "the observation"}
    if isinstance(space, gym.spaces.Dict):
        parts: dict[Any, gym.Space[Any]] = dict(space.spaces)
        expected, fits = "a dict", isinstance(obs, Mapping)
    elif isinstance(space, gym.spaces.Tuple):
        parts, expected = dict(enumerate(space)), f"a tuple of {len(space)}"
        fits = isinstance(obs, (tuple, list)) and len(obs) == len(parts)
    else:
        if not _clearly_right(space, obs):
            for code, facts in _array_faults(space, obs):
                yield Fault(code, what | facts, place)
        return
    if not fits:
        facts = {"value": describe_type(obs), "expected": expected}
        yield Fault("observation-structure", what | facts, place)
        return
    keys = obs if isinstance(obs, Mapping) else parts
    if missing := [key for key in parts if key not in keys]:
        yield Fault("observation-missing", what | {"key": repr(missing[0])}, place)
    if more := [key for key in keys if key not in parts]:
        yield Fault("observation-undeclared", what | {"key": repr(more[0])}, place)
    for key, part in parts.items():
        if key in keys:
            yield from observation_faults(part, obs[key], f"{place}[{key!r}]")


def _clearly_right(space: gym.Space[Any], obs: Any) -> bool:
    """Quick, for images."""
    if not isinstance(space, gym.spaces.Box) or not isinstance(obs, np.ndarray):
        return False
    if obs.dtype != space.dtype or obs.shape != space.shape:
        return False
    within = bool((obs >= space.low).all() and (obs <= space.high).all())
    return within and (obs.dtype.kind != "f" or bool(np.isfinite(obs).all()))


def _array_faults(space: gym.Space[Any], obs: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Codes and facts for an observation that is one array or number."""
    value = {"value": brief(obs), "space": brief_space(space)}
    try:
        array = np.asarray(obs)
    except ValueError:  # lists of unequal lengths
        yield "observation-type", {**value, "type": "list"}
        return
    floats = array.dtype.kind == "f"
    whole = not isinstance(space, (gym.spaces.Box, gym.spaces.MultiBinary))
    if array.dtype.kind not in "biuf":
        yield "observation-type", {**value, "type": str(array.dtype)}
    elif array.shape != space.shape:
        yield "observation-shape", {"shape": str(array.shape), "expected": str(space.shape)}
    elif floats and not np.isfinite(array).all():
        yield "observation-nan", value
    elif isinstance(space, gym.spaces.Box):
        yield from _box_faults(space, obs, array)
    elif floats and whole:
        yield "observation-type", {**value, "type": str(array.dtype)}
    else:
        low = np.asarray(getattr(space, "start", 0))
        sizes = getattr(space, "n", 2) if space.shape == () else getattr(space, "nvec", 2)
        if (array < low).any() or (array >= low + np.asarray(sizes)).any():
            yield "observation-choice", value


def _box_faults(
    space: gym.spaces.Box, obs: Any, array: Array
) -> Iterator[tuple[str, dict[str, Any]]]:
    dtype = np.dtype(space.dtype)
    whole = dtype.kind in "iub"
    if whole and array.dtype.kind == "f" and (array != np.rint(array)).any():
        yield "observation-fraction", {"value": brief(obs), "dtype": str(dtype)}
        return
    low, high = space.low.astype(float), space.high.astype(float)
    below = array < low - ROUNDING * np.maximum(1, np.abs(low))
    above = array > high + ROUNDING * np.maximum(1, np.abs(high))
    if (below | above).any():
        with np.errstate(invalid="ignore"):
            wraps = whole and bool((array.astype(dtype) != array).any())
        at = tuple(int(i) for i in np.argwhere(below | above)[0])
        value, least, most = (float(numbers[at]) for numbers in (array, low, high))
        slight = max(least - value, value - most) <= SLIGHT * (most - least)
        if wraps:
            yield "observation-choice", {"value": brief(obs), "space": brief_space(space)}
        else:
            entry = at[0] if len(at) == 1 else at
            facts = {"value": value, "entry": entry, "low": least, "high": most}
            yield "observation-near" if slight else "observation-outside", facts
    is_array = isinstance(obs, (np.ndarray, np.generic))
    if array.dtype != dtype or not is_array:
        name = str(array.dtype) if is_array else type(obs).__name__
        yield "observation-dtype", {"type": name, "dtype": str(dtype)}


def _reward_faults(reward: Any) -> Iterator[Fault]:
    if shape := tuple(getattr(reward, "shape", ())):
        code = "reward-array" if np.prod(shape) == 1 else "reward-type"
        yield Fault(code, {"value": describe_type(reward)})
        return
    try:
        number = float("text" if isinstance(reward, str) else reward)
    except (TypeError, ValueError):
        yield Fault("reward-type", {"value": f"{brief(reward)}, {describe_type(reward)}"})
        return
    if not np.isfinite(number):
        yield Fault("reward-nan", {"value": str(number)})


def _flag_faults(name: str, flag: Any) -> Iterator[Fault]:
    if isinstance(flag, (bool, np.bool_)):
        return
    try:
        zero_or_one = np.size(flag) == 1 and np.asarray(flag).item() in (0, 1)
    except (TypeError, ValueError):
        zero_or_one = False
    code = "flag-type" if zero_or_one else "flag-value"
    yield Fault(code, {"value": f"{brief(flag)}, {describe_type(flag)}"}, name)


def _mask_faults(result: StepResult, spec: ActionSpec) -> Iterator[Fault]:
    given, mask = given_mask(result), action_mask(result, spec)
    if given is None or not spec.choices:
        return
    if mask is None:
        entries = f"{flat_numbers(given).size} entries"
        yield Fault("mask-length", {"entries": entries, "actions": sum(spec.choices)})
        return
    allowed = np.logical_or.reduceat(mask, np.cumsum((0, *spec.choices[:-1])))
    if not result.over and not allowed.all():
        yield Fault("mask-empty", {})


def _bytes(value: Any, depth: int = 3) -> int:
    """Of what is large in an info."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping) and depth:
        return sum(_bytes(part, depth - 1) for part in value.values())
    if isinstance(value, (list, tuple)):
        return 8 * len(value) + sum(_bytes(part, depth - 1) for part in value[:10] if depth)
    return int(getattr(value, "nbytes", 0))


def brief_space(space: Any) -> str:
    """`Box(4,) float32`, `Discrete(2)`, `Dict(a: …, b: …)`"""
    if isinstance(space, gym.spaces.Box):
        return f"Box{space.shape} {space.dtype}"
    if isinstance(space, gym.spaces.Dict):
        return f"Dict({', '.join(f'{key}: {brief_space(part)}' for key, part in space.items())})"
    if isinstance(space, gym.spaces.Tuple):
        return f"Tuple({', '.join(map(brief_space, space))})"
    return printable(str(space))
