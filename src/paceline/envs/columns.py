"""EnvColumns: plain Python environments, stepped in one tight loop straight into a rollout.

Every episode is reset with a seed of its own, so that it can be replayed from its actions.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from struct import pack
from typing import Any, Literal, Self

import gymnasium as gym
import numpy as np

from ..errors import BadInput, EnvironmentFailed
from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Rollout
from .adapters import ActionAdapter, ObservationAdapter
from .frame_stack import with_stack
from .guards import ENV_ERRORS, close_quietly, describe, end_flag, end_if_forked, reset_pair
from .replaying import Difference, alike, difference
from .spaces import ACTION_MASK, Specs, action_spec, observation_spec

log = logging.getLogger("paceline")

EnvMaker = Callable[[], tuple[gym.Env[Any, Any], int | None]]
"""Makes one environment; with it comes a time limit to apply from outside, if any."""
Resume = Literal["replay", "state", "none"]
"""How an open episode is brought back: from its actions, from a saved state, or not."""

MAX_FAILURES = 10
"""An environment that fails this often, each time `SOON` after the last, has failed for good."""
SOON = 20
NEVER = np.iinfo(np.int64).max


def episode_seed(run_seed: int, column: int, episode: int) -> int:
    """The seed of a column's episode: a hash, so that neighbours share nothing."""
    digest = blake2b(pack("<qqq", run_seed, column, episode), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF


class SingleColumns:
    """Columns `first_column … first_column + num_envs - 1` of a run, each one environment."""

    columns_per_env = 1
    failures = 0
    ended: Any

    def __init__(self, num_envs: int, seed: int, first_column: int) -> None:
        self.num_envs, self._seed, self.first_column = num_envs, seed, first_column
        self.heartbeat: Heartbeat = Heartbeat()
        self.row = 0
        self.episode = np.full(num_envs, -1, np.int64)
        self.started = np.zeros(num_envs, np.int64)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None: ...

    def state(self) -> dict[str, Array]:
        """What a checkpoint needs beside the open episodes' actions."""
        return {
            "row": np.array(self.row),
            "episode": self.episode.copy(),
            "started": self.started.copy(),
            "ended": np.array(self.ended),
        }


class EnvColumns(SingleColumns):
    """Environments stepped one after the other; looked at for what they show, unless `specs` say.

    `longest` is the time limit of environments that have none.
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
        longest: int | None = None,
    ) -> None:
        super().__init__(num_envs, seed, first_column)
        self._make, self._process = make, os.getpid()
        self._envs: list[gym.Env[Any, Any]] = []
        self._begun: tuple[Any, dict[str, Any]] | None = None
        """the first episode of the first column, if it has begun already"""
        try:
            for _ in range(num_envs):
                env, limit = make()
                self._envs.append(env)
                self._limit = limit or longest
            self.observation_space = self._envs[0].observation_space
            self.action_space = self._envs[0].action_space
            self.obs_spec, self.act_spec = specs or self._look(masks, stack)
            self._maskable = masks and bool(self.act_spec.choices) and not self.obs_spec.mask
        except BadInput:
            self.close()
            raise
        except ENV_ERRORS as error:
            self.close()
            raise EnvironmentFailed(f"the environment can't be made: {describe(error)}") from error
        self.adapt = ActionAdapter(self.act_spec, ints=is_gymnasiums(self._envs[0].unwrapped))
        self._adapter = None if self.obs_spec.plain else ObservationAdapter(self.obs_spec)
        # A discrete observation may be a plain int, which has no shape to compare.
        discrete = self.obs_spec.kind == "discrete"
        self._shape = None if discrete else self.obs_spec.leaves[0].shape
        self._steps = [env.step for env in self._envs]
        self.ended = [True] * num_envs
        self._in_a_row = [0] * num_envs
        self._last_failure = [-SOON] * num_envs
        self._next_limit = NEVER

    def close(self) -> None:
        for env in self._envs:
            close_quietly(env)
        self._envs = []

    def reset(self, obs: Array) -> None:
        for i in range(self.num_envs):
            while not self._begin(i, obs, self.row):
                pass
        self._plan_limit()

    def step(self, t: int, actions: Sequence[Any], out: Rollout) -> None:
        obs, reward, ended, shape = out.obs[t + 1], out.reward[t], self.ended, self._shape
        adapter, heartbeat = self._adapter, self.heartbeat
        views = None if adapter is None else self.obs_spec.split(obs)
        for i, (step, action) in enumerate(zip(self._steps, actions, strict=True)):
            heartbeat.beats = i
            if ended[i]:
                self._restart(t, i, out)
            else:
                try:
                    observation, gain, terminated, truncated, info = step(action)
                    if views is not None:
                        adapter.write(views, i, observation, info)  # type: ignore[union-attr]
                    elif shape is None or getattr(observation, "shape", None) == shape:
                        obs[i] = observation
                    else:
                        self._write(obs, i, observation, info)  # refuses, if it has to
                    try:
                        reward[i] = gain
                    except (TypeError, ValueError):
                        raise TypeError(f"the reward is {gain!r}, not a number") from None
                    if terminated or truncated:
                        ends = end_flag(terminated), end_flag(truncated)
                        out.terminated[t, i], out.truncated[t, i] = ends
                        ended[i] = True
                except ENV_ERRORS as error:
                    self._fail(t, i, out, error)
        self.row += 1
        if self.row >= self._next_limit:
            self._cut(t, out)

    def _restart(self, t: int, i: int, out: Rollout) -> None:
        """Row `t` of column `i` begins the next episode instead of stepping."""
        out.valid[t, i] = False
        out.reward[t, i] = 0.0
        self.ended[i] = not self._begin(i, out.obs[t + 1], self.row + 1)
        if self.ended[i]:
            out.obs[t + 1, i] = out.obs[t, i]
        else:
            out.first[t + 1, i] = True
            self._plan_limit()

    def _begin(self, i: int, obs: Array, row: int) -> bool:
        """Reset column `i` for its next episode; False if it failed and was rebuilt."""
        self.episode[i] += 1
        self.started[i] = row
        self.heartbeat.beats = i
        try:
            observation, info = self._reset(i)
            self._write(obs, i, observation, info)
        except ENV_ERRORS as error:
            self._rebuild(i, row, error)
            return False
        if self._maskable and ACTION_MASK in info:
            raise EnvironmentFailed(
                f"the environment of column {self.first_column + i} has an {ACTION_MASK} in the "
                "info of this reset and had none in that of the first; give it always, or never"
            )
        self.ended[i] = False
        return True

    def _reset(self, i: int) -> tuple[Any, dict[str, Any]]:
        begun, self._begun = self._begun, None
        if begun is not None and i == 0 and self.episode[0] == 0:
            return begun
        return self._seeded_reset(i, int(self.episode[i]))

    def _seeded_reset(self, i: int, episode: int) -> tuple[Any, dict[str, Any]]:
        seed = episode_seed(self._seed, self.first_column + i, episode)
        return reset_pair(self._envs[i].reset(seed=seed))

    def _look(self, masks: bool, stack: int) -> Specs:
        """What its observations and actions are, as far as its spaces and first reset tell."""
        act = action_spec(self.action_space)
        info: dict[str, Any] = {}
        if masks and act.choices:  # the first episode's `info` may hold a mask of actions
            try:
                self._begun = self._seeded_reset(0, 0)
                info = self._begun[1]
            except ENV_ERRORS:  # the real reset will tell
                log.debug("the environment failed to begin an episode", exc_info=True)
        shown = observation_spec(self.observation_space, act if masks else None, info)
        return with_stack(shown, stack), act

    def _write(self, obs: Array, i: int, observation: Any, info: Mapping[str, Any]) -> None:
        """Store column `i`'s observation in `obs[B]`, if it is what its space says."""
        if self._adapter is not None:
            self._adapter.write(self.obs_spec.split(obs), i, observation, info)
            return
        if self._shape is not None and np.shape(observation) != self._shape:
            raise ValueError(f"observation of shape {np.shape(observation)}, not {self._shape}")
        obs[i] = observation

    def _fail(self, t: int, i: int, out: Rollout, error: BaseException) -> None:
        """The row counts for nothing, and the one before it was the last of a cut-off episode."""
        self._rebuild(i, self.row, error)
        if t > 0 and out.valid[t - 1, i]:
            out.truncated[t - 1, i] = True
        self._restart(t, i, out)

    def _rebuild(self, i: int, row: int, error: BaseException) -> None:
        """Replace environment `i`, unless it has failed too often in a row."""
        end_if_forked(self._process)
        self.failures += 1
        soon = row - self._last_failure[i] < SOON
        self._in_a_row[i] = self._in_a_row[i] + 1 if soon else 1
        self._last_failure[i] = row
        where = f"column {self.first_column + i}, step {row - int(self.started[i])} of its episode"
        if self._in_a_row[i] >= MAX_FAILURES:
            raise EnvironmentFailed(
                f"the environment of {where} failed {MAX_FAILURES} times in a row: "
                f"{describe(error)}"
            ) from error
        if self.failures == 1:
            log.warning("the environment of %s raised; it is rebuilt", where, exc_info=error)
        close_quietly(self._envs[i])
        try:
            self._envs[i], _ = self._make()
        except ENV_ERRORS as again:
            raise EnvironmentFailed(
                f"the environment of {where} raised and can't be rebuilt: {describe(again)}"
            ) from again
        self._steps[i] = self._envs[i].step

    def _cut(self, t: int, out: Rollout) -> None:
        """Truncate the episodes that have reached the time limit."""
        assert self._limit is not None
        for i in range(self.num_envs):
            if not self.ended[i] and self.row - self.started[i] >= self._limit:
                out.truncated[t, i] = True
                self.ended[i] = True
        self._plan_limit()

    def _plan_limit(self) -> None:
        """The first row at which some running episode may reach the time limit."""
        if self._limit is not None:
            running = self.started[~np.array(self.ended)]
            self._next_limit = int(running.min()) + self._limit if len(running) else NEVER

    def replay(
        self, actions: Sequence[Array | None], expected: Array, returns: Array
    ) -> list[Difference]:
        """Episodes that come out otherwise are given up: the next row resets."""
        different = []
        for i, taken in enumerate(actions):
            if taken is not None:
                what = self._replayed(i, self.adapt(taken), expected[i : i + 1], returns[i])
                self.ended[i] = bool(what)
                different += [(i, what)] if what else []
        return different

    def _replayed(self, i: int, actions: Sequence[Any], expected: Array, saved: float) -> str:
        """In what column `i` is not at the observation `expected[1]` and the return `saved`."""
        seen, over, reward = np.empty_like(expected), False, np.zeros(1, np.float32)
        total = size = 0.0
        try:
            self._write(seen, 0, *self._reset(i))
            for action in actions:
                if over:
                    break
                self.heartbeat.beats += 1
                observation, reward[0], terminated, truncated, info = self._steps[i](action)
                self._write(seen, 0, observation, info)
                total, size = total + float(reward[0]), size + abs(float(reward[0]))
                over = end_flag(terminated) or end_flag(truncated)
        except ENV_ERRORS as error:
            log.warning("replaying column %d raised", self.first_column + i, exc_info=error)
            return "raised"
        return difference(alike(self.obs_spec, seen, expected), total - saved, size, over)

    def restore(self, state: dict[str, Array]) -> None:
        """Take counters from `state`; the caller replays the columns that have not ended."""
        self.row = int(state["row"])
        self.episode[:] = state["episode"]
        self.started[:] = state["started"]
        self.ended[:] = state["ended"].tolist()
        self._begun = None
        self._plan_limit()


def is_gymnasiums(env: gym.Env[Any, Any]) -> bool:
    return type(env).__module__.startswith("gymnasium.")
