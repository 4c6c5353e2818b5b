"""Rollout: what a sampler hands to a learner. Numpy; time-major.

T = steps, B = columns (one column is one environment or, in teams, one agent of one), E =
environments, H = value heads, K = segments, S = floats of a policy's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ShapeDtype = tuple[tuple[int, ...], Any]
"""Shape and dtype of one entry of a rollout."""
FLAG: ShapeDtype = ((), np.bool_)
FLOAT: ShapeDtype = ((), np.float32)
FEW_NUMBERS = 8
"""Numbers in `info` that are logged without being chosen; and the most that a3c logs."""


@dataclass(frozen=True)
class Episode:
    """One finished episode: its first column, undiscounted return `total` (of a team the mean over
    agents) and length in environment steps."""

    column: int
    total: float
    length: int
    info: Mapping[str, float] = field(default_factory=dict)
    """numbers in the `info` of its last step that are logged (`log_info`)"""


@dataclass(frozen=True)
class RolloutSpec:
    """Sizes of a rollout, and which of its optional fields there are."""

    steps: int
    columns: int
    obs: ShapeDtype
    action: ShapeDtype
    history: tuple[int, ShapeDtype] = (0, FLAG)
    """number of older frames that the first stacks need, and their shape and dtype"""
    values: int = 0
    """value heads that the actor computes; 0: the learner computes values"""
    carry: int = 0
    """floats of the policy's memory, per column"""
    segment: int = 1
    """steps of a training segment, at whose start the memory is stored"""
    columns_per_env: int = 1

    @property
    def num_envs(self) -> int:
        return self.columns // self.columns_per_env


def _array(
    layout: Callable[[RolloutSpec], tuple[int | None, ShapeDtype]],
    kept: Literal["", "last", "episode"] = "",
) -> Any:
    """A field with `layout(spec)` = (rows, shape and dtype of an entry); 0 rows: empty, None: no
    time axis. `kept`: a checkpoint of the sampler needs its last row, or those of open episodes."""
    return field(metadata={"layout": layout, "kept": kept})


