"""`paceline doctor`: what is wrong with this machine for training, and how to mend it."""

from __future__ import annotations

import sys

USAGE = """\
paceline doctor [--json]

  Says what this machine is, and what on it would make runs fail or slow, each with what to do about
  it. It only looks, takes a moment, and needs no network.

  --json           the same as one JSON object, for programs

  ok is as it should be, note is good to know, problem makes runs fail or needlessly slow. The exit
  code is 0 whatever is found.
"""


def command(arguments: list[str]) -> int:
    """Examine the machine and print what was found."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    json = _wants_json(arguments)
    from . import layout
    from .examine import examined, machine_described

    machine, findings = machine_described(), examined()
    if json:
        print(layout.as_json(machine, findings))
    elif layout.is_terminal(sys.stdout):
        layout.show(machine, findings)
    else:
        print(layout.plain(machine, findings))
    return 0


def _wants_json(arguments: list[str]) -> bool:
    """The parser's import takes longer than all checks: it is left for what is to be refused."""
    if set(arguments) <= {"--json"}:
        return bool(arguments)
    from ...config.flags import Parser

    parser = Parser()
    parser.add_argument("--json", action="store_true")
    return bool(parser.parse(arguments)["json"])
