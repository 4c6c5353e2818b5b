"""Gymnasium environments: a registered id, `module:Id-v0`, or a callable that makes one."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import cloudpickle
import gymnasium as gym

from ...config.registry import imported, name_of
from ...errors import BadInput
from ..guards import ENV_ERRORS, describe
from ..source import Source, Wrappers
from . import rejected_kwargs, unknown_name

log = logging.getLogger("paceline")

IMPORTED_BY_WORKERS = ("gymnasium.", "ale_py.", "minigrid.", "popgym.")
"""Packages whose environments a worker registers by itself."""


def names() -> list[str]:
    return sorted(gym.registry)


def environment(
    env_id: str | Callable[..., gym.Env[Any, Any]],
    kwargs: dict[str, Any],
    time_limit: int | None,
    wrappers: Wrappers,
) -> Source:
    """Where no wrapper can observe the difference, columns apply the time limit themselves.

    Gymnasium's wrappers TimeLimit and OrderEnforcing cost a sixth of a CartPole step.
    """
    wrapping = [w if callable(w) else imported({}, w, "env.wrappers") for w in wrappers]
    entry_point = ""
    make: Callable[[], gym.Env[Any, Any]]
    if callable(env_id):
        make, limit, wrapped = partial(env_id, **kwargs), time_limit, bool(wrappers)
    else:
        spec, options = _spec(env_id), dict(kwargs)
        own_limit = _time_limit(options.pop("max_episode_steps", spec.max_episode_steps))
        limit = time_limit or own_limit
        wrapped = bool(wrappers or spec.additional_wrappers)
        entry_point = str(spec.entry_point)
        spec.order_enforce = wrapped and spec.order_enforce
        inside = limit if wrapped and limit else -1
        make = partial(
            gym.make, spec, max_episode_steps=inside, disable_env_checker=True, **options
        )

    def one() -> tuple[gym.Env[Any, Any], int | None]:
        try:
            with warnings.catch_warnings(), _quiet_mujoco("mujoco" in entry_point):
                warnings.simplefilter("ignore", DeprecationWarning)
                env = make()
        except gym.error.DependencyNotInstalled as error:
            raise BadInput(
                f"{env_id} needs a package that is not installed ({error}); Box2D and MuJoCo come "
                "with pip install 'paceline[box2d,mujoco]'"
            ) from None
        except TypeError as error:
            if not kwargs:
                raise
            raise rejected_kwargs(str(env_id), kwargs, error) from None
        _check_made(env, f"env_id: {name_of(env_id)} makes")
        if callable(env_id) and wrapped and limit:
            env = gym.wrappers.TimeLimit(env, limit)
        if "box2d.bipedal_walker" in entry_point:
            _new_world_at_reset(env.unwrapped)
        for wrapper in wrapping:
            env = _wrapped(wrapper, env)
        return env, None if wrapped else limit

    return Source(one)


def _wrapped(wrapper: Callable[..., Any], env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    try:
        made = wrapper(env)
    except TypeError as error:
        raise BadInput(
            f"env.wrappers: {name_of(wrapper)} can't be called with the environment alone "
            f"({describe(error)}); one that takes more is given as a function, such as "
            "lambda env: Wrapper(env, ...)"
        ) from error
    _check_made(made, f"env.wrappers: {name_of(wrapper)} returns")
    return made


def _check_made(made: Any, who: str) -> None:
    """Refuse what is no environment, or many of them."""
    if isinstance(made, gym.vector.VectorEnv):
        raise BadInput(f"{who} a vector environment; leave the copies to num_envs, and make one")
    if not hasattr(made, "step"):
        raise BadInput(f"{who} {str(made)[:60]!r}, which is no environment: it has no step()")


def _new_world_at_reset(walker: Any) -> None:
    """Give BipedalWalker a new Box2D world at every reset, as LunarLander has.

    In a world that is reused, the order of contacts depends on earlier episodes, so that no
    episode could be replayed.
    """
    reset, world_class = walker.reset, type(walker.world)

    def reset_in_new_world(**options: Any) -> Any:
        walker._destroy()
        walker.world = world_class()
        return reset(**options)

    walker.reset = reset_in_new_world


def _time_limit(steps: Any) -> int | None:
    """From Gymnasium's `max_episode_steps`, where -1 means none."""
    if steps is None or steps == -1:
        return None
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise BadInput(
            f"env.kwargs: max_episode_steps is {steps!r}; write a whole number of steps, or -1 for "
            "no limit"
        )
    return steps


@contextmanager
def _quiet_mujoco(load: bool) -> Iterator[None]:
    """Log MuJoCo's warnings about its own models, which it prints per environment and to a file."""
    with suppress(ImportError):
        if load:
            import_module("mujoco")
    mujoco: Any = sys.modules.get("mujoco")
    if not hasattr(mujoco, "set_mju_user_warning"):
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: log.debug("MuJoCo: %s", message))
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _spec(env_id: str) -> Any:
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            import_module(module)
        except ENV_ERRORS as error:
            raise BadInput(
                f"env_id {env_id!r}: the module {module!r} can't be imported "
                f"({type(error).__name__}: {error}); write module:Id-v0 with a module that is "
                "installed, in the current directory or on PYTHONPATH, or a plain Gymnasium id"
            ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return copy.deepcopy(gym.spec(name))
    except gym.error.Error:
        if name.startswith("ALE/"):
            game = name[4:].rpartition("-v")[0] or name[4:]
            raise BadInput(f"env_id {env_id!r} is not registered; write atari:{game}") from None
        raise unknown_name("gym", name, gym.registry, env_id) from None


def registered(env_id: Any) -> list[gym.envs.registration.EnvSpec]:
    """Specs that a worker has to be sent: registered by the user's code, and picklable."""
    name = str(env_id).rpartition(":")[2]
    specs = []
    for spec in gym.registry.values():
        entry = str(spec.entry_point)
        if spec.id == name or not entry.startswith(IMPORTED_BY_WORKERS):
            if entry.startswith("__main__:"):  # a worker has another __main__
                own = getattr(sys.modules["__main__"], entry.partition(":")[2], None)
                spec = replace(spec, entry_point=own)
            with suppress(Exception):
                cloudpickle.dumps(spec)
                specs.append(spec)
    return specs


def register(specs: list[gym.envs.registration.EnvSpec]) -> None:
    """Register in this process what `registered` returned in another."""
    for spec in specs:
        gym.registry[spec.id] = spec
