"""The tables of a comparison: their columns, for the terminal, the page and its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

from ..tables import text_table
from .comparison import Comparison, GroupRow, ranked
from .format import Form, duration, interval, number, percent, with_unit
from .statistics import Estimate
from .text import says


@dataclass(frozen=True)
class Column:
    """A column of a table; with a `note`, the page also draws it."""

    head: str
    value: Callable[[Any], Any]
    """of a row: text, a number, an Estimate, or None where it is not known"""
    form: Form = number
    least: bool = False
    """small is good"""
    note: str = ""
    """what is said above the drawing"""
    drawn: str = "bar"
    """`bar` or `dot`"""
    reference: tuple[float, str] | None = None
    """a line in the drawing, and its text"""

    def known(self, rows: list[Any]) -> bool:
        return any(self.value(row) not in (None, Estimate(None)) for row in rows)


def group_columns(made: Comparison) -> list[Column]:
    """Of the table of groups; without those of which nothing is known."""
    target = number(made.target)
    scale: Any = {"drawn": "dot"}
    if made.target is not None:
        scale["reference"] = made.target, f"target {target}"
    scores = "Mean return of the last 100 episodes: interquartile mean with its 95 % interval."
    evaluations = "The same, of the evaluation at the end."
    source = f"{target} is {made.target_source}. Of groups of which some runs never came there, "
    source += "the median is told."
    columns = [
        Column("group", attrgetter("name")),
        Column("runs", attrgetter("count")),
        Column("score", attrgetter("score"), note=scores, **scale),
        Column("evaluation", attrgetter("evaluation"), note=evaluations, **scale),
        Column(f"time to {target}", attrgetter("time_to"), duration, True, source),
        Column(f"steps to {target}", attrgetter("steps_to"), number, True, source),
        Column("reached", lambda row: _reached(row) if made.target is not None else None),
        Column("steps/s", attrgetter("fps"), note="Environment steps per second."),
        Column("memory", attrgetter("memory_mb"), with_unit("MB"), least=True),
        Column("CPU", attrgetter("cpu_percent"), with_unit("%"), least=True),
        Column("start-up", attrgetter("startup"), duration, least=True),
    ]
    return [column for column in columns if column.known(made.rows)]


def _reached(row: GroupRow) -> str:
    return f"{row.reached} of {row.count}"


RUNS = [
    Column("run", itemgetter("name")),
    Column("seed", itemgetter("seed"), str),
    Column("state", lambda run: run["state"] + ("" if run["counted"] else ", not counted")),
    Column("score", itemgetter("score")),
    Column("evaluation", itemgetter("evaluation")),
    Column("time", itemgetter("time"), duration),
    Column("steps", itemgetter("steps")),
    Column("time to target", itemgetter("time_to"), duration, least=True),
    Column("steps to target", itemgetter("steps_to"), least=True),
    Column("steps/s", itemgetter("fps")),
]
PAIRS = [
    Column("better", attrgetter("better.name")),
    Column("worse", attrgetter("worse.name")),
    Column(
        "difference",
        attrgetter("difference"),
        note="Score of the better group less that of the other; pale unless surely above 0.",
        drawn="dot",
        reference=(0.0, ""),
    ),
    Column(
        "P(better)",
        attrgetter("improvement"),
        percent,
        note="That a run of the better group scores more; pale unless surely above 50 %.",
        drawn="dot",
        reference=(0.5, ""),
    ),
    Column("p", attrgetter("p"), least=True),
    Column("p, adjusted", attrgetter("p_adjusted"), least=True),
    Column("pairing", attrgetter("pairing")),
    Column("what that says", says),
]


def group_table(made: Comparison) -> str:
    """For the terminal: one line for each group, best first."""
    columns = group_columns(made)
    lines = [["", *(column.head for column in columns[1:])]]
    lines += [[_cell(column, row) for column in columns] for row in ranked(made.rows)]
    return text_table(lines, left=1)


def _cell(column: Column, row: GroupRow) -> str:
    value = column.value(row)
    if isinstance(value, Estimate):
        return interval(value, column.form)
    return value if isinstance(value, str) else column.form(value)


def group_values(row: GroupRow) -> dict[str, Any]:
    """A row of comparison.csv."""
    out: dict[str, Any] = {}
    for name, value in vars(row).items():
        if isinstance(value, Estimate):
            out |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        elif name == "phases":
            out |= {f"share_{phase}": share for phase, share in value.items()}
        elif name not in ("key", "color", "dash", "curves", "runs", "scores"):
            out[name] = value
    return out
