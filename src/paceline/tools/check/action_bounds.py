"""The bounds of actions: are they of use, and does the environment survive actions at them?"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from ...envs.spaces import ActionSpec
from ..findings import Finding, FindingLog
from .compare import flat_numbers
from .environment import CallFailed, CheckedEnv, EnvFactory
from .player import RandomActions, action_mask, as_bool
from .rules import RULES

LARGE_RANGE = 1e6
STEPS_EACH = 5
"""Steps with one action at its bound."""


def about_bounds(spec: ActionSpec) -> Iterator[Finding]:
    """What the bounds of a Box do to a policy, whose −1 … 1 is scaled to them."""
    if spec.kind != "box":
        return
    low, high = np.array(spec.low), np.array(spec.high)
    finite = np.isfinite(low) & np.isfinite(high)
    if not finite.all():
        yield RULES.found("action-unbounded", count=int((~finite).sum()), size=spec.size)
    width = float((high - low)[finite].max(initial=0.0))
    if width > LARGE_RANGE:
        yield RULES.found("action-range", width=width)
    if (low >= high).any():
        entry = int(np.argmax(low >= high))
        yield RULES.found("action-empty-range", entry=entry, low=float(low[entry]))


def try_bounds(factory: EnvFactory, spec: ActionSpec, seconds: float, log: FindingLog) -> None:
    """A few steps with each extreme action; after a failure in a new instance."""
    until = time.monotonic() + seconds
    env = CheckedEnv(factory)
    actions = RandomActions(env.env, spec, 0)
    for number, (name, action) in enumerate(actions.extremes()):
        if time.monotonic() > until and number > 1:
            break
        try:
            result = env.reset(factory.request.seed + number)
            for _ in range(STEPS_EACH):
                mask = action_mask(result, spec)
                if mask is not None and not mask.all():
                    break  # it may be forbidden here; random play tries it where it is not
                result = env.step(action)
                if not np.isfinite(flat_numbers((result.obs, result.reward))).all():
                    log.add(RULES.found("action-nan", name=name, step=env.age, place=name))
                    break
                if as_bool(result.terminated) or as_bool(result.truncated):
                    break
        except CallFailed as failed:
            if not log.has("risky", "step", "reset"):
                text = failed.finding.text
                log.add(RULES.found("action-raises", name=name, text=text, place=name))
            env = CheckedEnv(factory)
    env.discard()
