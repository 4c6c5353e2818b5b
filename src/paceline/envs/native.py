"""Batch and NativeColumns: environments of a vector library, stepped as one call. B = columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from ..errors import EnvironmentFailed, PacelineError
from ..rollout import Array, Rollout
from .adapters import ActionAdapter, ObservationAdapter
from .columns import Columns, ReplayMismatch, Resume, episode_seed, replay_mismatch
from .frame_stack import with_stack
from .guards import ENV_ERRORS, close_quietly, describe
from .spaces import action_spec, observation_spec


class Batch(Protocol):
    """B environments of one kind, stepped as one call."""

    observation_space: gym.Space[Any]
    """of a single environment, like `action_space`"""
    action_space: gym.Space[Any]
    resume: Resume
    same_step_autoreset: bool = False
    """the last step of an episode returns the next one's first observation, and every end is a
    termination; otherwise the next call resets the environment (next-step autoreset)"""

    def reset(self) -> Any:
        """Begin an episode in every environment; returns the observations."""

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array]:
        """Observations, rewards, terminated, truncated."""

    def info(self, i: int) -> Mapping[str, Any]:
        """Environment `i`'s info of the latest step, which ended its episode."""
        return {}

    def begin(self, which: Array, episodes: Array, autoreset: bool) -> Any:
        """Put the columns `which` at the start of their `episodes[B]`; all columns' observations.

        With `autoreset` they were just reset by `step`; None then means that nothing had to be
        done. Called only where `resume` is "replay".
        """
        raise AssertionError(f"resume is {self.resume}")

    def state(self) -> dict[str, Array]:
        """The state of all environments; empty unless `resume` is "state"."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Take what `state` returned; `ValueError` if it can't be that."""
        raise AssertionError(f"resume is {self.resume}")

    def close(self) -> None: ...


SeedOf = Callable[[int, int], int]
"""(column, number of its episode) → seed"""
BatchMaker = Callable[[int, SeedOf, int], Batch]
"""(number of environments, their seeds, number of threads) → batch"""


