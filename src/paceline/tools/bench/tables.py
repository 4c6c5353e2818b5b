"""Rows of numbers, as CSV."""

from __future__ import annotations

import csv
import io
from typing import Any


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    """With a column for every name that any row has."""
    text = io.StringIO(newline="")
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def text_table(lines: list[list[str]], left: int = 0) -> str:
    """Aligned columns; the first `left` of them to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if k < left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
