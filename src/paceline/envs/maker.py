"""env_maker: from an env_id and its options to how one such environment is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym
import numpy as np

from ..errors import BadInput
from ..registry import SUITES, imported
from ..spaces import ActionSpec, ObservationSpec, observation_spec
from .columns import EnvColumns, EnvMaker, Specs
from .gym import trusting
from .native import NativeColumns

if TYPE_CHECKING:
    from . import Columns

EnvId = str | Callable[..., gym.Env[Any, Any]]


def env_maker(
    env_id: EnvId,
    kwargs: dict[str, Any] | None = None,
    time_limit: int | None = None,
    frame_stack: int = 1,
    wrappers: tuple[str, ...] = (),
    vector: bool = False,
) -> EnvMaker:
    """Check `env_id` and its options, and return how to make one such environment."""
    kwargs = kwargs or {}
    suite, name = "gym", env_id
    if isinstance(env_id, str) and env_id.partition(":")[0] in SUITES:
        suite, _, name = env_id.partition(":")
    make: EnvMaker = imported(SUITES, suite)(name, kwargs, time_limit, wrappers)
    if vector:
        _check_vector(env_id, frame_stack, wrappers)
    if frame_stack > 1:
        make = _stacked(make, frame_stack)
    return make


@dataclass(frozen=True)
class World:
    """An environment as a run needs to know it: what it looks like, and how columns are made."""

    env_id: EnvId
    options: dict[str, Any]
    """of `env_maker`"""
    obs_spec: ObservationSpec
    act_spec: ActionSpec
    resume: Literal["replay", "state", "none"]

    @property
    def make(self) -> EnvMaker:
        """How one environment is made."""
        return env_maker(self.env_id, **self.options)

    def columns(self, num_envs: int, seed: int, first_column: int = 0) -> Columns:
        specs = self.obs_spec, self.act_spec
        return make_columns(self.env_id, num_envs, seed, first_column, specs=specs, **self.options)


def look_at(env_id: EnvId, **options: Any) -> World:
    """Make one such environment to see what it is like."""
    with make_columns(env_id, 1, **options) as columns:
        return World(env_id, options, columns.obs_spec, columns.act_spec, columns.resume)


def make_columns(
    env_id: EnvId,
    num_envs: int,
    seed: int = 0,
    first_column: int = 0,
    masks: bool = True,
    specs: Specs | None = None,
    **options: Any,
) -> EnvColumns | NativeColumns:
    """`num_envs` environments side by side; with `vector` in their own vector implementation."""
    make = env_maker(env_id, **options)
    if not options.get("vector"):
        # Who knows what it looks like acts by a policy.
        make = make if specs is None else trusting(make)
        return EnvColumns(make, num_envs, seed, first_column, masks, specs)
    if specs is None:
        with EnvColumns(make, 1, seed) as single:
            specs = single.obs_spec, single.act_spec
    kwargs = dict(options.get("kwargs") or {})
    if options.get("time_limit"):
        kwargs["max_episode_steps"] = options["time_limit"]
    native = NativeColumns(str(env_id).removeprefix("gym:"), kwargs, num_envs, seed, first_column)
    if specs != (native.obs_spec, native.act_spec):
        native.close()
        raise BadInput(
            f"env.vector: {env_id} shows something else in its vector implementation, or "
            "has action masks there that can't be asked for; leave --env.vector off"
        )
    return native


def _check_vector(env_id: EnvId, frame_stack: int, wrappers: tuple[str, ...]) -> None:
    name = env_id.removeprefix("gym:") if isinstance(env_id, str) else ""
    known = gym.registry.get(name.rpartition(":")[2])
    if known is None or known.vector_entry_point is None:
        having = [name for name, spec in gym.registry.items() if spec.vector_entry_point]
        raise BadInput(
            f"env.vector: {env_id} has no vector implementation of its own; leave --env.vector "
            f"off (of Gymnasium's, {', '.join(having)} have one)"
        )
    if frame_stack > 1 or wrappers:
        raise BadInput("env.vector goes with neither env.frame_stack nor env.wrappers; drop one")


def _stacked(make: EnvMaker, frames: int) -> EnvMaker:
    """The last `frames` observations as one; those of images become its channels."""

    def stacked() -> tuple[gym.Env[Any, Any], int | None]:
        env, limit = make()
        space = env.observation_space
        if not isinstance(space, gym.spaces.Box):
            raise BadInput(
                f"env.frame_stack is {frames}, which needs a Box observation, "
                f"and this environment has {space}"
            )
        leaf = observation_spec(space).leaves[0]
        env = gym.wrappers.FrameStackObservation(env, frames)
        if leaf.kind == "image" and len(leaf.shape) == 3:
            axis = 0 if leaf.channels_first else 2
            low, high = (
                np.concatenate([bound] * frames, axis) for bound in (space.low, space.high)
            )
            channels = gym.spaces.Box(low, high, dtype=space.dtype.type)
            env = gym.wrappers.TransformObservation(
                env, lambda stack: np.concatenate(stack, axis), channels
            )
        return env, limit

    return stacked
