"""Random actions, as a policy that knows nothing would choose them, and those at the bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...envs.adapters import ActionAdapter
from ...envs.spaces import ACTION_MASK, ActionSpec
from ...rollout import Array

MOST_CORNERS = 32
"""Actions that are tried one by one."""


def drawn(draw: np.random.Generator, spec: ActionSpec, mask: Array | None, rows: int = 1) -> Array:
    """[R, ...] as a policy gives them; none that `mask[R, choices]` forbids."""
    if spec.kind == "box":
        return draw.standard_normal((rows, spec.size)).astype(np.float32)
    scores = draw.random((rows, sum(spec.choices)))
    if mask is not None:
        scores *= mask
    ends = np.cumsum(spec.choices)[:-1]
    chosen = np.stack([part.argmax(1) for part in np.split(scores, ends, 1)], 1)
    return chosen if spec.kind == "multi" else chosen[:, 0]


class RandomActions:
    """One action after the other for one environment, each as a run would hand it over."""

    def __init__(self, spec: ActionSpec, seed: int, ints: bool) -> None:
        self.spec = spec
        self._adapt = ActionAdapter(spec, ints)
        self._draw = np.random.default_rng(seed)

    def next(self, obs: Any, info: dict[str, Any]) -> Any:
        mask = mask_of(obs, info, self.spec)
        return self._adapt(drawn(self._draw, self.spec, None if mask is None else mask[None]))[0]

    def corners(self) -> Iterator[tuple[str, Any]]:
        """Actions at the ends of their space, each with its name; every one of a few choices."""
        spec = self.spec
        if spec.kind == "box":
            yield "the lowest action", self._adapt(np.full((1, spec.size), -1, np.float32))[0]
            yield "the highest action", self._adapt(np.ones((1, spec.size), np.float32))[0]
        elif spec.kind == "discrete":
            for index in sorted({*range(min(spec.size, MOST_CORNERS)), spec.size - 1}):
                yield f"action {index + spec.start}", self._adapt(np.array([index]))[0]
        else:
            none = np.zeros((1, len(spec.sizes)), np.int64)
            yield "the first of every choice", self._adapt(none)[0]
            yield "the last of every choice", self._adapt(none + np.array(spec.sizes) - 1)[0]


def mask_of(obs: Any, info: dict[str, Any], spec: ActionSpec) -> Array | None:
    """What is allowed, flat; None where nothing is said, or nothing that fits."""
    found = raw_mask(obs, info)
    if found is None or not spec.choices:
        return None
    try:
        flat = flattened(found)
    except (TypeError, ValueError):
        return None
    return flat if len(flat) == sum(spec.choices) else None


def raw_mask(obs: Any, info: dict[str, Any]) -> Any:
    """As the environment gives it."""
    found = info.get(ACTION_MASK)
    return obs.get(ACTION_MASK) if found is None and isinstance(obs, dict) else found


def flattened(mask: Any) -> Array:
    parts = mask if isinstance(mask, tuple) else (mask,)
    return np.concatenate([np.ravel(np.asarray(part)).astype(bool) for part in parts])
