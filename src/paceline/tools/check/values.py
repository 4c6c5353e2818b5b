"""What one step returned against what the spaces promise: observation, reward, flags, mask, info.

Each check yields faults; `findings_of` makes one finding of all faults of a kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ...envs.spaces import ACTION_MASK, ActionSpec
from .acting import flattened, raw_mask
from .compare import brief
from .environment import Answer, shown_kind
from .finding import Finding, Level
from .leaves import Fault, leaf_faults

HUGE_INFO = 100_000
"""Bytes of an info that cost time at every step."""


class Kind(NamedTuple):
    """What is to be said of every fault of a kind."""

    level: Level
    topic: str
    why: str
    fix: str


STOPS = "a run ends at the first of these, with exit code 3"
SPOILS = "one such number would spoil every weight, so a run ends at the first, with exit code 3"
KINDS = {
    "structure": Kind(
        *("wrong", "observation", "the network is built for what the space says; the step fails"),
        "return every part that observation_space names, and declare every part you return",
    ),
    "shape": Kind(
        *("wrong", "observation", "the network is built for the declared shape; the step fails"),
        "declare the shape that you return, or reshape before returning",
    ),
    "kind": Kind(
        *("wrong", "observation", "it can't be stored as numbers of the space's kind"),
        "return what the space describes, such as np.asarray(observation, np.float32)",
    ),
    "rounded": Kind(
        *("wrong", "observation", "stored as whole numbers they lose what is after the point"),
        "declare a Box of np.float32, or return whole numbers",
    ),
    "nan": Kind(
        *("wrong", "observation", SPOILS),
        "find the division, root or logarithm that makes it, and bound its argument",
    ),
    "choice": Kind(
        *("wrong", "observation", STOPS),
        "make the Discrete as large as the largest value, and mind its start",
    ),
    "outside": Kind(
        *("risky", "observation", "whatever scales or clips by the bounds is misled by them"),
        "widen low and high of the Box (np.inf if you do not know), or clip the observation",
    ),
    "near": Kind(
        *("note", "observation", "it is not by much, and Paceline does not scale by the bounds"),
        "widen low and high of the Box a little",
    ),
    "dtype": Kind(
        *("note", "observation", "it is converted at every step, which takes a little time"),
        "return the type that the space declares, best np.float32 (np.uint8 for images)",
    ),
    "undeclared": Kind(
        *("note", "observation", "parts that the space does not name are never seen"),
        "add them to observation_space, or leave them out",
    ),
    "reward": Kind(
        *("wrong", "reward", "there is nothing to learn from what is not a number"),
        "return a float",
    ),
    "reward nan": Kind(
        *("wrong", "reward", SPOILS),
        "find the division, root or logarithm that makes it, and bound its argument",
    ),
    "reward array": Kind(
        *("risky", "reward", "libraries disagree about an array that stands for a number"),
        "return float(reward)",
    ),
    "flag": Kind(
        *("wrong", "flags", "whatever is not 0 counts as true, so that episodes end by accident"),
        "return bool(…) for both terminated and truncated",
    ),
    "flag type": Kind(
        *("note", "flags", "Paceline takes it for what it means; other libraries may not"),
        "return bool(…) for both terminated and truncated",
    ),
    "mask length": Kind(
        *("wrong", "mask", "it can't say which actions are allowed; the step fails"),
        "give one entry for each action, 1 where it is allowed",
    ),
    "mask empty": Kind(
        *("wrong", "mask", "where nothing is allowed, everything is: forbidden actions are taken"),
        "allow at least one action in every state, or end the episode there",
    ),
    "info": Kind(
        *("note", "info", "making it takes time at every step, and nobody reads it"),
        "put large things into info only when they are asked for",
    ),
}


def faults(answer: Answer, space: gym.Space[Any], spec: ActionSpec, over: bool) -> Iterator[Fault]:
    """What is not as it should be; `over` where the episode has ended with it."""
    yield from leaf_faults(space, answer.obs)
    yield from _reward_faults(answer.reward)
    for name in ("terminated", "truncated"):
        yield from _flag_faults(name, getattr(answer, name))
    yield from _mask_faults(answer, spec, over)
    if (size := _size(answer.info)) > HUGE_INFO:
        yield Fault("info", "", f"info holds {size / 1e6:.1f} MB")


def _reward_faults(reward: Any) -> Iterator[Fault]:
    if getattr(reward, "shape", ()) != ():
        shape = tuple(reward.shape)
        if np.prod(shape) == 1:
            yield Fault("reward array", "", f"the reward is an array of shape {shape}")
        else:
            yield Fault("reward", "", f"the reward is an array of shape {shape}")
        return
    try:
        number = float(reward)
        if isinstance(reward, str):
            raise TypeError
    except (TypeError, ValueError):
        yield Fault("reward", "", f"the reward is {brief(reward)}, {_kind_of(reward)}")
        return
    if not np.isfinite(number):
        yield Fault("reward nan", "", f"the reward is {number}")


def _flag_faults(name: str, flag: Any) -> Iterator[Fault]:
    if isinstance(flag, (bool, np.bool_)):
        return
    try:
        value = np.asarray(flag)
        plain = value.size == 1 and value.item() in (0, 1)
    except (TypeError, ValueError):
        plain = False
    said = f"{name} is {brief(flag)}, {_kind_of(flag)}, and not a bool"
    yield Fault("flag type" if plain else "flag", name, said)


def _mask_faults(answer: Answer, spec: ActionSpec, over: bool) -> Iterator[Fault]:
    mask = raw_mask(answer.obs, answer.info)
    if mask is None or not spec.choices:
        return
    wanted = sum(spec.choices)
    try:
        flat = flattened(mask)
    except (TypeError, ValueError):
        yield Fault("mask length", "", f"{ACTION_MASK} is {brief(mask)}")
        return
    if len(flat) != wanted:
        said = f"{ACTION_MASK} has {len(flat)} entries, and there are {wanted} actions"
        yield Fault("mask length", "", said)
    elif not over and not np.logical_or.reduceat(flat, np.cumsum((0, *spec.choices[:-1]))).all():
        yield Fault("mask empty", "", f"{ACTION_MASK} allows no action at all")


def _size(value: Any, depth: int = 3) -> int:
    """Bytes of what is large in an info."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping) and depth:
        return sum(_size(part, depth - 1) for part in value.values())
    if isinstance(value, (list, tuple)):
        return 8 * len(value) + sum(_size(part, depth - 1) for part in value[:10] if depth)
    return int(getattr(value, "nbytes", 0))


def _kind_of(value: Any) -> str:
    return shown_kind(value) if hasattr(value, "shape") else f"of type {type(value).__name__}"


class Faults:
    """The faults of many steps: of each kind and place the first, and how often it was seen."""

    def __init__(self, *ignored: str) -> None:
        """Kinds that are `ignored` are not to be told."""
        self._ignored = ignored
        self._first: dict[tuple[str, str], tuple[Fault, str]] = {}
        self._times: Counter[tuple[str, str]] = Counter()

    def note(self, fault: Fault, when: str) -> None:
        if fault.kind in self._ignored:
            return
        key = fault.kind, fault.place
        self._first.setdefault(key, (fault, when))
        self._times[key] += 1

    def findings(self, answers: int) -> Iterator[Finding]:
        for key, (fault, when) in self._first.items():
            if fault.kind == "near" and ("outside", fault.place) in self._first:
                continue
            kind, more = KINDS[fault.kind], self._times[key] - 1
            times = "once" if more == 1 else f"{more:,} times"
            again = f", and {times} more in {answers:,} answers" if more else ""
            said = f"{fault.text} ({when}{again})"
            yield Finding(kind.level, kind.topic, said, kind.why, kind.fix)
