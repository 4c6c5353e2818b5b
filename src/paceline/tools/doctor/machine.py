"""Checks of the machine: CPUs, memory, disks, limits and variables, judged by numbers given."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...config.text import listed
from ...processes.hardware import (
    CGROUPS,
    MEMBERSHIP,
    THREAD_VARIABLES,
    bf16_abilities,
    control_groups,
)
from ..findings import GB, MB, Bytes, Finding, Level
from .rules import found

FULL_SPEED_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""Their `powersave` goes up to full speed when there is work."""
BINDING = ("GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")
"""Any of them lets GNU's OpenMP, which torch brings along, bind a process' first thread."""
LEARNER, WORKER = 300 * MB, 70 * MB
"""Memory of the processes of a run with small networks."""
LITTLE_SHARED = 256 * MB
LITTLE_DISK, NO_DISK = GB, 100 * MB
FILES, PROCESSES = 1024, 256
"""Enough for any run and its environments."""
OWN_FILES, OWN_PROCESSES, PER_WORKER = 64, 32, 2
"""What a run takes, and what each worker adds: two files of the learner, a process, a thread."""
UNLIMITED = 2**60
"""Control groups of version 1 write a number near 2**63 where there is no limit."""


def cpus(total: int, allowed: int, quota: float | None, usable: int) -> Finding:
    """The narrower of affinity and quota."""
    if quota is not None and quota < allowed:
        return found("cpus-quota", quota=quota, total=total, usable=usable)
    if allowed < total:
        return found("cpus-affinity", allowed=allowed, total=total)
    return found("cpus-one" if total == 1 else "cpus-ok", total=total)


def load(average: float, total: int, usable: int) -> Finding:
    """The average counts the whole machine, whatever part of it this process may use."""
    idle = total - average
    if idle >= usable - 0.5:
        return found("load-ok", load=average)
    level: Level = "note" if idle >= usable / 2 else "problem"
    return found("load-high", level, load=average, total=total)


def bf16(cpuinfo: str) -> Finding | None:
    """None where the system does not say what its CPU can do."""
    flags = bf16_abilities(cpuinfo)
    if flags is None:
        return None
    return found("bf16-ok", flags=", ".join(flags)) if flags else found("bf16-missing")


def frequency(governor: str, driver: str) -> Finding | None:
    """Only a governor that holds the CPU at its lowest speed is reported."""
    slow = governor == "powersave" and driver not in FULL_SPEED_DRIVERS
    return found("frequency-powersave", driver=driver) if slow else None


def emulation(architecture: str, cpuinfo: str) -> Finding | None:
    """x86 code on an ARM processor shows in the kernel's description of the CPU."""
    arm = "VirtualApple" in cpuinfo or re.search(r"^CPU implementer\s*:", cpuinfo, re.M)
    x86 = architecture.lower() in ("x86_64", "amd64")
    return found("emulation") if x86 and arm else None


def threads(environment: Mapping[str, str]) -> Finding:
    """What the user's thread variables do here."""
    given = {name: environment[name] for name in THREAD_VARIABLES if environment.get(name)}
    if not given:
        return found("threads-unset")
    code = "threads-one" if set(given.values()) == {"1"} else "threads-many"
    return found(code, variables=_assignments(given))


def binding(environment: Mapping[str, str]) -> Finding | None:
    """GNU's OpenMP binds a process, and so its children, when torch is imported."""
    given = {name: environment[name] for name in BINDING if environment.get(name)}
    if given and environment.get("OMP_PROC_BIND", "").lower() != "false":
        return found("binding", variables=_assignments(given), names=" ".join(given))
    intel = environment.get("KMP_AFFINITY", "none")
    if intel in ("", "none", "disabled"):
        return None
    return found("binding-intel", variables=f"KMP_AFFINITY={intel}", names="KMP_AFFINITY")


def _assignments(variables: Mapping[str, str]) -> str:
    return listed([f"{name}={value}" for name, value in variables.items()])


@dataclass(frozen=True)
class Allowance:
    """The smallest limit of the control groups around a process, and the least that one leaves."""

    limit: int
    left: int


def memory_allowance(proc: Path = MEMBERSHIP, root: Path = CGROUPS) -> Allowance | None:
    """Bytes; None where no group has a limit."""
    limits = []
    for folder in control_groups("memory", proc, root):
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        # The kernel drops cached files that were not used lately before it refuses memory.
        used -= min(used, _reclaimable(folder / "memory.stat"))
        for name in ("max", "high", "limit_in_bytes"):
            limits.append((_number(folder / f"memory.{name}"), used))
    return _smallest(limits)


