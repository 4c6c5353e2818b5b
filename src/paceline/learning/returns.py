"""Rewards and episode ends of a rollout; generalized advantage estimation; V-trace.

Pure; numpy; time-major. T = steps, B = columns; trailing axes (value heads H) pass through.

Returns take `value[T+1]` of the true successors, so one formula is right at every time limit:
`discount` is γ·(1 − terminated), and `trace` is zero where an episode ended either way.
"""

from __future__ import annotations

import numpy as np

from ..rollout import Array, Rollout
from .batch import Signals, ValueHead


def reward_signals(
    rollout: Rollout,
    reward: Array,
    bonus: Array | None,
    heads: tuple[ValueHead, ...],
    log_ratio: Array,
) -> Signals:
    """Signals of every value head: the environment's `reward[T, B]`, then the bonus' if it has a
    head of its own; otherwise the bonus is added to the reward."""
    rewards, idle = [reward], None
    if bonus is not None:
        bonus = np.where(rollout.valid, bonus, 0.0).astype(np.float32)
        rewards = [reward, bonus] if len(heads) > 1 else [reward + bonus]
    discounts, traces = [], []
    for head in heads:
        gamma = np.float32(head.gamma)
        if head.episodic:
            discounts.append(gamma * ~rollout.terminated)
            traces.append((~rollout.done).astype(np.float32))
        else:  # a reset row is no transition: the return passes through it unchanged
            discounts.append(np.where(rollout.valid, gamma, np.float32(1)))
            traces.append(np.ones_like(reward))
    if not all(head.episodic for head in heads):
        episodic = np.array([head.episodic for head in heads])
        idle = ~rollout.valid[..., None] & ~episodic
    return Signals(
        _stack_heads(rewards),
        _stack_heads(discounts),
        _stack_heads(traces),
        log_ratio[..., None],
        heads,
        idle,
    )


def _stack_heads(arrays: list[Array]) -> Array:
    """[T, B] of each head → [T, B, H]."""
    return arrays[0][..., None] if len(arrays) == 1 else np.stack(arrays, -1)


def gae(reward: Array, discount: Array, trace: Array, value: Array, lam: float | Array) -> Array:
    """Â[t] = δ[t] + γ·λ·Â[t+1], cut where the trace is zero (Schulman 2016, eq. 16)."""
    delta = reward + discount * value[1:] - value[:-1]
    return _discounted_sum(delta, discount * trace * np.asarray(lam, np.float32))


def vtrace(
    reward: Array,
    discount: Array,
    trace: Array,
    value: Array,
    log_ratio: Array,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    lam: float | Array = 1.0,
    idle: Array | None = None,
) -> tuple[Array, Array]:
    """Targets v[t] and policy advantages r + γ·v[t+1] − V[t], without their factor ρ (Espeholt
    2018, eq. 1), which is that of the weights that take the step.

    `log_ratio` is log π − log μ. Where an episode ended, v[t+1] belongs to the next episode,
    so the policy term bootstraps from V[t+1] there. Where `idle`, no action was taken: ρ = c = 1.
    """
    ratio = np.exp(log_ratio)
    rho = np.minimum(ratio, np.float32(rho_bar))
    c = np.minimum(ratio, np.float32(c_bar)) * np.asarray(lam, np.float32)
    if idle is not None:
        rho, c = np.where(idle, np.float32(1), rho), np.where(idle, np.float32(1), c)
    delta = rho * (reward + discount * value[1:] - value[:-1])
    target = value[:-1] + _discounted_sum(delta, discount * trace * c)
    next_target = np.concatenate([target[1:], value[-1:]])
    bootstrap = np.where(trace > 0, next_target, value[1:])
    return target, reward + discount * bootstrap - value[:-1]


def _discounted_sum(delta: Array, decay: Array) -> Array:
    """x[t] = delta[t] + decay[t]·x[t+1], backwards in time from x[T] = 0."""
    out = np.empty_like(delta)
    later = np.zeros_like(delta[0])
    for now, step, factor in zip(out[::-1], delta[::-1], decay[::-1], strict=True):
        np.multiply(factor, later, out=now)
        np.add(now, step, out=now)
        later = now
    return out
