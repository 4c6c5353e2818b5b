"""Frame stacks: a policy sees the S latest observations as one; a rollout stores each once.

T = steps, B = columns, R = rows. Before an episode's first observation a stack repeats that one.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from ..errors import BadInput
from ..rollout import Array, Rollout
from .spaces import ObservationSpec


class FrameStack:
    """The stacks [B, ...] of some columns while they act."""

    def __init__(self, spec: ObservationSpec, columns: int) -> None:
        self._spec, self._name = spec, next(iter(spec.parts))
        shape, dtype = spec.seen.stored
        self._seen = np.zeros((columns, *shape), dtype)
        self._parts = spec.seen.split(self._seen)
        self._slots = _split(self._parts[self._name], spec)

    def show(self, obs: Array, first: Array) -> Array:
        """The stacks that end in `obs[B]`, as a policy takes them; a view, valid until `shift`."""
        for name, part in self._spec.split(obs).items():
            if name == self._name:
                self._slots[:, -1] = part
                self._slots[first] = part[first][:, None]
            else:
                self._parts[name][...] = part
        return self._seen

    def shift(self) -> None:
        """Drop the oldest observation to make room for the next."""
        self._slots[:, :-1] = self._slots[:, 1:]

    @property
    def before(self) -> Array:
        """[S-1, B, ...] the older observations of the next stacks."""
        return self._slots[:, :-1].swapaxes(0, 1)

    @before.setter
    def before(self, frames: Array) -> None:
        self._slots[:, :-1] = frames.swapaxes(0, 1)


def stack_index(first: Array, stack: int) -> Array:
    """[T+1, B, S] where each stack's observations are among the rows of `flat_frames`."""
    rows, columns = first.shape
    row = np.arange(rows)[:, None]
    begun = np.maximum.accumulate(np.where(first, row, 1 - stack), axis=0)
    ages = np.arange(stack - 1, -1, -1)
    wanted = np.maximum(row[..., None] - ages, begun[..., None]) + stack - 1
    return wanted * columns + np.arange(columns)[None, :, None]


def flat_frames(spec: ObservationSpec, rollout: Rollout, part: str) -> Array:
    """[(S-1+T+1)·B, ...] the rows of a rollout's `before` and `obs`, one after the other."""
    rows = spec.split(rollout.obs)[part]
    if spec.stack > 1:
        rows = np.concatenate([rollout.before, rows])
    return rows.reshape(-1, *rows.shape[2:])


def stacked(spec: ObservationSpec, rollout: Rollout, part: str) -> Array:
    """[T+1, B, ...] of a part, as a policy sees it."""
    if spec.stack == 1:
        return spec.split(rollout.obs)[part]
    index = stack_index(rollout.first, spec.stack)
    rows = merge_frames(flat_frames(spec, rollout, part)[index.ravel()], spec)
    return rows.reshape(*index.shape[:2], *rows.shape[1:])


def last_frames(spec: ObservationSpec, rollout: Rollout) -> Array:
    """[S-1, B, ...] `FrameStack.before` after a rollout."""
    index = stack_index(rollout.first, spec.stack)[-1, :, :-1]
    return flat_frames(spec, rollout, next(iter(spec.parts)))[index.T]


def merge_frames(rows: Any, spec: ObservationSpec) -> Any:
    """[R·S, ...] → [R, ...], an array or a tensor, in the shape that a policy takes."""
    rows = rows.reshape(-1, spec.stack, *_frame_shape(spec))
    if _channels_last(spec):
        rows = rows.swapaxes(1, 2).swapaxes(2, 3)
    return rows.reshape(len(rows), *_frame_shape(spec.seen))


def _split(seen: Array, spec: ObservationSpec) -> Array:
    """A view [B, S, ...] of what a policy takes."""
    if _channels_last(spec):
        height, width, channels = _frame_shape(spec)
        frames = seen.reshape(-1, height, width, spec.stack, channels)
        return frames.swapaxes(2, 3).swapaxes(1, 2)
    return seen.reshape(-1, spec.stack, *_frame_shape(spec))


def _frame_shape(spec: ObservationSpec) -> tuple[int, ...]:
    """Shape of one observation, of the part that is stacked."""
    return spec.history[1][0]


def _channels_last(spec: ObservationSpec) -> bool:
    leaf = spec.leaves[0]
    return leaf.kind == "image" and len(leaf.shape) == 3 and not leaf.channels_first


def stacked_space(space: gym.Space[Any], spec: ObservationSpec) -> gym.Space[Any]:
    """The environment's observation space with stacks as `spec` makes them."""
    if spec.stack == 1:
        return space
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: stacked_space(one, spec) for key, one in space.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([stacked_space(one, spec) for one in space])
    if not isinstance(space, gym.spaces.Box) or space.shape != spec.leaves[0].shape:
        return space  # an action mask
    shape = spec.seen.leaves[0].shape
    low, high = (
        merge_frames(np.repeat(bound[None], spec.stack, 0), spec).reshape(shape)
        for bound in (space.low, space.high)
    )
    return gym.spaces.Box(low, high, dtype=space.dtype.type)


def with_stack(spec: ObservationSpec, stack: int) -> ObservationSpec:
    """`spec` with stacks of `stack` observations; refuses what can't be stacked."""
    if stack > 1 and (len(spec.leaves) > 1 or spec.leaves[0].kind == "choices"):
        raise BadInput(
            f"env.frame_stack is {stack}, which needs a Box observation, and this environment has "
            f"{'several parts' if len(spec.leaves) > 1 else 'a discrete one'}"
        )
    return ObservationSpec(spec.leaves, spec.mask, stack)
