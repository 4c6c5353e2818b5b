"""Serial: rollouts made in the learner's own process."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ..checkpoint import fitting
from ..envs import Columns
from ..policy.actor import Actor
from ..rollout import Array, OpenEpisodes, Rollout
from .unroll import check, check_policy, unroll

MOST = 2**53
"""No run has more rows."""
ARRAYS = [entry.name for entry in fields(Rollout) if entry.name != "episodes"]


class Serial:
    def __init__(self, columns: Columns, actor: Actor, steps: int, seed: int) -> None:
        self._columns, self._actor, self._seed = columns, actor, seed
        size = columns.num_envs
        self._out = Rollout.allocate(steps, size, columns.obs_spec.stored, columns.act_spec.stored)
        self._head = np.empty((steps, size, actor.head.size), np.float32)
        self._open = OpenEpisodes.none(size)
        self._rollouts = 0
        self._actions: deque[Array] = deque()
        """actions of the latest rollouts, as far back as any open episode reaches"""
        self._oldest = 0
        """row of the run at which they begin"""
        self._begun, self._version = False, 0
        self._now: dict[str, Any] = {}
        self._published: dict[str, Any] = {}
        """where the columns stood, now and at the last `publish()`"""

    def publish(self, weights: Array, version: int) -> None:
        self._actor.load(weights)
        self._version, self._published = version, self._now

    def collect(self) -> Rollout:
        out, columns = self._out, self._columns
        if not self._begun:
            self.begin()
        out.version[:] = self._version
        began = columns.row - columns.started
        noise = self._actor.head.noise(
            self._seed, self._rollouts, columns.first_column, columns.num_envs, out.steps
        )
        unroll(columns, self._actor, noise, out, self._head)
        check_policy(out, self._head, columns.obs_spec)
        check(out, columns.obs_spec, columns.first_column, began)
        episodes = self._open.close(out, columns.first_column)
        self._rollouts += 1
        self._now = self._mark()
        if columns.resume == "replay":
            self._actions.append(out.action.copy())
            self._forget(min(int(mark["started"].min()) for mark in (self._published, self._now)))
        return replace(out, episodes=episodes)

    def begin(self) -> None:
        """Reset every column; the first rollout does so by itself."""
        self._columns.reset(self._out.obs[-1])
        self._out.first[-1] = True
        self._begun, self._now = True, self._mark()
        self._published = self._now

    def blank(self) -> Rollout:
        """A rollout of the right shapes, for a compiler to look at."""
        blank = Rollout(*(np.zeros_like(getattr(self._out, name)) for name in ARRAYS))
        if self._columns.obs_spec.kind == "discrete":
            self._columns.obs_spec.split(blank.obs)["index"][:] = self._columns.obs_spec.start
        return blank

    def _mark(self) -> dict[str, Any]:
        """The counters of this moment; with the actions kept they make a state."""
        return {
            **self._columns.state(),
            **{f"obs.{name}": part.copy() for name, part in self._latest().items()},
            "first": self._out.first[-1].copy(),
            "total": self._open.total.copy(),
            "length": self._open.length.copy(),
            "rollouts": np.array(self._rollouts),
        }

    def _latest(self) -> dict[str, Array]:
        """Views of the latest observations, by part."""
        return self._columns.obs_spec.split(self._out.obs[-1])

    def _forget(self, row: int) -> None:
        """Drop the actions before `row`, which no open episode needs."""
        while self._oldest + len(self._actions[0]) <= row:
            self._oldest += len(self._actions.popleft())

    def state(self) -> dict[str, Any]:
        """With `actions`, the open episodes' own, one column after the other."""
        mark = self._published
        if not mark or self._columns.resume != "replay":
            return dict(mark)
        end = int(mark["row"])
        rows = np.concatenate([*self._actions, self._out.action[:0]])
        taken = []
        for i, (started, ended) in enumerate(zip(mark["started"], mark["ended"], strict=True)):
            last = int(started) if ended else end
            taken.append(rows[int(started) - self._oldest : last - self._oldest, i])
        return {**mark, "actions": np.concatenate(taken)}

    def restore(self, state: dict[str, Any]) -> list[int]:
        columns, out = self._columns, self._out
        self._check(state)
        columns.restore(state)
        self._rollouts = int(state["rollouts"])
        if columns.resume == "none":
            self.begin()
            return list(range(columns.first_column, columns.first_column + columns.num_envs))
        for name, part in self._latest().items():
            part[...] = state[f"obs.{name}"]
        out.first[-1] = state["first"]
        self._open = OpenEpisodes(state["total"].copy(), state["length"].copy())
        different = self._replay(state) if columns.resume == "replay" else []
        self._begun, self._now = True, self._mark()
        self._published = self._now
        return different

    def _check(self, state: dict[str, Any]) -> None:
        """`ValueError` for what no sampler of this kind can have saved."""
        # What an environment keeps of itself is its own affair, and of no fixed shape.
        mark = self._mark().items()
        fitting(state, {k: v for k, v in mark if k != "stream" and not k.startswith("env.")})
        row, ended = int(state["row"]), state["ended"]
        for name in ("row", "started", "length", "rollouts"):
            if not 0 <= state[name].min() <= state[name].max() <= MOST:
                raise ValueError(f"{name} is {state[name].tolist()}")
        if (state["started"] > row).any() or (state["episode"] < -1).any():
            raise ValueError(f"an episode is said to start after row {row}")
        if self._columns.resume == "replay":
            needed = int(np.where(ended, 0, row - state["started"]).sum())
            like = self._out.action[0, :1]
            found = state["actions"]
            if found.shape != (needed, *like.shape[1:]) or found.dtype != like.dtype:
                raise ValueError(f"actions are {found.dtype} {found.shape}, for {needed} steps")

    def _replay(self, state: dict[str, Any]) -> list[int]:
        """Bring every open episode back; returns the columns where that failed."""
        columns, out = self._columns, self._out
        different, at = [], 0
        # Rows before the restored ones are never asked for again; each column's own are put back.
        open_now = columns.started[~np.array(columns.ended)]
        self._oldest = int(min([columns.row, *open_now]))
        kept = np.zeros((columns.row - self._oldest, *out.action.shape[1:]), out.action.dtype)
        for i in range(columns.num_envs):
            if columns.ended[i]:
                continue
            length = columns.row - int(columns.started[i])
            actions = state["actions"][at : at + length]
            kept[len(kept) - length :, i] = actions
            at += length
            if not columns.replay(i, columns.adapt(actions), out.obs[-1, i : i + 1]):
                different.append(columns.first_column + i)
        self._actions = deque([kept] if len(kept) else [])
        return different

    def close(self) -> None:
        self._columns.close()
