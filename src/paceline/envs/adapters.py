"""Conversion between environments and rollouts: observations in, actions out. R = rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import index
from typing import Any

import gymnasium as gym
import numpy as np

from ..rollout import Array
from .spaces import ACTION_MASK, ActionSpec, Leaf, ObservationSpec, Path, path_text, unflatten

Views = Mapping[str, Array]
"""Stored observations by part (`ObservationSpec.split`)."""


class ObservationAdapter:
    """Writes an environment's observations into stored ones, and reads them back."""

    def __init__(self, spec: ObservationSpec) -> None:
        self.spec = spec
        self._places = list(spec.places)
        self._choices = np.cumsum((0, *spec.mask[:-1]))

    def write(
        self, views: Views, where: int | slice, observation: Any, info: Mapping[str, Any]
    ) -> None:
        """Store an observation in row `where`, or a batch of them in the rows of a slice."""
        if self.spec.kind == "discrete":
            leaf = self.spec.leaves[0]
            seen = _at(observation, leaf.path)
            if not (isinstance(where, int) and 0 <= index(seen) - leaf.starts[0] < leaf.sizes[0]):
                seen = np.asarray(seen)
                _check_choices(leaf, seen[..., None])
            views["index"][where] = seen
        else:
            for leaf, part, place in self._places:
                self._write_leaf(views[part], where, _at(observation, leaf.path), leaf, place)
        if self.spec.mask:
            self._write_mask(views["mask"][where], observation, info)

    def _write_leaf(
        self, stored: Array, where: int | slice, value: Any, leaf: Leaf, place: slice
    ) -> None:
        single = isinstance(where, int)
        if single and leaf.kind == "choices" and leaf.shape == ():  # fast path
            chosen = index(value) - leaf.starts[0]
            if 0 <= chosen < leaf.sizes[0]:
                stored[where, place] = 0
                stored[where, place.start + chosen] = 1
                return
        value, lead = np.asarray(value), () if single else stored.shape[:1]
        if value.shape != (*lead, *leaf.shape):
            raise ValueError(
                f"observation{path_text(leaf.path)} of shape {value.shape}, "
                f"not {(*lead, *leaf.shape)}"
            )
        if self.spec.plain or leaf.kind == "image":
            stored[where] = value
        elif leaf.kind == "numbers":
            stored[where, place] = value.reshape(*lead, -1)
        else:
            several = value.reshape(*lead, -1)
            meant = several if len(leaf.sizes) == 1 else several[..., leaf.owner]
            chosen = meant == leaf.meaning
            if value.dtype.kind not in "iub" or np.count_nonzero(chosen) != value.size:
                _check_choices(leaf, several)  # raises
            stored[where, place] = chosen

    def _write_mask(self, mask: Array, observation: Any, info: Mapping[str, Any]) -> None:
        """Store the allowed actions; without a mask, or where it allows none of a choice, all."""
        found = info.get(ACTION_MASK)
        if found is None and isinstance(observation, Mapping):
            found = observation.get(ACTION_MASK)
        if isinstance(found, tuple):  # one per choice, as MultiDiscrete.sample takes it
            found = np.concatenate([np.asarray(one) for one in found], -1)
        if found is not None and np.shape(found) != mask.shape:
            lead, shape = mask.shape[:-1], np.shape(found)
            if np.prod(shape) != mask.size or shape[: len(lead)] != lead:
                raise ValueError(f"{ACTION_MASK} of shape {shape}, not {mask.shape}")
            found = np.reshape(found, mask.shape)
        mask[...] = True if found is None else found
        if mask.ndim == len(self.spec.mask) == 1:  # fast path
            if not mask.any():
                mask[:] = True
            return
        some = np.logical_or.reduceat(mask, self._choices, axis=-1)
        if not some.all():
            mask |= ~np.repeat(some, self.spec.mask, axis=-1)

    def read(self, obs: Array) -> Any:
        """Stored observations [R, ...] in the structure that the environment returns."""
        views, rows = self.spec.split(obs), len(obs)
        if self.spec.kind == "discrete":
            return unflatten([(self.spec.leaves[0].path, views["index"].copy())])
        leaves: list[tuple[Path, Any]] = []
        for leaf, part, place in self._places:
            value = views[part]
            if part == "vector":
                value = value.reshape(rows, -1)[:, place]
            if leaf.kind == "choices":
                ends = np.cumsum(leaf.sizes)[:-1]
                chosen = [one.argmax(-1) for one in np.split(value, ends, axis=1)]
                value = np.stack(chosen, -1) + np.array(leaf.starts)
            leaves.append((leaf.path, value.reshape(rows, *leaf.shape).copy()))
        return unflatten(leaves)

    def batched(self, observation: Any, but: Collection[str] = ()) -> int | None:
        """Number of observations in a batch; None for a single observation. It may lack the parts
        `but`."""
        leaf = next(one for one in self.spec.leaves if not (one.path and one.path[0] in but))
        value = np.asarray(_at(observation, leaf.path))
        return None if value.shape == leaf.shape else len(value)


