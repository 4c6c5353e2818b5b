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
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.api import LogsDest
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from ..processes.launcher import LAUNCH
from ..processes.start import python_command


class OneHost(StaticTCPRendezvous):
    """The rendezvous of a single agent, whose store no other process can reach."""

    use_agent_store = False

    def next_rendezvous(self) -> RendezvousInfo:
        nowhere = RendezvousStoreInfo(self.master_addr, self.master_port)  # ranks meet elsewhere
        return RendezvousInfo(HashStore(), self.rank, self.world_size, nowhere)


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
    command = python_command("paceline.ranks.rank:main", os.getpid())
    spec = WorkerSpec(
        role="default",
        local_world_size=processes,
        rdzv_handler=OneHost("127.0.0.1", 0, 0, 1, os.environ[LAUNCH], 0),
        entrypoint=command[0],
        args=tuple(command[1:]),
        max_restarts=10**6,  # the launcher counts failures in a row
        monitor_interval=0.1,
    )
    # Seconds for ranks to end by themselves before they are killed.
    agent = LocalElasticAgent(spec, NoFiles(), shutdown_timeout=5)
    try:
        failed = agent.run().is_failed()
    except SignalException:
        failed = True
    os._exit(int(failed))
