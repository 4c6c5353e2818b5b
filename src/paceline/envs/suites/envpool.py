"""EnvPool's environments, any by its id: `envpool:HalfCheetah-v5`, `envpool:Pong-v5`.

They are seeded when they are made, and neither their state nor a seed for an episode can be given:
a resumed run begins new episodes.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from ...errors import BadInput
from ...rollout import Array
from ..adapters import assembled
from ..columns import Resume
from ..native import Batch, SeedOf
from ..source import (
    MISSION,
    Source,
    first_line,
    meant,
    needed,
    refusal,
    refuse_own,
    refuse_wrappers,
)

SEEDS, STACK = ("seed", "env_seed"), "stack_num"


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: tuple[str, ...]
) -> Source:
    refuse_wrappers("envpool", wrappers)
    refuse_own("envpool", kwargs, ("num_envs", "batch_size", "num_threads", *SEEDS, "task"))
    known = names()
    if name not in known:
        raise BadInput(
            f"env_id 'envpool:{name}' is not a task of EnvPool's; {meant('envpool', name, known)}"
        )
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
    return sorted(needed("envpool", "envpool").list_all_envs())


class EnvPoolBatch(Batch):
    resume: Resume = "none"

    def __init__(
        self, task: str, kwargs: dict[str, Any], num_envs: int, seed_of: SeedOf, threads: int
    ) -> None:
        import envpool

        ours: dict[str, Any] = {"num_envs": num_envs, "num_threads": threads}
        options = envpool.make_spec(task).config._fields
        seeds = [seed_of(i, 0) for i in range(num_envs)]
        ours |= {"env_seed": seeds} if "env_seed" in options else {"seed": seeds[0]}
        if STACK in options:  # frames are stacked here, where each is stored once
            ours[STACK] = 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._env = envpool.make_gymnasium(task, **ours | kwargs)
                shown, self.action_space = self._env.observation_space, self._env.action_space
        except (TypeError, ValueError, AssertionError) as error:
            raise refusal("envpool", kwargs, error) from None
        # What a step gives and takes, by names such as `obs:image`, without its Python dressing,
        # which takes as long as the environments do.
        given = list(self._env._state_keys)
        self._needed = [given.index(name) for name in ("reward", "done", "trunc")]
        self._parts: list[tuple[tuple[str, ...], int]] = []
        """the path of each part of an observation, and where it is among what is given"""
        if isinstance(shown, gym.spaces.Dict):
            shown = gym.spaces.Dict({k: v for k, v in shown.spaces.items() if k != MISSION})
            names = [(n, key[4:]) for n, key in enumerate(given) if key.startswith("obs:")]
            self._parts = [(tuple(name.split(".")), n) for n, name in names if name != MISSION]
        self._only = next(n for n, key in enumerate(given) if key.startswith("obs"))
        self._grey = isinstance(shown, gym.spaces.Box) and len(shown.shape) == 3
        self._grey = self._grey and shown.shape[0] == 1 and shown.dtype == np.uint8
        if self._grey:
            shown = gym.spaces.Box(0, 255, shown.shape[1:], np.uint8)
        self.observation_space: gym.Space[Any] = shown
        self._dtype = self._env.spec._action_spec[-1][0]
        self._columns = np.arange(num_envs, dtype=np.int32)

    def _shown(self, given: list[Array]) -> Any:
        if self._parts:
            return assembled((path, given[n]) for path, n in self._parts)
        return given[self._only][:, 0] if self._grey else given[self._only]

    def reset(self) -> Any:
        self._env._reset(self._columns)
        return self._shown(self._env._recv())

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array]:
        taken = actions.astype(self._dtype, order="C", copy=False)
        self._env._send([self._columns, self._columns, taken])
        given = self._env._recv()
        reward, done, truncated = (given[n] for n in self._needed)
        return self._shown(given), reward, done & ~truncated, truncated

    def close(self) -> None:
        self.__dict__.pop("_env", None)  # its threads end with it, not with its close()
