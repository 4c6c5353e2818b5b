"""GymBatch: an environment's own `vector_entry_point` in Gymnasium, as CartPole-v1 has one.

Its episodes share one random generator, so that a checkpoint has to hold its whole state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from ...errors import BadInput
from ...rollout import Array
from ..columns import Resume
from ..guards import ENV_ERRORS, close_quietly
from ..native import Batch, BatchMaker, SeedOf
from . import rejected_kwargs

log = logging.getLogger("paceline")

TRIAL_STEPS = 40
"""Steps over which a restored copy must behave like its original."""
NUMBERS = (bool, int, float, np.generic, np.ndarray)


def vector_maker(env_id: str, kwargs: dict[str, Any], time_limit: int | None) -> BatchMaker:
    """Makes batches of `env_id`'s own vector implementation."""
    name = env_id.rpartition(":")[2]
    known = gym.registry.get(name)
    if known is None or known.vector_entry_point is None:
        having = [name for name, spec in gym.registry.items() if spec.vector_entry_point]
        raise BadInput(
            f"env.vector: {env_id} has no vector implementation of its own; leave --env.vector "
            f"off (of Gymnasium's, {', '.join(having)} have one)"
        )
    limit = {"max_episode_steps": time_limit} if time_limit else {}
    return partial(GymBatch, env_id, kwargs | limit)


class GymBatch(Batch):
    def __init__(
        self, env_id: str, kwargs: dict[str, Any], num_envs: int, seed_of: SeedOf, threads: int
    ) -> None:
        self._env_id, self._kwargs = env_id, kwargs
        self._num_envs, self._seed = num_envs, seed_of(0, 0)
        self._env = self._make()
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space
        self.resume: Resume = "state" if self._restorable() else "none"

    def reset(self) -> Any:
        return self._env.reset(seed=self._seed)[0]

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array]:
        found = self._env.step(actions.copy())  # it may overwrite them
        self._infos = found[4]
        return found[:4]

    def info(self, i: int) -> Mapping[str, Any]:
        return info_of(self._infos, i)

    def state(self) -> dict[str, Array]:
        return get_state(self._env) if self.resume == "state" else {}

    def restore(self, state: dict[str, Array]) -> None:
        try:
            put_state(self._env, state)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the vector environment refuses its state ({error})") from None

    def close(self) -> None:
        self._env.close()

    def _make(self) -> gym.vector.VectorEnv[Any, Any, Any]:
        """The vector environment; it has to have next-step autoreset."""
        env_id, kwargs, number = self._env_id, self._kwargs, self._num_envs
        try:
            env = gym.make_vec(env_id, number, vectorization_mode="vector_entry_point", **kwargs)
        except TypeError as error:
            raise rejected_kwargs(env_id, kwargs, error) from None
        mode = env.metadata.get("autoreset_mode")
        if mode != gym.vector.AutoresetMode.NEXT_STEP:
            env.close()
            raise BadInput(
                f"env.vector: {env_id} resets its episodes in a way ({mode}) that hides how they "
                "ended; leave --env.vector off"
            )
        return env

    def _restorable(self) -> bool:
        """Whether a copy that is given the state then behaves like the original."""
        copy = self._make()
        try:
            ours = self._env
            ours.reset(seed=1)
            ours.action_space.seed(0)
            for _ in range(TRIAL_STEPS):
                ours.step(ours.action_space.sample())
            copy.reset(seed=2)
            put_state(copy, get_state(ours))
            for _ in range(TRIAL_STEPS):
                action = ours.action_space.sample()
                if not data_equivalence(ours.step(action)[:4], copy.step(action)[:4], exact=True):
                    return False
            return True
        except ENV_ERRORS:
            log.debug("the vector environment's state can't be restored", exc_info=True)
            return False
        finally:
            close_quietly(copy)


def info_of(infos: Any, i: int) -> dict[str, Any]:
    """Environment `i`'s part of a vector environment's info, which holds arrays over environments
    and, for each `key`, a `_key` that says which of them have it."""
    found: dict[str, Any] = {}
    for key, values in infos.items() if isinstance(infos, Mapping) else ():
        if isinstance(values, Mapping):
            found[key] = info_of(values, i)
        elif isinstance(values, np.ndarray) and values.ndim and len(values) > i:
            mask = infos.get(f"_{key}")
            if mask is None or mask[i]:
                found[key] = values[i]
    return found


def get_state(env: gym.vector.VectorEnv[Any, Any, Any]) -> dict[str, Array]:
    """All numbers and numeric arrays among its attributes, and the state of its generator."""
    state = {}
    for name, value in vars(env.unwrapped).items():
        if isinstance(value, NUMBERS) and np.asarray(value).dtype.kind in "biuf":
            state[f"env.{name}"] = np.array(value)
    stream = json.dumps(env.unwrapped.np_random.bit_generator.state, default=int)
    state["stream"] = np.frombuffer(stream.encode(), np.uint8).copy()
    return state


def put_state(env: gym.vector.VectorEnv[Any, Any, Any], state: dict[str, Array]) -> None:
    """Set what `get_state` returned; only attributes that the environment has are ever set."""
    for name in get_state(env):
        if name.startswith("env."):
            attribute = name.removeprefix("env.")
            old, new = getattr(env.unwrapped, attribute), state[name]
            value = new.copy() if isinstance(old, np.ndarray) else new.item()
            setattr(env.unwrapped, attribute, value)
    env.unwrapped.np_random.bit_generator.state = json.loads(state["stream"].tobytes())
