"""GymBatch: a vector environment of Gymnasium's kind, such as CartPole-v1 has one.

Its episodes share one stream of random numbers: a checkpoint holds its whole state, if it can.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from ...errors import BadInput
from ...rollout import Array
from ..columns import Resume
from ..guards import ENV_ERRORS, close_quietly
from ..native import Batch, BatchMaker, SeedOf

log = logging.getLogger("paceline")

REHEARSAL = 40
"""Steps after which a restored copy must still do what its original does."""
NUMBERS = (bool, int, float, np.generic, np.ndarray)


def vector_maker(env_id: str, kwargs: dict[str, Any], time_limit: int | None) -> BatchMaker:
    """How `env_id`'s own vector implementation is made."""
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
        self._env = self._made()
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space
        self.resume: Resume = "state" if self._rehearsed() else "none"

    def reset(self) -> Any:
        return self._env.reset(seed=self._seed)[0]

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array]:
        return self._env.step(actions.copy())[:4]  # it may change them, and the learner needs them

    def state(self) -> dict[str, Array]:
        return get_state(self._env) if self.resume == "state" else {}

    def restore(self, state: dict[str, Array]) -> None:
        try:
            put_state(self._env, state)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the vector environment refuses its state ({error})") from None

    def close(self) -> None:
        self._env.close()

    def _made(self) -> gym.vector.VectorEnv[Any, Any, Any]:
        """The vector environment, of which episodes have to begin with a row of their own."""
        env_id, kwargs, number = self._env_id, self._kwargs, self._num_envs
        try:
            env = gym.make_vec(env_id, number, vectorization_mode="vector_entry_point", **kwargs)
        except TypeError as error:
            raise BadInput(f"env.kwargs is {kwargs}, which {env_id} refuses: {error}") from None
        mode = env.metadata.get("autoreset_mode")
        if mode != gym.vector.AutoresetMode.NEXT_STEP:
            env.close()
            raise BadInput(
                f"env.vector: {env_id} resets its episodes in a way ({mode}) that hides how they "
                "ended; leave --env.vector off"
            )
        return env

    def _rehearsed(self) -> bool:
        """Whether a copy that is given the state then behaves like the original."""
        copy = self._made()
        try:
            ours = self._env
            ours.reset(seed=1)
            ours.action_space.seed(0)
            for _ in range(REHEARSAL):
                ours.step(ours.action_space.sample())
            copy.reset(seed=2)
            put_state(copy, get_state(ours))
            for _ in range(REHEARSAL):
                action = ours.action_space.sample()
                if not _alike(ours.step(action)[:4], copy.step(action)[:4]):
                    return False
            return True
        except ENV_ERRORS:
            log.debug("the vector environment's state can't be moved", exc_info=True)
            return False
        finally:
            close_quietly(copy)


def get_state(env: gym.vector.VectorEnv[Any, Any, Any]) -> dict[str, Array]:
    """Every number and array of numbers of a vector environment, and its random stream."""
    found = {}
    for name, value in vars(env.unwrapped).items():
        if isinstance(value, NUMBERS) and np.asarray(value).dtype.kind in "biuf":
            found[f"env.{name}"] = np.array(value)
    stream = json.dumps(env.unwrapped.np_random.bit_generator.state, default=int)
    found["stream"] = np.frombuffer(stream.encode(), np.uint8).copy()
    return found


def put_state(env: gym.vector.VectorEnv[Any, Any, Any], state: dict[str, Array]) -> None:
    """What `get_state` gave; only what such an environment has is ever set."""
    for name in get_state(env):
        if name.startswith("env."):
            attribute = name.removeprefix("env.")
            before, value = getattr(env.unwrapped, attribute), state[name]
            kept = value.copy() if isinstance(before, np.ndarray) else value.item()
            setattr(env.unwrapped, attribute, kept)
    env.unwrapped.np_random.bit_generator.state = json.loads(state["stream"].tobytes())


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return all(_alike(*pair) for pair in zip(one, other, strict=True))
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()
