"""How many workers and environments suit an environment of such a speed on such a machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .speed import OWN_THREADS, Measured

CHEAP_US = 25.0
"""Microseconds of a step below which waking another process takes longer than it saves."""
EACH, EACH_SLOW, ALONE = 8, 4, 16
"""Environments of a worker, of one whose steps are slow, and of a process without workers."""
SLOW_US = 2_000.0
WAITS = 0.6
"""CPU time per wall time below which it mostly waits for something else."""
MOST_WAITING = 4
"""Workers per CPU, where they wait."""
WORKER_MB = 50.0
SHARE = 0.5
"""Of the memory that is free, for environments and workers."""


@dataclass(frozen=True)
class Suggestion:
    workers: int
    envs: int
    reason: str

    @property
    def flags(self) -> str:
        return f"--num-workers {self.workers} --num-envs {self.envs}"


def suggested(found: Measured, cpus: int, free_mb: float) -> Suggestion:
    """What to begin with; `paceline tune` measures it."""
    step = 1e6 / found.steps_per_second
    workers, each, reason = _shape(found, step, cpus)
    most = max(1, int((SHARE * free_mb - WORKER_MB * workers) / max(found.memory_mb, 1e-3)))
    if workers * each > most or (not workers and each > most):
        workers = min(workers, most)
        each = max(1, most // max(1, workers))
        reason += (
            f"; more would not fit into half of the {free_mb:,.0f} MB that are free, at "
            f"{found.memory_mb:,.0f} MB each"
        )
    return Suggestion(workers, each * max(1, workers), reason)


def _shape(found: Measured, step: float, cpus: int) -> tuple[int, int, str]:
    """Workers, environments of each (or of the one process), and why."""
    each = EACH_SLOW if step >= SLOW_US else EACH
    if found.cpu_share < WAITS and step >= CHEAP_US:
        workers = max(2, min(MOST_WAITING * cpus, round(cpus / max(found.cpu_share, 0.01))))
        reason = (
            f"it waits for something else {1 - found.cpu_share:.0%} of the time, so that more "
            "workers than CPUs pay"
        )
        return workers, each, reason
    if found.cpu_share > OWN_THREADS:
        reason = f"it keeps {found.cpu_share:.1f} CPUs busy by itself, and workers would only wait"
        return 0, ALONE, reason
    if step < CHEAP_US:
        reason = (
            f"a step takes {step:.0f} µs, less than it takes to wake another process: workers "
            "would gain nothing"
        )
        return 0, ALONE, reason
    if found.pictures and step < SLOW_US:
        reason = (
            f"a step takes {_time(step)}, and convolutions over its pictures longer: the learner "
            "needs the CPUs itself"
        )
        return 0, ALONE, reason
    if cpus == 1:
        return 0, each, "there is one CPU, which the learner needs too"
    reason = (
        f"a step takes {_time(step)}, so that a run is bound by stepping, which {cpus} CPUs share"
    )
    return cpus, each, reason


def _time(microseconds: float) -> str:
    return f"{microseconds:.0f} µs" if microseconds < 1e3 else f"{microseconds / 1e3:.3g} ms"
