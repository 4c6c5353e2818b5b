"""`paceline check`: is an environment right, and how fast is it?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import BadInput, EnvironmentFailed

if TYPE_CHECKING:
    from .environment import Request

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
MAX_SECONDS = 3600.0
TRAIN_OPTIONS = ("env.kwargs", "env.time_limit", "env.wrappers", "seed", "worker_timeout")
"""Options that mean what they mean to `paceline train`, and are validated as there."""


def command(arguments: list[str]) -> int:
    """Examine and measure an environment, and print the report."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    request, as_json = parse(arguments)
    from ..bench.runs import interrupt_on_signals
    from .report import check

    with interrupt_on_signals(), _progress(as_json) as progress:
        report = check(request, progress)
    report.print(as_json)
    return EnvironmentFailed.exit_code if report.failed else 0


def parse(arguments: list[str]) -> tuple[Request, bool]:
    """The request, and whether the report is to be JSON."""
    from ...config.flags import Parser, nested
    from ...config.resolve import resolve
    from ...config.values import seconds
    from ..bench.arguments import number_from
    from .environment import Request

    parser = Parser()
    parser.add_argument("env", nargs="?")
    for name in TRAIN_OPTIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name)
    parser.add_argument("--seconds", type=lambda text: number_from(text, 0.1), default=3.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse(arguments, mixed=True)
    if given["env"] is None:
        raise BadInput("name an environment: a Gymnasium id, module:Id-v0, or suite:Name")
    if given["seconds"] > MAX_SECONDS:
        raise BadInput(f"--seconds is {given['seconds']:g}: an hour, 3600, is the most")
    options = {name: given[name] for name in TRAIN_OPTIONS if given[name] is not None}
    config = resolve({"env_id": given["env"], "preset": "none"}, nested(options))
    env_options = {name: getattr(config.env, name) for name in ("kwargs", "time_limit", "wrappers")}
    request = Request(
        env_id=given["env"],
        options=env_options,
        seed=config.seed,
        seconds=given["seconds"],
        timeout=seconds(config.worker_timeout),
    )
    return request, given["json"]


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
