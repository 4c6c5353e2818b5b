"""Playing one environment with random actions, episode after episode."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ...envs.adapters import ActionAdapter
from ...envs.env_columns import is_gymnasium_env
from ...envs.spaces import ACTION_MASK, ActionSpec, random_actions
from ...rollout import Array
from .compare import StepResult, identical
from .environment import CheckedEnv

MAX_TRIED = 32
"""Discrete actions that are tried one by one."""
NEXT_SEED = 7919
"""Between the seeds of one episode and the next."""


def given_mask(result: StepResult) -> Any:
    """As the environment gives it; None where there is none."""
    mask = result.info.get(ACTION_MASK)
    return result.obs.get(ACTION_MASK) if mask is None and isinstance(result.obs, dict) else mask


def action_mask(result: StepResult, spec: ActionSpec) -> Array | None:
    """Flat; None where there is none, or none that fits."""
    mask = given_mask(result)
    if mask is None or not spec.choices:
        return None
    try:
        parts = mask if isinstance(mask, tuple) else (mask,)
        flat = np.concatenate([np.ravel(np.asarray(part)).astype(bool) for part in parts])
    except (TypeError, ValueError):
        return None
    return flat if len(flat) == sum(spec.choices) else None


class Player:
    """Plays at random without end; after an episode it resets with a new seed."""

    def __init__(self, env: CheckedEnv, spec: ActionSpec, seed: int, actions: int = 0) -> None:
        """`actions` is the seed of the actions."""
        self.env, self._spec = env, spec
        self._adapt = ActionAdapter(spec, is_gymnasium_env(env.env.unwrapped))
        self._generator = np.random.default_rng(actions)
        self._seed: int | None = seed
        self._last: StepResult | None = None
        self.changed_action = False

    def next(self) -> StepResult:
        if self._last is None:
            self._last = self.env.reset(self._seed)
            # A batch seeds its later episodes by itself.
            self._seed = (self._seed or 0) + NEXT_SEED if self.env.single else None
            return self._last
        action = self.random_action(self._last)
        given = copy.copy(action)
        result, limit = self.env.step(action), self.env.limit
        self.changed_action = self.changed_action or not identical(given, action)
        over = result.ends or (limit is not None and self.env.age >= limit)
        self._last = None if over else result
        return result._replace(over=over)

    def results(self, number: int) -> list[StepResult]:
        """Copies of the next ones."""
        return [self.next().copied() for _ in range(number)]

    def random_action(self, last: StepResult) -> Any:
        """As a run would hand it over; none that the last result forbids."""
        mask = action_mask(last, self._spec)
        mask = None if mask is None else mask[None]
        return self._adapt(random_actions(self._generator, self._spec, mask))[0]

    def extreme_actions(self) -> dict[str, Any]:
        """Actions at the ends of their space, by their names; all of a few choices."""
        spec = self._spec
        if spec.kind == "box":
            ends = np.ones((1, spec.size), np.float32)
            named = {"the lowest action": -ends, "the highest action": ends}
        elif spec.kind == "discrete":
            tried = sorted({*range(min(spec.size, MAX_TRIED)), spec.size - 1})
            named = {f"action {index + spec.start}": np.array([index]) for index in tried}
        else:
            last = np.array([spec.sizes]) - 1
            named = {"the first of every choice": 0 * last, "the last of every choice": last}
        return {name: self._adapt(action)[0] for name, action in named.items()}
