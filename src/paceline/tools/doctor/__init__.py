"""`paceline doctor`: what on this machine makes training fail or slow, and how to fix it."""

from __future__ import annotations

USAGE = """\
paceline doctor [--json]

  Describes this machine, and lists what on it would make runs fail or slow, each with what to do
  about it. It changes nothing, takes a moment, and needs no network.

  --json           the same as one JSON object, for programs

  ok is as it should be, note is good to know, problem makes runs fail or needlessly slow. The exit
  code is 0 whatever is found.
"""


def command(arguments: list[str]) -> int:
    """Examine the machine and print the findings."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    as_json = _wants_json(arguments)
    from .examine import report

    report().print(as_json)
    return 0


def _wants_json(arguments: list[str]) -> bool:
    """Importing the parser takes longer than all checks: only arguments it refuses need it."""
    if set(arguments) <= {"--json"}:
        return bool(arguments)
    from ...config.flags import Parser

    parser = Parser()
    parser.add_argument("--json", action="store_true")
    return bool(parser.parse(arguments)["json"])
