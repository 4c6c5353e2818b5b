"""From an env_id and its options to environments: how they are made, and what they are like."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from ..config.registry import SUITES, imported
from ..errors import BadInput
from .columns import EnvColumns, Resume
from .native import NativeColumns
from .source import Source
from .spaces import ActionSpec, ObservationSpec, Specs
from .suites.gym import trusting

if TYPE_CHECKING:
    from . import Columns

EnvId = str | Callable[..., gym.Env[Any, Any]]


def source_of(
    env_id: EnvId,
    kwargs: dict[str, Any] | None = None,
    time_limit: int | None = None,
    frame_stack: int | None = None,
    wrappers: tuple[str, ...] = (),
    vector: bool = False,
) -> Source:
    """What makes such environments, if `env_id` and its options are right.

    A suite is one of `SUITES`, or a user's own as module:Function:Name; in Python also a `Source`.
    """
    suite, name = "gym", env_id
    if isinstance(env_id, Source):
        return env_id
    if isinstance(env_id, str):
        if env_id.partition(":")[0] in SUITES:
            suite, _, name = env_id.partition(":")
        elif env_id.count(":") == 2:
            suite, _, name = env_id.rpartition(":")
    source: Source = imported(SUITES, suite, "env_id")(name, kwargs or {}, time_limit, wrappers)
    if vector and source.one is not None:
        from .suites.gym_vector import vector_maker

        many = vector_maker(str(env_id).removeprefix("gym:"), kwargs or {}, time_limit)
        if wrappers:
            raise BadInput("env.vector goes without env.wrappers; drop one")
        source = replace(source, many=many)
    return source


@dataclass(frozen=True)
class EnvInfo:
    """An environment as a run needs to know it: what it looks like, and how columns are made."""

    env_id: EnvId
    options: dict[str, Any]
    """of `source_of`"""
    obs_spec: ObservationSpec
    act_spec: ActionSpec
    resume: Resume
    columns_per_env: int = 1

    def columns(self, num_envs: int, seed: int, first_column: int = 0, threads: int = 1) -> Columns:
        specs = self.obs_spec, self.act_spec
        more = {"specs": specs, "threads": threads, **self.options}
        return make_columns(self.env_id, num_envs, seed, first_column, **more)


def inspect_env(env_id: EnvId, **options: Any) -> EnvInfo:
    """Make one such environment to see what it is like."""
    with closing(make_columns(env_id, 1, **options)) as columns:
        specs = columns.obs_spec, columns.act_spec
        return EnvInfo(env_id, options, *specs, columns.resume, columns.columns_per_env)


def make_columns(
    env_id: EnvId,
    num_envs: int,
    seed: int = 0,
    first_column: int = 0,
    masks: bool = True,
    specs: Specs | None = None,
    threads: int = 1,
    longest: int | None = None,
    **options: Any,
) -> Columns:
    """`num_envs` environments side by side; `threads` step those that come as a batch.

    Episodes of single environments without a time limit are cut off when they are `longest`.
    """
    source = source_of(env_id, **options)
    if source.columns is not None:
        return source.columns(num_envs, seed, first_column)
    make, stack = source.one, options.get("frame_stack") or source.stack
    if make is not None and source.many is None:
        # Who knows what it looks like acts by a policy.
        make = make if specs is None else trusting(make)
        return EnvColumns(make, num_envs, seed, first_column, masks, specs, stack, longest)
    assert source.many is not None
    if specs is None and make is not None:
        with EnvColumns(make, 1, seed, stack=stack) as single:
            specs = single.obs_spec, single.act_spec
    native = NativeColumns(source.many, num_envs, seed, first_column, stack, threads)
    if specs not in (None, (native.obs_spec, native.act_spec)):
        native.close()
        raise BadInput(
            f"env.vector: {env_id} shows something else in its vector implementation, or "
            "has action masks there that can't be asked for; leave --env.vector off"
        )
    return native


def plain_columns(env_id: EnvId, num_envs: int, **options: Any) -> EnvColumns | NativeColumns:
    """`make_columns`, of a suite whose columns are single environments."""
    columns = make_columns(env_id, num_envs, **options)
    if not isinstance(columns, EnvColumns | NativeColumns):
        columns.close()
        raise BadInput(f"{env_id} has several agents in an environment; this takes single ones")
    return columns
