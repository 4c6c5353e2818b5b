"""Report: what training yields, and a line of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

LEARNING = (
    "loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_frac",
    "explained_variance",
    "grad_norm",
    "lr",
    "rho_mean",
)
"""Metrics that every report has; null if the algorithm does not compute it."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """One or more iterations; the fields of metrics.jsonl."""

    time: float
    """seconds since the first environment step, over all sessions of the run"""
    iter: int
    steps: int
    """environment steps so far, over all ranks"""
    steps_global: int
    """environment steps in this report, over all ranks"""
    world_size: int
    fps: float
    """steps_global over the wall time since the last report, everything included"""
    t_iter: float
    t_rollout: float
    t_learn: float
    t_sync: float
    t_other: float
    """evaluation, checkpoints and logging since the last report"""
    t_eval: float = 0.0
    """the part of t_other in which the policy was evaluated (a3c's learners learn meanwhile)"""
    t_save: float = 0.0
    """the part of t_other in which rank 0 made checkpoints"""
    t_wait: float
    """the part of t_rollout in which the learner waited for workers"""
    restarts: int
    """worker processes, and sets of ranks, replaced so far in this session"""
    env_restarts: int
    """environments rebuilt so far in this session"""
    lag_mean: float
    """updates between the weights that acted and those that learned"""
    lag_max: int
    episodes: int
    episode_return: float | None
    episode_length: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """of losses, memories, bonuses and teams, by name; `report.loss` is `metrics["loss"]`, or None
    if it is one of `LEARNING` that this algorithm does not compute"""
    memory_mb: float | None = None
    """of the process tree"""
    cpu_percent: float | None = None
    eval_return: float | None = None
    """mean return of the evaluation after these iterations, if there was one"""
    recent_return: float | None = field(default=None, metadata={"written": False})
    """mean return of the last 100 episodes"""
    fraction: float = field(default=0.0, metadata={"written": False})
    """of the budget that is spent, 0 to 1"""
    stopping: bool = field(default=False, metadata={"written": False})
    """whether a rank was asked to stop: leave the loop"""

    def as_dict(self) -> dict[str, Any]:
        """The line of metrics.jsonl; NaN and infinity become None."""
        values: dict[str, Any] = {}
        for entry in fields(self):
            if entry.name == "metrics":
                values |= dict.fromkeys(LEARNING) | dict(self.metrics)
            elif entry.metadata.get("written", True):
                values[entry.name] = getattr(self, entry.name)
        return {name: _clean(value) for name, value in values.items()}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and (name in self.metrics or name in LEARNING):
            return self.metrics.get(name)
        raise AttributeError(f"a report has no {name!r}")


def _clean(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
