"""Running statistics: of observations, and of discounted returns. Numpy, float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..rollout import Array, Rollout

REWARD_CLIP = 10.0
EPSILON = 1e-8


class RunningMoments:
    """Mean and variance of everything seen, merged batch by batch (Chan et al. 1979)."""

    def __init__(self, size: int) -> None:
        self.count = 1e-4
        self.mean = np.zeros(size)
        self.var = np.ones(size)

    def update(self, count: float, mean: Array, var: Array) -> None:
        """Take in a batch of `count` rows with this mean and variance."""
        if count == 0:
            return
        delta, total = mean - self.mean, self.count + count
        squares = self.var * self.count + var * count + delta**2 * self.count * count / total
        self.mean = self.mean + delta * count / total
        self.var = squares / total
        self.count = total

    def scale(self) -> Array:
        """What to multiply by for unit variance."""
        return 1.0 / np.sqrt(self.var + EPSILON)

    def state(self) -> dict[str, Array]:
        return {"count": np.array(self.count), "mean": self.mean, "var": self.var}

    def restore(self, state: dict[str, Array]) -> None:
        self.count = float(state["count"])
        self.mean, self.var = state["mean"].copy(), state["var"].copy()


class ReturnScaler:
    """Divides rewards by the deviation of the running discounted return, which starts anew after
    every end of an episode. A stream's rollout may hold a column several times."""

    def __init__(self, columns: int, gamma: float) -> None:
        self._gamma = gamma
        self._running = np.zeros(columns)
        self.moments = RunningMoments(1)

    def returns(self, rollout: Rollout) -> Array:
        """The running discounted returns of the rollout's valid rows, in one list."""
        running, done = np.empty(rollout.reward.shape), rollout.done
        for at in _each_once(rollout.column):
            places = rollout.column[at] % len(self._running)
            now = self._running[places]
            for t in range(rollout.steps):
                now = self._gamma * now + rollout.reward[t, at]
                running[t, at] = now
                now = np.where(done[t, at] | rollout.first[t + 1, at], 0.0, now)
            self._running[places] = now
        return running[rollout.valid]

    def __call__(self, reward: Array) -> Array:
        scaled = reward * self.moments.scale().astype(np.float32)
        return np.clip(scaled, -REWARD_CLIP, REWARD_CLIP)

    def state(self) -> dict[str, Array]:
        return {"running": self._running.copy(), **self.moments.state()}

    def restore(self, state: dict[str, Array]) -> None:
        self._running = state["running"].copy()
        self.moments.restore(state)


def _each_once(column: Array) -> Iterator[Array | slice]:
    """Places of a rollout's columns, in parts in which no column comes twice, in order of time."""
    if len(np.unique(column)) == len(column):
        yield slice(None)
        return
    seen: dict[int, int] = {}
    turn = np.empty(len(column), np.int64)
    for i, number in enumerate(column.tolist()):
        turn[i] = seen[number] = seen.get(number, -1) + 1
    for k in range(turn.max() + 1):
        yield np.flatnonzero(turn == k)
