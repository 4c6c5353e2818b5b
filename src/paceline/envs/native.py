"""Batch and NativeColumns: many environments behind one call, which a suite makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from ..errors import EnvironmentFailed, PacelineError
from ..rollout import Array, Rollout
from .adapters import ActionAdapter, ObservationAdapter
from .columns import Resume, SingleColumns, episode_seed
from .frame_stack import with_stack
from .guards import ENV_ERRORS, close_quietly, describe
from .replaying import Difference, alike, difference
from .spaces import action_spec, observation_spec


class Batch(Protocol):
    """Environments of one kind, stepped as one call; inherited from, it only resets and steps."""

    observation_space: gym.Space[Any]
    """of one of them, as `action_space` is"""
    action_space: gym.Space[Any]
    resume: Resume
    ends_show_the_next: bool = False
    """whether an episode's last step shows the next one's first observation, instead of its own,
    and no call only resets; all its ends are terminations then"""

    def reset(self) -> Any:
        """Begin an episode in each; their observations."""

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array]:
        """Observations, rewards, terminated, truncated; after an end the next call only resets."""

    def begin(self, which: Array, episodes: Array, turned: bool) -> Any:
        """Have the columns `which` at the start of their `episodes`; everybody's observations.

        If they have `turned` from the episode before by themselves, None means that all is well.
        Only asked for where `resume` is "replay".
        """
        raise AssertionError(f"resume is {self.resume}")

    def state(self) -> dict[str, Array]:
        """All of it; empty unless `resume` is "state"."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """What `state` gave, where `resume` is "state"; `ValueError` if it can't be that."""
        raise AssertionError(f"resume is {self.resume}")

    def close(self) -> None: ...


SeedOf = Callable[[int, int], int]
"""The seed of a column's episode."""
BatchMaker = Callable[[int, SeedOf, int], Batch]
"""From how many, their seeds, and a number of threads, to all of them."""


