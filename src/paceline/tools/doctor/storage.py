"""Checks of memory, swap, /dev/shm and disks."""

from __future__ import annotations

import os
from pathlib import Path

from ..findings import GB, MB, Finding, Level, size
from .cgroups import Allowance

LEARNER = 300 * MB
WORKER = 70 * MB
"""What a process of a run with small networks takes."""
LITTLE_SHARED = 256 * MB
LITTLE_DISK, NO_DISK = GB, 100 * MB


def memory(total: int, available: int, group: Allowance | None, cpus: int) -> Finding:
    """What is left by the machine and by the control groups, against a run on all CPUs."""
    free, where = available, f"of the machine's {size(total)}"
    if group and group.limit < total:
        where = f"of the {size(group.limit)} that the control group allows"
        free = min(available, group.left)
    whole = LEARNER + cpus * WORKER
    said = f"{size(free)} {where} are free"
    fix = "end what else uses memory"
    if group and group.limit < total:
        fix += ", or raise docker's --memory, Kubernetes' limits.memory or systemd's MemoryMax"
    if free < LEARNER + WORKER:
        text = f"{said}: a learner takes about {size(LEARNER)}, and is killed where it finds less"
        return Finding("problem", "memory", text, fix)
    if free < whole:
        text = f"{said}: a learner and {cpus} workers take about {size(whole)}"
        return Finding("note", "memory", text, f"use fewer workers, or {fix}")
    return Finding("ok", "memory", said)


def swap(used: int, total_memory: int) -> Finding | None:
    if used < max(512 * MB, total_memory // 10):
        return None
    return Finding(
        "note",
        "swap",
        f"{size(used)} of memory lie on the disk: what is needed of it again comes back slowly",
        "end what else uses memory, and start the run when swap is empty",
    )


def shared_memory(whole: int | None, free: int) -> Finding:
    """Paceline's own memory between processes has no name, and is not taken from /dev/shm."""
    others = "torch's DataLoader, NCCL and Ray do"
    if whole is None:
        return Finding(
            "note",
            "/dev/shm",
            f"there is no /dev/shm: Paceline does not use it, but {others}, and so do Python's "
            "own locks between processes, which an environment may use",
            "mount a tmpfs there",
        )
    said = f"{size(free)} of {size(whole)} are free"
    if free >= LITTLE_SHARED:
        return Finding("ok", "/dev/shm", said)
    return Finding(
        "note",
        "/dev/shm",
        f"{said}: Paceline's workers and ranks do not use it (their memory is nameless), but "
        f"{others}, and die of a bus error where it is full",
        "only if you use those: docker run --shm-size=1g, or empty it",
    )


def disk(topic: str, free: int, lost: str, fix: str) -> Finding:
    """`lost` is what a full disk costs."""
    if free >= LITTLE_DISK:
        return Finding("ok", topic, f"{size(free)} are free")
    level: Level = "problem" if free < NO_DISK else "note"
    return Finding(level, topic, f"only {size(free)} are free: {lost}", f"make room, or {fix}")


def run_disk(free: int | None, writable: bool) -> Finding:
    """Of the current directory; None where that is gone."""
    elsewhere = "name another place with --output-dir"
    if free is None or not writable:
        why = "is gone" if free is None else "can't be written to"
        text = f"the current directory {why}, and runs are kept in runs/ within it"
        return Finding("note", "disk", text, f"go elsewhere, or {elsewhere}")
    return disk("disk", free, "on a full disk a run goes on, but can't be saved", elsewhere)


def temporary_disk(free: int | None) -> Finding:
    """None where no directory for temporary files can be written to."""
    fix = "set TMPDIR to a directory with room that can be written to"
    if free is None:
        text = "no directory for temporary files can be written to, and what needs one fails"
        return Finding("problem", "temporary", text, fix)
    return disk("temporary", free, "torch and environments keep files there while they run", fix)


def cache(folder: Path, home: str = "") -> Finding:
    """Where compiled steps are kept; it is made when the first of them is."""
    there = next(place for place in (folder, *folder.parents) if _exists(place))
    shown = f"~/{folder.relative_to(home)}" if home and folder.is_relative_to(home) else folder
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Finding("ok", "cache", f"compiled steps are kept in {shown}")
    return Finding(
        "note",
        "cache",
        f"compiled steps can't be kept in {shown}, because {there} "
        f"{'is not writable' if there.is_dir() else 'is not a directory'}: runs are not compiled",
        "set XDG_CACHE_HOME to a directory that can be written to",
    )


def _exists(place: Path) -> bool:
    """Within a directory that may not be entered, nothing does."""
    try:
        return place.exists()
    except PermissionError:
        return False
