"""What another budget does to the schedules of a run that is resumed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ..config.schedules import Schedule, is_constant, make_schedule
from ..config.schema import BUDGETS, Config
from ..config.text import listed
from .budget import Budget, Progress

log = logging.getLogger("paceline")


def warn_of_schedules(old: Config, config: Config, progress: Progress) -> None:
    """Say which scheduled values jump with another budget, and when nothing more is learned."""
    if all(getattr(old, name) == getattr(config, name) for name in (*BUDGETS, "schedule_budget")):
        return
    before = Budget.of(old).progress_remaining(progress)
    after = Budget.of(config).progress_remaining(progress)
    jumps, ends = [], []
    for name, start, schedule in _schedules(config):
        was, now, end = (schedule.value(start, left) for left in (before, after, 0.0))
        if was != now:
            jumps.append(f"{name} goes from {was:.3g} to {now:.3g}")
            nothing = " (nothing is learned)" if name == "lr" and end == 0 else ""
            ends.append(f"{name} {end:.3g}{nothing}")
        if name == "lr" and end == 0 and config.schedule_budget:
            log.warning(
                f"lr follows {config.schedule_budget}, where it ends at 0: nothing is learned "
                "beyond; to follow the run's whole budget, write --schedule-budget none"
            )
    if jumps:
        log.warning(
            f"schedules follow the budget, of which {1 - after:.0%} is spent instead of "
            f"{1 - before:.0%}: {listed(jumps)}; to follow the old budget, and then stay at "
            f"{listed(ends)}, write --schedule-budget keep"
        )


def _schedules(config: Config) -> Iterator[tuple[str, float, Schedule]]:
    """Name, configured value and schedule of all that is not constant."""
    algorithm = getattr(config.algorithm, "schedules", {}).items()
    section = {f"{config.algo_section}.{name}": given for name, given in algorithm}
    for name, (start, given) in {"lr": (config.lr, config.lr_schedule), **section}.items():
        if not is_constant(given):
            yield name, start, make_schedule(f"schedule of {name}", given)
