"""Block: some columns and the actor that steps them; and Ledger, what it takes to bring one back.

A block lives where its environments do, in a worker or in the learner's own process. Its ledger is
kept by the sampler, which survives it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..envs import Columns
from ..envs.frame_stack import Window
from ..envs.frame_stack import latest as history
from ..envs.guards import end_if_forked
from ..envs.maker import EnvInfo
from ..envs.replaying import Difference
from ..envs.spaces import ObservationSpec
from ..policy.actor import Actor, make_actor
from ..policy.network import NetworkSpec
from ..processes.heartbeat import Heartbeat
from ..rollout import FIELDS, Array, Episode, OpenEpisodes, Rollout, RolloutSpec
from ..storage.arrays import fitting, prefixed
from .unroll import check, check_policy, unroll

MOST = 2**53
"""No run has more rows."""
COUNTERS = ("row", "rollouts", "episode", "started", "ended", "length")
Mark = dict[str, Any]
"""Where a block's columns stand: their counters, latest observations and open episodes."""


class Block:
    """Columns acting side by side; each rollout begins where the last one ended."""

    def __init__(
        self, columns: Columns, actor: Actor, spec: RolloutSpec, seed: int, heartbeat: Heartbeat
    ) -> None:
        self.columns, self._actor, self._seed, self._heartbeat = columns, actor, seed, heartbeat
        columns.heartbeat = heartbeat
        shape, dtype = spec.obs
        self._obs = np.zeros((spec.columns, *shape), dtype)
        self._first = np.zeros(spec.columns, np.bool_)
        self._carry = np.zeros((spec.columns, spec.carry), np.float32)
        stacks = columns.obs_spec.stack > 1
        self._window = Window(columns.obs_spec, spec.columns) if stacks else None
        self._head = np.empty((spec.steps, spec.columns, actor.head.size), np.float32)
        self._open = OpenEpisodes.none(columns.num_envs)
        self._rollouts, self._version = 0, 0
        self._process = os.getpid()

    def load(self, weights: Array, version: int) -> None:
        """Act with these weights from the next rollout on."""
        self._actor.load(weights)
        self._version = version

    def begin(self) -> None:
        """Reset every column."""
        self.columns.reset(self._obs)
        self._first[:] = True

    def fill(self, out: Rollout) -> list[Episode]:
        """Write the next rollout; returns the episodes that ended in it."""
        columns = self.columns
        first = columns.first_column
        out.version[:], out.column[:] = self._version, np.arange(first, first + out.columns)
        begun = np.repeat(columns.row - columns.started, columns.columns_per_env)
        with np.errstate(all="ignore"):  # whatever environments have made of it
            noise = self._actor.head.noise(
                self._seed, self._rollouts, first, out.columns, out.steps
            )
        out.begin(self._obs, self._first)
        if self._window is not None:
            out.before[:] = self._window.before
        unroll(
            columns, self._actor, noise, out, self._head, self._heartbeat, self._carry, self._window
        )
        end_if_forked(self._process)
        check_policy(out, self._head, columns.obs_spec)
        check(out, columns.obs_spec, first, begun)
        self._obs[:], self._first[:] = out.obs[-1], out.first[-1]
        self._rollouts += 1
        return self._open.close(out, first)

    def counters(self) -> Mark:
        """Where the columns stand, but for what a rollout ends with anyway."""
        return {
            **self.columns.state(),
            "total": self._open.total.copy(),
            "length": self._open.length.copy(),
            "rollouts": np.array(self._rollouts),
        }

    def mark(self) -> Mark:
        before = {} if self._window is None else {"before": self._window.before.copy()}
        last = {"obs": self._obs, "first": self._first, "state": self._carry}
        return self.counters() | last_rows(self.columns.obs_spec, last) | before

    def restore(self, state: Mark) -> list[Difference]:
        """Go on from `state`, or begin where it is empty; the columns that came out different."""
        if not state:
            self.begin()
            return []
        columns = self.columns
        columns.restore(state)
        self._heartbeat.row = columns.row
        self._rollouts = int(state["rollouts"])
        if columns.resume == "none":
            self.begin()
            return [(self._column(i), "not saved") for i in range(columns.num_envs)]
        for name, part in columns.obs_spec.split(self._obs).items():
            part[...] = state[f"obs.{name}"]
        self._first[:] = state["first"]
        if self._carry.size:
            self._carry[:] = state["state"]
        if self._window is not None:
            self._window.before = state["before"]
        self._open = OpenEpisodes(state["total"].copy(), state["length"].copy())
        return self._replay(state) if columns.resume == "replay" else []

    def skip(self, rollouts: int) -> None:
        """Begin as if so many had been made: with other episodes, and other noise."""
        self._rollouts = rollouts
        self.columns.episode += rollouts

    def _replay(self, state: Mark) -> list[Difference]:
        """Bring every open episode back; returns the columns where that failed."""
        columns = self.columns
        actions = by_env(state["actions"], state, columns.columns_per_env)
        taken = [None if columns.ended[i] else own for i, own in enumerate(actions)]
        different = columns.replay(taken, self._obs, self._open.total)
        return [(self._column(i), what) for i, what in different]

    def _column(self, env: int) -> int:
        """The first column of an environment, over all processes."""
        return self.columns.first_column + env * self.columns.columns_per_env

    def close(self) -> None:
        self.columns.close()


