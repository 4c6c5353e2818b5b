"""Progress and Budget: how far a run has come, and when it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Le
from pydantic import ConfigDict

from ..config.schedules import schedule_budget
from ..config.schema import BUDGETS, Config
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
    schedule: Budget | None = None
    """what schedules follow, if not this budget"""

    @staticmethod
    def of(config: Config) -> Budget:
        limits = {name: getattr(config, name) for name in BUDGETS}
        own = config.schedule_budget
        schedule = Budget(**_limits(schedule_budget(own))) if own else None
        return Budget(**_limits(limits), score=config.stop_at_return, schedule=schedule)

    def fraction(self, progress: Progress) -> float:
        """Share of the budget that is spent, from 0 to 1; the score counts only when reached."""
        return 1.0 if self.score_reached(progress) else self._spent(progress)

    def progress_remaining(self, progress: Progress) -> float:
        """What schedules go by: it falls from 1 to 0."""
        return 1.0 - (self.schedule or self)._spent(progress)

    def _spent(self, progress: Progress) -> float:
        spent = [
            done / limit
            for done, limit in (
                (progress.steps, self.steps),
                (progress.iter, self.iters),
                (progress.time, self.seconds),
            )
            if limit is not None
        ]
        return min(1.0, max(spent))

    def score_reached(self, progress: Progress) -> bool:
        recent = progress.recent
        if self.score is None or len(recent) < RECENT:
            return False
        return sum(recent) / len(recent) >= self.score


def _limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """The budgets of a configuration as fields of `Budget`."""
    time = options.get("duration")
    return {
        "steps": options.get("total_steps"),
        "iters": options.get("total_iters"),
        "seconds": seconds(time) if time else None,
    }
