"""Topology: which of a run's processes this is, and what it does; decided once, at the entry."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.schema import Config
from ..processes import launcher


@dataclass(frozen=True, kw_only=True)
class Topology:
    """By default the only process of a run."""

    rank: int = 0
    size: int = 1
    """processes of the run"""
    started: bool = False
    """whether a launcher has started them, and this is one"""
    local_rank: int = 0
    local_size: int = 1
    """of this host's processes"""
    learners: int = 1
    """over all processes"""
    watcher: bool = False
    """whether rank 0 learns nothing, and only watches"""
    lockstep: bool = True
    """whether learners make every update together"""
    init_method: str = "env://"
    """where ranks meet"""
    restarts: int = 0
    """how often the launcher has started its ranks again"""
    launchers: int = 0
    """processes above this one whose memory and time are to be counted with it"""
    attempt: str = ""
    """what tells the ranks of this start from those of earlier ones"""
    launch: str | None = None
    """what all ranks of one launch have in common, also after a restart"""

    @property
    def must_launch(self) -> bool:
        """Whether there are ranks that have yet to be started."""
        return self.size > 1 and not self.started

    @property
    def learner(self) -> int | None:
        """Which of the learners this is; None for the process that only watches."""
        return self.rank - self.watcher if self.learns else None

    @property
    def learns(self) -> bool:
        """Whether it has a learner, and with it environments of its own."""
        return self.rank > 0 or not self.watcher

    @property
    def writes(self) -> bool:
        """Whether the run directory is this process's to write."""
        return self.rank == 0

    @property
    def local_learners(self) -> int:
        return min(self.learners, self.local_size)


def topology_of(config: Config) -> Topology:
    """What the configuration and the launcher's variables make of this process."""
    sync = config.entry("sync")
    size = config.learners + sync.watcher
    asked = config.given.get(sync.counted_by) is not None
    rank = launcher.rank(asked) if size > 1 else None
    return Topology(
        rank=rank or 0,
        size=size,
        started=rank is not None,
        local_rank=0 if rank is None else launcher.local_rank(),
        local_size=size if rank is None else launcher.local_size(size),
        learners=config.learners,
        watcher=sync.watcher,
        lockstep=sync.lockstep,
        init_method=launcher.init_method(config.init_method),
        restarts=launcher.restarts(),
        launchers=launcher.launchers(),
        attempt=launcher.attempt(),
        launch=launcher.launch_name(),
    )
