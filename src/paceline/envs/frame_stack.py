"""Stacks: a policy may see the S latest observations as one; a rollout holds each of them once.

T = steps, B = columns, R = rows. Before an episode's first observation a stack repeats that one.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from ..errors import BadInput
from ..rollout import Array, Rollout
from .spaces import ObservationSpec


class Window:
    """The stacks of some columns while they act."""

    def __init__(self, spec: ObservationSpec, columns: int) -> None:
        self._spec, self._name = spec, next(iter(spec.parts))
        shape, dtype = spec.seen.stored
        self._seen = np.zeros((columns, *shape), dtype)
        self._parts = spec.seen.split(self._seen)
        self._slots = apart(self._parts[self._name], spec)

    def show(self, obs: Array, first: Array) -> Array:
        """The stacks that end in `obs[B]`, as the policy takes them; good until `shift`."""
        for name, part in self._spec.split(obs).items():
            if name == self._name:
                self._slots[:, -1] = part
                self._slots[first] = part[first][:, None]
            else:
                self._parts[name][...] = part
        return self._seen

    def shift(self) -> None:
        """Make room for the next observation."""
        self._slots[:, :-1] = self._slots[:, 1:]

    @property
    def before(self) -> Array:
        """[S-1, B, ...] what the next stacks begin with."""
        return self._slots[:, :-1].swapaxes(0, 1)

    @before.setter
    def before(self, frames: Array) -> None:
        self._slots[:, :-1] = frames.swapaxes(0, 1)


def places(first: Array, stack: int) -> Array:
    """[T+1, B, S] where each stack's observations are among the rows [(S-1+T+1)·B] of a rollout's
    `before` and `obs`, one after the other."""
    rows, columns = first.shape
    row = np.arange(rows)[:, None]
    begun = np.maximum.accumulate(np.where(first, row, 1 - stack), axis=0)
    ages = np.arange(stack - 1, -1, -1)
    wanted = np.maximum(row[..., None] - ages, begun[..., None]) + stack - 1
    return wanted * columns + np.arange(columns)[None, :, None]


def frames(spec: ObservationSpec, rollout: Rollout, part: str) -> Array:
    """[(S-1+T+1)·B, ...] the rows that `places` speaks of."""
    found = spec.split(rollout.obs)[part]
    if spec.stack > 1:
        found = np.concatenate([rollout.before, found])
    return found.reshape(-1, *found.shape[2:])


def stacked(spec: ObservationSpec, rollout: Rollout, part: str) -> Array:
    """[T+1, B, ...] of a part, as a policy sees it."""
    if spec.stack == 1:
        return spec.split(rollout.obs)[part]
    index = places(rollout.first, spec.stack)
    found = together(frames(spec, rollout, part)[index.ravel()], spec)
    return found.reshape(*index.shape[:2], *found.shape[1:])


def latest(spec: ObservationSpec, rollout: Rollout) -> Array:
    """[S-1, B, ...] what the stacks after a rollout begin with, beside its last observation."""
    index = places(rollout.first, spec.stack)[-1, :, :-1]
    return frames(spec, rollout, next(iter(spec.parts)))[index.T]


def together(rows: Any, spec: ObservationSpec) -> Any:
    """[R·S, ...] → [R, ...], an array or a tensor, in the shape that a policy takes."""
    rows = rows.reshape(-1, spec.stack, *_shape(spec))
    if _channels_last(spec):
        rows = rows.swapaxes(1, 2).swapaxes(2, 3)
    return rows.reshape(len(rows), *_shape(spec.seen))


def apart(seen: Array, spec: ObservationSpec) -> Array:
    """A view [B, S, ...] of what a policy takes."""
    if _channels_last(spec):
        height, width, channels = _shape(spec)
        split = seen.reshape(-1, height, width, spec.stack, channels)
        return split.swapaxes(2, 3).swapaxes(1, 2)
    return seen.reshape(-1, spec.stack, *_shape(spec))


def _shape(spec: ObservationSpec) -> tuple[int, ...]:
    """Of the part that is stacked, one observation."""
    return spec.history[1][0]


def _channels_last(spec: ObservationSpec) -> bool:
    leaf = spec.leaves[0]
    return leaf.kind == "image" and len(leaf.shape) == 3 and not leaf.channels_first


def stacked_space(space: gym.Space[Any], spec: ObservationSpec) -> gym.Space[Any]:
    """What `spec` makes of an environment's space."""
    if spec.stack == 1:
        return space
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: stacked_space(one, spec) for key, one in space.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([stacked_space(one, spec) for one in space])
    if not isinstance(space, gym.spaces.Box) or space.shape != spec.leaves[0].shape:
        return space  # a mask of actions
    shape = spec.seen.leaves[0].shape
    low, high = (
        together(np.repeat(bound[None], spec.stack, 0), spec).reshape(shape)
        for bound in (space.low, space.high)
    )
    return gym.spaces.Box(low, high, dtype=space.dtype.type)


def with_stack(spec: ObservationSpec, stack: int) -> ObservationSpec:
    """`spec`, of which a policy sees so many as one."""
    if stack > 1 and (len(spec.leaves) > 1 or spec.leaves[0].kind == "choices"):
        raise BadInput(
            f"env.frame_stack is {stack}, which needs a Box observation, and this environment has "
            f"{'several parts' if len(spec.leaves) > 1 else 'a discrete one'}"
        )
    return ObservationSpec(spec.leaves, spec.mask, stack)