class NativeColumns(SingleColumns):
    """Environments stepped as one batch."""

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
        self._batch = self._made(np.zeros(num_envs, np.int64))
        try:
            self.observation_space = self._batch.observation_space
            self.action_space = self._batch.action_space
            self.act_spec = action_spec(self.action_space)
            shown = observation_spec(self.observation_space, self.act_spec)
            self.obs_spec = with_stack(shown, stack)
        except BaseException:
            self.close()
            raise
        self.adapt = ActionAdapter(self.act_spec).batch
        self._adapter = ObservationAdapter(self.obs_spec)
        self._plain = self.obs_spec.plain and self.obs_spec.kind != "discrete"
        self.resume = self._batch.resume
        self.ended = np.zeros(num_envs, np.bool_)
        self._resetting = False
        """some have: the next row begins their next episodes"""
        self._adrift = np.zeros(num_envs, np.bool_)
        """ended for us, and not for the batch"""

    def close(self) -> None:
        close_quietly(self._batch)

    def _made(self, episode: Array) -> Batch:
        """A batch whose first episodes have these numbers."""

        def seed_of(i: int, number: int) -> int:
            return episode_seed(self._seed, self.first_column + i, int(episode[i]) + number)

        with _failing("can't be made"):
            return self._make(self.num_envs, seed_of, self._threads)

    def reset(self, obs: Array) -> None:
        self.episode += 1
        self.started[:], self.ended[:], self._adrift[:] = self.row, False, False
        self._resetting = False
        if self.episode.any() and self.resume != "replay":  # which is given seeds as it goes
            self.close()
            self._batch = self._made(self.episode)
        with _failing("can't be reset"):
            found = self._batch.reset()
            if self.resume == "replay":
                everybody = np.ones(self.num_envs, np.bool_)
                found = self._batch.begin(everybody, self.episode, turned=False)
            self._write(obs, found)

    def step(self, t: int, actions: Array, out: Rollout) -> None:
        try:
            observation, reward, terminated, truncated = self._batch.step(actions)
            self._write(out.obs[t + 1], observation)
            out.reward[t] = reward
            done = np.logical_or(terminated, truncated)
            self.row += 1
            if self._resetting or done.any():  # seldom, and all else is as it was cleared
                self._note_ends(t, terminated, truncated, done, out)
        except ENV_ERRORS as error:
            raise EnvironmentFailed(
                f"the vector environment raised at row {self.row}: {describe(error)}"
            ) from error

    def _note_ends(
        self, t: int, terminated: Array, truncated: Array, done: Array, out: Rollout
    ) -> None:
        """Row `t` ended episodes, or began some."""
        begun, self.ended = self.ended, done
        if self._resetting:
            going = ~begun
            out.valid[t], self.ended = going, done & going
            out.reward[t, begun] = 0.0
            terminated, truncated = terminated & going, truncated & going
        out.terminated[t], out.truncated[t] = terminated, truncated
        if self._batch.ends_show_the_next:
            begun, self.ended = self.ended, begun
        some, self._resetting = self._resetting, bool(self.ended.any())
        out.first[t + 1] = begun
        if some or self._batch.ends_show_the_next:
            self.started[begun] = self.row
            self.episode += begun
            if self.resume == "replay":
                self._turn(begun, out.obs[t + 1])

    def _turn(self, begun: Array, obs: Array) -> None:
        """Columns whose episodes the batch has begun, or which are to be brought there."""
        for which, turned in ((begun & ~self._adrift, True), (begun & self._adrift, False)):
            if which.any():
                found = self._batch.begin(which, self.episode, turned)
                if found is not None:
                    self._write(obs, found)
        self._adrift &= ~begun

    def _write(self, obs: Array, observation: Any) -> None:
        if self._plain and observation.shape == obs.shape:
            obs[...] = observation
            return
        self._adapter.write(self.obs_spec.split(obs), slice(None), observation, {})

    def state(self) -> dict[str, Array]:
        return super().state() | self._batch.state()

    def restore(self, state: dict[str, Array]) -> None:
        self.row = int(state["row"])
        self.episode[:] = state["episode"]
        if self.resume == "none":
            return  # the caller resets
        self.started[:], self.ended = state["started"], state["ended"].copy()
        self._resetting = bool(self.ended.any())
        if self.resume == "state":
            with _failing("can't be reset"):
                self._batch.reset()
            self._batch.restore(state)

    def replay(
        self, actions: Sequence[Array | None], expected: Array, returns: Array
    ) -> list[Difference]:
        """All columns side by side, each joining in when as many steps are left as it needs."""
        lengths = np.array([-1 if taken is None else len(taken) for taken in actions])
        longest = int(lengths.max(initial=0))
        shape, dtype = self.act_spec.stored
        table = np.zeros((longest, self.num_envs, *shape), dtype)
        for i, taken in enumerate(actions):
            if taken is not None and len(taken):
                table[longest - len(taken) :, i] = taken
        seen, over = np.zeros_like(expected), np.zeros(self.num_envs, np.bool_)
        total, size = np.zeros(self.num_envs), np.zeros(self.num_envs)
        with _failing("raised while it was replayed"):
            self._write(seen, self._batch.reset())
            for left in range(longest, -1, -1):
                joining = lengths == left
                if joining.any():
                    self._write(seen, self._batch.begin(joining, self.episode, turned=False))
                    over &= ~joining
                    total[joining] = size[joining] = 0.0
                if left:
                    self.heartbeat.beats += 1
                    observation, reward, terminated, truncated = self._batch.step(
                        self.adapt(table[longest - left])
                    )
                    self._write(seen, observation)
                    over |= terminated | truncated
                    total += np.asarray(reward, np.float32)
                    size += np.abs(reward)
        different = []
        for i, taken in enumerate(actions):
            same = alike(self.obs_spec, seen[i : i + 1], expected[i : i + 1])
            what = difference(same, float(total[i] - returns[i]), float(size[i]), bool(over[i]))
            if taken is not None and what:
                different.append((i, what))
                self.ended[i] = True  # the next row begins its next episode
        self._adrift, self._resetting = self.ended.copy(), bool(self.ended.any())
        return different


@contextmanager
def _failing(how: str) -> Iterator[None]:
    """What a batch raises within is told as the vector environment's failure."""
    try:
        yield
    except PacelineError:
        raise
    except ENV_ERRORS as error:
        raise EnvironmentFailed(f"the vector environment {how}: {describe(error)}") from error