class NativeColumns(Columns):
    """The environments of a `Batch`."""

    def __init__(
        self,
        make: BatchMaker,
        num_envs: int,
        seed: int = 0,
        first_column: int = 0,
        stack: int = 1,
        threads: int = 1,
    ) -> None:
        super().__init__(num_envs, seed, first_column)
        self._make, self._threads = make, threads
        self._batch = self._make_batch(np.zeros(num_envs, np.int64))
        try:
            self.observation_space = self._batch.observation_space
            self.action_space = self._batch.action_space
            self.act_spec = action_spec(self.action_space)
            obs_spec = observation_spec(self.observation_space, self.act_spec)
            self.obs_spec = with_stack(obs_spec, stack)
        except BaseException:
            self.close()
            raise
        self.adapt = ActionAdapter(self.act_spec).batch
        self._adapter = ObservationAdapter(self.obs_spec)
        self._plain = self.obs_spec.plain and self.obs_spec.kind != "discrete"
        self.resume = self._batch.resume
        self.ended = np.zeros(num_envs, np.bool_)
        self._any_ended = False
        self._needs_reset = np.zeros(num_envs, np.bool_)
        """ended here but not in the batch, which therefore won't reset them by itself"""

    def close(self) -> None:
        close_quietly(self._batch)

    def _make_batch(self, episode: Array) -> Batch:
        """A batch whose first episodes have the numbers `episode[B]`."""

        def seed_of(i: int, number: int) -> int:
            return episode_seed(self.seed, self.first_column + i, int(episode[i]) + number)

        with _batch_errors("can't be made"):
            return self._make(self.num_envs, seed_of, self._threads)

    def reset(self, obs: Array) -> None:
        self.episode += 1
        self.started[:], self.ended[:], self._needs_reset[:] = self.row, False, False
        self._any_ended = False
        if self.episode.any() and self.resume != "replay":  # whose episodes are seeded one by one
            self.close()
            self._batch = self._make_batch(self.episode)
        with _batch_errors("can't be reset"):
            observation = self._batch.reset()
            if self.resume == "replay":
                everyone = np.ones(self.num_envs, np.bool_)
                observation = self._batch.begin(everyone, self.episode, autoreset=False)
            self._write(obs, observation)

    def step(self, t: int, actions: Array, out: Rollout) -> None:
        try:
            observation, reward, terminated, truncated = self._batch.step(actions)
            self._write(out.obs[t + 1], observation)
            out.reward[t] = reward
            done = np.logical_or(terminated, truncated)
            self.row += 1
            if self._any_ended or done.any():
                self._record_ends(t, terminated, truncated, done, out)
        except ENV_ERRORS as error:
            raise EnvironmentFailed(
                f"the vector environment raised at row {self.row}: {describe(error)}"
            ) from error

    def _record_ends(
        self, t: int, terminated: Array, truncated: Array, done: Array, out: Rollout
    ) -> None:
        """Write the flags of a row in which some columns ended or were reset."""
        if self._batch.same_step_autoreset:
            begun = done
        else:
            begun = self.ended
            stepped = ~begun
            out.valid[t] = stepped
            out.reward[t, begun] = 0.0
            terminated, truncated = terminated & stepped, truncated & stepped
            self.ended = done & stepped
            self._any_ended = bool(self.ended.any())
        out.terminated[t], out.truncated[t] = terminated, truncated
        if self.read_info is not None:
            for i in np.flatnonzero(terminated | truncated).tolist():
                if numbers := self.read_info(self._batch.info(i)):
                    out.final_info[t, i] = numbers
        out.first[t + 1] = begun
        self.started[begun] = self.row
        self.episode += begun
        if self.resume == "replay":
            self._begin_episodes(begun, out.obs[t + 1])

    def _begin_episodes(self, begun: Array, obs: Array) -> None:
        """Seed the episodes that a row has begun, and reset those that the batch did not."""
        reset = begun & self._needs_reset
        for which, autoreset in ((begun & ~reset, True), (reset, False)):
            if which.any():
                observation = self._batch.begin(which, self.episode, autoreset)
                if observation is not None:
                    self._write(obs, observation)
        self._needs_reset &= ~begun

    def _write(self, obs: Array, observation: Any) -> None:
        """Store the observations of all columns in `obs[B]`."""
        if self._plain and observation.shape == obs.shape:
            obs[...] = observation
            return
        self._adapter.write(self.obs_spec.split(obs), slice(None), observation, {})

    def state(self) -> dict[str, Array]:
        return super().state() | self._batch.state()

    def restore(self, state: dict[str, Array]) -> None:
        super().restore(state)
        self._any_ended = bool(self.ended.any())
        if self.resume == "state":
            with _batch_errors("can't be reset"):
                self._batch.reset()
            self._batch.restore(state)

    def replay(
        self, actions: Sequence[Array | None], expected: Array, returns: Array
    ) -> list[ReplayMismatch]:
        """All columns are stepped together; each begins when as many steps are left as it has."""
        lengths = np.array([-1 if taken is None else len(taken) for taken in actions])
        longest = int(lengths.max(initial=0))
        shape, dtype = self.act_spec.stored
        table = np.zeros((longest, self.num_envs, *shape), dtype)
        for i, taken in enumerate(actions):
            if taken is not None and len(taken):
                table[longest - len(taken) :, i] = taken
        seen, ended = np.zeros_like(expected), np.zeros(self.num_envs, np.bool_)
        total, magnitude = np.zeros(self.num_envs), np.zeros(self.num_envs)
        with _batch_errors("raised while it was replayed"):
            self._write(seen, self._batch.reset())
            for left in range(longest, -1, -1):
                begins = lengths == left
                if begins.any():
                    self._write(seen, self._batch.begin(begins, self.episode, autoreset=False))
                    ended &= ~begins
                    total[begins] = magnitude[begins] = 0.0
                if left:
                    self.heartbeat.beats += 1
                    observation, reward, terminated, truncated = self._batch.step(
                        self.adapt(table[longest - left])
                    )
                    self._write(seen, observation)
                    ended |= terminated | truncated
                    total += np.asarray(reward, np.float32)
                    magnitude += np.abs(reward)
        mismatches = []
        for i in np.flatnonzero(lengths >= 0).tolist():
            row, gap = slice(i, i + 1), float(total[i] - returns[i])
            what = replay_mismatch(
                self.obs_spec, seen[row], expected[row], gap, float(magnitude[i]), bool(ended[i])
            )
            if what:
                mismatches.append((i, what))
                self.ended[i] = True  # the next row begins its next episode
        self._needs_reset, self._any_ended = self.ended.copy(), bool(self.ended.any())
        return mismatches


@contextmanager
def _batch_errors(how: str) -> Iterator[None]:
    """Raise whatever a batch raises as EnvironmentFailed."""
    try:
        yield
    except PacelineError:
        raise
    except ENV_ERRORS as error:
        raise EnvironmentFailed(f"the vector environment {how}: {describe(error)}") from error
