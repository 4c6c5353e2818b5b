"""`paceline train` and `paceline resume`: run the training loop and show its progress."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoppedEarly
from .commands import HELP, USAGE

if TYPE_CHECKING:
    from ..run.report import Report
    from ..run.topology import Topology
    from .console import Console

RESUME_USAGE = """\
paceline resume RUN [--total-steps N] [--total-iters N] [--duration T] [--eval-every N] ...

  Continues from the newest intact checkpoint of RUN, with the result of a run that never stopped.
  The budget may be extended, and logging, evaluation and checkpointing may change; nothing that
  affects learning.
"""


def train_command(arguments: list[str]) -> int:
    from ..config.flags import help_text, parse_config

    config = parse_config([argument for argument in arguments if argument not in HELP])
    if HELP & set(arguments):
        print(f"{USAGE.splitlines()[2].strip()}\n\n{help_text(config)}")
        return 0
    from ..envs import source_of

    source_of(config.env_id, **vars(config.env))  # refuses an unknown one before torch is imported
    from ..run.topology import topology_of
    from ..session import train

    return follow(lambda stopping: train(config, stopping), topology_of(config))


def resume_command(arguments: list[str]) -> int:
    if HELP & set(arguments):
        print(RESUME_USAGE, end="")
        return 0
    from ..config.flags import config_parser

    given = config_parser("run").parse(arguments)
    folder = given.pop("run")
    from ..run.saved import open_run
    from ..run.topology import topology_of
    from ..session import resume

    config = open_run(Path(folder), given).config
    return follow(lambda stopping: resume(folder, stopping, **given), topology_of(config))


def follow(start: Callable[[Callable[[], bool]], Iterator[Report]], topology: Topology) -> int:
    """Train and show the reports; a signal ends the run after the current iteration."""
    from ..processes.lifetime import end_with
    from ..processes.stopping import Stop, StopNow, handle_stop_signals
    from ..storage.compiler_cache import CACHE, compiled_cache
    from .console import Console, WarningConsole

    os.environ.setdefault(CACHE, compiled_cache())
    if topology.started:
        end_with(os.getppid(), by_kernel=True)  # a killed launcher leaves its ranks running
    stop = Stop(insist=not topology.started)
    with (
        closing(WarningConsole(topology.rank) if topology.rank else Console()) as console,
        _log_to(console),
        handle_stop_signals(stop.handle),
        suppress(StopNow),
        closing(start(stop)) as reports,  # type: ignore[type-var]
    ):
        for report in reports:
            console.show(report)
            if report.stopping:
                break
        else:
            return 0
    raise StoppedEarly(f"stopped by {stop.name or 'a signal to one of its ranks'}")


@contextmanager
def _log_to(console: Console) -> Iterator[None]:
    """Print what the package logs on the console, above the progress."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            prefix = "warning: " if record.levelno >= logging.WARNING else ""
            console.say(prefix + self.format(record))

    log, handler = logging.getLogger("paceline"), Handler()
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
