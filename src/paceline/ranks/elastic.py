"""The process that runs torchrun's elastic agent, which starts ranks and restarts them.

It opens no port. One host needs no rendezvous between agents, so the agent's store is memory of
this process; the ranks meet in a file of the launcher.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import NoReturn

from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.api import LogsDest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..processes.launcher import LAUNCH
from ..processes.start import python_command

ONE_HOST = "paceline"
"""Name under which this rendezvous is registered with torch."""


class OneHost(RendezvousHandler):
    """The rendezvous of a single agent."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id, self._store = parameters.run_id, HashStore()

    def get_backend(self) -> str:
        return ONE_HOST

    def next_rendezvous(self) -> RendezvousInfo:
        nowhere = RendezvousStoreInfo("127.0.0.1", 0)  # ranks meet elsewhere
        return RendezvousInfo(self._store, 0, 1, nowhere)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


class NoFiles(LogsSpecs):
    """Ranks print to the standard streams of this process."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        plain = dict.fromkeys(envs, "")
        return LogsDest(plain, plain, {}, {}, dict.fromkeys(envs, os.devnull))

    @property
    def root_log_dir(self) -> str:
        return os.devnull


def main(processes: int) -> NoReturn:
    logging.disable()  # ranks send their own messages to the launcher
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the launcher may have ignored it
    rendezvous_handler_registry.register(ONE_HOST, OneHost)
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=os.environ[LAUNCH],
        rdzv_backend=ONE_HOST,
        max_restarts=10**6,  # the launcher counts failures in a row
        monitor_interval=0.1,
        logs_specs=NoFiles(),
        shutdown_timeout=5,  # seconds for ranks to end by themselves before they are killed
    )
    command = python_command("paceline.ranks.rank:main", os.getpid())
    try:
        elastic_launch(launch, command[0])(*command[1:])
    except (SignalException, ChildFailedError):
        os._exit(1)
    os._exit(0)
