"""Gymnasium environments: a registered id, `module:Id-v0`, or a callable that makes one."""

from __future__ import annotations

import copy
import difflib
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium as gym

from ..errors import BadInput
from .columns import EnvMaker


def environment(
    env_id: str | Callable[..., gym.Env[Any, Any]],
    kwargs: dict[str, Any],
    time_limit: int | None,
    wrappers: tuple[str, ...],
) -> EnvMaker:
    """How to make one environment, and the time limit that its columns must apply themselves.

    Gymnasium's own order and time-limit wrappers cost about a sixth of a CartPole step, and the
    columns count steps anyway; so they are left off unless a wrapper outside could look at them.
    """
    wrap = [_imported(path) for path in wrappers]
    make, limit = (
        (lambda: env_id(**kwargs), None) if callable(env_id) else _registered(env_id, kwargs, wrap)
    )
    limit = time_limit or limit

    def one() -> tuple[gym.Env[Any, Any], int | None]:
        try:
            with warnings.catch_warnings():
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
            raise BadInput(f"env.kwargs is {kwargs}, which {env_id} refuses: {error}") from None
        for wrapper in wrap:
            env = wrapper(env)
        return env, limit

    return one


def _registered(
    env_id: str, kwargs: dict[str, Any], wrap: list[Any]
) -> tuple[Callable[[], gym.Env[Any, Any]], int | None]:
    spec = _spec(env_id)
    if wrap or spec.additional_wrappers:
        return lambda: gym.make(spec, disable_env_checker=True, **kwargs), None
    limit = kwargs.get("max_episode_steps", spec.max_episode_steps)
    bare = copy.deepcopy(spec)
    bare.max_episode_steps, bare.order_enforce = None, False
    options = {name: value for name, value in kwargs.items() if name != "max_episode_steps"}
    return lambda: gym.make(bare, disable_env_checker=True, **options), limit


def _spec(env_id: str) -> Any:
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            import_module(module)
        except Exception as error:
            raise BadInput(
                f"env_id {env_id!r}: the module {module!r} can't be imported "
                f"({type(error).__name__}: {error}); write module:Id-v0 with a module on your "
                "PYTHONPATH, or a plain Gymnasium id"
            ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return copy.deepcopy(gym.spec(name))
    except gym.error.Error:
        near = difflib.get_close_matches(name, gym.registry, n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else "; see `paceline list envs`"
        raise BadInput(f"env_id {env_id!r} is not a registered environment{hint}") from None


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"env.wrappers: {path!r} can't be imported ({error}); "
            "write module:Class, such as gymnasium.wrappers:RecordEpisodeStatistics"
        ) from None
