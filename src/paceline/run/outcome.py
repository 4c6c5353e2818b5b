"""Outcome: whether a run that has ended has learnt anything; if not, it says so."""

from __future__ import annotations

import logging
import math

import numpy as np
from torch import nn

from ..config.schema import Config
from ..rollout import Array
from .budget import RECENT, Progress
from .evaluation import NO_LIMIT, EvalResult

log = logging.getLogger("paceline")

FEWEST = 10
"""Episodes on either side of a comparison: the spread of fewer says nothing."""
WORSE = 3.0
"""Standard errors below the first episodes: of runs that stay as they are, one in 500 is."""
BETTER = 2.0
"""Standard errors above them; a run that learns is soon tens of them above."""
MOVED = 1e-6
"""Of the length of the policy's weights: one step of Adam, at a rate of 1e-6, is more."""


class Outcome:
    """Knows the policy as it was when the session began."""

    def __init__(self, policy: nn.Module, progress: Progress) -> None:
        self._policy, self._iter = policy, progress.iter
        self._before = self._weights()

    def say(self, config: Config, progress: Progress, result: EvalResult) -> None:
        """What the numbers of the last evaluation do not show by themselves."""
        if result.length_mean >= NO_LIMIT:
            log.warning(
                f"every episode of the evaluation was cut off after {NO_LIMIT:,} steps: the "
                "likeliest actions of this policy never end one; --env.time-limit N ends them "
                "while it learns too"
            )
        updates = progress.iter - self._iter
        change = np.linalg.norm(self._weights() - self._before)
        moved = change > MOVED * np.linalg.norm(self._before)
        if updates and not moved:
            limit = getattr(config.algorithm, "target_kl", None)
            kl = "" if limit is None else f", {config.algo_section}.target_kl {limit:g}"
            log.warning(
                f"the policy is the one that it was {updates:,} updates ago: nothing was learnt "
                f"with lr {config.lr:g}, max_grad_norm {config.max_grad_norm:g}{kl}"
            )
        _compare(progress, result)

    def _weights(self) -> Array:
        return np.concatenate([p.numpy(force=True).ravel() for p in self._policy.parameters()])


def _compare(progress: Progress, result: EvalResult) -> None:
    """Say if the last episodes are worse than the first ones, or no better.

    Episodes of training with episodes of training, none of them on both sides. An evaluation, whose
    actions are the likeliest, is looked at where these are no better: of a policy that has just
    begun to learn it may well be the worse, with all others in order.
    """
    recent = list(progress.recent)
    count = min(RECENT, progress.episodes // 2, len(progress.first), len(recent))
    if count < FEWEST:
        return
    first, last = np.array(progress.first[:count]), np.array(recent[-count:])
    latest = f"the last {count} ({last.mean():.4g})"
    told = f"the first {count} episodes of training (mean return {first.mean():.4g})"
    gain, evaluated = _gain(first, last), np.array(result.returns)
    if gain < -WORSE:
        log.warning(f"{latest} are worse than {told}")
    elif gain < BETTER and len(evaluated) >= FEWEST and _gain(first, evaluated) < -WORSE:
        log.warning(f"the evaluation ({result.mean:.4g}) is worse than {told}")
    elif np.ptp(np.concatenate([first, last])) == 0:
        same = f"the last {count} all returned the same as {told}"
        log.warning(f"{same}: nothing says which actions are better")
    elif gain < BETTER and count == RECENT:
        log.info(f"{latest} are no better than {told}")


def _gain(first: Array, last: Array) -> float:
    """The difference of the means, in its standard errors."""
    change = float(last.mean() - first.mean())
    error = math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in (first, last)))
    rounding = 1e-6 * abs(float(first.mean()))
    return change / max(error, rounding, 1e-12)
