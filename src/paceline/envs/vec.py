"""make_vec: the vector environment alone, for those who bring their own loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import BadInput
from ..rollout import Array, Rollout
from .adapters import ObservationAdapter
from .columns import EnvColumns
from .frame_stack import Window, stacked_space
from .maker import EnvId, plain_columns
from .native import NativeColumns


class Step(NamedTuple):
    """One row of every column. Where `valid` is false the row only began an episode."""

    obs: Any
    """an array, or for a Dict or Tuple space a structure of arrays"""
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array


class VecEnv:
    """`num_envs` environments stepped together, under next-step autoreset. A context manager."""

    def __init__(self, columns: EnvColumns | NativeColumns) -> None:
        self._columns = columns
        self.num_envs = columns.num_envs
        obs, act = columns.obs_spec, columns.act_spec
        self.observation_space = stacked_space(columns.observation_space, obs)
        self.action_space = columns.action_space
        self._row = Rollout.allocate(1, self.num_envs, obs.stored, act.stored)
        self._window = Window(obs, self.num_envs) if obs.stack > 1 else None
        self._adapter = None if obs.seen.plain else ObservationAdapter(obs.seen)
        self._begun = False

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._columns.close()

    def _seen(self) -> Any:
        """The latest observations, as the environment gives them."""
        obs = self._row.obs[1]
        if self._window is not None:
            obs = self._window.show(obs, self._row.first[1])
        found = obs.copy() if self._adapter is None else self._adapter.read(obs)
        if self._window is not None:
            self._window.shift()
        return found

    def reset(self) -> Any:
        """Begin an episode in every column and return the first observations."""
        self._columns.reset(self._row.obs[1])
        self._row.first[1] = self._begun = True
        return self._seen()

    def step(self, actions: Any) -> Step:
        """Step every column with its action, as the environment's action space has it."""
        if not self._begun:
            raise BadInput("step() came before reset(); call reset() once to begin")
        if len(actions) != self.num_envs:
            raise BadInput(f"{len(actions)} actions for {self.num_envs} environments")
        row = self._row
        row.start_next()
        if isinstance(self._columns, NativeColumns):
            actions = np.asarray(actions)
        self._columns.step(0, actions, row)
        arrays = (row.reward[0], row.terminated[0], row.truncated[0], row.valid[0])
        return Step(self._seen(), *(array.copy() for array in arrays))


def make_vec(
    env_id: EnvId,
    num_envs: int,
    *,
    seed: int = 0,
    kwargs: dict[str, Any] | None = None,
    time_limit: int | None = None,
    frame_stack: int | None = None,
    wrappers: tuple[str, ...] = (),
    vector: bool = False,
) -> VecEnv:
    """`num_envs` copies of an environment: `with make_vec("CartPole-v1", 8) as envs: ...`"""
    if num_envs < 1:
        raise BadInput(f"num_envs is {num_envs}; write 1 or more")
    options: dict[str, Any] = {"kwargs": kwargs, "time_limit": time_limit, "vector": vector}
    options |= {"frame_stack": frame_stack, "wrappers": wrappers}
    # A mask is shown like the rest of an observation, for the caller to apply.
    return VecEnv(plain_columns(env_id, num_envs, seed=seed, masks=False, **options))
