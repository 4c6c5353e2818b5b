"""Running statistics of observations and of discounted returns. Numpy, float64.

Moments of a rollout come from all ranks: `RankReducer.moments` in `learning/rank_reducer.py`.
"""

from __future__ import annotations

import numpy as np

from ..rollout import Array, Rollout, groups_without_repeats

REWARD_CLIP = 10.0
EPSILON = 1e-8


class RunningMoments:
    """Running mean and variance, merged batch by batch (Chan et al. 1979)."""

    def __init__(self, size: int) -> None:
        self.count = 1e-4
        self.mean = np.zeros(size)
        self.var = np.ones(size)

    def update(self, count: float, mean: Array, var: Array) -> None:
        """Merge a batch of `count` rows with this mean and variance."""
        if count == 0:
            return
        delta, total = mean - self.mean, self.count + count
        squares = self.var * self.count + var * count + delta**2 * self.count * count / total
        self.mean = self.mean + delta * count / total
        self.var = squares / total
        self.count = total

    def scale(self) -> Array:
        """Factor to unit variance."""
        return 1.0 / np.sqrt(self.var + EPSILON)

    def state(self) -> dict[str, Array]:
        return {"count": np.array(self.count), "mean": self.mean, "var": self.var}

    def restore(self, state: dict[str, Array]) -> None:
        self.count = float(state["count"])
        self.mean, self.var = state["mean"].copy(), state["var"].copy()


class ReturnScaler:
    """Divides rewards by the standard deviation of the discounted return of each column, which
    restarts with every episode. B = columns of a rollout, where a column may occur repeatedly
    (streams)."""

    def __init__(self, columns: int, gamma: float) -> None:
        self._gamma = gamma
        self._running = np.zeros(columns)
        self.moments = RunningMoments(1)

    def returns(self, rollout: Rollout) -> Array:
        """Running discounted returns of the rollout's valid rows, flat."""
        running = np.empty(rollout.reward.shape)
        kept = np.where(rollout.done | rollout.first[1:], 0.0, 1.0)
        for at in groups_without_repeats(rollout.column):
            index = rollout.column[at] % len(self._running)
            now, rows = self._running[index], np.empty((rollout.steps, len(index)))
            for row, reward, factor in zip(rows, rollout.reward[:, at], kept[:, at], strict=True):
                np.multiply(now, self._gamma, out=row)
                row += reward
                now = row * factor
            running[:, at], self._running[index] = rows, now
        return running[rollout.valid]

    def __call__(self, reward: Array) -> Array:
        scaled = reward * self.moments.scale().astype(np.float32)
        return np.clip(scaled, -REWARD_CLIP, REWARD_CLIP)

    def state(self) -> dict[str, Array]:
        return {"running": self._running.copy(), **self.moments.state()}

    def restore(self, state: dict[str, Array]) -> None:
        self._running = state["running"].copy()
        self.moments.restore(state)
