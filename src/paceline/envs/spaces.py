"""Observation and action spaces as plain data that JSON can hold, and how rollouts store them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
from annotated_types import Ge, MaxLen, MinLen

from ..errors import BadInput
from ..rollout import Array, ShapeDtype

SMALLEST_IMAGE = 8
ACTION_MASK = "action_mask"
"""Key, in a Dict observation or in `info`, of the mask of allowed actions."""
LONGEST_TEXT = 300

STRICT = {"extra": "forbid"}
"""Pydantic's configuration for reading saved specs: unknown fields are an error."""

Path = tuple[str | int, ...]
"""Keys of Dicts and positions in Tuples that lead to a leaf."""


@dataclass(frozen=True)
class Leaf:
    """A plain space within an observation: numbers, choices (stored one-hot), or an image."""

    __pydantic_config__ = STRICT

    path: Annotated[Path, MaxLen(64)]
    kind: Literal["numbers", "choices", "image"]
    shape: tuple[int, ...]
    dtype: str = "float32"
    sizes: tuple[int, ...] = ()
    """number of values of each choice"""
    starts: tuple[int, ...] = ()
    """first value of each choice"""
    channels_first: bool = False

    @property
    def size(self) -> int:
        """Features that it has in a vector."""
        return sum(self.sizes) if self.kind == "choices" else int(np.prod(self.shape))

    @cached_property
    def owner(self) -> Array:
        """[size] the choice that each one-hot feature belongs to"""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def meaning(self) -> Array:
        """[size] the value that each one-hot feature stands for"""
        values = [np.arange(n) + start for n, start in zip(self.sizes, self.starts, strict=True)]
        return np.concatenate(values)

    def stacked(self, frames: int) -> Leaf:
        """`frames` of them as one: along the channels of an image, else along a new first axis."""
        if self.kind != "image" or len(self.shape) == 2:
            shape = (frames, *self.shape)
        elif self.channels_first:
            shape = (frames * self.shape[0], *self.shape[1:])
        else:
            shape = (*self.shape[:2], frames * self.shape[2])
        first = self.kind == "image" and (self.channels_first or len(self.shape) == 2)
        return replace(self, shape=shape, channels_first=first)


@dataclass(frozen=True)
class ObservationSpec:
    """The leaves of an observation, and how it is stored in a rollout.

    The parts that are stored, where they exist: `index`, the category of an observation that is
    a single Discrete; `vector`, all numbers and one-hot choices side by side; `image0`, `image1`,
    …; and `mask`, the allowed actions. A single part is a plain array, several are one array with
    named fields.
    """

    __pydantic_config__ = STRICT

    leaves: Annotated[tuple[Leaf, ...], MinLen(1)]
    mask: tuple[Annotated[int, Ge(1)], ...] = ()
    """number of values of each choice that the action mask covers; empty without a mask"""
    stack: Annotated[int, Ge(1)] = 1
    """latest observations that a policy sees as one; a rollout stores each of them once"""

    @cached_property
    def seen(self) -> ObservationSpec:
        """The observation that a policy sees: stacked."""
        if self.stack == 1:
            return self
        (leaf,) = self.leaves
        return ObservationSpec((leaf.stacked(self.stack),), self.mask)

    @property
    def history(self) -> tuple[int, ShapeDtype]:
        """How many older observations a rollout's first stacks need, and how each is stored."""
        return self.stack - 1, next(iter(self.parts.values()))

    @cached_property
    def kind(self) -> Literal["vector", "image", "discrete", "mixed"]:
        if self.images:
            return "image" if len(self.leaves) == 1 else "mixed"
        leaf = self.leaves[0]
        discrete = len(self.leaves) == 1 and leaf.kind == "choices" and leaf.shape == ()
        return "discrete" if discrete else "vector"

    @cached_property
    def parts(self) -> dict[str, ShapeDtype]:
        """Shape and dtype of what is stored, by name."""
        parts: dict[str, ShapeDtype] = {}
        if self.kind == "discrete":
            parts["index"] = ((), np.int64)
        elif len(self.images) < len(self.leaves):
            parts["vector"] = ((self.size,), np.float32)
        for number, leaf in enumerate(self.images):
            parts[f"image{number}"] = (leaf.shape, np.dtype(leaf.dtype))
        if self.mask:
            parts["mask"] = ((sum(self.mask),), np.bool_)
        if list(parts) == ["vector"] and self.plain:
            parts["vector"] = (self.leaves[0].shape, np.float32)
        return parts

    @cached_property
    def stored(self) -> ShapeDtype:
        """Shape and dtype of one observation in a rollout."""
        if len(self.parts) == 1:
            return next(iter(self.parts.values()))
        fields = [(name, dtype, shape) for name, (shape, dtype) in self.parts.items()]
        return (), np.dtype(fields, align=True)

    def split(self, obs: Array) -> dict[str, Array]:
        """Views of the parts of stored observations."""
        if len(self.parts) == 1:
            return dict.fromkeys(self.parts, obs)
        return {name: obs[name] for name in self.parts}

    @cached_property
    def plain(self) -> bool:
        """Whether an observation is stored as the environment returns it."""
        leaf = self.leaves[0]
        return leaf.path == () and not self.mask and (leaf.kind != "choices" or not leaf.shape)

    @property
    def places(self) -> Iterator[tuple[Leaf, str, slice]]:
        """Of each leaf, the part that holds it and its features within the vector."""
        at = images = 0
        for leaf in self.leaves:
            if leaf.kind == "image":
                yield leaf, f"image{images}", slice(0)
                images += 1
            else:
                yield leaf, "vector", slice(at, at + leaf.size)
                at += leaf.size

    @property
    def images(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.kind == "image"]

    @cached_property
    def size(self) -> int:
        """Features of the vector, or categories of a discrete observation."""
        return sum(leaf.size for leaf in self.leaves if leaf.kind != "image")

    @property
    def start(self) -> int:
        """First category of a discrete observation."""
        return self.leaves[0].starts[0] if self.kind == "discrete" else 0

    @cached_property
    def numeric(self) -> Array:
        """[size] which features of the vector are numbers, as opposed to one-hot choices."""
        flat = [leaf for leaf in self.leaves if leaf.kind != "image"]
        return np.repeat([leaf.kind == "numbers" for leaf in flat], [leaf.size for leaf in flat])

    def __str__(self) -> str:
        """As Gymnasium writes it, but without the bounds of a Box, which are not part of a spec."""
        space = _nested_text(unflatten((leaf.path, _leaf_text(leaf)) for leaf in self.leaves))
        mask = f" with an {ACTION_MASK} of {sum(self.mask)}" if self.mask else ""
        return _shortened(space) + mask


