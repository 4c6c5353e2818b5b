"""Numbers as a reader wants them, for sentences, tables and charts."""

from __future__ import annotations

from collections.abc import Callable

from ....config.text import listed
from .statistics import Estimate

UNKNOWN = "–"
MOST_NAMES = 12
Form = Callable[[float | None], str]


def number(value: float | None) -> str:
    """With as many digits as say something."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if size >= 10 else f"{value:.3g}"


def with_unit(unit: str) -> Form:
    """A form of numbers that ends in this unit."""
    return lambda value: UNKNOWN if value is None else f"{number(value)} {unit}"


def time_unit(seconds: float) -> tuple[float, str]:
    """In which times as long as this are told: its seconds, and its name."""
    return (1.0, "s") if seconds < 180 else (60.0, "min") if seconds < 10800 else (3600.0, "h")


def duration(seconds: float | None) -> str:
    """12.3 s, 10 min, 5.5 h"""
    size, unit = time_unit(seconds or 0.0)
    return with_unit(unit)(None if seconds is None else seconds / size)


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def short(value: float) -> str:
    """1.5M, 200k, 30"""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.10g}{letter}"
    return f"{value:.10g}"


def ends(estimate: Estimate, form: Form = number) -> str:
    """The interval, 480.1 to 499; empty where it is not known."""
    return "" if estimate.low is None else f"{form(estimate.low)} to {form(estimate.high)}"


def interval(estimate: Estimate, form: Form = number) -> str:
    """495.2 (480.1 to 499)"""
    found = ends(estimate, form)
    return f"{form(estimate.value)} ({found})" if found else form(estimate.value)


def few_of(names: list[str]) -> str:
    """All of them, or how many."""
    if len(names) > MOST_NAMES:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return listed(names)
