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
