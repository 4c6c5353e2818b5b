"""Rollout: the only thing that crosses from a sampler to a learner. Numpy; time-major.

T = steps, B = columns (one column is one environment and, in teams, one agent of it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


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
    episodes: list[Episode] = field(default_factory=list)

    @staticmethod
    def allocate(
        steps: int,
        columns: int,
        obs: tuple[tuple[int, ...], Any],
        action: tuple[tuple[int, ...], Any],
    ) -> Rollout:
        """An unwritten rollout; `obs` and `action` are (shape, dtype) of one of each.

        Floats start as NaN, so that a cell nobody wrote is obvious.
        """

        def blank(rows: int, shape: tuple[int, ...], dtype: Any) -> Array:
            unwritten = np.nan if np.issubdtype(dtype, np.floating) else 0
            return np.full((rows, columns, *shape), unwritten, dtype)

        return Rollout(
            obs=blank(steps + 1, *obs),
            first=blank(steps + 1, (), np.bool_),
            action=blank(steps, *action),
            logp=blank(steps, (), np.float32),
            reward=blank(steps, (), np.float32),
            terminated=blank(steps, (), np.bool_),
            truncated=blank(steps, (), np.bool_),
            valid=blank(steps, (), np.bool_),
            version=np.zeros(columns, np.int64),
        )

    def turn(self) -> None:
        """Begin anew where it ended: the last observation becomes the first, flags are cleared."""
        self.obs[0], self.first[0] = self.obs[-1], self.first[-1]
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
