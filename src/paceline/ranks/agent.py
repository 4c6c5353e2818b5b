"""The process that holds torchrun's elastic agent: it starts ranks, and starts them again."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

from torch.distributed.elastic.multiprocessing import LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.api import LogsDest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..launcher import LAUNCH

RESTARTS = 10**6
"""Whoever launched this counts those in a row."""
SECONDS = 5
"""That ranks have to leave by themselves before they are killed."""


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
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=os.environ[LAUNCH],
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        rdzv_configs={"is_host": "true"},
        local_addr="127.0.0.1",
        max_restarts=RESTARTS,
        monitor_interval=0.1,
        logs_specs=NoFiles(),
        shutdown_timeout=SECONDS,
    )
    path = [entry for entry in sys.path if isinstance(entry, str)]
    code = (
        f"import sys; sys.path[:] = {path!r}; "
        f"from paceline.machine import end_with; end_with({os.getpid()}); "
        f"from paceline.ranks.rank import main; main({os.getpid()})"
    )
    try:
        elastic_launch(launch, sys.executable)("-c", code)
    except (SignalException, ChildFailedError):
        os._exit(1)
    os._exit(0)
