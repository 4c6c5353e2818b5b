"""Topology: which of a run's processes this is and what it does; decided once, at the entry."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.schema import Config
from ..errors import BadInput
from ..processes import launcher


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The defaults describe the only process of a run."""

    rank: int = 0
    size: int = 1
    """processes of the run"""
    started: bool = False
    """whether a launcher has started the ranks, and this is one of them"""
    local_rank: int = 0
    local_size: int = 1
    """processes of the run on this host"""
    learners: int = 1
    """over all processes"""
    watcher: bool = False
    """whether rank 0 does not learn: it reports, evaluates and saves"""
    lockstep: bool = True
    """whether all learners make every update together"""
    init_method: str = "env://"
    """where ranks meet"""
    restarts: int = 0
    """how often the launcher has restarted all ranks"""
    launchers: int = 0
    """parent processes whose memory and CPU time count as this process's"""
    attempt: str = ""
    """identifies one start of the ranks"""
    launch: str | None = None
    """identifies the launcher's whole job, restarts included"""

    @property
    def must_launch(self) -> bool:
        """Whether the ranks have yet to be started."""
        return self.size > 1 and not self.started

    @property
    def learns(self) -> bool:
        """Whether this process has a learner and environments."""
        return self.rank > 0 or not self.watcher

    @property
    def learner_index(self) -> int:
        """Index of this process among the learners."""
        return self.rank - self.watcher

    @property
    def writes(self) -> bool:
        """Whether this process writes the run directory."""
        return self.rank == 0

    @property
    def local_learners(self) -> int:
        return min(self.learners, self.local_size)


def topology_of(config: Config) -> Topology:
    """From the configuration and the launcher's environment variables."""
    sync = config.entry("sync")
    size, given = config.learners + sync.watcher, config.init_method
    explicit = config.given.get(sync.counted_by) is not None
    rank = launcher.rank(explicit, given) if size > 1 else None
    if rank is None:
        _check_unused_variables(config, size if explicit else 0)
    return Topology(
        rank=rank or 0,
        size=size,
        started=rank is not None,
        local_rank=0 if rank is None else launcher.local_rank(),
        local_size=size if rank is None else launcher.local_size(size),
        learners=config.learners,
        watcher=sync.watcher,
        lockstep=sync.lockstep,
        init_method=given if rank is None else launcher.meeting_place(given),
        restarts=launcher.restarts(),
        launchers=launcher.launchers(),
        attempt=launcher.attempt(),
        launch=launcher.launch_id(),
    )


def _check_unused_variables(config: Config, wanted: int) -> None:
    """Refuse RANK and WORLD_SIZE that may well be meant for this process, which is not a rank.

    Where a user asks for `wanted` processes, these are started whatever has been inherited, unless
    an init_method says that there are others to meet.
    """
    found, meeting = launcher.variables(), config.init_method
    if found and not wanted:
        raise BadInput(
            f"{found} in the environment, and nothing says where the ranks meet; set MASTER_ADDR "
            "and MASTER_PORT, or write --init-method file:///a/path; to train alone, unset them, "
            "or write --ranks 1"
        )
    if found and wanted > 1 and meeting != launcher.ENV:
        name = config.entry("sync").counted_by
        raise BadInput(
            f"{found} in the environment make this a rank, which meets the others at {meeting}, "
            f"and {name} {config.learners} would start ranks of its own; leave {name} out, or "
            "unset RANK and WORLD_SIZE"
        )
