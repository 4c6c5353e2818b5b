"""Gymnasium environments: a registered id, `module:Id-v0`, or a callable that makes one."""

from __future__ import annotations

import copy
import difflib
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

from ...errors import BadInput
from ..columns import EnvMaker, is_gymnasiums
from ..guards import ENV_ERRORS
from ..source import Source

log = logging.getLogger("paceline")

KNOWN = ("gymnasium.", "ale_py.", "minigrid.")
"""Registered by packages that a worker imports by itself."""


def names() -> list[str]:
    return sorted(gym.registry)


def environment(
    env_id: str | Callable[..., gym.Env[Any, Any]],
    kwargs: dict[str, Any],
    time_limit: int | None,
    wrappers: tuple[str, ...],
) -> Source:
    """How to make one environment, and the time limit that its columns must apply themselves.

    Gymnasium's own wrappers for that cost a sixth of a CartPole step: only a user's may need them.
    """
    wrap, of_mujoco, of_walker = [_imported(path) for path in wrappers], False, False
    make: Callable[[], gym.Env[Any, Any]]
    if callable(env_id):
        make, limit, looked_at = partial(env_id, **kwargs), time_limit, bool(wrap)
    else:
        spec, options = _spec(env_id), dict(kwargs)
        own_limit = _limit(options.pop("max_episode_steps", spec.max_episode_steps))
        limit = time_limit or own_limit
        looked_at = bool(wrap or spec.additional_wrappers)
        of_mujoco = "mujoco" in str(spec.entry_point)
        of_walker = "box2d.bipedal_walker" in str(spec.entry_point)
        spec.order_enforce = looked_at and spec.order_enforce
        inside = limit if looked_at and limit else -1
        make = partial(
            gym.make, spec, max_episode_steps=inside, disable_env_checker=True, **options
        )

    def one() -> tuple[gym.Env[Any, Any], int | None]:
        try:
            with warnings.catch_warnings(), _quiet_models(of_mujoco):
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
        if callable(env_id) and looked_at and limit:
            env = gym.wrappers.TimeLimit(env, limit)
        if of_walker:
            _renew_world(env.unwrapped)
        for wrapper in wrap:
            env = wrapper(env)
        return env, None if looked_at else limit

    return Source(one)


def _renew_world(walker: Any) -> None:
    """Give BipedalWalker a new world at every reset, as LunarLander has: in its own, contacts are
    in an order that depends on the episodes before, and no episode could be replayed."""
    reset, new_world = walker.reset, type(walker.world)

    def renewed(**options: Any) -> Any:
        walker._destroy()
        walker.world = new_world()
        return reset(**options)

    walker.reset = renewed


def _limit(steps: Any) -> int | None:
    """A time limit in Gymnasium's own words."""
    if steps is None or steps == -1:
        return None
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise BadInput(
            f"env.kwargs: max_episode_steps is {steps!r}; write a whole number of steps, or -1 for "
            "no limit"
        )
    return steps


@contextmanager
def _quiet_models(of_mujoco: bool) -> Iterator[None]:
    """MuJoCo prints a line per environment, and to a file, about how its own models are written."""
    with suppress(ImportError):
        if of_mujoco:
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
        if name.startswith("ALE/"):
            hint = f"; write atari:{name[4:].rpartition('-v')[0] or name[4:]}"
        raise BadInput(f"env_id {env_id!r} is not a registered environment{hint}") from None


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except ENV_ERRORS as error:
        raise BadInput(
            f"env.wrappers: {path!r} can't be imported ({type(error).__name__}: {error}); "
            "write module:Class, such as gymnasium.wrappers:RecordEpisodeStatistics"
        ) from None


def trusting(make: EnvMaker) -> EnvMaker:
    """The same, but Gymnasium's own environments take a policy's actions unchecked, since checking
    takes as long as half of CartPole's step. Those of a user's wrapper need not be right."""

    def made() -> tuple[gym.Env[Any, Any], int | None]:
        env, limit = make()
        layer = env
        while is_gymnasiums(layer) and layer is not env.unwrapped:
            layer = layer.env  # type: ignore[attr-defined]
        if is_gymnasiums(layer) and isinstance(layer.action_space, gym.spaces.Discrete):
            layer.action_space.contains = lambda x: True  # type: ignore[method-assign]
        return env, limit

    return made


def registered(env_id: Any) -> list[gym.envs.registration.EnvSpec]:
    """What the user's own code may have registered, `env_id` first of all, if it can be sent."""
    name = str(env_id).rpartition(":")[2]
    found = []
    for spec in gym.registry.values():
        entry = str(spec.entry_point)
        if spec.id == name or not entry.startswith(KNOWN):
            if entry.startswith("__main__:"):  # which is another module there
                own = getattr(sys.modules["__main__"], entry.partition(":")[2], None)
                spec = replace(spec, entry_point=own)
            with suppress(Exception):
                cloudpickle.dumps(spec)
                found.append(spec)
    return found


def register(specs: list[gym.envs.registration.EnvSpec]) -> None:
    """Make known here what another process knows."""
    for spec in specs:
        gym.registry[spec.id] = spec
