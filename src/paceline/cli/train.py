"""`paceline train`, `resume` and `eval`: train and show the progress; evaluate what was trained."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput, StoppedEarly
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
EVAL_USAGE = """\
paceline eval RUN | --checkpoint DIR [--env-id ID] [--episodes N] [--sampled]

  RUN              a run directory: its newest checkpoint is used
  --checkpoint DIR one checkpoint, such as runs/x/checkpoints/best
  --env-id ID      another environment with the same spaces
  --episodes N     number of episodes, each with its own seed [100]
  --sampled        sample actions from the policy instead of taking the most likely one
"""
MAX_EPISODES = 10**6


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


def eval_command(arguments: list[str]) -> int:
    if HELP & set(arguments):
        print(EVAL_USAGE, end="")
        return 0
    from ..config.flags import Parser

    parser = Parser()
    parser.add_argument("run", nargs="?")
    parser.add_argument("--checkpoint")
    parser.add_argument("--env-id")
    parser.add_argument("--episodes", default="100")
    parser.add_argument("--sampled", action="store_true")
    given = parser.parse(arguments)
    if (given["run"] is None) == (given["checkpoint"] is None):
        raise BadInput("name a run, or a checkpoint with --checkpoint, and not both")
    episodes = given["episodes"]
    if not re.fullmatch("[0-9]{1,7}", episodes) or int(episodes) > MAX_EPISODES:
        raise BadInput(
            f"episodes is {episodes[:40]!r}: write a whole number up to {MAX_EPISODES}, such as 100"
        )
    from ..session import evaluate_saved

    source = Path(given["run"] or given["checkpoint"])
    result = evaluate_saved(source, int(episodes), given["env_id"], given["sampled"])
    print(
        f"{result.env_id}: mean {result.mean:.2f} ± {result.std:.2f} over {result.episodes} "
        f"episodes (95% interval {result.ci_low:.2f} to {result.ci_high:.2f})\n"
        f"median {result.median:.2f}, min {result.min:.2f}, max {result.max:.2f}, "
        f"mean length {result.length_mean:.1f}\ncheckpoint {result.checkpoint}"
    )
    for line in result.elsewhere_lines():
        print(line)
    return 0


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
