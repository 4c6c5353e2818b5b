"""The process that holds torchrun's elastic agent: it starts ranks, and starts them again.

It opens no port. One host needs no rendezvous between agents, so the store that the agent keeps
its bookkeeping in is memory of this process; the ranks meet in a file of their launcher's.
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

from ..processes.hardware import python_command
from ..processes.launcher import LAUNCH

ONE_HOST = "paceline"
"""Name of this rendezvous among torch's."""


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
    """What ranks print goes where everything else goes."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        plain = dict.fromkeys(envs, "")
        return LogsDest(plain, plain, {}, {}, dict.fromkeys(envs, os.devnull))

    @property
    def root_log_dir(self) -> str:
        return os.devnull


def main(processes: int) -> NoReturn:
    logging.disable()  # the ranks speak for themselves
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who launched this may have ignored it
    rendezvous_handler_registry.register(ONE_HOST, OneHost)
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=os.environ[LAUNCH],
        rdzv_backend=ONE_HOST,
        max_restarts=10**6,  # whoever launched this counts those in a row
        monitor_interval=0.1,
        logs_specs=NoFiles(),
        shutdown_timeout=5,  # for ranks to leave by themselves before they are killed
    )
    command = python_command(
        f"from paceline.processes.hardware import end_with; end_with({os.getpid()}, at_once=True); "
        f"from paceline.ranks.rank import main; main({os.getpid()})"
    )
    try:
        elastic_launch(launch, command[0])(*command[1:])
    except (SignalException, ChildFailedError):
        os._exit(1)
    os._exit(0)
