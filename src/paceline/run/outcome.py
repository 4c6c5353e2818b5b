"""Outcome: warns of a finished run that has learned nothing."""

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
"""Episodes on either side of a comparison; the variance of fewer is too uncertain."""
WORSE = 3.0
"""Standard errors below the first episodes, where one in 500 unchanged runs would be."""
BETTER = 2.0
"""Standard errors above them; a run that learns is soon tens above."""
MOVED = 1e-6
"""Change relative to the norm of the weights; one step of Adam at lr 1e-6 is more."""


class Outcome:
    """Compares the policy with that at the start of the session."""

    def __init__(self, policy: nn.Module, progress: Progress) -> None:
        self._policy, self._iter = policy, progress.iter
        self._before = self._weights()

    def warn(self, config: Config, progress: Progress, result: EvalResult) -> None:
        """Log what the numbers of the last evaluation do not show by themselves."""
        if result.length_mean >= NO_LIMIT:
            log.warning(
                f"every episode of the evaluation was cut off after {NO_LIMIT:,} steps: the "
                "most likely actions of this policy never end one; --env.time-limit N ends "
                "them, in training too"
            )
        updates = progress.iter - self._iter
        change = np.linalg.norm(self._weights() - self._before)
        moved = change > MOVED * np.linalg.norm(self._before)
        if updates and not moved:
            limit = getattr(config.algorithm, "target_kl", None)
            kl = "" if limit is None else f", {config.algo_section}.target_kl {limit:g}"
            log.warning(
                f"the policy is the same as {updates:,} updates ago: nothing was learned "
                f"with lr {config.lr:g}, max_grad_norm {config.max_grad_norm:g}{kl}"
            )
        _compare(progress, result)

    def _weights(self) -> Array:
        return np.concatenate([p.numpy(force=True).ravel() for p in self._policy.parameters()])


def _compare(progress: Progress, result: EvalResult) -> None:
    """Log if the last episodes of training are worse than the first ones, or no better.

    No episode is on both sides. The evaluation, which is greedy, counts only if training is no
    better: early in learning it may well be worse while the sampled policy improves.
    """
    recent = list(progress.recent)
    count = min(RECENT, progress.episodes // 2, len(progress.first), len(recent))
    if count < FEWEST:
        return
    first, last = np.array(progress.first[:count]), np.array(recent[-count:])
    latest = f"the last {count} ({last.mean():.4g})"
    before = f"the first {count} episodes of training (mean return {first.mean():.4g})"
    gain, evaluated = _gain(first, last), np.array(result.returns)
    if gain < -WORSE:
        log.warning(f"{latest} are worse than {before}")
    elif gain < BETTER and len(evaluated) >= FEWEST and _gain(first, evaluated) < -WORSE:
        log.warning(f"the evaluation ({result.mean:.4g}) is worse than {before}")
    elif np.ptp(np.concatenate([first, last])) == 0:
        same = f"the last {count} all returned the same as {before}"
        log.warning(f"{same}: nothing says which actions are better")
    elif gain < BETTER and count == RECENT:
        log.info(f"{latest} are no better than {before}")


def _gain(first: Array, last: Array) -> float:
    """Difference of the means, in standard errors."""
    change = float(last.mean() - first.mean())
    error = math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in (first, last)))
    rounding = 1e-6 * abs(float(first.mean()))
    return change / max(error, rounding, 1e-12)