def _at(observation: Any, path: Path) -> Any:
    for key in path:
        observation = observation[key]
    return observation


def _check_choices(leaf: Leaf, chosen: Array) -> None:
    low = np.array(leaf.starts)
    if chosen.dtype.kind not in "iub" or (chosen < low).any() or (chosen >= low + leaf.sizes).any():
        raise ValueError(
            f"observation{path_text(leaf.path)} is {chosen.tolist()}; choices begin at "
            f"{list(leaf.starts)} and there are {list(leaf.sizes)}"
        )


def space_of(spec: ObservationSpec) -> gym.Space[Any]:
    """The observation space of a spec: without the bounds of a Box and without an action mask."""

    def space(leaf: Leaf) -> gym.Space[Any]:
        if leaf.kind == "image" and leaf.dtype == "uint8":
            return gym.spaces.Box(0, 255, leaf.shape, np.uint8)
        if leaf.kind != "choices":
            return gym.spaces.Box(-np.inf, np.inf, leaf.shape, np.float32)
        if leaf.shape == ():
            return gym.spaces.Discrete(leaf.sizes[0], start=leaf.starts[0])
        sizes, starts = (np.reshape(x, leaf.shape) for x in (leaf.sizes, leaf.starts))
        return gym.spaces.MultiDiscrete(sizes, start=starts)

    def joined(structure: Any) -> gym.Space[Any]:
        if isinstance(structure, dict):
            return gym.spaces.Dict({key: joined(value) for key, value in structure.items()})
        if isinstance(structure, tuple):
            return gym.spaces.Tuple([joined(value) for value in structure])
        return structure

    return joined(unflatten((leaf.path, space(leaf)) for leaf in spec.leaves))


class ActionAdapter:
    """From a policy's actions to the environment's.

    [-1, 1] is stretched over the finite bounds of a Box, and what lies outside is clipped.
    """

    def __init__(self, spec: ActionSpec, ints: bool = False) -> None:
        """With `ints`, discrete actions are Python ints, which compare faster than the numpy ints
        that a space samples, for environments known to take them."""
        self._spec, self._ints = spec, ints and spec.kind == "discrete"
        self._starts = np.array(spec.starts or spec.start)
        if spec.kind == "box":
            self._whole = not np.issubdtype(np.dtype(spec.dtype), np.floating)
            dtype = "float64" if self._whole else spec.dtype
            low, high = np.array(spec.low, dtype), np.array(spec.high, dtype)
            finite = np.isfinite(low) & np.isfinite(high)
            self._low, self._high = low, high
            self._half = np.where(finite, high / 2 - np.where(finite, low, 0) / 2, 1)
            self._middle = np.where(finite, high / 2 + np.where(finite, low, 0) / 2, 0)

    def batch(self, action: Array) -> Array:
        """[R, ...] as one array."""
        spec = self._spec
        if spec.kind == "discrete":
            return action + spec.start if spec.start else action
        if spec.kind == "multi":
            seen = action + self._starts
        else:
            seen = np.clip(action * self._half + self._middle, self._low, self._high)
            if self._whole:
                seen = np.rint(seen)
        return seen.reshape(len(seen), *spec.shape).astype(spec.dtype, copy=False)

    def __call__(self, action: Array) -> list[Any]:
        """A list with one action per column, each as its environment expects it."""
        seen = self.batch(action)
        if self._ints:
            return seen.tolist()
        if seen.ndim == 1 and self._spec.kind != "discrete":
            return [seen[i, ...] for i in range(len(seen))]  # 0-d arrays, not scalars
        return list(seen)
