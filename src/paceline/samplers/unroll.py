"""unroll: T steps of B columns under one policy, the inner loop of sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..envs import Columns
from ..envs.frame_stack import FrameStack
from ..envs.guards import CHECK
from ..envs.spaces import ObservationSpec
from ..errors import Diverged, EnvironmentFailed
from ..policy.actor import Actor
from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Rollout

FP_ERRORS = (FloatingPointError, RuntimeWarning)
"""What numpy raises for e.g. an underflow, after an environment has called np.seterr."""


class RolloutCancelled(Exception):
    """The rollout is no longer wanted: the worker has to stop."""


def unroll(
    columns: Columns,
    actor: Actor,
    noise: Array,
    out: Rollout,
    parameters: Array,
    heartbeat: Heartbeat,
    carry: Array,
    frame_stack: FrameStack | None = None,
) -> None:
    """Fill `out` from its first observations `out.obs[0]`, which are set.

    `parameters[T, B, size]` is written to: those of the action distribution at each step.
    `carry[B, S]` is the policy's memory; `frame_stack` is for one that sees stacked frames.
    """
    act, sample, adapt, step = actor.step, actor.distribution.sample, columns.adapt, columns.step
    row, stores_values, segment = columns.row, len(out.value) > 0, out.segment
    # Iterating over rows takes half the time of indexing them; `obs` and `first` have one more.
    rows = zip(parameters, noise, out.action, out.obs, out.first, strict=False)
    for t, (params, drawn, action, obs, first) in enumerate(rows):
        heartbeat.row = row + t
        if heartbeat.leave:
            raise RolloutCancelled
        if frame_stack is not None:
            obs = frame_stack.show(obs, first)
        value = out.value[t] if stores_values else None
        if segment and t % segment == 0:
            out.state[t // segment] = carry
        before = carry.copy() if segment else carry
        try:
            act(obs, first, carry, params, value)
            sample(params, drawn, action)
        except FP_ERRORS:  # rare, while np.errstate around every step would cost time
            with np.errstate(all="ignore"):
                carry[...] = before
                act(obs, first, carry, params, value)
                sample(params, drawn, action)
        if frame_stack is not None:
            frame_stack.shift()
        step(t, adapt(action), out)
    with np.errstate(all="ignore"):
        if segment:
            out.state[-1] = carry
        if stores_values:
            first = out.first[-1]
            obs = out.obs[-1] if frame_stack is None else frame_stack.show(out.obs[-1], first)
            act(obs, first, carry.copy(), np.empty_like(parameters[0]), out.value[-1])
        out.logp[:] = actor.distribution.logp(parameters, out.action)


def check_parameters(rollout: Rollout, parameters: Array, spec: ObservationSpec) -> None:
    """Raise `Diverged` if the policy's outputs are not finite for a finite observation."""
    if _finite_sum(parameters):
        return
    for t, i, _ in np.argwhere(~np.isfinite(parameters))[:1]:
        if all(np.isfinite(part[t, i]).all() for part in spec.split(rollout.obs).values()):
            raise Diverged("the policy's actions became NaN or infinite; a lower lr often helps")


def check_environment(
    rollout: Rollout, spec: ObservationSpec, first_column: int, begun: Array
) -> None:
    """Raise `EnvironmentFailed` for observations and rewards that are not finite or out of range.

    `begun[B]` is the length of each column's episode at the rollout's start.
    """
    reward = rollout.reward
    shape = rollout.first.shape
    parts = spec.split(rollout.obs)
    wrong: dict[str, Any] = {}
    for name, part in parts.items():
        if name == "index":
            wrong[name] = (part < spec.start) | (part >= spec.start + spec.size)
        elif part.dtype.kind == "f" and not _finite_sum(part):
            wrong[name] = ~np.isfinite(part.reshape(*shape, -1)).all(-1)
    bad = np.logical_or.reduce([np.zeros(shape, bool), *wrong.values()])
    bad[1:] |= ~np.isfinite(reward)
    if not bad.any():
        return
    t, i = np.argwhere(bad)[0]
    starts = np.flatnonzero(rollout.first[: t + 1, i])
    step = t - starts[-1] if len(starts) else begun[i] + t
    gain = reward[t - 1, i]
    what = f"reward {gain}{none_hint(gain)} is not a finite number"
    for name in wrong:
        if wrong[name][t, i]:
            seen = np.array2string(parts[name][t, i], threshold=8)
            what = f"observation {seen} is not finite or not within its space"
    env = (first_column + i) // rollout.columns_per_env
    raise EnvironmentFailed(f"env {env}, step {step}: {what}; {CHECK}")


def none_hint(reward: float) -> str:
    """A reward of None is stored as NaN."""
    return " (or None)" if np.isnan(reward) else ""


def _finite_sum(array: Array) -> bool:
    """Fast check: a finite sum has only finite summands."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum()))