def make_block(
    env_info: EnvInfo,
    network: NetworkSpec,
    spec: RolloutSpec,
    seed: int,
    first_column: int,
    heartbeat: Heartbeat,
    threads: int = 1,
) -> Block:
    columns = env_info.columns(spec.num_envs, seed, first_column, threads)
    try:
        return Block(columns, make_actor(network, spec.columns), spec, seed, heartbeat)
    except BaseException:
        columns.close()
        raise


def listed(different: list[Difference]) -> str:
    """The columns and, behind those that share it, what differed: `0, 2 (reward); 1 (ended)`."""
    columns: dict[str, list[str]] = {}
    for column, what in sorted(different):
        columns.setdefault(what, []).append(str(column))
    return "; ".join(f"{', '.join(numbers)} ({what})" for what, numbers in columns.items())


def packed(counters: Mark) -> tuple[Array, Mark]:
    """Counters in one array, sent in less than half the time; and what does not fit into it."""
    rest = dict(counters)
    table = np.empty((len(COUNTERS) + 1, len(rest["total"])), np.int64)
    table[-1] = rest.pop("total").view(np.int64)
    for line, name in zip(table, COUNTERS, strict=False):
        line[:] = rest.pop(name)
    return table, rest


def unpacked(table: Array, rest: Mark) -> Mark:
    """What `packed` took apart."""
    found = dict(zip(COUNTERS, table, strict=False))
    for name in ("row", "rollouts"):
        found[name] = np.array(found[name][0])
    return {
        **found,
        **rest,
        "ended": found["ended"].astype(np.bool_),
        "total": table[-1].view(np.float64),
    }


def last_rows(obs: ObservationSpec, rows: Mapping[str, Array]) -> Mark:
    """Copies of the last rows [B] of a rollout's fields; observations by part."""
    parts = {f"obs.{name}": part for name, part in obs.split(rows["obs"]).items()}
    others = {name: row for name, row in rows.items() if name != "obs" and row.size}
    return {name: row.copy() for name, row in (parts | others).items()}


def open_steps(mark: Mark) -> Array:
    """Steps of each environment's open episode; 0 where it has ended."""
    return np.where(mark["ended"], 0, mark["row"] - mark["started"])


def by_env(rows: Array, mark: Mark, columns_per_env: int) -> list[Array]:
    """Rows of all open episodes, one after the other, as `Ledger.state` gives them: each one's."""
    return np.split(rows, np.cumsum(open_steps(mark) * columns_per_env)[:-1])


LAST = [name for name, entry in FIELDS.items() if entry["kept"] == "last"]
EPISODE = [name for name, entry in FIELDS.items() if entry["kept"] == "episode"]
"""Fields of which a ledger keeps the last row, or the rows of open episodes."""


