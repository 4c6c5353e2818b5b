"""The command line. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import atexit
import errno
import io
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..errors import BadInput, EnvironmentFailed, PacelineError, StoppedEarly

if TYPE_CHECKING:
    from ..run.metrics import Report
    from ..run.topology import Topology
    from .console import Console

USAGE = """\
paceline: on-policy reinforcement learning, fast on CPUs, exact on resume

  paceline train [--algo ppo] [--env-id CartPole-v1] [--config FILE] [--OPTION VALUE ...]
  paceline resume RUN [--total-steps 1M ...]     go on with a run, as if it had never stopped
  paceline eval RUN [--episodes 100] [--sampled] run a saved policy on fixed seeds
  paceline scale --ranks 1,2 [--repeats 3] ...   measure what more processes gain here
  paceline compare RUN RUN ...                   which is better, by how much, and is it noise
  paceline bench --algos ppo,a2c --seeds 3 ...   every algorithm in every way, for an equal budget
  paceline tune --env-id LunarLander-v3          find the fastest way to train on this machine
  paceline doctor                                what is wrong with this machine, and how to mend it
  paceline check ENV                             is your environment right, and how fast is it
  paceline list [algorithms|envs|samplers|syncs|pools|presets], or list envs SUITE

`paceline train --help` documents every option.
"""
RESUME_USAGE = """\
paceline resume RUN [--total-steps N] [--total-iters N] [--duration T] [--eval-every N] ...

  Goes on from the newest whole checkpoint of RUN, exactly as it would have gone on. The budget may
  be extended, and what is logged, evaluated and saved may change; nothing that alters learning.
"""
EVAL_USAGE = """\
paceline eval RUN | --checkpoint DIR [--env-id ID] [--episodes N] [--sampled]

  RUN              a run directory: its newest checkpoint is used
  --checkpoint DIR one checkpoint, such as runs/x/checkpoints/best
  --env-id ID      another environment with the same spaces
  --episodes N     how many episodes, each with a seed of its own [100]
  --sampled        draw actions from the policy instead of taking the likeliest
"""
HELP = {"--help", "-h"}
USAGES = {"resume": RESUME_USAGE, "eval": EVAL_USAGE, "list": USAGE}
MOST_EPISODES = 10**6
"""Of one evaluation."""
OUT_OF_MEMORY = (
    "there is not enough memory; write a lower --num-envs, --rollout-steps or --hidden, or raise "
    "the limit of this process (ulimit -v)"
)
REFUSED = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOENT)
"""Too many files or processes, no memory, no folder for temporary files."""
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RANK_VARIABLES = {"RANK", "WORLD_SIZE"}
ELSEWHERE = {
    "scale": "paceline.tools.bench.scaling.scale",
    "compare": "paceline.tools.bench.comparing.compare",
    "bench": "paceline.tools.bench.matrix.matrix",
    "tune": "paceline.tools.bench.tuning.tune",
    "doctor": "paceline.tools.doctor",
    "check": "paceline.tools.check",
}
"""Commands with a module of their own."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    from ..processes.hardware import THREAD_VARIABLES, adopt_orphans, keep_standard_streams

    arguments = sys.argv[1:] if arguments is None else arguments
    keep_standard_streams()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else nobody could tell how a process ended
    if arguments[:1] in (["train"], ["resume"], ["eval"]) and not RANK_VARIABLES & set(os.environ):
        from ..processes.watchdog import watched

        watched()
    adopt_orphans()
    os.environ |= dict.fromkeys(THREAD_VARIABLES, "1")  # before anything numerical is imported
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # of any encoding, also one without our letters
            stream.reconfigure(errors="backslashreplace")
    try:
        code = run(arguments)
    except BaseException:  # a fault of ours, whose traceback says more than a watchdog can
        from ..processes.watchdog import leaving

        leaving()
        raise
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Exit, with nothing left running, whatever an environment has started."""
    from ..processes.hardware import end_descendants
    from ..processes.watchdog import leaving

    code = _flushed(code)
    leaving()
    if set(os.environ) >= RANK_VARIABLES:
        # A rank that has lost others is not to wait for what it had begun with them.
        end_descendants()
        os._exit(code)
    atexit.register(end_descendants)
    with suppress(RuntimeError):  # where no thread can be started, none is to be left behind
        threading.Thread(target=_leave_behind, args=(code,), daemon=True).start()
    sys.exit(code)


def _flushed(code: int) -> int:
    """`code`, or that of bad input where standard output can't take what was printed."""
    try:
        sys.stdout.flush()
    except (ValueError, AttributeError):  # an environment has closed it, or taken it away
        pass
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            _complain(BadInput(f"standard output can't be written: {error.strerror}"))
            code = code or BadInput.exit_code
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    return code


