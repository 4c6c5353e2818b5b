"""Ledger: what it takes to restore the columns of a block after a worker's death or on resume:
snapshots, and the actions of open episodes for replay. Kept by the sampler, which outlives workers.

B = columns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..envs.frame_stack import last_frames
from ..envs.source import EnvInfo
from ..envs.spaces import ObservationSpec
from ..rollout import FIELDS, Array, Rollout, RolloutSpec
from ..storage.arrays import check_like, under_prefix, with_prefix

MAX_ROWS = 2**53
"""Upper limit of counters in a valid checkpoint."""
Snapshot = dict[str, Any]
"""Where a block's columns stand: their counters, latest observations and open episodes."""


def last_rows(obs: ObservationSpec, rows: Mapping[str, Array]) -> Snapshot:
    """Copies of rows [B, ...] of a rollout's fields by name; observations by part."""
    parts = {f"obs.{name}": part for name, part in obs.split(rows["obs"]).items()}
    others = {name: row for name, row in rows.items() if name != "obs" and row.size}
    return {name: row.copy() for name, row in (parts | others).items()}


def open_steps(snapshot: Snapshot) -> Array:
    """Steps of each environment's open episode; 0 where it has ended."""
    return np.where(snapshot["ended"], 0, snapshot["row"] - snapshot["started"])


def split_by_env(rows: Array, snapshot: Snapshot, columns_per_env: int) -> list[Array]:
    """Concatenated rows of all open episodes (see `Ledger.state`) → those of each environment."""
    return np.split(rows, np.cumsum(open_steps(snapshot) * columns_per_env)[:-1])


LAST = [name for name, entry in FIELDS.items() if entry["kept"] == "last"]
OPEN_EPISODES = [name for name, entry in FIELDS.items() if entry["kept"] == "episode"]
"""Fields of which a ledger keeps the last row, or all rows of open episodes."""


class Ledger:
    """Snapshots of a block, and rows of its open episodes (`kept` in `rollout.FIELDS`)."""

    def __init__(self, env_info: EnvInfo, spec: RolloutSpec) -> None:
        self._env_info, self._spec = env_info, spec
        self._rows: dict[str, deque[Array]] = {name: deque() for name in OPEN_EPISODES}
        """of the latest rollouts, back to the start of the oldest open episode"""
        self._oldest = 0
        """row of the run at which `_rows` start"""
        self.latest: Snapshot = {}
        """after the latest rollout; empty before the first"""
        self.published: Snapshot = {}
        """after the rollout that the latest published weights were trained on"""

    def begin(self, snapshot: Snapshot) -> None:
        """Take the snapshot of columns that were just reset or restored."""
        if self.latest:
            self.latest.update(snapshot)
        else:
            self.latest = self.published = snapshot

    def record(self, rollout: Rollout, counters: Snapshot) -> Snapshot:
        """Add a rollout; returns the snapshot after it."""
        spec = self._env_info.obs_spec
        arrays = rollout.arrays()
        last = {name: arrays[name][-1] for name in LAST if len(arrays[name])}
        self.latest = counters | last_rows(spec, last)
        if spec.stack > 1:
            self.latest["before"] = last_frames(spec, rollout)
        if self._env_info.resume == "replay":
            needed = min(int(each["started"].min()) for each in (self.published, self.latest))
            for name, rows in self._rows.items():
                rows.append(arrays[name].copy())
            actions = self._rows["action"]
            while actions and self._oldest + len(actions[0]) <= needed:
                self._oldest += len(actions[0])
                for rows in self._rows.values():
                    rows.popleft()
        return self.latest

    def state(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with `actions`: rows of open episodes, one environment after the other."""
        if not snapshot or self._env_info.resume != "replay":
            return dict(snapshot)
        found = dict(snapshot)
        begins = snapshot["started"] - self._oldest
        ends = begins + open_steps(snapshot)
        for name, kept in self._rows.items():
            rows, taken = np.concatenate([*kept, self._blank(name, 0)]), []
            for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                taken.append(rows[begin:end, self._of(i)].reshape(-1, *rows.shape[2:]))
            found[f"{name}s"] = np.concatenate(taken)
        return found

    def restore(self, state: Snapshot) -> None:
        """Load what `state` of a ledger returned; `ValueError` if it is inconsistent."""
        self._check(state)
        taken = {f"{name}s" for name in self._rows}
        self.latest = {name: array for name, array in state.items() if name not in taken}
        self.published = self.latest
        if self._env_info.resume != "replay":
            return
        # Only rows of open episodes are needed again: each column's end at the current row.
        steps = open_steps(state)
        self._oldest = int(state["row"] - steps.max())
        for name in self._rows:
            kept = self._blank(name, steps.max())
            by_env = split_by_env(state[f"{name}s"], state, self._spec.columns_per_env)
            for i, rows in enumerate(by_env):
                own = kept[len(kept) - steps[i] :, self._of(i)]
                own[...] = rows.reshape(own.shape)
            self._rows[name] = deque([kept] if len(kept) else [])

    def _of(self, env: int) -> slice:
        """The columns of an environment."""
        each = self._spec.columns_per_env
        return slice(env * each, (env + 1) * each)

    def _blank(self, name: str, rows: int) -> Array:
        """Zeroed rows of a field."""
        shape, dtype = FIELDS[name]["layout"](self._spec)[1]
        return np.zeros((rows, self._spec.columns, *shape), dtype)

    def _check(self, state: Snapshot) -> None:
        """Raise `ValueError` unless shapes, dtypes and ranges are possible."""
        count, number = np.zeros(self._spec.num_envs, np.int64), np.array(0)
        flag = np.zeros(self._spec.num_envs, np.bool_)
        template = {"row": number, "episode": count, "started": count, "ended": flag}
        template |= {"total": np.zeros(len(count)), "length": count, "rollouts": number}
        # Arrays that an environment saved itself have no fixed shape, and are not checked.
        spec = self._env_info.obs_spec
        template |= last_rows(spec, {name: self._blank(name, 1)[0] for name in LAST})
        if spec.stack > 1:
            template["before"] = self._blank("before", spec.history[0])
        check_like(state, template)
        row = int(state["row"])
        for name in ("row", "started", "length", "rollouts"):
            if not 0 <= state[name].min() <= state[name].max() <= MAX_ROWS:
                raise ValueError(f"{name} is {state[name].tolist()}")
        if (state["started"] > row).any() or (state["episode"] < -1).any():
            raise ValueError(f"an episode starts after row {row}")
        if self._env_info.resume == "replay":
            needed = int(open_steps(state).sum()) * self._spec.columns_per_env
            for name in self._rows:
                like = self._blank(name, 0)[:, 0]
                found = state[f"{name}s"]
                if found.shape != (needed, *like.shape[1:]) or found.dtype != like.dtype:
                    raise ValueError(f"{name}s are {found.dtype} {found.shape}, for {needed} steps")


def ledgers_state(ledgers: Sequence[Ledger]) -> dict[str, Any] | None:
    """The state of all blocks at the last published weights; None before the first rollout."""
    if not all(ledger.published for ledger in ledgers):
        return None
    found: dict[str, Any] = {}
    for number, ledger in enumerate(ledgers):
        found |= with_prefix(f"{number}.", ledger.state(ledger.published))
    return found


def restore_ledgers(ledgers: Sequence[Ledger], state: dict[str, Any]) -> None:
    """Load what `ledgers_state` returned."""
    for number, ledger in enumerate(ledgers):
        ledger.restore(under_prefix(f"{number}.", state))
