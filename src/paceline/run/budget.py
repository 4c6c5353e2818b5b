"""Progress and Budget: how far a run has come, and when it ends."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Le
from pydantic import ConfigDict

from ..config.schema import Config
from ..config.values import seconds

RECENT = 100
"""Episodes in the running mean return."""
MOST = Le(2**53)
"""Iterations, steps or seconds that are believed of a checkpoint."""


@dataclass
class Progress:
    """How far a run has come, over all its sessions; state.json holds these fields."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)

    iter: Annotated[int, Ge(0), MOST] = 0
    steps: Annotated[int, Ge(0), MOST] = 0
    time: Annotated[float, Ge(0), MOST] = 0.0
    """seconds of training"""
    recent: deque[float] = field(default_factory=deque)
    """returns of the last `RECENT` episodes"""
    first: list[float] = field(default_factory=list)
    """returns of the first `RECENT` episodes"""
    episodes: Annotated[int, Ge(0), MOST] = 0
    best: float | None = None
    """mean return of the best evaluation"""
    info_names: list[str] = field(default_factory=list)
    """numbers that were found in `info`"""

    def __post_init__(self) -> None:
        self.recent = deque(self.recent, RECENT)

    def add_episode(self, episode_return: float) -> None:
        self.episodes += 1
        self.recent.append(episode_return)
        if len(self.first) < RECENT:
            self.first.append(episode_return)


@dataclass(frozen=True)
class Budget:
    """Limits of a run; the first one that is reached ends it."""

    steps: int | None = None
    iters: int | None = None
    seconds: float | None = None
    score: float | None = None
    """mean return of the last `RECENT` episodes"""

    @staticmethod
    def of(config: Config) -> Budget:
        limit = seconds(config.duration) if config.duration else None
        return Budget(config.total_steps, config.total_iters, limit, config.stop_at_return)

    def fraction(self, progress: Progress) -> float:
        """Share of the budget that is spent, from 0 to 1."""
        spent = [
            done / limit
            for done, limit in (
                (progress.steps, self.steps),
                (progress.iter, self.iters),
                (progress.time, self.seconds),
            )
            if limit is not None
        ]
        return 1.0 if self.score_reached(progress) else min(1.0, max(spent))

    def score_reached(self, progress: Progress) -> bool:
        recent = progress.recent
        if self.score is None or len(recent) < RECENT:
            return False
        return sum(recent) / len(recent) >= self.score
