"""`paceline check`: is an environment right, and how fast is it?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import EnvironmentFailed

USAGE = """\
paceline check ENV [--env.kwargs JSON] [--env.time-limit N] [--env.wrappers NAMES] [--json]

  Plays ENV at random and reports what of it would make training fail, or go wrong unnoticed, in the
  order in which to fix it; then measures it, and suggests how to run it here. The environment runs
  in processes of its own: it may raise, hang or crash.

  ENV                  any Gymnasium id, module:Id-v0, or suite:Name
  --env.kwargs JSON    keyword arguments of the environment
  --env.time-limit N   truncate episodes after so many steps
  --env.wrappers NAMES wrappers around it, as module:Class, comma-separated
  --seed N             the first seed that is tried [0]
  --seconds N          how long it is measured, and about how long each check may take [3]
  --worker-timeout T   a call that takes longer is a hang [60s]
  --json               the same as one JSON object, for programs

  wrong makes runs fail or learn something else, risky may do so, note is good to know, ok is as it
  should be. The exit code is 3 if anything is wrong or risky, 0 if not, and 2 for bad input.
"""


def command(arguments: list[str]) -> int:
    """Examine and measure an environment, and print the report."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    from .request import parse

    request, as_json = parse(arguments)
    from ..bench.runs import interrupt_on_signals
    from .report import check

    with interrupt_on_signals(), _progress(as_json) as progress:
        report = check(request, progress)
    report.print(as_json)
    return EnvironmentFailed.exit_code if report.failed else 0


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[str], Any]]:
    """Shows what is being done, on a terminal."""
    from ..findings import is_terminal

    if as_json or not is_terminal(sys.stderr):
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update