@dataclass(frozen=True)
class Rollout:
    """T steps of B columns under next-step autoreset. Allocating, sharing, copying, slicing and
    checkpoints all follow from the fields declared here.

    `obs[t + 1]` is always the true successor of `obs[t]`. The row after an episode's end only
    resets: it is `valid=False`, costs no environment step and enters no loss or statistic. Rows of
    a dead or absent agent are invalid too; its next valid row is always `first`.
    """

    obs: Array = _array(lambda s: (s.steps + 1, s.obs), kept="last")
    """[T+1, B, ...]"""
    first: Array = _array(lambda s: (s.steps + 1, FLAG), kept="last")
    """[T+1, B] this observation starts an episode"""
    action: Array = _array(lambda s: (s.steps, s.action), kept="episode")
    """[T, B, ...] as sampled: neither clipped nor rescaled"""
    logp: Array = _array(lambda s: (s.steps, FLOAT))
    """[T, B] log-probability under the policy that acted"""
    reward: Array = _array(lambda s: (s.steps, FLOAT))
    """[T, B]"""
    terminated: Array = _array(lambda s: (s.steps, FLAG))
    """[T, B] the episode ended in a terminal state"""
    truncated: Array = _array(lambda s: (s.steps, FLAG))
    """[T, B] the episode was cut off: its last observation still has a value"""
    valid: Array = _array(lambda s: (s.steps, FLAG))
    """[T, B] False: the row counts for nothing"""
    version: Array = _array(lambda s: (None, ((), np.int64)))
    """[B] number of the weights that acted"""
    column: Array = _array(lambda s: (None, ((), np.int64)))
    """[B] numbers of the columns, over all ranks"""
    value: Array = _array(lambda s: (s.steps + 1 if s.values else 0, ((s.values,), np.float32)))
    """[T+1, B, H] computed by the actor; empty if the learner computes values"""
    state: Array = _array(
        lambda s: (s.steps // s.segment + 1 if s.carry else 0, ((s.carry,), np.float32)), "last"
    )
    """[K+1, B, S] memory before each segment, not yet zeroed where `first`; and after the last"""
    before: Array = _array(lambda s: s.history)
    """[stack-1, B, ...] frames before `obs[0]`, for the first stacks"""
    stepped: Array = _array(lambda s: (s.steps if s.columns_per_env > 1 else 0, FLAG))
    """[T, B] in teams: the column's environment made a step"""
    over: Array = _array(lambda s: (s.steps if s.columns_per_env > 1 else 0, FLAG))
    """[T, B] in teams: the episode of the column's environment ended with this step"""
    columns_per_env: int = 1
    episodes: list[Episode] = field(default_factory=list)
    final_info: dict[tuple[int, int], Mapping[str, float]] = field(default_factory=dict)
    """(t, environment) → numbers in the `info` of a step that ended an episode"""

    @staticmethod
    def allocate(
        steps: int, columns: int, obs: ShapeDtype, action: ShapeDtype, **more: Any
    ) -> Rollout:
        """A poisoned rollout; `more` are the optional fields of a `RolloutSpec`."""
        return Rollout.from_spec(RolloutSpec(steps, columns, obs, action, **more)).poisoned()

    @staticmethod
    def from_spec(
        spec: RolloutSpec, empty: Callable[[tuple[int, ...], Any], Array] = np.empty
    ) -> Rollout:
        """A rollout of arrays that `empty(shape, dtype)` allocates, in the order of the fields."""
        arrays: dict[str, Any] = {}
        for name, entry in FIELDS.items():
            rows, (shape, dtype) = entry["layout"](spec)
            lead = (spec.columns,) if rows is None else (rows, spec.columns)
            arrays[name] = empty((*lead, *shape), dtype)
        return Rollout(**arrays, columns_per_env=spec.columns_per_env)

    def poisoned(self) -> Rollout:
        """Itself, filled with NaN (floats) and 0 (the rest), so that unwritten cells show."""
        for array in self.arrays().values():
            array[...] = np.nan if array.dtype.kind == "f" else np.zeros((), array.dtype)
        self.column[:] = np.arange(self.columns)
        return self

    def arrays(self) -> dict[str, Array]:
        """All arrays by name."""
        return {name: getattr(self, name) for name in FIELDS}

    def column_range(self, begin: int, end: int) -> Rollout:
        """Views of the columns [begin, end)."""
        views: dict[str, Any] = {
            name: array[begin:end] if array.ndim == 1 else array[:, begin:end]
            for name, array in self.arrays().items()
        }
        return Rollout(**views, columns_per_env=self.columns_per_env)

    def copy_from(self, other: Rollout) -> None:
        """Copy all arrays of a rollout with the same spec."""
        for name, array in other.arrays().items():
            getattr(self, name)[...] = array

    def start_next(self) -> None:
        """Start the next rollout: the last observation becomes the first; flags are cleared."""
        self.begin(self.obs[-1], self.first[-1])

    def begin(self, obs: Array, first: Array) -> None:
        """Start with these observations [B, ...]; flags are cleared."""
        self.obs[0], self.first[0] = obs, first
        self.first[1:] = self.terminated[:] = self.truncated[:] = self.over[:] = False
        self.valid[:] = self.stepped[:] = True
        self.final_info.clear()

    @property
    def steps(self) -> int:
        return len(self.reward)

    @property
    def columns(self) -> int:
        return self.reward.shape[1]

    @property
    def segment(self) -> int:
        """Steps of a training segment; 0 for a policy without memory."""
        return self.steps // (len(self.state) - 1) if len(self.state) else 0

    @property
    def done(self) -> Array:
        """[T, B] terminated or truncated"""
        return np.logical_or(self.terminated, self.truncated)

    # Per environment; with one column each these are the fields themselves.

    @property
    def env_reward(self) -> Array:
        """[T, E] mean of the agents' rewards"""
        gain, each = self.reward * self.valid, self.columns_per_env
        return gain if each == 1 else self._by_env(gain).mean(-1, dtype=np.float64)

    @property
    def env_stepped(self) -> Array:
        """[T, E] the environment made a step, which budgets count; `valid` counts agents' steps"""
        return self.valid if self.columns_per_env == 1 else self._by_env(self.stepped)[..., 0]

    @property
    def env_done(self) -> Array:
        """[T, E] the episode ended with this step"""
        return self.done if self.columns_per_env == 1 else self._by_env(self.over)[..., 0]

    @property
    def env_first(self) -> Array:
        """[T, E] the next observation starts an episode"""
        first = self.first[1:]
        if self.columns_per_env == 1:
            return first
        return self._by_env(first).any(-1) & ~self.env_stepped  # an agent may join later

    def _by_env(self, array: Array) -> Array:
        return array.reshape(len(array), -1, self.columns_per_env)


FIELDS = {entry.name: entry.metadata for entry in fields(Rollout) if entry.metadata}
"""`layout` and `kept` of every array of a rollout, by name."""


def groups_without_repeats(column: Array) -> Iterator[Array | slice]:
    """Positions [B] in groups that hold each column at most once, in order of time (streams)."""
    if len(np.unique(column)) == len(column):
        yield slice(None)
        return
    repeats: dict[int, int] = {}
    group = np.empty(len(column), np.int64)
    for i, number in enumerate(column.tolist()):
        group[i] = repeats[number] = repeats.get(number, -1) + 1
    for k in range(group.max() + 1):
        yield np.flatnonzero(group == k)


@dataclass
class OpenEpisodes:
    """Return and length so far of each environment's open episode, across rollouts."""

    total: Array
    length: Array

    @staticmethod
    def none(num_envs: int) -> OpenEpisodes:
        return OpenEpisodes(np.zeros(num_envs), np.zeros(num_envs, np.int64))

    def close(self, rollout: Rollout, first_column: int = 0) -> list[Episode]:
        """Add a rollout; returns the episodes that ended in it, in order of time."""
        each, done, restarted = rollout.columns_per_env, rollout.env_done, rollout.env_first
        total = np.cumsum(rollout.env_reward, axis=0, dtype=np.float64)
        length = np.cumsum(rollout.env_stepped, axis=0, dtype=np.int64)
        episodes = []
        for t, i in np.argwhere(done | restarted):
            if done[t, i]:
                steps = int(self.length[i] + length[t, i])
                score = float(self.total[i] + total[t, i])
                info = rollout.final_info.get((int(t), int(i)), {})
                episodes.append(Episode(first_column + each * int(i), score, steps, info))
            if restarted[t, i]:
                self.total[i], self.length[i] = -total[t, i], -length[t, i]
        self.total += total[-1]
        self.length += length[-1]
        return episodes
