"""Text as a reader wants it."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text of anybody's making as a terminal can show it, on one line."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def several(count: int, thing: str) -> str:
    """`1 run`, `2 runs`, `no runs`"""
    return f"{count or 'no'} {thing}{'' if count == 1 else 's'}"


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`"""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
