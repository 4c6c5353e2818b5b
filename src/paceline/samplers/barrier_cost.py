"""Whether workers in step gain anything: rollouts with them, against their own work in a row.

Both are wall time. On a busy machine a rollout takes longer, and so does each worker's work, which
CPU time would not show: the machine would be taken for a layout that does not pay. CPU time would
also leave out what an environment waits for, a simulator or a sleep, which workers do share.
"""

from __future__ import annotations

import logging
import time
from statistics import median

from ..config.text import several
from .pool import PoolSpec

log = logging.getLogger("paceline")

FIRST = 5
"""Rollouts that do not count: caches are cold."""
ROLLOUTS, SECONDS = 50, 1.0
"""How many count at least, and for how long at least."""
CLEARLY = 1.1
"""How many times longer with workers is more than noise."""


class BarrierCost:
    """Measures the first rollouts of a run, and warns once if one process would be faster."""

    def __init__(self, spec: PoolSpec) -> None:
        self._spec, self._skipped, self._began = spec, 0, 0.0
        self._taken: list[float] = []
        self._alone: list[float] = []
        self.decided = spec.first_column > 0  # of several ranks the first speaks for all

    def record(self, taken: float, alone: float) -> None:
        """Seconds of one rollout, and of the workers' own work for it, added up."""
        if self._skipped < FIRST:
            self._skipped, self._began = self._skipped + 1, time.perf_counter()
            return
        self._taken.append(taken)
        self._alone.append(alone)
        if len(self._taken) >= ROLLOUTS and time.perf_counter() - self._began >= SECONDS:
            self.decided = True
            if advice := barrier_advice(self._spec, median(self._taken), median(self._alone)):
                log.warning(advice)


def barrier_advice(spec: PoolSpec, taken: float, alone: float) -> str | None:
    """What to write instead, where a rollout takes clearly longer than the work `alone` (seconds)
    would in one process; None if it does not, or if `alone` is not known (NaN)."""
    if not taken > CLEARLY * alone:
        return None
    rollout = spec.rollout
    return (
        f"a rollout of {rollout.num_envs} envs × {rollout.steps} steps takes {1e3 * taken:.2g} ms "
        f"with {several(spec.workers, 'worker')}, and at most {1e3 * alone:.2g} ms in one process: "
        "waking workers costs more than they gain, as in short rollouts and beside other busy "
        "programs; write --num-workers 0 or --parallel auto, or give them more to do with a larger "
        "--rollout-steps or --num-envs"
    )