def _leave_behind(code: int) -> None:
    """End the process though a thread that an environment has started goes on."""
    from ..processes.hardware import end_descendants

    time.sleep(3.0)  # which it has to end by itself
    end_descendants()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """The exit code; whatever a user can cause ends in a sentence, not a traceback."""
    commands: dict[str, Callable[[list[str]], int]]
    commands = {"train": _train, "resume": _resume, "eval": _eval, "list": _list}
    commands |= {name: partial(_elsewhere, place) for name, place in ELSEWHERE.items()}
    command, *rest = arguments or ["help"]
    if command in HELP | {"help"}:
        print(USAGE, end="")
        return 0
    if command == "--version":
        from importlib.metadata import version

        print(f"paceline {version('paceline')}")
        return 0
    try:
        try:
            Path.cwd()
        except OSError:
            raise BadInput("the current directory has been removed; change to another") from None
        if command not in commands:
            raise BadInput(f"{command}: there is no such command; see `paceline --help`")
        if command in USAGES and HELP & set(rest):
            print(USAGES[command], end="")
            return 0
        return commands[command](rest)
    except PacelineError as error:
        _complain(error)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        from ..storage.files import shown

        if error.errno in UNWRITABLE and error.filename is None:
            _complain(BadInput(f"standard output can't be written: {error.strerror}"))
        elif isinstance(error.filename, str):
            _complain(BadInput(f"{shown(error.filename)}: {error.strerror}"))
        elif error.errno in REFUSED:
            _complain(BadInput(f"the system refuses what is needed here: {error.strerror}"))
        else:
            raise  # nobody named what it is about: it is ours
        return BadInput.exit_code
    except MemoryError:
        _complain(BadInput(OUT_OF_MEMORY))
        return BadInput.exit_code
    except KeyboardInterrupt:
        _tell("interrupted")
        return StoppedEarly.exit_code
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        # sys.exit, a cancelled task: nothing of ours raises such a thing.
        _complain(EnvironmentFailed(f"an environment, or its module, raised {error!r}"))
        return EnvironmentFailed.exit_code


def _complain(error: PacelineError) -> None:
    """Of what is wrong with a command, one rank has to speak; what befalls a rank is its own."""
    from ..processes import launcher

    try:
        rank = launcher.rank(asked=True)
    except BadInput:
        rank = None
    if not rank or not isinstance(error, BadInput):
        prefix = f"rank {rank}: " if rank else ""
        _tell(f"{prefix}{_plain(str(error))}")


def _tell(text: str) -> None:
    """On standard error, which may have gone: a terminal that was closed, a full disk."""
    with suppress(OSError, ValueError):
        print(f"paceline: {text}", file=sys.stderr, flush=True)


def _plain(text: str) -> str:
    """What a terminal shows as it is, and no more than a screen of it."""
    from ..config.text import printable

    shown = [printable(line) for line in text.split("\n")]
    lines = [line if len(line) <= 500 else f"{line[:500]} …" for line in shown]
    return "\n".join([*lines[:19], "…"] if len(lines) > 20 else lines)


