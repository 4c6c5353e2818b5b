"""`paceline train`, `resume` and `eval`: train and show the progress; evaluate what was trained."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..errors import BadInput, StoppedEarly
from .commands import HELP, SEVERAL_SEEDS, USAGE, call

if TYPE_CHECKING:
    from ..processes.stopping import Stop
    from ..run.handle import Run
    from ..run.topology import Topology
    from .console import Console

RESUME_USAGE = """\
paceline resume RUN [--total-steps N] [--total-iters N] [--duration T] [--eval-every N] ...

  Continues from the newest intact checkpoint of RUN, with the result of a run that never stopped.
  The budget may be extended, and logging, evaluation and checkpointing may change; nothing that
  affects learning. Schedules follow the new budget, or with --schedule-budget keep the old one.
  RUN may be the directory of `train --seeds`: all its unfinished runs go on.
"""
EVAL_USAGE = """\
paceline eval RUN | --checkpoint DIR [--env-id ID] [--episodes N] [--seed S] [--sampled]

  RUN              a run directory: its newest checkpoint is used
  --checkpoint DIR one checkpoint, such as runs/x/checkpoints/best
  --env-id ID      another environment with the same spaces
  --episodes N     number of episodes, each with its own seed [100]
  --seed S         other episodes than those of every evaluation
  --sampled        sample actions from the policy instead of taking the most likely one

  The result is printed and, in a run, written to eval.json (eval-sampled.json with --sampled).
"""
MAX_EPISODES = 10**6


def train_command(arguments: list[str]) -> int:
    from ..config.flags import parse_config

    several_seeds, others = _take_seeds(arguments)
    if several_seeds and not HELP & set(arguments):
        return call(SEVERAL_SEEDS["train"], arguments)
    config = parse_config([argument for argument in others if argument not in HELP])
    if HELP & set(arguments):
        from ..config.help import help_text

        print(f"{USAGE.splitlines()[2].strip()}\n\n{help_text(config)}")
        return 0
    from ..envs import source_of

    # Refuses an unknown one before torch is imported.
    source_of(config.env_id, **config.env_options)
    from ..run.topology import topology_of
    from ..session import train

    return follow(lambda stopping: train(config, stopping), topology_of(config))


def _take_seeds(arguments: list[str]) -> tuple[bool, list[str]]:
    """Whether `--seeds` is given, and the arguments without it."""
    from ..config.flags import Parser

    parser = Parser()
    parser.add_argument("--seeds")
    given, others = parser.parse_known_args(arguments)
    return given.seeds is not None, others


def resume_command(arguments: list[str]) -> int:
    if HELP & set(arguments):
        print(RESUME_USAGE, end="")
        return 0
    from ..config.flags import config_parser

    given = config_parser("run").parse(arguments)
    folder = given.pop("run")
    from ..run.directory import SEEDS
    from ..run.saved import open_run
    from ..run.topology import topology_of
    from ..session import resume

    if (Path(folder) / SEEDS).exists():
        return call(SEVERAL_SEEDS["resume"], Path(folder), given)
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
    parser.add_argument("--seed")
    parser.add_argument("--sampled", action="store_true")
    given = parser.parse(arguments)
    if (given["run"] is None) == (given["checkpoint"] is None):
        raise BadInput("name a run, or a checkpoint with --checkpoint, and not both")
    episodes = _whole_number("episodes", given["episodes"], MAX_EPISODES)
    seed = None if given["seed"] is None else _whole_number("seed", given["seed"], 2**31 - 1)
    from ..processes.stopping import interruptible
    from ..run.evaluation import Evaluation
    from ..session import evaluate_saved

    evaluation = Evaluation(episodes=episodes, sample=given["sampled"], seed=seed)
    source, result = Path(given["run"] or given["checkpoint"]), None
    text = "ending the evaluation with what it has; again to quit now"
    with stoppable(stream=sys.stderr, text=text) as (stop, _):
        evaluation.stopping = stop
        with interruptible():  # an environment may hang
            result = evaluate_saved(source, evaluation, given["env_id"])
    if result is not None:
        summary, *others = result.lines()
        print(
            f"{result.env_id}: {summary}\n"
            f"median {result.median:.2f}, min {result.min:.2f}, max {result.max:.2f}, "
            f"mean length {result.length_mean:.1f}\ncheckpoint {result.checkpoint}"
        )
        for line in others:
            print(line)
    if result is None or result.cut_short:
        raise StoppedEarly(f"stopped by {stop.name}")
    return 0


def _whole_number(name: str, text: str, largest: int) -> int:
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > largest:
        raise BadInput(
            f"{name} is {text[:40]!r}: write a whole number up to {largest}, such as 100"
        )
    return int(text)


def follow(start: Callable[[Callable[[], bool]], Run], topology: Topology) -> int:
    """Train and show the reports; a signal ends the run after the current iteration."""
    from ..processes.lifetime import end_with
    from ..storage.compiler_cache import CACHE, compiled_cache

    os.environ.setdefault(CACHE, compiled_cache())
    if topology.started:
        end_with(os.getppid(), by_kernel=True)  # a killed launcher leaves its ranks running
    with (
        stoppable(topology.rank, insist=not topology.started) as (stop, console),
        closing(start(stop)) as run,
    ):
        console.starting("starting")
        for report in run:
            console.show(report)
            if report.stopping:
                break
        else:
            if not run.stopped:
                return 0
    raise StoppedEarly(f"stopped by {stop.name or 'a signal to one of its ranks'}")


@contextmanager
def stoppable(
    rank: int = 0,
    insist: bool = True,
    stream: TextIO | None = None,
    text: str | None = None,
) -> Iterator[tuple[Stop, Console]]:
    """Show messages and progress; a signal ends the block, which may be in the middle of it."""
    from ..processes.stopping import ACKNOWLEDGED, Stop, StopNow, handle_stop_signals
    from .console import Console, WarningConsole

    stop = Stop(insist, text or ACKNOWLEDGED)
    with (
        closing(WarningConsole(rank) if rank else Console(stream)) as console,
        _log_to(console),
        handle_stop_signals(stop.handle),
        suppress(StopNow),
    ):
        yield stop, console


@contextmanager
def _log_to(console: Console) -> Iterator[None]:
    """Print what the package logs on the console, above the progress."""
    from ..processes.channel import PROGRESS

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == PROGRESS:
                console.progress(self.format(record))
                return
            prefix = "warning: " if record.levelno >= logging.WARNING else ""
            console.say(prefix + self.format(record))

    log, handler = logging.getLogger("paceline"), Handler()
    log.setLevel(PROGRESS)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
