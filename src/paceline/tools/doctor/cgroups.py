"""Limits of memory and processes set by control groups, version 1 or 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...processes.hardware import CGROUPS, MEMBERSHIP, control_groups

UNLIMITED = 2**60
"""Version 1 writes a number near 2**63 where there is no limit."""


@dataclass(frozen=True)
class Allowance:
    """The smallest limit of the groups around a process, and the least that any has left."""

    limit: int
    left: int


def memory_allowance(proc: Path = MEMBERSHIP, root: Path = CGROUPS) -> Allowance | None:
    """Bytes; None where no group has a limit."""
    found = []
    for folder in control_groups("memory", proc, root):
        limits = [_number(folder / f"memory.{n}") for n in ("max", "high", "limit_in_bytes")]
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        # The kernel drops cached files that were not used lately before it refuses memory.
        used -= min(used, _reclaimable(folder / "memory.stat"))
        found += [(limit, limit - used) for limit in limits if limit and limit < UNLIMITED]
    return _smallest(found)


def process_allowance(proc: Path = MEMBERSHIP, root: Path = CGROUPS) -> Allowance | None:
    """Processes and threads together; None where no group has a limit."""
    found = []
    for folder in control_groups("pids", proc, root):
        if limit := _number(folder / "pids.max"):
            found.append((limit, limit - (_number(folder / "pids.current") or 0)))
    return _smallest(found)


def _smallest(found: list[tuple[int, int]]) -> Allowance | None:
    if not found:
        return None
    return Allowance(min(limit for limit, _ in found), max(0, min(left for _, left in found)))


def _number(file: Path) -> int | None:
    """None also for `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _reclaimable(file: Path) -> int:
    """`total_inactive_file` of version 1 counts the groups within; version 2 always does."""
    try:
        counts = dict(line.split() for line in file.read_text().splitlines())
        return int(counts.get("total_inactive_file") or counts["inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0
