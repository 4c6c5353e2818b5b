"""The `paceline` command: dispatch, error messages and exit codes. Imports nothing heavy."""

from __future__ import annotations

import atexit
import errno
import io
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from ..errors import BadInput, EnvironmentFailed, PacelineError, StoppedEarly

USAGE = """\
paceline: on-policy reinforcement learning, fast on CPUs, exact on resume

  paceline train [--algo ppo] [--env-id CartPole-v1] [--OPTION VALUE ...]
  paceline resume RUN [--total-steps 1M ...]     continue a run exactly where it stopped
  paceline eval RUN [--episodes 100] [--sampled] evaluate a saved policy on fixed seeds
  paceline scale --ranks 1,2 [--repeats 3] ...   measure the speed-up of more processes
  paceline compare RUN RUN ...                   compare runs, with confidence intervals
  paceline bench --algos ppo,a2c --seeds 3 ...   every algorithm and way to run it, equal budgets
  paceline tune --env-id LunarLander-v3          find the fastest settings for this machine
  paceline doctor                                check this machine and say how to fix it
  paceline check ENV                             check an environment, and measure its speed
  paceline list [algorithms|envs|memories|samplers|syncs|pools|presets], or list envs SUITE

`paceline train --help` documents every option.
"""
HELP = {"--help", "-h"}
COMMANDS = {
    "train": "paceline.cli.train:train_command",
    "resume": "paceline.cli.train:resume_command",
    "eval": "paceline.cli.train:eval_command",
    "list": "paceline.cli.listing:command",
    "scale": "paceline.tools.bench.scale:command",
    "compare": "paceline.tools.bench.compare.command:command",
    "bench": "paceline.tools.bench.bench:command",
    "tune": "paceline.tools.bench.tune:command",
    "doctor": "paceline.tools.doctor:command",
    "check": "paceline.tools.check:command",
}
"""The function that takes each command's arguments and returns its exit code."""
USE_MODULES = {"train", "resume", "eval", "scale", "bench", "tune", "check"}
"""Commands that import a user's modules (`module:Id-v0`, `module:Class`)."""
SEVERAL_SEEDS = {
    "train": "paceline.tools.bench.seeds:train_command",
    "resume": "paceline.tools.bench.seeds:resume_command",
}
"""What `train --seeds N` calls, and `resume` of its directory."""
OUT_OF_MEMORY = (
    "out of memory; write a lower --num-envs, --rollout-steps or --hidden, or raise this process's "
    "limit (ulimit -v)"
)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LIMITS = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOENT)
"""Too many files or processes, no memory, no directory for temporary files."""
RANK_VARIABLES = {"RANK", "WORLD_SIZE"}
RANK_0_FIRST = 3.0
"""Seconds that other ranks leave rank 0 to print bad input: torchrun kills all once one exits."""
THREAD_GRACE = 3.0
"""Seconds that threads started by an environment get to end by themselves."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    from ..processes.hardware import THREAD_VARIABLES
    from ..processes.lifetime import adopt_orphans, keep_standard_streams

    arguments = sys.argv[1:] if arguments is None else arguments
    keep_standard_streams()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, exit codes of children are lost
    if arguments[:1] in (["train"], ["resume"], ["eval"]) and not RANK_VARIABLES & set(os.environ):
        from ..processes.stopping import start_watchdog

        start_watchdog()
    adopt_orphans()
    os.environ |= dict.fromkeys(THREAD_VARIABLES, "1")  # before numpy or torch is imported
    if USE_MODULES & set(arguments[:1]):
        _find_modules_here()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an encoding may lack characters we print
            stream.reconfigure(errors="backslashreplace")
    try:
        code = run(arguments)
    except BaseException:  # a bug: its traceback says more than the watchdog's message
        from ..processes.stopping import stop_watchdog

        stop_watchdog()
        raise
    _exit(code)


def _find_modules_here() -> None:
    """Import modules of the current directory too, after all others: none can be replaced.

    Processes that this one starts have the same path.
    """
    with suppress(OSError):  # the directory has been removed, which is refused later
        here = str(Path.cwd())
        if not sys.flags.safe_path and here not in sys.path:
            sys.path.append(here)


def run(arguments: list[str]) -> int:
    """Run one command; its exit code. Errors that a user can cause end in a message."""
    try:
        return _dispatch(arguments)
    except PacelineError as error:
        return _fail(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if (known := _as_bad_input(error)) is None:
            raise
        return _fail(known)
    except MemoryError:
        return _fail(BadInput(OUT_OF_MEMORY))
    except KeyboardInterrupt:
        _print_error("interrupted")
        return StoppedEarly.exit_code
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        # SystemExit, CancelledError: the package raises none, so an environment did.
        return _fail(EnvironmentFailed(f"an environment, or its module, raised {error!r}"))


def _dispatch(arguments: list[str]) -> int:
    command, *rest = arguments or ["help"]
    if command in HELP | {"help"}:
        print(USAGE, end="")
        return 0
    if command == "--version":
        from importlib.metadata import version

        print(f"paceline {version('paceline')}")
        return 0
    try:
        Path.cwd()
    except OSError:
        raise BadInput("the current directory has been removed; change to another") from None
    if command not in COMMANDS:
        raise BadInput(f"{command}: there is no such command; see `paceline --help`")
    return call(COMMANDS[command], rest)


def call(entry: str, *arguments: Any) -> int:
    """Call the function "module:name" of a command; its exit code."""
    module, _, name = entry.partition(":")
    return int(getattr(import_module(module), name)(*arguments))


def _as_bad_input(error: OSError) -> BadInput | None:
    """The error as a message to the user; None if it has no known cause, and so is a bug."""
    from ..storage.files import shown

    if error.errno in DISK_FULL and error.filename is None:
        return BadInput(f"standard output can't be written: {error.strerror}")
    if isinstance(error.filename, str):
        return BadInput(f"{shown(error.filename)}: {error.strerror}")
    if error.errno in LIMITS:
        return BadInput(f"the operating system refused a resource: {error.strerror}")
    return None


def _fail(error: PacelineError) -> int:
    """Print the error; its exit code. Bad input is the same on all ranks: rank 0 prints it."""
    from ..config.text import printable
    from ..processes import launcher

    try:
        rank = launcher.rank(check_parent=True)
    except BadInput:
        rank = None
    if not rank or not isinstance(error, BadInput):
        lines = [printable(line) for line in str(error).split("\n")]
        lines = [line if len(line) <= 500 else f"{line[:500]} …" for line in lines]
        text = "\n".join([*lines[:19], "…"] if len(lines) > 20 else lines)
        _print_error(f"rank {rank}: {text}" if rank else text)
    elif rank:
        time.sleep(RANK_0_FIRST)
    return error.exit_code


def _print_error(text: str) -> None:
    with suppress(OSError, ValueError):  # the terminal may be closed, the disk full
        print(f"paceline: {text}", file=sys.stderr, flush=True)


def _exit(code: int) -> NoReturn:
    """Exit, and end every process and thread that an environment has left running."""
    from ..processes.lifetime import end_descendants
    from ..processes.stopping import stop_watchdog

    code = _flush(code)
    stop_watchdog()
    if set(os.environ) >= RANK_VARIABLES:
        # The interpreter's own exit would wait for collectives with ranks that are gone.
        end_descendants()
        os._exit(code)
    atexit.register(end_descendants)

    def force_exit() -> None:
        time.sleep(THREAD_GRACE)
        end_descendants()
        os._exit(code)

    with suppress(RuntimeError):  # no thread can be started: then none is left running either
        threading.Thread(target=force_exit, daemon=True).start()
    sys.exit(code)


def _flush(code: int) -> int:
    """Flush standard output and error; `code`, or that of bad input if output is lost."""
    try:
        sys.stdout.flush()
    except (ValueError, AttributeError):  # an environment has closed or replaced it
        pass
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            lost = _fail(BadInput(f"standard output can't be written: {error.strerror}"))
            code = code or lost
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    return code
