"""Rollout: the only thing that crosses from a sampler to a learner. Numpy; time-major.

T = steps, B = columns (one column is one environment and, in teams, one agent of it).
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Stored = tuple[tuple[int, ...], Any]
"""Shape and dtype of one entry of a rollout."""
NO_HISTORY: tuple[int, Stored] = (0, ((), np.bool_))
Pulse = MutableSequence[int] | memoryview
"""[row of the run, steps of replay, whether to leave]: signs of life, and one against it."""


def still() -> Pulse:
    """A pulse that nobody feels."""
    return [0, 0, 0]


@dataclass(frozen=True)
class Episode:
    """One finished episode: where it ran, its undiscounted return and its number of steps."""

    column: int
    total: float
    length: int


@dataclass(frozen=True)
class Rollout:
    """T steps of B columns under next-step autoreset.

    `obs[t + 1]` is always the true successor of `obs[t]`. After an episode's end one row only
    resets: it is `valid=False`, costs no environment step and enters no loss and no statistic.
    """

    obs: Array
    """[T+1, B, ...]"""
    first: Array
    """[T+1, B] this observation starts an episode"""
    action: Array
    """[T, B, ...] as the policy drew it: neither clipped nor rescaled"""
    logp: Array
    """[T, B] log-probability under the policy that acted"""
    reward: Array
    """[T, B]"""
    terminated: Array
    """[T, B] the episode ended in a terminal state"""
    truncated: Array
    """[T, B] the episode was cut off: its successor still has a value"""
    valid: Array
    """[T, B]"""
    version: Array
    """[B] number of the weights that acted"""
    column: Array
    """[B] which columns these are, over all ranks"""
    value: Array
    """[T+1, B] of each observation, by the policy that acted; empty where it does not tell"""
    before: Array
    """[S-1, B, ...] what the first stacks saw before `obs[0]`, where S observations make a stack"""
    episodes: list[Episode] = field(default_factory=list)

    @staticmethod
    def allocate(
        steps: int,
        columns: int,
        obs: Stored,
        action: Stored,
        history: tuple[int, Stored] = NO_HISTORY,
        values: bool = False,
    ) -> Rollout:
        """An unwritten rollout; `obs` and `action` are what one of each is stored as."""
        return Rollout.placed(np.empty, steps, columns, obs, action, history, values).wiped()

    @staticmethod
    def placed(
        empty: Callable[[tuple[int, ...], Any], Array],
        steps: int,
        columns: int,
        obs: Stored,
        action: Stored,
        history: tuple[int, Stored] = NO_HISTORY,
        values: bool = False,
    ) -> Rollout:
        """A rollout of arrays that `empty` makes, in the order of the fields."""

        def rows(number: int, shape: tuple[int, ...], dtype: Any) -> Array:
            return empty((number, columns, *shape), dtype)

        return Rollout(
            obs=rows(steps + 1, *obs),
            first=rows(steps + 1, (), np.bool_),
            action=rows(steps, *action),
            logp=rows(steps, (), np.float32),
            reward=rows(steps, (), np.float32),
            terminated=rows(steps, (), np.bool_),
            truncated=rows(steps, (), np.bool_),
            valid=rows(steps, (), np.bool_),
            version=empty((columns,), np.int64),
            column=empty((columns,), np.int64),
            value=rows(steps + 1 if values else 0, (), np.float32),
            before=rows(history[0], *history[1]),
        )

    def wiped(self) -> Rollout:
        """Itself, with NaN for floats and 0 for the rest: a cell nobody wrote is obvious."""
        for array in self.arrays().values():
            array[...] = np.nan if array.dtype.kind == "f" else np.zeros((), array.dtype)
        self.column[:] = np.arange(self.columns)
        return self

    def arrays(self) -> dict[str, Any]:
        """All of them, by name."""
        return {e.name: getattr(self, e.name) for e in fields(self) if e.name != "episodes"}

    def between(self, begin: int, end: int) -> Rollout:
        """Views of the columns from `begin` up to `end`."""
        arrays: dict[str, Any] = {
            name: array[begin:end] if array.ndim == 1 else array[:, begin:end]
            for name, array in self.arrays().items()
        }
        return Rollout(**arrays)

    def turn(self) -> None:
        """Begin anew where it ended: the last observation becomes the first, flags are cleared."""
        self.begin(self.obs[-1], self.first[-1])

    def begin(self, obs: Array, first: Array) -> None:
        """Begin with these observations; flags are cleared."""
        self.obs[0], self.first[0] = obs, first
        self.first[1:] = self.terminated[:] = self.truncated[:] = False
        self.valid[:] = True

    @property
    def steps(self) -> int:
        return len(self.reward)

    @property
    def columns(self) -> int:
        return self.reward.shape[1]

    @property
    def done(self) -> Array:
        """[T, B] the episode ended with this step, either way"""
        return np.logical_or(self.terminated, self.truncated)


@dataclass
class OpenEpisodes:
    """Return and length so far of each column's unfinished episode, carried across rollouts."""

    total: Array
    length: Array

    @staticmethod
    def none(columns: int) -> OpenEpisodes:
        return OpenEpisodes(np.zeros(columns), np.zeros(columns, np.int64))

    def close(self, rollout: Rollout, first_column: int = 0) -> list[Episode]:
        """The episodes that ended within `rollout`, in order of time; the rest stay open."""
        total = np.cumsum(rollout.reward * rollout.valid, axis=0, dtype=np.float64)
        length = np.cumsum(rollout.valid, axis=0, dtype=np.int64)
        done, restarted = rollout.done, rollout.first[1:]
        episodes = []
        for t, i in np.argwhere(done | restarted):
            if done[t, i]:
                steps = int(self.length[i] + length[t, i])
                score = float(self.total[i] + total[t, i])
                episodes.append(Episode(first_column + int(i), score, steps))
            if restarted[t, i]:
                self.total[i], self.length[i] = -total[t, i], -length[t, i]
        self.total += total[-1]
        self.length += length[-1]
        return episodes
