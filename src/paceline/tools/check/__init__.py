"""`paceline check`: is an environment right, and how fast is it?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import EnvironmentFailed

USAGE = """\
paceline check ENV [--env.kwargs JSON] [--env.time-limit N] [--env.wrappers NAMES] [--json]

  Plays ENV at random and says what of it would make training fail, or go wrong unnoticed, in the
  order in which to mend it; then measures it, and suggests how to run it here. The environment runs
  in processes of its own: it may raise, hang or crash.

  ENV                  any Gymnasium id, module:Id-v0, or suite:Name
  --env.kwargs JSON    keyword arguments of the environment
  --env.time-limit N   cut episodes off after so many steps
  --env.wrappers NAMES wrappers around it, as module:Class, comma-separated
  --seed N             the first seed that is tried [0]
  --seconds N          how long it is measured, and about how long each check may take [3]
  --worker-timeout T   a call that takes longer is a hang [60s]
  --json               the same as one JSON object, for programs

  wrong makes runs fail or learn something else, risky may do so, note is good to know, ok is as it
  should be. The exit code is 3 if anything is wrong or risky, 0 if not, and 2 for bad input.
"""


def command(arguments: list[str]) -> int:
    """Examine and measure an environment, and print what was found."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    from .request import parsed

    request, json = parsed(arguments)
    from ..bench.runs import interrupt_on_signals
    from ..findings import is_terminal
    from . import layout
    from .report import verdict_on

    with interrupt_on_signals(), _progress(not json and is_terminal(sys.stderr)) as doing:
        verdict = verdict_on(request, doing)
    if json:
        print(layout.as_json(verdict))
    elif is_terminal(sys.stdout):
        layout.show(verdict)
    else:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print(layout.plain(verdict).encode(encoding, "backslashreplace").decode(encoding))
    return EnvironmentFailed.exit_code if verdict.faulty else 0


@contextmanager
def _progress(shown: bool) -> Iterator[Callable[[str], Any]]:
    """Takes what is being done, and shows it where somebody looks."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update