@dataclass(frozen=True)
class ActionSpec:
    """`discrete` with `size` values; `multi`, several choices with `sizes` values each; or `box`
    with `size` numbers within `low` and `high`."""

    __pydantic_config__ = STRICT

    kind: Literal["discrete", "multi", "box"]
    size: Annotated[int, Ge(1)]
    shape: tuple[int, ...] = ()
    dtype: str = "int64"
    start: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    @property
    def stored(self) -> ShapeDtype:
        """Shape and dtype of one action in a rollout."""
        if self.kind == "multi":
            return (len(self.sizes),), np.int64
        return ((), np.int64) if self.kind == "discrete" else ((self.size,), np.float32)

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of values of each choice that a mask has to cover; empty for a Box."""
        return () if self.kind == "box" else self.sizes or (self.size,)

    def __str__(self) -> str:
        if self.kind != "box":
            text = _choices_text(self.choices, self.starts or (self.start,), self.shape)
            return _shortened(text)
        low, high = (
            bound[0] if len(set(bound)) == 1 else list(bound) for bound in (self.low, self.high)
        )
        return _shortened(f"Box({low}, {high}, {self.shape}, {self.dtype})")


Specs = tuple[ObservationSpec, ActionSpec]


def policy_mismatch(policy: Specs, env: Specs, env_id: Any = "the environment") -> str | None:
    """Says in what spaces a policy acts, and what those of `env_id` are; None if they are equal."""
    if policy == env:
        return None
    name = env_id if isinstance(env_id, str) else getattr(env_id, "__name__", type(env_id).__name__)
    return (
        f"this policy takes observations of {policy[0]} and gives actions of {policy[1]}; "
        f"{name} shows {env[0]} and takes {env[1]}"
    )


def observation_spec(
    space: gym.Space[Any], act: ActionSpec | None = None, info: dict[str, Any] | None = None
) -> ObservationSpec:
    """The spec of `space`; `act` and the `info` of a reset are needed to find action masks."""
    choices = act.choices if act else ()
    mask = choices if ACTION_MASK in (info or {}) else ()
    leaves = []
    entries = 0
    for leaf in _leaves(space, ()):
        if choices and leaf.path[:1] == (ACTION_MASK,):
            entries += int(np.prod(leaf.shape))
            mask = choices
        else:
            leaves.append(leaf)
    if entries and entries != sum(choices):
        raise BadInput(
            f"the observation's {ACTION_MASK} has {entries} entries, "
            f"and there are {sum(choices)} actions to allow or not"
        )
    if not any(leaf.size for leaf in leaves):
        raise BadInput(f"the environment's observation space is {space}: there is nothing to see")
    return ObservationSpec(tuple(leaves), mask)


def _leaves(space: gym.Space[Any], path: Path) -> Iterator[Leaf]:
    if isinstance(space, gym.spaces.Dict):
        for key, inner in space.spaces.items():
            if not isinstance(key, str):
                raise _unusable("observation", space, path, "a Dict with names as keys")
            yield from _leaves(inner, (*path, key))
    elif isinstance(space, gym.spaces.Tuple):
        for position, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*path, position))
    elif isinstance(space, gym.spaces.Discrete):
        yield Leaf(path, "choices", (), "int64", (int(space.n),), (int(space.start),))
    elif isinstance(space, gym.spaces.MultiDiscrete):
        yield Leaf(path, "choices", space.shape, "int64", _ints(space.nvec), _ints(space.start))
    elif isinstance(space, gym.spaces.MultiBinary):
        yield Leaf(path, "numbers", space.shape)
    elif isinstance(space, gym.spaces.Box):
        yield _box_leaf(space, path)
    else:
        known = "Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
        raise _unusable("observation", space, path, known)


def _box_leaf(space: gym.spaces.Box, path: Path) -> Leaf:
    """An image if it has three axes, or two of uint8, of which two are large enough to convolve."""
    sides = sorted(space.shape)[-2:]
    dimensions, of_bytes = len(space.shape), space.dtype == np.uint8
    if not ((dimensions == 3 or (dimensions == 2 and of_bytes)) and sides[0] >= SMALLEST_IMAGE):
        return Leaf(path, "numbers", space.shape)
    shape = space.shape if dimensions == 3 else (1, *space.shape)
    first = shape[0] < min(shape[1], shape[2])
    return Leaf(path, "image", space.shape, str(space.dtype), channels_first=first)


def action_spec(space: gym.Space[Any]) -> ActionSpec:
    """The spec of `space`; MultiBinary is several choices of two values."""
    if isinstance(space, gym.spaces.Discrete):
        return ActionSpec("discrete", int(space.n), start=int(space.start))
    if isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        sizes = _ints(getattr(space, "nvec", np.full(space.shape, 2)))
        starts = _ints(getattr(space, "start", np.zeros(space.shape)))
        return ActionSpec(
            "multi", sum(sizes), space.shape, str(space.dtype), sizes=sizes, starts=starts
        )
    if isinstance(space, gym.spaces.Box) and int(np.prod(space.shape)):
        low, high = (tuple(map(float, bound.ravel())) for bound in (space.low, space.high))
        size = int(np.prod(space.shape))
        return ActionSpec("box", size, space.shape, str(space.dtype), low=low, high=high)
    raise _unusable("action", space, (), "Discrete, MultiDiscrete, MultiBinary or Box")


def _ints(numbers: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in np.ravel(numbers))


def _unusable(role: str, space: gym.Space[Any], path: Path, known: str) -> BadInput:
    where = f"'s {role} space has, at {path_text(path)}," if path else f"'s {role} space is"
    wrapper = "ObservationWrapper" if role == "observation" else "ActionWrapper"
    return BadInput(
        f"the environment{where} {space}, which no policy here can use; it has to be {known}. "
        f"Leave it out or encode it in a wrapper of yours (a gymnasium.{wrapper}), given as "
        "--env.wrappers module:Class"
    )


def unflatten(leaves: Iterable[tuple[Path, Any]]) -> Any:
    """Values nested by their paths: a value, a dict, or a tuple."""
    inner: dict[str | int, list[tuple[Path, Any]]] = {}
    for path, value in leaves:
        if not path:
            return value
        inner.setdefault(path[0], []).append((path[1:], value))
    if all(isinstance(key, int) for key in inner):
        return tuple(unflatten(group) for group in inner.values())
    return {key: unflatten(group) for key, group in inner.items()}


# Specs as text. A spec may come from a stranger's file, so no array of the size that it claims is
# allocated, as a gym.Space would.


def path_text(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)


def _nested_text(space: Any) -> str:
    """Of the text of a leaf, or of a dict or tuple of such."""
    if isinstance(space, dict):
        inner = (f"{key!r}: {_nested_text(value)}" for key, value in space.items())
        return f"Dict({', '.join(inner)})"
    if isinstance(space, tuple):
        return f"Tuple({', '.join(map(_nested_text, space))})"
    return str(space)


def _leaf_text(leaf: Leaf) -> str:
    if leaf.kind != "choices":
        dtype = "" if leaf.dtype == "float32" else f" of {leaf.dtype}"
        return f"Box{leaf.shape}{dtype}"
    return _choices_text(leaf.sizes, leaf.starts, leaf.shape)


def _choices_text(sizes: Sequence[int], starts: Sequence[int], shape: tuple[int, ...]) -> str:
    if shape == ():
        return f"Discrete({sizes[0]}, start={starts[0]})" if starts[0] else f"Discrete({sizes[0]})"
    start = f", start={list(starts)}" if any(starts) else ""
    several_axes = f", shape={shape}" if len(shape) > 1 else ""
    return f"MultiDiscrete({list(sizes)}{start}{several_axes})"


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} …"


def random_actions(
    generator: np.random.Generator, spec: ActionSpec, mask: Array | None, rows: int = 1
) -> Array:
    """[R, ...] as a policy gives them; none that `mask[R, choices]` forbids."""
    if spec.kind == "box":
        return generator.standard_normal((rows, spec.size)).astype(np.float32)
    scores = generator.random((rows, sum(spec.choices)))
    if mask is not None:
        scores *= mask
    ends = np.cumsum(spec.choices)[:-1]
    chosen = np.stack([part.argmax(1) for part in np.split(scores, ends, 1)], 1)
    return chosen if spec.kind == "multi" else chosen[:, 0]
