"""Training runs as a user would start them: processes that are gone when their block is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from ...errors import PacelineError
from ...processes.lifetime import exit_reason, terminate
from ...processes.start import start_python
from ...processes.stopping import handle_stop_signals

ENDLESS = {"total_steps": "1e15", "total_iters": "1e15", "duration": "87000h"}
"""Budgets that leave it to another when a run ends."""
SETTINGS = {"track": "none", "eval_episodes": "1"}
"""Of runs of which only the speed is wanted."""
GRACE = 30.0
"""Seconds that a run has for its end before it is killed."""
LAST_LINES = 8
SPEAKS = "paceline: "
"""How a command begins the sentence that says what was wrong."""


class RunFailed(PacelineError):
    """A training run that ended with an error; its exit code becomes ours."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.exit_code = code


def train(options: Mapping[str, str], copies: int, scratch: Path) -> list[Path]:
    """Run `copies` of one training at the same time, to the end; their run directories."""
    folders = [scratch / str(number) for number in range(copies)]
    flags = flags_of(options)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                started(["train", f"--output-dir={folder}", *flags], _errors(folder))
            )
            for folder in folders
        ]
        for process, folder in zip(processes, folders, strict=True):
            if code := process.wait():
                raise RunFailed(cause(_errors(folder), code), exit_code(code))
    return folders


def flags_of(options: Mapping[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


@contextmanager
def started(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`paceline` with these, in a session of its own: Ctrl-C is for us to pass on."""
    with log.open("ab") as said:
        entry, quiet = f"{__name__}:run_command", subprocess.DEVNULL
        process = start_python(entry, arguments, stdout=quiet, stderr=said)
    try:
        yield process
    finally:
        terminate(process, GRACE)


def run_command(arguments: list[str]) -> None:
    """In a process of its own: `paceline` with these arguments."""
    from ...cli.commands import main

    sys.argv = ["paceline", *arguments]  # which a run records
    main()


def _errors(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.stderr")


def exit_code(code: int) -> int:
    """As a shell tells it: of a process that a signal has killed, 128 and the signal."""
    return code if code >= 0 else 128 - code


def cause(errors: Path, code: int) -> str:
    """How a run ended, and its last words."""
    lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n".join(
        [
            f"a training run {exit_reason(code)}{'; it said last:' * bool(lines)}",
            *lines[-LAST_LINES:],
        ]
    )


def gist(words: str) -> str:
    """Of a run's last words, those that say what was wrong; else how it ended."""
    ended, *lines = words.splitlines()
    told = [line.removeprefix(SPEAKS) for line in lines if line.startswith(SPEAKS)]
    return told[0] if told else ended.partition(";")[0]


def ended_by_signals() -> AbstractContextManager[None]:
    """What would end this process at once ends its runs first, as Ctrl-C does."""
    return handle_stop_signals(signal.default_int_handler)
