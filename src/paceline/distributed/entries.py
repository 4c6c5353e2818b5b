"""Registry entries of syncs: their properties, the configurations they refuse, how they are made.

Without torch, so that a configuration can be read and refused without importing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..errors import BadInput
from ..rollout import FEW_NUMBERS

if TYPE_CHECKING:
    from ..config.schema import Config
    from ..run.topology import Topology
    from . import Sync
    from .rendezvous import RankGroup


class SyncEntry:
    """May also have `refuse(config)`, which raises BadInput for what it does not support."""

    counted_by: ClassVar[str] = "ranks"
    """the option that says how many learners there are"""
    watcher: ClassVar[bool] = False
    """whether rank 0 is a monitor, which learns nothing"""
    lockstep: ClassVar[bool] = True
    """whether learners make every update together, and so share statistics"""


class LocalSync(SyncEntry):
    """One process: `Local` needs no rendezvous."""

    @staticmethod
    def refuse(config: Config) -> None:
        if config.ranks > 1:
            raise BadInput(
                f"sync is 'local', which is for one learner, and ranks is {config.ranks}"
            )


class AllreduceSync(SyncEntry):
    @staticmethod
    def make(group: RankGroup, timeout: float, config: Config, topology: Topology) -> Sync:
        import torch

        from ..processes.hardware import available_cpus
        from .allreduce import Allreduce

        gpu = config.device != "cpu" and torch.cuda.is_available()
        if config.backend == "nccl" and not gpu:
            raise BadInput(
                "backend is 'nccl', which is for GPUs, and torch sees none here; write --backend "
                "auto"
            )
        device = torch.device("cuda", topology.local_rank) if gpu else torch.device("cpu")
        busy = topology.local_size * config.num_workers
        crowded = config.entry("sampler").runs_ahead and busy > available_cpus()
        return Allreduce(group, config.backend, device, timeout, crowded)


class HogwildSync(SyncEntry):
    """Learners that share weights without a lock."""

    counted_by = "num_workers"
    watcher = True
    lockstep = False

    @staticmethod
    def refuse(config: Config) -> None:
        if config.algo != "a2c":
            raise BadInput(
                f"sync is 'hogwild', which goes with a2c alone, as a3c, and algo is "
                f"{config.algo!r}; write --algo a3c, or --ranks for learners that wait for each "
                "other"
            )
        if config.ranks > 1:
            raise BadInput(
                f"a3c's learners are its workers, and ranks is {config.ranks}; write --num-workers "
                f"{config.ranks}, or --algo a2c for ranks that average their gradients"
            )
        if config.sampler not in ("auto", "serial"):
            raise BadInput(
                f"sampler is {config.sampler!r}, and a3c's learners step their own environments; "
                "leave it out"
            )
        if not config.num_workers:
            raise BadInput("a3c's learners are its workers; write --num-workers 2, or auto")
        for name in ("normalize_obs", "normalize_return"):
            if getattr(config, name):
                raise BadInput(
                    f"{name} takes learners that agree on what they have seen, and a3c's do not; "
                    "leave it off, or write --algo a2c with --ranks"
                )
        if config.log_info != "auto" and len(config.log_info) > FEW_NUMBERS:
            raise BadInput(
                f"log_info has {len(config.log_info)} keys, and a3c's learners have room for "
                f"{FEW_NUMBERS} numbers of an episode; choose fewer"
            )
        if config.device == "cuda":
            raise BadInput("a3c's learners share memory, not a GPU; write --device cpu")

    @staticmethod
    def make(group: RankGroup, timeout: float, config: Config, topology: Topology) -> Sync:
        from .hogwild import Hogwild

        return Hogwild(group, timeout)
