"""From an env_id and its options to columns: suites, their sources, and what an environment is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium as gym

from ..config.registry import SUITES, imported
from ..config.values import check_env_id
from ..errors import BadInput
from .columns import Columns, Resume
from .env_columns import EnvColumns, EnvMaker
from .native import BatchMaker, NativeColumns
from .spaces import ActionSpec, ObservationSpec, Specs
from .wrappers import MaskVelocity, MemoryInputs

EnvId = str | Callable[..., gym.Env[Any, Any]]
Wrappers = Sequence[str | Callable[..., gym.Env[Any, Any]]]
"""Names as module:Class, classes, or functions that take an environment and return it wrapped."""
ColumnsMaker = Callable[[int, int, int], Columns]
"""(number of environments, seed of the run, first column) → columns"""


@dataclass(frozen=True)
class Source:
    """What a suite returns for a name: how its environments are made."""

    one: EnvMaker | None = None
    """makes a single environment; None where there are only batches"""
    many: BatchMaker | None = None
    """makes a batch of environments that are stepped by one call; preferred to `one`"""
    columns: ColumnsMaker | None = None
    """makes columns of a kind of their own, such as teams; instead of the two above"""
    stack: int = 1
    """frames that a policy sees as one observation"""
    elsewhere: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """variants that a trained policy is evaluated in too: their keyword arguments, by name"""

    def __call__(self) -> Any:
        """One environment: a source is itself a callable `env_id`."""
        if self.one is None:
            raise BadInput("this source has no single environment to make")
        return self.one()[0]


def source_of(
    env_id: EnvId,
    kwargs: dict[str, Any] | None = None,
    time_limit: int | None = None,
    frame_stack: int | None = None,
    wrappers: Wrappers = (),
    vector: bool = False,
    mask_velocity: bool = False,
    memory_inputs: Sequence[str] = (),
) -> Source:
    """The source of `env_id`; refuses options that its suite does not take.

    A suite is one of `SUITES`, or a user's own as module:Function:Name; in Python also a `Source`.
    """
    try:
        check_env_id(env_id)
    except ValueError as error:
        raise BadInput(f"env_id is {str(env_id)[:60]!r}: {error}") from None
    if isinstance(env_id, Source):
        source = env_id
    else:
        suite, name = "gym", env_id
        if isinstance(env_id, str):
            if env_id.partition(":")[0] in SUITES:
                suite, _, name = env_id.partition(":")
            elif env_id.count(":") == 2:
                suite, _, name = env_id.rpartition(":")
        suite_source = imported(SUITES, suite, "env_id")
        source = suite_source(name, kwargs or {}, time_limit, wrappers)
        if mask_velocity and not vector:  # below the user's wrappers, which may change observations
            check_single("env.mask_velocity", source)
            source = suite_source(name, kwargs or {}, time_limit, (MaskVelocity, *wrappers))
            mask_velocity = False
        if vector and source.one is not None:
            from .suites.gym_vector import vector_maker

            many = vector_maker(str(env_id).removeprefix("gym:"), kwargs or {}, time_limit)
            if wrappers:
                raise BadInput("env.vector goes without env.wrappers; drop one")
            source = replace(source, many=many)
    if mask_velocity:
        source = _wrapped("env.mask_velocity", source, MaskVelocity)
    if memory_inputs:
        if frame_stack:
            raise BadInput(
                f"memory_inputs is {','.join(memory_inputs)}, and env.frame_stack is "
                f"{frame_stack}: only observations of one part are stacked; leave one of them out"
            )
        wrapper = partial(MemoryInputs, inputs=tuple(memory_inputs))
        source = _wrapped("memory_inputs", source, wrapper)
    return replace(source, stack=frame_stack or source.stack)


def _wrapped(
    option: str, source: Source, wrapper: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]
) -> Source:
    """A source of single environments, each of them wrapped."""
    check_single(option, source)
    assert source.one is not None
    one = source.one

    def made() -> tuple[gym.Env[Any, Any], int | None]:
        env, limit = one()
        return wrapper(env), limit

    return replace(source, one=made)


def check_single(option: str, source: Source) -> None:
    """Refuse an option for environments that are stepped as a batch."""
    if source.one is None or source.many is not None or source.columns is not None:
        raise BadInput(
            f"{option} is for environments that are made one by one, and these are stepped as a "
            "batch; leave it out, or choose a suite of single ones (minigrid: instead of envpool:, "
            "no --env.vector)"
        )


@dataclass(frozen=True)
class EnvInfo:
    """What a run needs to know of its environment before it makes columns of it."""

    env_id: EnvId
    options: dict[str, Any]
    """arguments of `source_of`"""
    obs_spec: ObservationSpec
    act_spec: ActionSpec
    resume: Resume
    columns_per_env: int = 1

    def columns(self, num_envs: int, seed: int, first_column: int = 0, threads: int = 1) -> Columns:
        specs = self.obs_spec, self.act_spec
        more = {"specs": specs, "threads": threads, **self.options}
        return make_columns(self.env_id, num_envs, seed, first_column, **more)


def inspect_env(env_id: EnvId, **options: Any) -> EnvInfo:
    """Make one environment to read its spaces."""
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
    default_time_limit: int | None = None,
    **options: Any,
) -> Columns:
    """`num_envs` environments side by side; `options` are those of `source_of`.

    `threads` step environments that come as a batch. `default_time_limit` truncates episodes of
    single environments that have no limit of their own.
    """
    source = source_of(env_id, **options)
    if source.columns is not None:
        return source.columns(num_envs, seed, first_column)
    if source.many is None:
        assert source.one is not None
        return EnvColumns(
            source.one,
            num_envs,
            seed,
            first_column,
            masks,
            specs,
            source.stack,
            default_time_limit,
        )
    if specs is None and source.one is not None:
        with EnvColumns(source.one, 1, seed, stack=source.stack) as single:
            specs = single.obs_spec, single.act_spec
    native = NativeColumns(source.many, num_envs, seed, first_column, source.stack, threads)
    if specs not in (None, (native.obs_spec, native.act_spec)):
        native.close()
        raise BadInput(
            f"env.vector: {env_id} shows something else in its vector implementation, or "
            "has action masks there that can't be asked for; leave --env.vector off"
        )
    return native


def single_agent_columns(
    env_id: EnvId, num_envs: int, **options: Any
) -> EnvColumns | NativeColumns:
    """`make_columns`; refuses environments with several agents."""
    columns = make_columns(env_id, num_envs, **options)
    if not isinstance(columns, EnvColumns | NativeColumns):
        columns.close()
        raise BadInput(f"{env_id} has several agents in an environment; this takes single ones")
    return columns
