"""One result of reset() or step() against the spaces: observation, reward, flags, mask, info."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ...config.text import printable
from ...envs.spaces import ActionSpec
from ...rollout import Array
from ..findings import Finding
from .compare import brief
from .environment import StepResult, describe_type
from .player import flat_mask, raw_mask
from .rules import RULES

ROUNDING = 1e-5
"""By how much, relative to a bound, rounding may pass it."""
SLIGHT = 0.1
"""By how much, relative to its range, an observation may pass it without harm."""
HUGE_INFO = 100_000
"""Bytes of an info that cost time at every step."""


class Fault(NamedTuple):
    """A value that is not as it should be."""

    code: str
    """of its rule"""
    place: str
    """which part of the observation, or which flag"""
    facts: dict[str, Any]


class FaultCounter:
    """The faults of many results: of each code and place the first, and how often it was seen."""

    def __init__(self, *ignored: str) -> None:
        """Faults with `ignored` codes are not counted."""
        self._ignored = ignored
        self._first: dict[tuple[str, str], tuple[Fault, int]] = {}
        self._times: Counter[tuple[str, str]] = Counter()

    def add(self, fault: Fault, step: int) -> None:
        """`step` counts from the reset, which is 0."""
        if fault.code not in self._ignored:
            key = fault.code, fault.place
            self._first.setdefault(key, (fault, step))
            self._times[key] += 1

    def findings(self, results: int) -> Iterator[Finding]:
        for key, (fault, step) in self._first.items():
            if fault.code == "observation-near" and ("observation-outside", key[1]) in self._first:
                continue
            times = self._times[key]
            seen = f"first at step {step} of an episode" if step else "after reset"
            if times > 1:
                seen += f"; {times:,} times in {results:,} results"
            facts = {**fault.facts, "place": fault.place, "step": step, "seen": seen}
            yield RULES.found(fault.code, **facts)


def faults(result: StepResult, space: gym.Space[Any], spec: ActionSpec, over: bool) -> list[Fault]:
    """`over` where the episode has ended with this result."""
    found = [*observation_faults(space, result.obs), *_reward_faults(result.reward)]
    for name in ("terminated", "truncated"):
        found += _flag_faults(name, getattr(result, name))
    found += _mask_faults(result, spec, over)
    if (size := _bytes(result.info)) > HUGE_INFO:
        found.append(Fault("info-large", "", {"megabytes": size / 1e6}))
    return found


def observation_faults(space: gym.Space[Any], obs: Any, place: str = "") -> Iterator[Fault]:
    """Of an observation, or of the part of it at `place`."""
    what = f"observation{place}" if place else "the observation"
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(obs, Mapping):
            facts = {"what": what, "value": describe_type(obs), "expected": "a dict"}
            yield Fault("observation-structure", place, facts)
            return
        if missing := [key for key in space if key not in obs]:
            yield Fault("observation-missing", place, {"what": what, "key": repr(missing[0])})
        if more := [key for key in obs if key not in space.spaces]:
            yield Fault("observation-undeclared", place, {"what": what, "key": repr(more[0])})
        for key, part in space.items():
            if key in obs:
                yield from observation_faults(part, obs[key], f"{place}[{key!r}]")
    elif isinstance(space, gym.spaces.Tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(space):
            facts = {"value": describe_type(obs), "expected": f"a tuple of {len(space)}"}
            yield Fault("observation-structure", place, {"what": what, **facts})
            return
        for position, (part, value) in enumerate(zip(space, obs, strict=True)):
            yield from observation_faults(part, value, f"{place}[{position}]")
    elif not _clearly_right(space, obs):
        for code, facts in _array_faults(space, obs):
            yield Fault(code, place, {"what": what, **facts})


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
    value = {"value": brief(obs)}
    try:
        array = np.asarray(obs)
    except ValueError:  # lists of unequal lengths
        yield "observation-type", {**value, "type": "list", "space": brief_space(space)}
        return
    floats = array.dtype.kind == "f"
    whole = not isinstance(space, (gym.spaces.Box, gym.spaces.MultiBinary))
    if array.dtype.kind not in "biuf":
        facts = {"type": str(array.dtype), "space": brief_space(space)}
        yield "observation-type", {**value, **facts}
    elif array.shape != space.shape:
        yield "observation-shape", {"shape": str(array.shape), "expected": str(space.shape)}
    elif floats and not np.isfinite(array).all():
        yield "observation-nan", value
    elif isinstance(space, gym.spaces.Box):
        yield from _box_faults(space, obs, array)
    elif floats and whole:
        facts = {"type": str(array.dtype), "space": brief_space(space)}
        yield "observation-type", {**value, **facts}
    else:
        low = np.asarray(getattr(space, "start", 0))
        sizes = getattr(space, "n", 2) if space.shape == () else getattr(space, "nvec", 2)
        if (array < low).any() or (array >= low + np.asarray(sizes)).any():
            yield "observation-choice", {**value, "space": brief_space(space)}


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
        at = tuple(int(i) for i in np.argwhere(below | above)[0])
        value, least, most = (float(numbers[at]) for numbers in (array, low, high))
        entry = at[0] if len(at) == 1 else at
        slight = max(least - value, value - most) <= SLIGHT * (most - least)
        facts = {"value": value, "entry": entry, "low": least, "high": most}
        with np.errstate(invalid="ignore"):
            wraps = whole and bool((array.astype(dtype) != array).any())
        if wraps:
            yield "observation-choice", {"value": brief(obs), "space": brief_space(space)}
        else:
            yield "observation-near" if slight else "observation-outside", facts
    is_array = isinstance(obs, (np.ndarray, np.generic))
    if array.dtype != dtype or not is_array:
        name = str(array.dtype) if is_array else type(obs).__name__
        yield "observation-dtype", {"type": name, "dtype": str(dtype)}


def _reward_faults(reward: Any) -> Iterator[Fault]:
    shape = tuple(getattr(reward, "shape", ()))
    if shape:
        code = "reward-array" if np.prod(shape) == 1 else "reward-type"
        yield Fault(code, "", {"value": f"an array of shape {shape}"})
        return
    try:
        number = float("text" if isinstance(reward, str) else reward)
    except (TypeError, ValueError):
        yield Fault("reward-type", "", {"value": f"{brief(reward)}, {_type(reward)}"})
        return
    if not np.isfinite(number):
        yield Fault("reward-nan", "", {"value": str(number)})


def _flag_faults(name: str, flag: Any) -> Iterator[Fault]:
    if isinstance(flag, (bool, np.bool_)):
        return
    try:
        value = np.asarray(flag)
        zero_or_one = value.size == 1 and value.item() in (0, 1)
    except (TypeError, ValueError):
        zero_or_one = False
    facts = {"value": f"{brief(flag)}, {_type(flag)}"}
    yield Fault("flag-type" if zero_or_one else "flag-value", name, facts)


def _mask_faults(result: StepResult, spec: ActionSpec, over: bool) -> Iterator[Fault]:
    mask = raw_mask(result)
    if mask is None or not spec.choices:
        return
    actions = sum(spec.choices)
    try:
        flat = flat_mask(mask)
    except (TypeError, ValueError):
        yield Fault("mask-length", "", {"entries": brief(mask), "actions": actions})
        return
    if len(flat) != actions:
        yield Fault("mask-length", "", {"entries": f"{len(flat)} entries", "actions": actions})
    elif not over and not np.logical_or.reduceat(flat, np.cumsum((0, *spec.choices[:-1]))).all():
        yield Fault("mask-empty", "", {})


def _bytes(value: Any, depth: int = 3) -> int:
    """Of what is large in an info."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping) and depth:
        return sum(_bytes(part, depth - 1) for part in value.values())
    if isinstance(value, (list, tuple)):
        return 8 * len(value) + sum(_bytes(part, depth - 1) for part in value[:10] if depth)
    return int(getattr(value, "nbytes", 0))


def _type(value: Any) -> str:
    return describe_type(value) if hasattr(value, "shape") else f"of type {type(value).__name__}"


def brief_space(space: Any) -> str:
    """`Box(4,) float32`, `Discrete(2)`, `Dict(a: …, b: …)`"""
    if isinstance(space, gym.spaces.Box):
        return f"Box{space.shape} {space.dtype}"
    if isinstance(space, gym.spaces.Dict):
        return f"Dict({', '.join(f'{key}: {brief_space(part)}' for key, part in space.items())})"
    if isinstance(space, gym.spaces.Tuple):
        return f"Tuple({', '.join(map(brief_space, space))})"
    return printable(str(space))
