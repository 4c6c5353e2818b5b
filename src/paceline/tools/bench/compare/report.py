"""What a comparison leaves behind: the report, the plot, rows of CSV, the page."""

from __future__ import annotations

import errno
from pathlib import Path

from ....errors import BadInput
from ....storage.files import replace_file
from ..tables import as_csv
from .comparison import Comparison, shown_pairs
from .format import number
from .page import page
from .plot import draw
from .tables import group_table, group_values
from .text import STATISTICS, says_in_full

OURS = (
    "comparison.png",
    "comparison_report.txt",
    "comparison.csv",
    "comparison_runs.csv",
    "report.html",
)


def write(made: Comparison, folder: Path) -> None:
    """The files, all or none of them, and the report on standard output."""
    said = _report(made)
    files = {
        "comparison.csv": as_csv([group_values(row) for row in made.rows]),
        "comparison_runs.csv": as_csv([run for row in made.rows for run in row.runs]),
        "comparison.png": draw(made),
        "comparison_report.txt": "\n".join([said, "How it was made", *STATISTICS, ""]).encode(),
        "report.html": page(made).encode(),
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
    parts = [f"{made.title}\n{made.subtitle}", "\n".join(made.verdict), group_table(made)]
    if made.target is not None:
        parts.append(f"{number(made.target)} is {made.target_source}.")
    if made.failed:
        parts.append("\n".join(f"{each.name}: {each.cause}" for each in made.failed))
    if pairs := shown_pairs(made.rows, made.pairs):
        parts.append("\n".join(["Pair by pair", *map(says_in_full, pairs)]))
    if made.notes:
        parts.append("\n".join(["To be known", *made.notes]))
    return "\n\n".join(parts) + "\n"