def _train(arguments: list[str]) -> int:
    from ..config.flags import config_parser, help_text, nested

    parser = config_parser()
    given = parser.parse([a for a in arguments if a not in HELP])
    given.pop("config", None)
    from ..config.resolve import resolve

    config = resolve(parser.file, nested(given))
    if HELP & set(arguments):
        print(f"{USAGE.splitlines()[2].strip()}\n\n{help_text(config)}")
        return 0
    from ..envs import source_of
    from ..run.topology import topology_of
    from ..session import train

    source_of(config.env_id, **vars(config.env))  # refuses before torch is imported
    return _follow(lambda stopping: train(config, stopping), topology_of(config))


def _resume(arguments: list[str]) -> int:
    from ..config.flags import config_parser

    given = config_parser("run").parse(arguments)
    folder = given.pop("run")
    from ..run.directory import resumed_config
    from ..run.topology import topology_of
    from ..session import resume

    config, _ = resumed_config(Path(folder), given)
    return _follow(lambda stopping: resume(folder, stopping, **given), topology_of(config))


def _follow(start: Callable[[Callable[[], bool]], Iterator[Report]], topology: Topology) -> int:
    """Train and show it; a signal ends the run after the current iteration."""
    from ..processes.hardware import CACHE, compiled_cache, end_with
    from ..processes.stopping import Stop, StopNow, handling
    from .console import Console, Silence

    os.environ.setdefault(CACHE, compiled_cache())
    if topology.started:
        end_with(os.getppid(), at_once=True)  # launchers leave ranks behind when they are killed
    stop = Stop(insist=not topology.started)
    with (
        closing(Silence(topology.rank) if topology.rank else Console()) as console,
        _messages(console),
        handling(stop.handle),
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
def _messages(console: Console) -> Iterator[None]:
    """What the package has to say goes through the console."""

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


def _eval(arguments: list[str]) -> int:
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
    if not re.fullmatch("[0-9]+", given["episodes"]):
        raise BadInput(f"episodes is {given['episodes']!r}: write a whole number, such as 100")
    if len(given["episodes"]) > len(str(MOST_EPISODES)) or int(given["episodes"]) > MOST_EPISODES:
        raise BadInput(f"episodes is {given['episodes'][:40]}; write at most {MOST_EPISODES}")
    from ..run.saved import evaluate_saved

    source = Path(given["run"] or given["checkpoint"])
    result = evaluate_saved(source, int(given["episodes"]), given["env_id"], given["sampled"])
    print(
        f"{result.env_id}: mean {result.mean:.2f} ± {result.std:.2f} over {result.episodes} "
        f"episodes (95% interval {result.ci_low:.2f} to {result.ci_high:.2f})\n"
        f"median {result.median:.2f}, min {result.min:.2f}, max {result.max:.2f}, "
        f"mean length {result.length_mean:.1f}\ncheckpoint {result.checkpoint}"
    )
    for line in result.told_elsewhere():
        print(line)
    return 0


def _elsewhere(place: str, arguments: list[str]) -> int:
    """The `command` of a module that is imported when it is asked for."""
    from importlib import import_module

    return import_module(place).command(arguments)


def _list(arguments: list[str]) -> int:
    from ..config.registry import SUITES
    from .listing import LISTS, environments

    if arguments[:1] == ["envs"] and arguments[1:]:
        for suite in arguments[1:]:
            if suite not in SUITES:
                raise BadInput(f"{suite}: there is no such suite; there are {', '.join(SUITES)}")
        for suite in arguments[1:]:
            print("\n".join(environments(suite)))
        return 0
    wanted = arguments or list(LISTS)
    for name in wanted:
        if name not in LISTS:
            raise BadInput(f"{name}: there is no such list; there are {', '.join(LISTS)}")
    for name in wanted:
        print(f"{name}:")
        for entry, text in LISTS[name]():
            print(f"  {entry:<32} {text}")
    return 0