class Ledger:
    """Where a block stood after each rollout, and the rows of its open episodes: see `FIELDS`."""

    def __init__(self, env_info: EnvInfo, spec: RolloutSpec) -> None:
        self._env_info, self._spec = env_info, spec
        self._rows: dict[str, deque[Array]] = {name: deque() for name in EPISODE}
        """of the latest rollouts, as far back as any open episode reaches"""
        self._oldest = 0
        """row of the run at which they begin"""
        self.now: Mark = {}
        """after the latest rollout; empty before the first"""
        self.published: Mark = {}
        """after the rollout from which the latest weights were learnt"""

    def begin(self, mark: Mark) -> None:
        """The columns stand here at first, or once they have been brought back."""
        if self.now:
            self.now.update(mark)
        else:
            self.now = self.published = mark

    def note(self, rollout: Rollout, counters: Mark) -> Mark:
        """A rollout has come in; returns where the columns stand after it."""
        spec = self._env_info.obs_spec
        arrays = rollout.arrays()
        last = {name: arrays[name][-1] for name in LAST if len(arrays[name])}
        self.now = counters | last_rows(spec, last)
        if spec.stack > 1:
            self.now["before"] = history(spec, rollout)
        if self._env_info.resume == "replay":
            row = min(int(mark["started"].min()) for mark in (self.published, self.now))
            for name, rows in self._rows.items():
                rows.append(arrays[name].copy())
            actions = self._rows["action"]
            while actions and self._oldest + len(actions[0]) <= row:
                self._oldest += len(actions[0])
                for rows in self._rows.values():
                    rows.popleft()
        return self.now

    def state(self, mark: Mark) -> Mark:
        """With `actions`, the open episodes' own, one column after the other."""
        if not mark or self._env_info.resume != "replay":
            return dict(mark)
        found = dict(mark)
        begins = mark["started"] - self._oldest
        ends = begins + open_steps(mark)
        for name, kept in self._rows.items():
            rows, taken = np.concatenate([*kept, self._blank(name, 0)]), []
            for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                taken.append(rows[begin:end, self._of(i)].reshape(-1, *rows.shape[2:]))
            found[f"{name}s"] = np.concatenate(taken)
        return found

    def restore(self, state: Mark) -> None:
        """Take over what another ledger's `state` gave; `ValueError` if none can have given it."""
        self._check(state)
        taken = {f"{name}s" for name in self._rows}
        self.now = {name: array for name, array in state.items() if name not in taken}
        self.published = self.now
        if self._env_info.resume != "replay":
            return
        # Rows before the open episodes' are never asked for again; each column's own are put back.
        steps = open_steps(state)
        self._oldest = int(state["row"] - steps.max())
        for name in self._rows:
            kept = self._blank(name, steps.max())
            for i, rows in enumerate(by_env(state[f"{name}s"], state, self._spec.columns_per_env)):
                own = kept[len(kept) - steps[i] :, self._of(i)]
                own[...] = rows.reshape(own.shape)
            self._rows[name] = deque([kept] if len(kept) else [])

    def _of(self, env: int) -> slice:
        """The columns of an environment."""
        each = self._spec.columns_per_env
        return slice(env * each, (env + 1) * each)

    def _blank(self, name: str, rows: int) -> Array:
        """So many rows of a field."""
        shape, dtype = FIELDS[name]["layout"](self._spec)[1]
        return np.zeros((rows, self._spec.columns, *shape), dtype)

    def _check(self, state: Mark) -> None:
        count, number = np.zeros(self._spec.num_envs, np.int64), np.array(0)
        flag = np.zeros(self._spec.num_envs, np.bool_)
        template = {"row": number, "episode": count, "started": count, "ended": flag}
        template |= {"total": np.zeros(len(count)), "length": count, "rollouts": number}
        # What an environment keeps of itself is its own affair, and of no fixed shape.
        spec = self._env_info.obs_spec
        template |= last_rows(spec, {name: self._blank(name, 1)[0] for name in LAST})
        if spec.stack > 1:
            template["before"] = self._blank("before", spec.history[0])
        fitting(state, template)
        row = int(state["row"])
        for name in ("row", "started", "length", "rollouts"):
            if not 0 <= state[name].min() <= state[name].max() <= MOST:
                raise ValueError(f"{name} is {state[name].tolist()}")
        if (state["started"] > row).any() or (state["episode"] < -1).any():
            raise ValueError(f"an episode is said to start after row {row}")
        if self._env_info.resume == "replay":
            needed = int(open_steps(state).sum()) * self._spec.columns_per_env
            for name in self._rows:
                like = self._blank(name, 0)[:, 0]
                found = state[f"{name}s"]
                if found.shape != (needed, *like.shape[1:]) or found.dtype != like.dtype:
                    raise ValueError(f"{name}s are {found.dtype} {found.shape}, for {needed} steps")


def states(ledgers: Sequence[Ledger]) -> dict[str, Any] | None:
    """The state of all blocks after the rollouts that were learnt from; None before the first."""
    if not all(ledger.published for ledger in ledgers):
        return None
    found: dict[str, Any] = {}
    for number, ledger in enumerate(ledgers):
        found |= prefixed(f"{number}.", ledger.state(ledger.published))
    return found
