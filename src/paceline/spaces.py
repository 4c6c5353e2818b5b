"""The observation and action spaces Paceline understands, as plain data.

A spec can be written as JSON, so that a saved policy is rebuilt without its environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from .errors import BadInput
from .rollout import Array

SMALLEST_IMAGE = 8


@dataclass(frozen=True)
class ObservationSpec:
    """`vector` (any Box that is no image, flattened by the network), `image`, or `discrete`."""

    kind: Literal["vector", "image", "discrete"]
    shape: tuple[int, ...]
    dtype: str
    size: int
    """features of a vector, categories of a discrete observation, pixels of an image"""
    channels_first: bool = False
    start: int = 0
    """first category of a discrete observation"""


@dataclass(frozen=True)
class ActionSpec:
    """`discrete` with `size` choices, or `box` with `size` numbers within `low` and `high`."""

    kind: Literal["discrete", "box"]
    size: int
    shape: tuple[int, ...] = ()
    dtype: str = "int64"
    start: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def stored(self) -> tuple[tuple[int, ...], Any]:
        """Shape and dtype of one action in a rollout."""
        return ((), np.int64) if self.kind == "discrete" else ((self.size,), np.float32)


class ActionAdapter:
    """What the environment sees of the policy's actions.

    Where a Box has finite bounds, [-1, 1] of the policy is stretched over them; what lies outside
    is clipped. The policy's own action, which the learner needs, stays as it was drawn.
    """

    def __init__(self, spec: ActionSpec) -> None:
        self._spec = spec
        if spec.kind == "box":
            low, high = np.array(spec.low, spec.dtype), np.array(spec.high, spec.dtype)
            finite = np.isfinite(low) & np.isfinite(high)
            self._low, self._high = low, high
            self._half = np.where(finite, high / 2 - np.where(finite, low, 0) / 2, 1)
            self._middle = np.where(finite, high / 2 + np.where(finite, low, 0) / 2, 0)

    def __call__(self, action: Array) -> list[Any]:
        """One entry per column, each as its environment expects it."""
        spec = self._spec
        if spec.kind == "discrete":
            return (action + spec.start if spec.start else action).tolist()
        seen = np.clip(action * self._half + self._middle, self._low, self._high)
        return list(seen.reshape(len(seen), *spec.shape).astype(spec.dtype, copy=False))


def observation_spec(space: gym.Space[Any]) -> ObservationSpec:
    """How `space` is stored and which network reads it; spaces we can't train on are refused."""
    if isinstance(space, gym.spaces.Discrete):
        return ObservationSpec("discrete", (), "int64", int(space.n), start=int(space.start))
    if not isinstance(space, gym.spaces.Box):
        raise _refusal("observation", space, "Box or Discrete")
    size = int(np.prod(space.shape))
    if _is_image(space):
        shape = space.shape if len(space.shape) == 3 else (1, *space.shape)
        channels_first = shape[0] < min(shape[1], shape[2])
        return ObservationSpec("image", space.shape, str(space.dtype), size, channels_first)
    return ObservationSpec("vector", space.shape, "float32", size)


def _is_image(space: gym.spaces.Box) -> bool:
    """Three axes, or two of bytes, with two sides large enough to convolve over."""
    sides = sorted(space.shape)[-2:]
    dimensions = len(space.shape)
    of_bytes = space.dtype == np.uint8
    return (dimensions == 3 or (dimensions == 2 and of_bytes)) and sides[0] >= SMALLEST_IMAGE


def action_spec(space: gym.Space[Any]) -> ActionSpec:
    """How the policy acts in `space`; spaces we can't act in are refused."""
    if isinstance(space, gym.spaces.Discrete):
        return ActionSpec("discrete", int(space.n), start=int(space.start))
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = (tuple(map(float, bound.ravel())) for bound in (space.low, space.high))
        size = int(np.prod(space.shape))
        return ActionSpec("box", size, space.shape, str(space.dtype), low=low, high=high)
    raise _refusal("action", space, "Discrete or a Box of floats")


def _refusal(role: str, space: gym.Space[Any], known: str) -> BadInput:
    return BadInput(
        f"the environment's {role} space is {space}, which Paceline can't train on yet; "
        f"wrap the environment so that it becomes {known} (see gymnasium.wrappers)"
    )
