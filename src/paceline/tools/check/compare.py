"""Comparing what environments returned, to the bit, and showing the difference."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from ...config.text import printable
from ...rollout import Array

FEW = 6
"""Entries of an array that are all shown."""
MAX_SHOWN = 70


class StepResult(NamedTuple):
    """What reset() or step() returned; after reset() there is no reward and nothing has ended."""

    obs: Any
    info: dict[str, Any]
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    first: bool = False
    """of reset()"""
    over: bool = False
    """the episode has ended, by the environment or by a time limit around it"""

    @property
    def ends(self) -> bool:
        """Whether the environment itself has ended the episode."""
        return as_bool(self.terminated) or as_bool(self.truncated)

    def copied(self) -> StepResult:
        """As it is now, without info, with flags of one type."""
        obs, reward = copy.deepcopy((self.obs, self.reward))
        flags = as_bool(self.terminated), as_bool(self.truncated)
        return StepResult(obs, {}, reward, *flags, self.first, self.over)


def as_bool(flag: Any) -> bool:
    """A flag of any type."""
    try:
        return bool(np.any(flag))
    except (TypeError, ValueError):
        return bool(flag)


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays and plain values in nested ones, each with its place, such as `['state'][0]`."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from leaves(value[key], f"{place}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for position, part in enumerate(value):
            yield from leaves(part, f"{place}[{position}]")
    else:
        yield place, value


def content(value: Any) -> list[tuple[Any, ...]]:
    """Structure, shapes, types and bits: what is equal for equal values alone."""
    found = []
    for place, leaf in leaves(value):
        array = np.asarray(leaf)
        bits = repr(leaf) if array.dtype.hasobject else array.tobytes()
        found.append((place, array.dtype.str, array.shape, bits))
    return found


def identical(one: Any, other: Any) -> bool:
    return content(one) == content(other)


def digest(results: list[StepResult]) -> str:
    """A fingerprint that another process can compare."""
    return blake2b(repr(content(results)).encode(), digest_size=16).hexdigest()


def flat_numbers(value: Any) -> Array:
    """All numbers of an observation, in a row."""
    arrays = [np.asarray(leaf) for _, leaf in leaves(value)]
    numbers = [array.ravel().astype(float) for array in arrays if array.dtype.kind in "biuf"]
    return np.concatenate([np.empty(0), *numbers])


def first_difference(one: list[StepResult], other: list[StepResult]) -> str | None:
    """Where two histories part, and how; None if they do not."""
    step = 0
    for left, right in zip(one, other, strict=False):
        step = 0 if left.first else step + 1
        when = f"after step {step}" if step else "after reset"
        if left.first != right.first:
            return f"{when} one starts a new episode and the other does not"
        for name in ("obs", "reward", "terminated", "truncated"):
            if difference := _difference(getattr(left, name), getattr(right, name)):
                return f"{when} {'the observation' if name == 'obs' else name}{difference}"
    return None


def _difference(one: Any, other: Any) -> str:
    """In the first part that differs; empty if none does."""
    if identical(one, other):
        return ""
    for (place, left), (there, right) in zip(leaves(one), leaves(other), strict=False):
        if place == there and not identical(left, right):
            at = ""
            if np.size(left) > FEW and np.shape(left) == np.shape(right):
                index = np.argwhere(np.asarray(left) != np.asarray(right))[:1].ravel().tolist()
                left, right = left[tuple(index)], right[tuple(index)]
                at = f" at entry {index[0] if len(index) == 1 else tuple(index)}"
            return f"{place} is {brief(left)} and {brief(right)}{at}"
    return f" is {brief(one)} and {brief(other)}"


def drift_apart(one: list[StepResult], other: list[StepResult], tolerance: float) -> bool:
    """Whether the first difference is within an episode and within the tolerance."""
    for left, right in zip(one, other, strict=False):
        if not identical(left, right):
            here, there = (flat_numbers((each.obs, each.reward)) for each in (left, right))
            close = here.shape == there.shape and np.allclose(here, there, tolerance, tolerance)
            return close and not left.first and left[3:5] == right[3:5]
    return True


def brief(value: Any) -> str:
    """A value in at most about 70 characters."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.ndim:
        numbers = [brief(number) for number in value.ravel()[: FEW if value.size <= FEW else 4]]
        more = f", …] of shape {value.shape}" if value.size > FEW else "]"
        return f"[{', '.join(numbers)}{more}"
    text = printable(f"{value:.6g}" if isinstance(value, float) else repr(value))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} …"
