"""Report: what training yields, and a line of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

from ..errors import BadInput
from ..rollout import Episode

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


@dataclass(frozen=True)
class FinishedEpisode:
    """An episode, and where training was after the iteration in which it ended."""

    time: float
    steps: int
    episode: Episode


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
    metrics: Mapping[str, float | None] = field(default_factory=dict)
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
    evaluation_left: float = field(default=0.0, metadata={"written": False})
    """expected seconds of the evaluation at the end"""
    finished: tuple[FinishedEpisode, ...] = field(default=(), metadata={"written": False})
    """the episodes that ended, with when: the lines of episodes.csv"""

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


OF_TEAMS = ("agent_steps", "team_return")
CORE = {*LEARNING, *OF_TEAMS, *(entry.name for entry in fields(Report))}
"""Names that neither a number in `info` nor one that a user logs can have."""


def check_logged(values: Mapping[str, Any]) -> dict[str, float]:
    """What a user logs, as numbers; names of every report and what is no number are refused."""
    checked = {}
    for name, value in values.items():
        if name in CORE:
            raise BadInput(f"log({name}=…): every report has its own {name}; choose another name")
        one = getattr(value, "size", None) == 1 or getattr(value, "numel", lambda: 0)() == 1
        item = value.item() if one else value  # of numpy or torch
        if not isinstance(item, Real):
            raise BadInput(
                f"log({name}={str(value)[:40]}): {type(value).__name__} is not a number; log one "
                "value by name, such as log(loss_ratio=0.3)"
            )
        checked[name] = float(item)
    return checked


def _clean(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