def process_allowance(proc: Path = MEMBERSHIP, root: Path = CGROUPS) -> Allowance | None:
    """Processes and threads together; None where no group has a limit."""
    folders = control_groups("pids", proc, root)
    return _smallest([(_number(f / "pids.max"), _number(f / "pids.current") or 0) for f in folders])


def _smallest(limits: list[tuple[int | None, int]]) -> Allowance | None:
    """Of limits with what is used of each."""
    known = [(limit, limit - used) for limit, used in limits if limit and limit < UNLIMITED]
    if not known:
        return None
    return Allowance(min(limit for limit, _ in known), max(0, min(left for _, left in known)))


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


def memory(total: int, available: int, group: Allowance | None, cpus: int) -> Finding:
    """What the machine and the control groups leave, against a run on all CPUs."""
    whole, free, limit, more = total, available, "of the machine", ""
    if group and group.limit < total:
        whole, free = group.limit, min(available, group.left)
        limit = "that the control group allows"
        more = ", or raise docker's --memory, Kubernetes' limits.memory or systemd's MemoryMax"
    facts = {"free": Bytes(free), "whole": Bytes(whole), "limit": limit}
    if free < LEARNER + WORKER:
        return found("memory-learner", **facts, needed=Bytes(LEARNER), more=more)
    needed = Bytes(LEARNER + cpus * WORKER)
    if free < needed:
        return found("memory-workers", **facts, workers=cpus, needed=needed, more=more)
    return found("memory-ok", **facts)


def swap(used: int, total_memory: int) -> Finding | None:
    much = used >= max(512 * MB, total_memory // 10)
    return found("swap-used", used=Bytes(used)) if much else None


def shared_memory(total: int, free: int) -> Finding:
    """Of /dev/shm."""
    code = "shm-ok" if free >= LITTLE_SHARED else "shm-little"
    return found(code, free=Bytes(free), total=Bytes(total))


def disk(topic: str, free: int) -> Finding:
    """`topic` is disk, for the current directory, or temporary."""
    if free >= LITTLE_DISK:
        return found(f"{topic}-ok", free=Bytes(free))
    level: Level = "problem" if free < NO_DISK else "note"
    return found(f"{topic}-little", level, free=Bytes(free))


def cache(folder: Path, home: str = "") -> Finding:
    """Where compiled steps are kept; it is made when the first of them is."""
    place = next(place for place in (folder, *folder.parents) if _exists(place))
    in_home = home and folder.is_relative_to(home)
    shown = f"~/{folder.relative_to(home)}" if in_home else str(folder)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return found("cache-ok", folder=shown)
    lacks = "writable" if place.is_dir() else "a directory"
    return found("cache-unusable", folder=shown, place=str(place), lacks=lacks)


def _exists(place: Path) -> bool:
    """Nothing does within a directory that may not be entered."""
    try:
        return place.exists()
    except PermissionError:
        return False


def files(soft: int, hard: int, cpus: int) -> Finding:
    """Limits are negative where there are none."""
    needed = OWN_FILES + PER_WORKER * cpus
    enough = max(FILES, 2 * needed)
    if soft < 0 or soft >= enough:
        return found("files-ok", limit="any number of" if soft < 0 else f"{soft:,}")
    first = ""
    if 0 <= hard < enough:
        first = f", for which root has to raise the hard limit of {hard} first"
    level: Level = "problem" if soft < needed else "note"
    return found("files-few", level, limit=soft, enough=enough, first=first)


def processes(soft: int, group: Allowance | None, cpus: int) -> Finding:
    """The user's limit counts all that the user runs; a control group's, what runs in it."""
    if group and not 0 <= soft < group.left:
        left, limit = group.left, f"of the {group.limit:,} that the control group allows"
        more = "raise docker's --pids-limit or systemd's TasksMax"
    else:
        left, limit, more = soft, "in all for this user", "raise ulimit -u"
    needed = OWN_PROCESSES + PER_WORKER * cpus
    if left < 0 or left >= max(PROCESSES, 2 * needed):
        shown = "any number of" if left < 0 else f"{left:,}"
        return found("processes-ok", left=shown, limit=limit)
    level: Level = "problem" if left < needed else "note"
    return found("processes-few", level, left=left, limit=limit, more=more)
