"""A finding: how bad it is, one sentence about it, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]
MB = 2**20
GB = 2**30


@dataclass(frozen=True)
class Finding:
    """What one check has to say."""

    level: Level
    topic: str
    text: str
    fix: str = ""
    """what to do about it; empty where there is nothing to do"""


def size(count: float) -> str:
    """Bytes, as a reader wants them."""
    if count < GB:
        return f"{count / MB:,.0f} MB"
    return f"{count / GB:,.0f} GB" if count >= 100 * GB else f"{count / GB:.1f} GB"
