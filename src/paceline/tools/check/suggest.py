"""How many workers and environments suit an environment of such a speed on such a machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .speed import OWN_THREADS, Measured

CHEAP_US = 25.0
"""Microseconds of a step below which waking another process takes longer than it saves."""
SLOW_US = 2_000.0
PER_WORKER, PER_SLOW_WORKER, ALONE = 8, 4, 16
"""Environments of a worker, of one whose steps are slow, and of a process without workers."""
WAITING = 0.6
"""CPU time per time below which it mostly waits for something else."""
MAX_PER_CPU = 4
"""Workers per CPU, where they wait."""
WORKER_MB = 50.0
MEMORY_SHARE = 0.5
"""Of the memory that is free, for environments and workers."""


@dataclass(frozen=True)
class Suggestion:
    workers: int
    envs: int
    reason: str

    @property
    def flags(self) -> str:
        return f"--num-workers {self.workers} --num-envs {self.envs}"


def suggest(found: Measured, cpus: int, free_mb: float) -> Suggestion:
    """What to start with; `paceline tune` measures it."""
    workers, each, reason = _choose(found, cpus)
    left = MEMORY_SHARE * free_mb - WORKER_MB * workers
    most = max(1, int(left / max(found.memory_mb, 1e-3)))
    if max(1, workers) * each > most:
        workers = min(workers, most)
        each = max(1, most // max(1, workers))
        reason += (
            f"; more would not fit into half of the {free_mb:,.0f} MB that are free, at "
            f"{found.memory_mb:,.0f} MB each"
        )
    return Suggestion(workers, each * max(1, workers), reason)


def _choose(found: Measured, cpus: int) -> tuple[int, int, str]:
    """Workers, environments of each (or of the one process), and why."""
    step = 1e6 / found.steps_per_second
    shown = f"{step:.0f} µs" if step < 1e3 else f"{step / 1e3:.3g} ms"
    each = PER_SLOW_WORKER if step >= SLOW_US else PER_WORKER
    if found.cpu_share < WAITING and step >= CHEAP_US:
        workers = max(2, min(MAX_PER_CPU * cpus, round(cpus / max(found.cpu_share, 0.01))))
        waits = f"it waits for something else {1 - found.cpu_share:.0%} of the time"
        return workers, each, f"{waits}, so that more workers than CPUs pay"
    if found.cpu_share > OWN_THREADS:
        busy = f"it keeps {found.cpu_share:.1f} CPUs busy by itself"
        return 0, ALONE, f"{busy}, and workers would only wait"
    if step < CHEAP_US:
        cheap = f"a step takes {shown}, less than it takes to wake another process"
        return 0, ALONE, f"{cheap}: workers would gain nothing"
    if found.pictures and step < SLOW_US:
        images = f"a step takes {shown}, and convolutions over its images longer"
        return 0, ALONE, f"{images}: the learner needs the CPUs itself"
    if cpus == 1:
        return 0, each, "there is one CPU, which the learner needs too"
    return cpus, each, f"a step takes {shown}, so that stepping, which {cpus} CPUs share, dominates"
