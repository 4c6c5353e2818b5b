"""Pieces of messages."""

from __future__ import annotations

from collections.abc import Iterable

MAX_EDITS = 3
"""Letters in which a misspelt name may differ from the right one; less for short names."""


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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean gamma?`, or nothing if no known name is that similar."""
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one stands for: at most one letter in four is wrong."""
    wrong = plain(name)
    limit = min(MAX_EDITS, max(1, len(wrong) // 4))
    close = [one for one in known if abs(len(plain(one)) - len(wrong)) <= limit]
    found = min(close, key=lambda one: edit_distance(wrong, plain(one)), default=None)
    return found if found and edit_distance(wrong, plain(found)) <= limit else None


def plain(name: str) -> str:
    """An option's name, however it was written: `--Total-Steps` → `total_steps`."""
    return name.lstrip("-").replace("-", "_").strip().lower()


def edit_distance(one: str, other: str) -> int:
    """Letters to add, drop, change or swap with the next (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one):
        older, before, row = before, row, [i + 1]
        for j, b in enumerate(other):
            row.append(min(before[j] + (a != b), before[j + 1] + 1, row[j] + 1))
            if i and j and (a, one[i - 1]) == (other[j - 1], b):
                row[-1] = min(row[-1], older[j - 1] + 1)
    return row[-1]
