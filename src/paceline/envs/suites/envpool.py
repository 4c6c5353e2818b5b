"""EnvPool's environments by their ids: `envpool:HalfCheetah-v5`, `envpool:Pong-v5`.

They are seeded when they are made. Neither their state nor the seed of an episode can be set, so a
resumed run begins new episodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from ...errors import BadInput
from ...rollout import Array
from ..columns import Resume
from ..native import Batch, SeedOf
from ..source import Source, Wrappers
from ..spaces import unflatten
from . import (
    MISSION,
    check_batch_options,
    first_line,
    rejected_kwargs,
    require,
    unknown_name,
)

STACK = "stack_num"
RESERVED = ("num_envs", "batch_size", "num_threads", "seed", "env_seed", "task")


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: Wrappers
) -> Source:
    check_batch_options("envpool", kwargs, RESERVED, wrappers)
    known = names()
    if name not in known:
        raise unknown_name("envpool", name, known)
    limit = {"max_episode_steps": time_limit} if time_limit else {}
    import envpool

    try:
        options = envpool.make_spec(name).config
    except ImportError as error:  # some tasks need libraries of the system
        raise BadInput(f"env_id 'envpool:{name}' can't be used here: {first_line(error)}") from None
    if options.max_num_players > 1:
        raise BadInput(
            f"env_id 'envpool:{name}' has up to {options.max_num_players} players, and a policy "
            "here acts for one; take a task for one player"
        )
    stacks = STACK in options._fields and STACK not in kwargs
    return Source(many=partial(EnvPoolBatch, name, kwargs | limit), stack=4 if stacks else 1)


def names() -> list[str]:
    return sorted(require("envpool", "envpool").list_all_envs())


class EnvPoolBatch(Batch):
    """Uses EnvPool's raw `_send` and `_recv`: its Gymnasium layer takes as long as the steps."""

    resume: Resume = "none"

    def __init__(
        self, task: str, kwargs: dict[str, Any], num_envs: int, seed_of: SeedOf, threads: int
    ) -> None:
        import envpool

        defaults: dict[str, Any] = {"num_envs": num_envs, "num_threads": threads}
        options = envpool.make_spec(task).config._fields
        seeds = [seed_of(i, 0) for i in range(num_envs)]
        defaults |= {"env_seed": seeds} if "env_seed" in options else {"seed": seeds[0]}
        if STACK in options:  # frames are stacked by Paceline, which stores each once
            defaults[STACK] = 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._env = envpool.make_gymnasium(task, **defaults | kwargs)
                space, self.action_space = self._env.observation_space, self._env.action_space
        except (TypeError, ValueError, AssertionError) as error:
            raise rejected_kwargs("envpool:", kwargs, error) from None
        # `_recv` returns a list of arrays; those of an observation are named `obs` or `obs:path`.
        keys = list(self._env._state_keys)
        self._result = [keys.index(name) for name in ("reward", "done", "trunc")]
        self._obs = next(n for n, key in enumerate(keys) if key.startswith("obs"))
        self._infos = [(key[5:], n) for n, key in enumerate(keys) if key.startswith("info:")]
        """name of each number in info, and its place in the list"""
        self._leaves: list[tuple[tuple[str, ...], int]] = []
        """of a Dict observation: path of each leaf, and its place in the list"""
        if isinstance(space, gym.spaces.Dict):
            space = gym.spaces.Dict({k: v for k, v in space.spaces.items() if k != MISSION})
            paths = [(n, key[4:]) for n, key in enumerate(keys) if key.startswith("obs:")]
            self._leaves = [(tuple(path.split(".")), n) for n, path in paths if path != MISSION]
        self._gray = (
            isinstance(space, gym.spaces.Box)
            and len(space.shape) == 3
            and space.shape[0] == 1
            and space.dtype == np.uint8
        )
        if self._gray:
            space = gym.spaces.Box(0, 255, space.shape[1:], np.uint8)
        self.observation_space: gym.Space[Any] = space
        self._action_dtype = self._env.spec._action_spec[-1][0]
        self._ids = np.arange(num_envs, dtype=np.int32)

    def _observation(self, received: list[Array]) -> Any:
        if self._leaves:
            return unflatten((path, received[n]) for path, n in self._leaves)
        return received[self._obs][:, 0] if self._gray else received[self._obs]

    def reset(self) -> Any:
        self._env._reset(self._ids)
        return self._observation(self._env._recv())

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array]:
        actions = actions.astype(self._action_dtype, order="C", copy=False)
        self._env._send([self._ids, self._ids, actions])
        self._received = received = self._env._recv()
        reward, done, truncated = (received[n] for n in self._result)
        return self._observation(received), reward, done & ~truncated, truncated

    def info(self, i: int) -> Mapping[str, Any]:
        return {name: self._received[n][i] for name, n in self._infos}

    def close(self) -> None:
        self.__dict__.pop("_env", None)  # its threads end with the object, not with its close()
