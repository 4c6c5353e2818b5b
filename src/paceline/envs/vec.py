"""Columns stepped row by row, without a sampler: RowStepper, and make_vec for users' loops."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from ..config.resolve import check_env
from ..errors import BadInput
from ..rollout import Array, Rollout
from .adapters import ObservationAdapter
from .columns import Columns
from .env_columns import EnvColumns
from .frame_stack import FrameStack, stacked_space
from .native import NativeColumns
from .source import EnvId, Wrappers, single_agent_columns


class RowStepper:
    """Columns and the latest row of their rollout, with frame stacks as a policy sees them."""

    def __init__(self, columns: Columns) -> None:
        obs, act, agents = columns.obs_spec, columns.act_spec, columns.columns_per_env
        self.columns = columns
        self.row = Rollout.allocate(
            1, columns.num_envs * agents, obs.stored, act.stored, columns_per_env=agents
        )
        self._stack = FrameStack(obs, self.row.columns) if obs.stack > 1 else None

    def reset(self) -> None:
        """Begin an episode in every column."""
        self.columns.reset(self.row.obs[1])
        self.row.first[1] = True

    def observe(self) -> tuple[Array, Array]:
        """[B, ...] the latest observations, and [B] which of them start an episode; views."""
        obs, first = self.row.obs[1], self.row.first[1]
        return (obs if self._stack is None else self._stack.show(obs, first)), first

    def step(self, actions: Any) -> Rollout:
        """Step every column with its action, in the form that `columns.step` takes."""
        if self._stack is not None:
            self._stack.shift()
        self.row.start_next()
        self.columns.step(0, actions, self.row)
        return self.row


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
        self._columns, self._stepper = columns, RowStepper(columns)
        self.num_envs = columns.num_envs
        spec = columns.obs_spec
        self.observation_space = stacked_space(columns.observation_space, spec)
        self.action_space = columns.action_space
        self._adapter = None if spec.seen.plain else ObservationAdapter(spec.seen)
        self._begun = self._closed = False

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._columns.close()

    def _check_open(self) -> None:
        if self._closed:
            raise BadInput("these environments were closed; make others with make_vec()")

    def _observation(self) -> Any:
        """The latest observations, in the structure of the environment's space."""
        obs, _ = self._stepper.observe()
        return obs.copy() if self._adapter is None else self._adapter.read(obs)

    def reset(self) -> Any:
        """Begin an episode in every column and return the first observations."""
        self._check_open()
        self._stepper.reset()
        self._begun = True
        return self._observation()

    def step(self, actions: Any) -> Step:
        """Step every column with its action, as the environment's action space has it."""
        self._check_open()
        if not self._begun:
            raise BadInput("step() came before reset(); call reset() once to begin")
        if not hasattr(actions, "__len__"):
            raise BadInput(f"step() takes a list or an array of {self.num_envs} actions")
        if len(actions) != self.num_envs:
            raise BadInput(f"{len(actions)} actions for {self.num_envs} environments")
        if isinstance(self._columns, NativeColumns):
            actions = np.asarray(actions)
        row = self._stepper.step(actions)
        arrays = (row.reward[0], row.terminated[0], row.truncated[0], row.valid[0])
        return Step(self._observation(), *(array.copy() for array in arrays))


def make_vec(
    env_id: EnvId,
    num_envs: int,
    *,
    seed: int = 0,
    kwargs: dict[str, Any] | None = None,
    time_limit: int | None = None,
    frame_stack: int | None = None,
    wrappers: Wrappers = (),
    vector: bool = False,
    mask_velocity: bool = False,
    memory_inputs: Sequence[str] = (),
) -> VecEnv:
    """`num_envs` copies of an environment, stepped together in this process.

        with paceline.make_vec("CartPole-v1", 8, seed=1) as envs:
            obs = envs.reset()
            step = envs.step([0] * 8)

    `env_id` is a name, a class or a function that makes an environment, and gets `kwargs`;
    `wrappers` are applied to it, innermost first. `time_limit`, `frame_stack`, `vector` and
    `mask_velocity` are those of `Config(env=...)`, `memory_inputs` is that of `Config`. `seed`
    decides every episode, as the seed of a run does.
    """
    if not isinstance(num_envs, Integral) or num_envs < 1:
        raise BadInput(f"num_envs is {num_envs!r}; write a whole number, 1 or more")
    if not isinstance(seed, Integral):
        raise BadInput(f"seed is {seed!r}; write a whole number")
    options: dict[str, Any] = {"time_limit": time_limit, "vector": vector}
    options |= {"frame_stack": frame_stack, "wrappers": wrappers, "mask_velocity": mask_velocity}
    options = check_env(kwargs, **options, memory_inputs=memory_inputs)
    # A mask is shown like the rest of an observation, for the caller to apply.
    return VecEnv(single_agent_columns(env_id, num_envs, seed=seed, masks=False, **options))
