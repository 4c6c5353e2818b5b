"""Player: one instance and random actions for it, episode after episode, as a run would play."""

from __future__ import annotations

import copy
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from ...envs.env_columns import is_gymnasium_env
from ...envs.spaces import ActionSpec
from .acting import RandomActions
from .compare import alike, brief, flat_numbers
from .environment import Answer, Instance

NEXT_SEED = 7919
"""Between the seeds of one episode and the next."""


class Moment(NamedTuple):
    """One answer, kept as it was: nothing that happens later changes it."""

    begins: bool
    obs: Any
    reward: Any
    terminated: bool
    truncated: bool


class Player:
    """Plays on for ever: after an end it resets, with a new seed."""

    def __init__(self, instance: Instance, spec: ActionSpec, seed: int, actions: int = 0) -> None:
        self.instance = instance
        self._actions = RandomActions(spec, actions, is_gymnasium_env(instance.env.unwrapped))
        self._seed = seed
        self._last: Answer | None = None
        self.changed_action = False

    def next(self) -> tuple[bool, Answer, bool]:
        """Whether this begins an episode, what the environment answered, whether it has ended."""
        if self._last is None:
            self._last = self.instance.reset(self._seed)
            self._seed += NEXT_SEED
            return True, self._last, False
        action = self._actions.next(self._last.obs, self._last.info)
        given = action.copy() if isinstance(action, np.ndarray) else action
        answer = self.instance.step(action)
        self.changed_action = self.changed_action or not alike(given, action)
        limit = self.instance.limit
        over = true(answer.terminated) or true(answer.truncated)
        over = over or (limit is not None and self.instance.age >= limit)
        self._last = None if over else answer
        return False, answer, over

    def moment(self) -> Moment:
        begins, answer, _ = self.next()
        obs, reward = copy.deepcopy((answer.obs, answer.reward))
        return Moment(begins, obs, reward, true(answer.terminated), true(answer.truncated))

    def moments(self, number: int) -> list[Moment]:
        return [self.moment() for _ in range(number)]


def true(flag: Any) -> bool:
    """A flag, whatever it was written as."""
    if isinstance(flag, bool):
        return flag
    try:
        return bool(np.any(flag))
    except (TypeError, ValueError):
        return bool(flag)


def difference(one: list[Moment], other: list[Moment]) -> str | None:
    """Where two histories part, in a few words; None if they do not."""
    step = 0
    for left, right in zip(one, other, strict=False):
        step = 0 if left.begins else step + 1
        when = f"after step {step}" if step else "after reset"
        if left.begins != right.begins:
            return f"{when} one begins a new episode and the other does not"
        if not alike(left.obs, right.obs):
            return f"{when} the observation is {_parted(left.obs, right.obs)}"
        for name in ("reward", "terminated", "truncated"):
            values = getattr(left, name), getattr(right, name)
            if not alike(*values):
                return f"{when} {name} is {brief(values[0])} and {brief(values[1])}"
    return None


def slightly(one: list[Moment], other: list[Moment], most: float) -> bool:
    """Whether two histories part within an episode, and by no more than that at first."""
    for left, right in zip(one, other, strict=False):
        if difference([left], [right]):
            here, there = (flat_numbers((moment.obs, moment.reward)) for moment in (left, right))
            close = here.shape == there.shape and np.allclose(here, there, most, most)
            return close and not left.begins and left[3:] == right[3:]
    return True


def _parted(one: Any, other: Any) -> str:
    """Both of them; of a structure only the part that differs."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one:
            if key not in other or not alike(one[key], other[key]):
                return f"{brief({key: one[key]})} and {brief({key: other.get(key)})}"
    if isinstance(one, np.ndarray) and np.shape(one) == np.shape(other) and one.size > 6:
        at = tuple(int(i) for i in np.argwhere(one != np.asarray(other))[:1].ravel())
        entry = at[0] if len(at) == 1 else at
        return f"{brief(one[at])} and {brief(other[at])} at entry {entry}"
    return f"{brief(one)} and {brief(other)}"


def digest(moments: list[Moment]) -> str:
    """A fingerprint that another process can compare."""
    mixed = blake2b(digest_size=16)

    def mix(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                mix(str(key))
                mix(value[key])
        elif isinstance(value, (tuple, list)):
            for part in value:
                mix(part)
        elif isinstance(value, str):
            mixed.update(value.encode())
        else:
            array = np.asarray(value)
            mixed.update(repr(value).encode() if array.dtype.hasobject else array.tobytes())

    for moment in moments:
        mix(tuple(moment))
    return mixed.hexdigest()
