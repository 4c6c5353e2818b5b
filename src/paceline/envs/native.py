"""NativeColumns: an environment's own vector implementation, stepped as one call.

Its episodes share one stream of random numbers, so they can't be replayed one by one: a checkpoint
holds its whole state instead, if that proves to be all there is to it.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from ..adapters import ActionAdapter, ObservationAdapter
from ..errors import BadInput, EnvironmentFailed
from ..rollout import Array, Rollout, still
from ..spaces import action_spec, observation_spec
from .columns import describe, episode_seed

log = logging.getLogger("paceline")

REHEARSAL = 40
"""Steps after which a restored copy must still do what its original does."""
NUMBERS = (bool, int, float, np.generic, np.ndarray)


class NativeColumns:
    """Columns `first_column … first_column + num_envs - 1` of a run, in one vector environment."""

    failures = 0

    def __init__(
        self,
        env_id: str,
        kwargs: dict[str, Any],
        num_envs: int,
        seed: int = 0,
        first_column: int = 0,
    ) -> None:
        self.num_envs, self.first_column, self.pulse = num_envs, first_column, still()
        self._seed = episode_seed(seed, first_column, 0)
        self._env = made(env_id, kwargs, num_envs)
        try:
            self.observation_space = self._env.single_observation_space
            self.action_space = self._env.single_action_space
            self.act_spec = action_spec(self.action_space)
            self.obs_spec = observation_spec(self.observation_space, self.act_spec)
        except BaseException:
            self.close()
            raise
        self._actions, self._adapter = (
            ActionAdapter(self.act_spec),
            ObservationAdapter(self.obs_spec),
        )
        self.resume: Literal["state", "none"] = "none"
        if self._rehearsed(env_id, kwargs):
            self.resume = "state"
        else:
            log.warning(
                "%s has a vector environment whose state can't be saved: a run resumed from a "
                "checkpoint goes on with new episodes, and so not exactly as it would have",
                env_id,
            )
        self.row = 0
        self.started = np.zeros(num_envs, np.int64)
        self.episode = np.zeros(num_envs, np.int64)
        self.ended = np.zeros(num_envs, bool)

    def __enter__(self) -> NativeColumns:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._env.close()

    def adapt(self, action: Array) -> Array:
        return self._actions.batch(action)

    def reset(self, obs: Array) -> None:
        try:
            self._write(obs, self._env.reset(seed=self._seed + self.row)[0])
        except Exception as error:
            raise EnvironmentFailed(
                f"the vector environment can't be reset: {describe(error)}"
            ) from error

    def step(self, t: int, actions: Array, out: Rollout) -> None:
        try:
            observation, reward, terminated, truncated, _ = self._env.step(actions)
            self._write(out.obs[t + 1], observation)
        except Exception as error:
            raise EnvironmentFailed(
                f"the vector environment raised at row {self.row}: {describe(error)}"
            ) from error
        begun = self.ended
        out.reward[t] = np.where(begun, 0.0, reward)
        out.first[t + 1], out.valid[t] = begun, ~begun
        out.terminated[t], out.truncated[t] = terminated & ~begun, truncated & ~begun
        self.row += 1
        self.started[begun] = self.row
        self.episode += begun
        self.ended = out.terminated[t] | out.truncated[t]

    def _write(self, obs: Array, observation: Any) -> None:
        self._adapter.write(self.obs_spec.split(obs), slice(None), observation, {})

    def _rehearsed(self, env_id: str, kwargs: dict[str, Any]) -> bool:
        """Whether a copy that is given the state then behaves like the original."""
        copy = made(env_id, kwargs, self.num_envs)
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
        except Exception:
            log.debug("the vector environment's state can't be moved", exc_info=True)
            return False
        finally:
            copy.close()

    def state(self) -> dict[str, Array]:
        counters = {
            "row": np.array(self.row),
            "started": self.started.copy(),
            "episode": self.episode.copy(),
            "ended": self.ended.copy(),
        }
        return counters | (get_state(self._env) if self.resume == "state" else {})

    def restore(self, state: dict[str, Array]) -> None:
        self.row = int(state["row"])
        self.episode[:] = state["episode"]
        if self.resume == "state":
            self.started[:], self.ended = state["started"], state["ended"].copy()
            self._env.reset(seed=self._seed)
            try:
                put_state(self._env, state)
            except (TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"the vector environment refuses its state ({error})") from None
        else:  # new episodes begin, as after a reset
            self.started[:], self.ended = self.row, np.zeros(self.num_envs, bool)

    def replay(self, i: int, actions: Any, expected: Array) -> bool:
        raise AssertionError("its state is restored, not replayed")


def made(env_id: str, kwargs: dict[str, Any], num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    """The vector environment, of which episodes have to begin with a row of their own."""
    try:
        env = gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **kwargs)
    except TypeError as error:
        raise BadInput(f"env.kwargs is {kwargs}, which {env_id} refuses: {error}") from None
    except Exception as error:
        raise EnvironmentFailed(
            f"the vector environment can't be made: {describe(error)}"
        ) from error
    mode = env.metadata.get("autoreset_mode")
    if mode != gym.vector.AutoresetMode.NEXT_STEP:
        env.close()
        raise BadInput(
            f"env.vector: {env_id} resets its episodes in a way ({mode}) that hides how they "
            "ended; leave --env.vector off"
        )
    return env


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
    stream = json.loads(state["stream"].tobytes())
    env.unwrapped.np_random.bit_generator.state = stream


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return all(_alike(*pair) for pair in zip(one, other, strict=True))
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()
