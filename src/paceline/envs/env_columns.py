"""EnvColumns: Python environments, stepped one after the other straight into a rollout."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from ..errors import BadInput, EnvironmentFailed
from ..rollout import Array, Rollout
from .adapters import ActionAdapter, ObservationAdapter
from .columns import Columns, ReplayMismatch, Resume, episode_seed, replay_mismatch
from .frame_stack import with_stack
from .guards import (
    CHECK,
    ENV_ERRORS,
    WrongReturn,
    as_flag,
    close_quietly,
    describe,
    end_if_forked,
    unpack_reset,
    wrong_step,
)
from .spaces import ACTION_MASK, Specs, action_spec, observation_spec
from .wrappers import MaskVelocity, MemoryInputs

log = logging.getLogger("paceline")

EnvMaker = Callable[[], tuple[gym.Env[Any, Any], int | None]]
"""Makes one environment; returns with it the time limit that columns have to apply, if any."""

MAX_FAILURES = 10
"""Failures of one environment, each within FAILURE_WINDOW rows of the last, that end the run."""
FAILURE_WINDOW = 20
NEVER = np.iinfo(np.int64).max


class EnvColumns(Columns):
    """Environments made by `make`, stepped in one tight loop.

    `specs` are given where the spaces are known and a policy acts; otherwise they are read from
    the first environment. `time_limit` is for environments that have none of their own.
    """

    resume: Resume = "replay"

    def __init__(
        self,
        make: EnvMaker,
        num_envs: int,
        seed: int = 0,
        first_column: int = 0,
        masks: bool = True,
        specs: Specs | None = None,
        stack: int = 1,
        time_limit: int | None = None,
    ) -> None:
        super().__init__(num_envs, seed, first_column)
        self._make = make if specs is None else without_action_checks(make)
        self._pid = os.getpid()
        self._envs: list[gym.Env[Any, Any]] = []
        self._first_reset: tuple[Any, dict[str, Any]] | None = None
        """what the first column's first reset returned, if reading the spaces needed it"""
        try:
            for _ in range(num_envs):
                env, own_limit = self._make()
                self._envs.append(env)
                self._limit = own_limit or time_limit
            self.observation_space = self._envs[0].observation_space
            self.action_space = self._envs[0].action_space
            self.obs_spec, self.act_spec = specs or self._read_specs(masks, stack)
            self._may_mask = masks and bool(self.act_spec.choices) and not self.obs_spec.mask
        except BadInput:
            self.close()
            raise
        except ENV_ERRORS as error:
            self.close()
            raise EnvironmentFailed(f"the environment can't be made: {describe(error)}") from error
        self.adapt = ActionAdapter(self.act_spec, ints=is_gymnasium_env(self._envs[0].unwrapped))
        self._adapter = None if self.obs_spec.plain else ObservationAdapter(self.obs_spec)
        # A discrete observation may be a plain int, which has no shape to compare.
        discrete = self.obs_spec.kind == "discrete"
        self._shape = None if discrete else self.obs_spec.leaves[0].shape
        self._steps = [env.step for env in self._envs]
        self.ended = [True] * num_envs
        self._failures_in_a_row = [0] * num_envs
        self._last_failure = [-FAILURE_WINDOW] * num_envs
        self._next_limit = NEVER

    def close(self) -> None:
        for env in self._envs:
            close_quietly(env)
        self._envs = []

    def reset(self, obs: Array) -> None:
        for i in range(self.num_envs):
            while not self._begin_episode(i, obs, self.row):
                pass
        self._plan_time_limit()

    def step(self, t: int, actions: Sequence[Any], out: Rollout) -> None:
        obs, reward, ended, shape = out.obs[t + 1], out.reward[t], self.ended, self._shape
        adapter, heartbeat = self._adapter, self.heartbeat
        views = None if adapter is None else self.obs_spec.split(obs)
        limit_row = self.row + 1 >= self._next_limit
        for i, (step, action) in enumerate(zip(self._steps, actions, strict=True)):
            heartbeat.beats = i
            if ended[i]:
                self._reset_row(t, i, out)
            else:
                try:
                    returned = step(action)
                    try:
                        observation, gain, terminated, truncated, info = returned
                    except (TypeError, ValueError):
                        raise wrong_step(returned) from None
                    if views is not None:
                        adapter.write(views, i, observation, info)  # type: ignore[union-attr]
                    elif shape is None or getattr(observation, "shape", None) == shape:
                        obs[i] = observation
                    else:
                        self._write(obs, i, observation, info)
                    try:
                        reward[i] = gain
                    except (TypeError, ValueError):
                        raise WrongReturn(f"reward {gain!r} is not a number; {CHECK}") from None
                    if terminated or truncated or limit_row:
                        self._end_episode(t, i, terminated, truncated, info, out)
                except ENV_ERRORS as error:
                    self._fail(t, i, out, error)
        self.row += 1
        if limit_row:
            self._plan_time_limit()

    def _end_episode(
        self, t: int, i: int, terminated: Any, truncated: Any, info: Any, out: Rollout
    ) -> None:
        """End column `i`'s episode with row `t`, if it is over or has reached the time limit."""
        terminated, truncated = as_flag(terminated), as_flag(truncated)
        if not (terminated or truncated):
            assert self._limit is not None
            truncated = self.row + 1 - self.started[i] >= self._limit
            if not truncated:
                return
        if self.read_info is not None and (numbers := self.read_info(info)):
            out.final_info[t, i] = numbers
        out.terminated[t, i], out.truncated[t, i] = terminated, truncated
        self.ended[i] = True

    def _reset_row(self, t: int, i: int, out: Rollout) -> None:
        """In row `t` column `i` begins its next episode instead of stepping."""
        out.valid[t, i] = False
        out.reward[t, i] = 0.0
        self.ended[i] = not self._begin_episode(i, out.obs[t + 1], self.row + 1)
        if self.ended[i]:
            out.obs[t + 1, i] = out.obs[t, i]
        else:
            out.first[t + 1, i] = True
            self._plan_time_limit()

    def _begin_episode(self, i: int, obs: Array, row: int) -> bool:
        """Reset column `i` for its next episode; False if that failed and it was rebuilt."""
        self.episode[i] += 1
        self.started[i] = row
        self.heartbeat.beats = i
        try:
            observation, info = self._reset(i)
            self._write(obs, i, observation, info)
        except ENV_ERRORS as error:
            self._rebuild(i, row, error)
            return False
        if self._may_mask and ACTION_MASK in info:
            raise EnvironmentFailed(
                f"env {self.first_column + i} has an {ACTION_MASK} in the info of this reset and "
                "had none in that of the first; give it always, or never"
            )
        self.ended[i] = False
        return True

    def _reset(self, i: int) -> tuple[Any, dict[str, Any]]:
        done, self._first_reset = self._first_reset, None
        if done is not None and i == 0 and self.episode[0] == 0:
            return done
        return self._seeded_reset(i, int(self.episode[i]))

    def _seeded_reset(self, i: int, episode: int) -> tuple[Any, dict[str, Any]]:
        seed = episode_seed(self.seed, self.first_column + i, episode)
        return unpack_reset(self._envs[i].reset(seed=seed))

    def _read_specs(self, masks: bool, stack: int) -> Specs:
        """From the spaces and, for action masks, from the info of the first reset."""
        act = action_spec(self.action_space)
        info: dict[str, Any] = {}
        if masks and act.choices:
            try:
                self._first_reset = self._seeded_reset(0, 0)
                info = self._first_reset[1]
            except ENV_ERRORS:  # it is reset again, and fails there
                log.debug("the environment failed to begin an episode", exc_info=True)
        obs = observation_spec(self.observation_space, act if masks else None, info)
        return with_stack(obs, stack), act

    def _write(self, obs: Array, i: int, observation: Any, info: Mapping[str, Any]) -> None:
        """Store column `i`'s observation in `obs[B]`; raises if it does not fit its space."""
        if self._adapter is not None:
            self._adapter.write(self.obs_spec.split(obs), i, observation, info)
            return
        if self._shape is not None and np.shape(observation) != self._shape:
            raise ValueError(f"observation of shape {np.shape(observation)}, not {self._shape}")
        obs[i] = observation

    def _fail(self, t: int, i: int, out: Rollout, error: BaseException) -> None:
        """The environment raised in row `t`: the row is invalid, the one before it truncated."""
        self._rebuild(i, self.row, error)
        if t > 0 and out.valid[t - 1, i]:
            out.truncated[t - 1, i] = True
        self._reset_row(t, i, out)

    def _rebuild(self, i: int, row: int, error: BaseException) -> None:
        """Replace environment `i`, unless it has failed too often in a row."""
        end_if_forked(self._pid)
        self.failures += 1
        again = row - self._last_failure[i] < FAILURE_WINDOW
        self._failures_in_a_row[i] = self._failures_in_a_row[i] + 1 if again else 1
        self._last_failure[i] = row
        where = f"env {self.first_column + i}, step {row - int(self.started[i])}"
        if self._failures_in_a_row[i] >= MAX_FAILURES:
            raise EnvironmentFailed(
                f"{where}: the environment failed {MAX_FAILURES} times in a row; the last time: "
                f"{describe(error)}"
            ) from error
        self._warn_of_rebuild(where, error)
        close_quietly(self._envs[i])
        try:
            self._envs[i], _ = self._make()
        except ENV_ERRORS as second:
            raise EnvironmentFailed(
                f"{where}: the environment raised and can't be rebuilt: {describe(second)}"
            ) from second
        self._steps[i] = self._envs[i].step

    def _warn_of_rebuild(self, where: str, error: BaseException) -> None:
        """The first time with a traceback, and then at each power of ten, with the latest cause."""
        count = self.failures
        if count == 1:
            trace = None if isinstance(error, WrongReturn) else error
            cause = describe(error) if trace is None else "it raised"
            log.warning(f"{where}: {cause}; the environment is rebuilt", exc_info=trace)
        elif str(count).strip("0") == "1":
            last = self.first_column + self.num_envs - 1
            log.warning(
                f"environments {self.first_column} to {last} were rebuilt {count:,} times so far; "
                f"the last was {where}: {describe(error)}"
            )

    def _plan_time_limit(self) -> None:
        """Find the first row at which an open episode can reach the time limit."""
        if self._limit is not None:
            open_ones = self.started[~np.array(self.ended)]
            self._next_limit = int(open_ones.min()) + self._limit if len(open_ones) else NEVER

    def restore(self, state: dict[str, Array]) -> None:
        super().restore(state)
        self._first_reset = None
        self._plan_time_limit()

    def replay(
        self, actions: Sequence[Array | None], expected: Array, returns: Array
    ) -> list[ReplayMismatch]:
        """A column that comes out different begins a new episode in the next row."""
        mismatches = []
        for i, taken in enumerate(actions):
            if taken is not None:
                what = self._replay(i, self.adapt(taken), expected[i : i + 1], returns[i])
                self.ended[i] = bool(what)
                mismatches += [(i, what)] if what else []
        return mismatches

    def _replay(self, i: int, actions: Sequence[Any], expected: Array, saved: float) -> str:
        """Replay column `i` to `expected[1]` and the return `saved`; what differs, if anything."""
        seen, ended, reward = np.empty_like(expected), False, np.zeros(1, np.float32)
        total = magnitude = 0.0
        try:
            self._write(seen, 0, *self._reset(i))
            for action in actions:
                if ended:
                    break
                self.heartbeat.beats += 1
                observation, reward[0], terminated, truncated, info = self._steps[i](action)
                self._write(seen, 0, observation, info)
                total += float(reward[0])
                magnitude += abs(float(reward[0]))
                ended = as_flag(terminated) or as_flag(truncated)
        except ENV_ERRORS as error:
            log.warning("replaying column %d raised", self.first_column + i, exc_info=error)
            return "raised"
        return replay_mismatch(self.obs_spec, seen, expected, total - saved, magnitude, ended)


def is_gymnasium_env(env: gym.Env[Any, Any]) -> bool:
    """Whether an environment or wrapper is one of Gymnasium's own."""
    return type(env).__module__.startswith("gymnasium.")


def without_action_checks(make: EnvMaker) -> EnvMaker:
    """The same environments, but Gymnasium's own don't check a policy's actions.

    The check takes half as long as CartPole's step. Below a user's wrapper it stays, since that
    may change actions.
    """

    def made() -> tuple[gym.Env[Any, Any], int | None]:
        env, limit = make()
        layer = env
        ours = MaskVelocity, MemoryInputs
        while (is_gymnasium_env(layer) or isinstance(layer, ours)) and layer is not env.unwrapped:
            layer = layer.env  # type: ignore[attr-defined]
        if is_gymnasium_env(layer) and isinstance(layer.action_space, gym.spaces.Discrete):
            layer.action_space.contains = lambda x: True  # type: ignore[method-assign]
        return env, limit

    return made
