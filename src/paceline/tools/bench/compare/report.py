"""What a comparison leaves behind: the report, the plot, rows of CSV, the page."""

from __future__ import annotations

import errno
import shlex
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ....errors import BadInput
from ....storage.files import replace_file
from ..tables import as_csv
from .comparison import GroupRow, Pair, Point
from .page import page
from .plot import draw
from .text import STATISTICS, group_values, in_full, number, run_values, says, shown_pairs, table

OURS = (
    "comparison.png",
    "comparison_report.txt",
    "comparison.csv",
    "comparison_runs.csv",
    "report.html",
)


@dataclass(frozen=True)
class Missing:
    """A group that has no runs, and why."""

    name: str
    cause: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that is written."""

    title: str
    subtitle: str
    verdict: list[str]
    notes: list[str]
    failed: list[Missing] = field(default_factory=list)
    point: Point
    target: float | None
    target_source: str
    rows: list[GroupRow]
    pairs: list[Pair]
    varied: dict[str, list[str]]
    machine: dict[str, str]


def write(made: Comparison, folder: Path) -> None:
    """The files, all or none of them, and the report on standard output."""
    said = _report(made)
    files = {
        "comparison.csv": as_csv([group_values(row) for row in made.rows]),
        "comparison_runs.csv": as_csv(run_values(made.rows)),
        "comparison.png": draw(made.rows, made.target, made.title, made.subtitle),
        "comparison_report.txt": "\n".join([said, "How it was made", *STATISTICS, ""]).encode(),
        "report.html": page(_content(made)).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            if (folder / name).is_dir():
                raise IsADirectoryError(errno.EISDIR, f"{name} is a directory")
        for name, content in files.items():
            replace_file(folder / name, content)
    except OSError as error:
        raise BadInput(f"--output-dir {folder} can't be written: {error.strerror}") from None
    print(f"{said}\n{folder / 'report.html'}\n{folder / 'comparison.png'}")


def _report(made: Comparison) -> str:
    """What is printed."""
    parts = [f"{made.title}\n{made.subtitle}", "\n".join(made.verdict)]
    parts.append(table(made.rows, made.target))
    if made.target is not None:
        parts.append(f"{number(made.target)} is {made.target_source}.")
    if made.failed:
        parts.append("\n".join(f"{each.name}: {each.cause}" for each in made.failed))
    if pairs := shown_pairs(made.rows, made.pairs):
        parts.append("\n".join(["Pair by pair", *(in_full(made.rows, pair) for pair in pairs)]))
    if made.notes:
        parts.append("To be known\n" + "\n".join(made.notes))
    return "\n\n".join(parts) + "\n"


def _content(made: Comparison) -> dict[str, Any]:
    """What the page is made of."""
    groups = [asdict(row) for row in made.rows]
    for group in groups:
        del group["scores"]
    return {
        "title": made.title,
        "subtitle": made.subtitle,
        "verdict": made.verdict,
        "notes": made.notes,
        "failed": [asdict(each) for each in made.failed],
        "budget": {
            "axis": made.point.axis,
            "value": made.point.value,
            "text": made.point.text,
        },
        "target": None
        if made.target is None
        else {"value": made.target, "source": made.target_source},
        "groups": groups,
        "pairs": [
            {**asdict(pair), "says": says(made.rows, pair)}
            for pair in shown_pairs(made.rows, made.pairs)
        ],
        "varied": made.varied,
        "machine": made.machine,
        "command": shlex.join(["paceline", *sys.argv[1:]]),
        "statistics": list(STATISTICS),
    }
