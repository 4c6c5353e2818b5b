"""Comparing what environments returned, to the bit, and showing the difference."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from ...config.text import printable
from ...rollout import Array

MAX_SHOWN = 70
SCALARS = (bool, int, float, complex, str, bytes, type(None), np.generic)


class Record(NamedTuple):
    """A copy of one result of reset() or step()."""

    first: bool
    """of reset()"""
    obs: Any
    reward: Any
    terminated: bool
    truncated: bool


def identical(one: Any, other: Any) -> bool:
    """Same structure, shapes, types and bits; NaN equals NaN."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if type(one) is not type(other) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.dtype.hasobject:
            return all(identical(*pair) for pair in zip(one.flat, other.flat, strict=True))
        return one.tobytes() == other.tobytes()
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(identical(*pair) for pair in pairs)
    if isinstance(one, SCALARS) and isinstance(other, SCALARS):
        return bool(one == other) or (one != one and other != other)
    try:
        return np.asarray(one).tobytes() == np.asarray(other).tobytes()
    except Exception:  # values that can't be compared count as equal
        return True


def first_difference(one: list[Record], other: list[Record]) -> str | None:
    """Where two histories part, and how; None if they do not."""
    step = 0
    for left, right in zip(one, other, strict=False):
        step = 0 if left.first else step + 1
        when = f"after step {step}" if step else "after reset"
        if left.first != right.first:
            return f"{when} one starts a new episode and the other does not"
        if not identical(left.obs, right.obs):
            return f"{when} the observation is {_both(left.obs, right.obs)}"
        for name in ("reward", "terminated", "truncated"):
            values = getattr(left, name), getattr(right, name)
            if not identical(*values):
                return f"{when} {name} is {brief(values[0])} and {brief(values[1])}"
    return None


def _both(one: Any, other: Any) -> str:
    """Two observations; of a large one only the part that differs."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one:
            if key not in other or not identical(one[key], other[key]):
                return f"{brief({key: one[key]})} and {brief({key: other.get(key)})}"
    if isinstance(one, np.ndarray) and np.shape(one) == np.shape(other) and one.size > 6:
        at = tuple(int(i) for i in np.argwhere(one != np.asarray(other))[:1].ravel())
        return f"{brief(one[at])} and {brief(other[at])} at entry {at[0] if len(at) == 1 else at}"
    return f"{brief(one)} and {brief(other)}"


def drift_apart(one: list[Record], other: list[Record], tolerance: float) -> bool:
    """Whether the first difference is within an episode and within the tolerance."""
    for left, right in zip(one, other, strict=False):
        if first_difference([left], [right]):
            here, there = (flat_numbers((record.obs, record.reward)) for record in (left, right))
            close = here.shape == there.shape and np.allclose(here, there, tolerance, tolerance)
            return close and not left.first and left[3:] == right[3:]
    return True


def digest(records: list[Record]) -> str:
    """A fingerprint that another process can compare."""
    hashed = blake2b(digest_size=16)

    def update(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                update(str(key))
                update(value[key])
        elif isinstance(value, (tuple, list)):
            for part in value:
                update(part)
        elif isinstance(value, str):
            hashed.update(value.encode())
        else:
            array = np.asarray(value)
            hashed.update(repr(value).encode() if array.dtype.hasobject else array.tobytes())

    update(records)
    return hashed.hexdigest()


def flat_numbers(value: Any) -> Array:
    """All numbers of an observation, in a row."""
    if isinstance(value, Mapping):
        parts = [flat_numbers(value[key]) for key in sorted(value, key=str)]
    elif isinstance(value, (tuple, list)):
        parts = [flat_numbers(part) for part in value]
    else:
        array = np.asarray(value)
        return array.ravel().astype(float) if array.dtype.kind in "biuf" else np.empty(0)
    return np.concatenate([np.empty(0), *parts])


def brief(value: Any) -> str:
    """A value in at most about 70 characters."""
    if isinstance(value, np.ndarray) and value.size > 6:
        numbers = ", ".join(f"{number:.4g}" for number in value.ravel()[:4].astype(float))
        return f"[{numbers}, …] of shape {value.shape}"
    if isinstance(value, np.ndarray) and value.dtype.kind in "iufb":
        return f"[{', '.join(f'{number:.6g}' for number in value.ravel().astype(float))}]"
    if isinstance(value, np.generic):
        value = value.item()
    text = printable(f"{value:.6g}" if isinstance(value, float) else repr(value))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} …"
