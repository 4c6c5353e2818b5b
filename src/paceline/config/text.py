"""Pieces of messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def printable(text: str) -> str:
    """On one line, with control characters escaped, which a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def several(count: int, thing: str) -> str:
    """`1 run`, `2 runs`, `no runs`"""
    return f"{count or 'no'} {thing}{'' if count == 1 else 's'}"


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`"""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """`; did you mean gamma?`, or nothing if no known name is similar."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""
