"""An observation against its space, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ...rollout import Array
from .compare import brief
from .environment import shown_kind

MARGIN = 1e-5
"""By how much, of a bound's size, rounding may pass it."""

SLIGHT = 0.1
"""By how much, of the whole range, an observation may pass it without misleading anybody."""


class Fault(NamedTuple):
    """Something that is not as it should be: its kind, which part has it, and what was seen."""

    kind: str
    place: str
    text: str


def leaf_faults(space: gym.Space[Any], obs: Any, place: str = "") -> Iterator[Fault]:
    """Faults of an observation, or of the part of it at `place`."""
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(obs, Mapping):
            yield Fault("structure", place, f"{_name(place)} is {shown_kind(obs)}, not a dict")
            return
        if missing := [key for key in space.spaces if key not in obs]:
            yield Fault("structure", place, f"{_name(place)} lacks {missing[0]!r}")
        if more := [key for key in obs if key not in space.spaces]:
            yield Fault("undeclared", place, f"{_name(place)} has {more[0]!r} beyond its space")
        for key, inner in space.spaces.items():
            if key in obs:
                yield from leaf_faults(inner, obs[key], f"{place}[{key!r}]")
    elif isinstance(space, gym.spaces.Tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(space.spaces):
            wanted = f"a tuple of {len(space.spaces)}"
            yield Fault("structure", place, f"{_name(place)} is {shown_kind(obs)}, not {wanted}")
            return
        for position, (inner, part) in enumerate(zip(space.spaces, obs, strict=True)):
            yield from leaf_faults(inner, part, f"{place}[{position}]")
    else:
        yield from _plain_faults(space, obs, place)


def _plain_faults(space: gym.Space[Any], obs: Any, place: str) -> Iterator[Fault]:
    name, shape = _name(place), space.shape
    if isinstance(space, gym.spaces.Box) and _quickly_right(space, obs):
        return
    try:
        array = np.asarray(obs)
    except ValueError:  # lists of unequal lengths
        yield Fault("kind", place, f"{name} is {brief(obs)}, which is no array")
        return
    if array.dtype.kind not in "biuf":
        yield Fault("kind", place, f"{name} is {brief(obs)}, of type {array.dtype}")
        return
    if array.shape != shape:
        yield Fault("shape", place, f"{name} has the shape {array.shape}, its space {shape}")
        return
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        yield Fault("nan", place, f"{name} is {brief(obs)}, with a number that is not finite")
        return
    if isinstance(space, gym.spaces.Box):
        yield from _box_faults(space, obs, array, place)
        return
    low = np.asarray(getattr(space, "start", 0))
    high = low + np.asarray(2 if isinstance(space, gym.spaces.MultiBinary) else _sizes(space)) - 1
    if array.dtype.kind == "f" and not isinstance(space, gym.spaces.MultiBinary):
        yield Fault("kind", place, f"{name} is {brief(obs)}, of type {array.dtype}, in {space}")
    elif (array < low).any() or (array > high).any():
        yield Fault("choice", place, f"{name} is {brief(obs)}, which is not in {space}")


def _quickly_right(space: gym.spaces.Box, obs: Any) -> bool:
    """Whether nothing can be wrong with it: pictures are large."""
    if not isinstance(obs, np.ndarray) or obs.dtype != space.dtype or obs.shape != space.shape:
        return False
    within = bool((obs >= space.low).all() and (obs <= space.high).all())
    return within and (obs.dtype.kind != "f" or bool(np.isfinite(obs).all()))


def _sizes(space: gym.Space[Any]) -> Any:
    return space.n if isinstance(space, gym.spaces.Discrete) else getattr(space, "nvec", 1)


def _box_faults(space: gym.spaces.Box, obs: Any, array: Array, place: str) -> Iterator[Fault]:
    name, declared = _name(place), np.dtype(space.dtype)
    whole = declared.kind in "iub"
    if whole and array.dtype.kind == "f" and (array != np.rint(array)).any():
        yield Fault("rounded", place, f"{name} is {brief(obs)}, in a Box of {declared}")
        return
    slack = MARGIN * np.maximum(1.0, np.abs(_finite(space.low)))
    below = array < _finite(space.low, -np.inf) - slack
    slack = MARGIN * np.maximum(1.0, np.abs(_finite(space.high)))
    above = array > _finite(space.high, np.inf) + slack
    if below.any() or above.any():
        at = tuple(int(i) for i in np.argwhere(below | above)[0])
        low, high = (float(bound[at]) for bound in (space.low, space.high))
        entry = f"entry {at[0] if len(at) == 1 else at} of {name}" if at else name
        said = f"{entry} is {float(array[at]):.6g}, outside {low:.6g} to {high:.6g}"
        excess = max(low - float(array[at]), float(array[at]) - high)
        if whole and not _fits(array, declared):
            kind = "choice"  # bytes and the like would wrap around
        else:
            kind = "near" if excess <= SLIGHT * (high - low) else "outside"
        yield Fault(kind, place, said)
    if array.dtype != declared or not isinstance(obs, (np.ndarray, np.generic)):
        seen = array.dtype if isinstance(obs, (np.ndarray, np.generic)) else type(obs).__name__
        yield Fault("dtype", place, f"{name} is of type {seen}, its space of {declared}")


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    return limits is None or bool((array >= limits.min).all() and (array <= limits.max).all())


def _finite(bound: Array, otherwise: float = 0.0) -> Array:
    wide = bound.astype(float)
    return np.where(np.isfinite(wide), wide, otherwise)


def _name(place: str) -> str:
    return f"observation{place}" if place else "the observation"
