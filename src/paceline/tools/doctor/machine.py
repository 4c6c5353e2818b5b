"""Checks of the machine: CPUs, memory, disks, limits and variables, judged by numbers given."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ...config.text import listed
from ...processes.hardware import THREAD_VARIABLES, bf16_abilities
from ..findings import GB, MB, Bytes, Finding, Level
from .cgroups import Allowance
from .rules import FREE_MEMORY, GROUP_MEMORY, RULES

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


def cpus(total: int, allowed: int, quota: float | None, usable: int) -> Finding:
    """The narrower of affinity and quota."""
    if quota is not None and quota < allowed:
        return RULES.found("cpus-quota", quota=quota, total=total, usable=usable)
    if allowed < total:
        return RULES.found("cpus-affinity", allowed=allowed, total=total)
    return RULES.found("cpus-one" if total == 1 else "cpus-ok", total=total)


def load(average: float, total: int, usable: int) -> Finding:
    """The average counts the whole machine, whatever part of it this process may use."""
    idle = total - average
    if idle >= usable - 0.5:
        return RULES.found("load-ok", load=average)
    level: Level = "note" if idle >= usable / 2 else "problem"
    return RULES.found("load-high", level, load=average, total=total)


def bf16(cpuinfo: str) -> Finding | None:
    """None where the system does not say what its CPU can do."""
    flags = bf16_abilities(cpuinfo)
    if flags is None:
        return None
    return RULES.found("bf16-ok", flags=", ".join(flags)) if flags else RULES.found("bf16-missing")


def frequency(governor: str, driver: str) -> Finding | None:
    """Only a governor that holds the CPU at its lowest speed is reported."""
    if governor != "powersave" or driver in FULL_SPEED_DRIVERS:
        return None
    return RULES.found("frequency-powersave", driver=driver)


def emulation(architecture: str, cpuinfo: str) -> Finding | None:
    """x86 code on an ARM processor shows in the kernel's description of the CPU."""
    arm = "VirtualApple" in cpuinfo or re.search(r"^CPU implementer\s*:", cpuinfo, re.M)
    x86 = architecture.lower() in ("x86_64", "amd64")
    return RULES.found("emulation") if x86 and arm else None


def threads(environment: Mapping[str, str]) -> Finding:
    """What the user's thread variables do here."""
    given = {name: environment[name] for name in THREAD_VARIABLES if environment.get(name)}
    if not given:
        return RULES.found("threads-unset")
    code = "threads-one" if set(given.values()) == {"1"} else "threads-many"
    return RULES.found(code, variables=_assignments(given))


def binding(environment: Mapping[str, str]) -> Finding | None:
    """GNU's OpenMP binds a process, and so its children, when torch is imported."""
    given = {name: environment[name] for name in BINDING if environment.get(name)}
    if given and environment.get("OMP_PROC_BIND", "").lower() != "false":
        return RULES.found("binding", variables=_assignments(given), names=" ".join(given))
    intel = environment.get("KMP_AFFINITY", "none")
    if intel in ("", "none", "disabled"):
        return None
    variables = _assignments({"KMP_AFFINITY": intel})
    return RULES.found("binding-intel", variables=variables, names="KMP_AFFINITY")


def _assignments(variables: Mapping[str, str]) -> str:
    return listed([f"{name}={value}" for name, value in variables.items()])


def memory(total: int, available: int, group: Allowance | None, cpus: int) -> Finding:
    """What the machine and the control groups leave, against a run on all CPUs."""
    whole, free, limit, more = total, available, "of the machine", FREE_MEMORY
    if group and group.limit < total:
        whole, free = group.limit, min(available, group.left)
        limit, more = "that the control group allows", GROUP_MEMORY
    facts = {"free": Bytes(free), "whole": Bytes(whole), "limit": limit}
    if free < LEARNER + WORKER:
        return RULES.found("memory-learner", **facts, needed=Bytes(LEARNER), more=more)
    needed = Bytes(LEARNER + cpus * WORKER)
    if free < needed:
        return RULES.found("memory-workers", **facts, workers=cpus, needed=needed, more=more)
    return RULES.found("memory-ok", **facts)


def swap(used: int, total_memory: int) -> Finding | None:
    if used < max(512 * MB, total_memory // 10):
        return None
    return RULES.found("swap-used", used=Bytes(used))


def shared_memory(total: int | None, free: int) -> Finding:
    """Of /dev/shm; `total` is None where there is none."""
    if total is None:
        return RULES.found("shm-missing")
    code = "shm-ok" if free >= LITTLE_SHARED else "shm-little"
    return RULES.found(code, free=Bytes(free), total=Bytes(total))


def run_disk(free: int | None, writable: bool) -> Finding:
    """Of the current directory; `free` is None where that is gone."""
    if free is None:
        return RULES.found("disk-gone")
    return _disk("disk", free) if writable else RULES.found("disk-read-only")


def temporary_disk(free: int | None) -> Finding:
    """`free` is None where no directory for temporary files can be written to."""
    return RULES.found("temporary-none") if free is None else _disk("temporary", free)


def _disk(topic: str, free: int) -> Finding:
    if free >= LITTLE_DISK:
        return RULES.found(f"{topic}-ok", free=Bytes(free))
    level: Level = "problem" if free < NO_DISK else "note"
    return RULES.found(f"{topic}-little", level, free=Bytes(free))


def cache(folder: Path, home: str = "") -> Finding:
    """Where compiled steps are kept; it is made when the first of them is."""
    place = next(place for place in (folder, *folder.parents) if _exists(place))
    in_home = home and folder.is_relative_to(home)
    shown = f"~/{folder.relative_to(home)}" if in_home else str(folder)
    if not place.is_dir():
        return RULES.found("cache-unusable", folder=shown, place=str(place), lacks="a directory")
    if not os.access(place, os.W_OK | os.X_OK):
        return RULES.found("cache-unusable", folder=shown, place=str(place), lacks="writable")
    return RULES.found("cache-ok", folder=shown)


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
        return RULES.found("files-ok", limit="any number of" if soft < 0 else f"{soft:,}")
    first = ""
    if 0 <= hard < enough:
        first = f", for which root has to raise the hard limit of {hard} first"
    level: Level = "problem" if soft < needed else "note"
    return RULES.found("files-few", level, limit=soft, enough=enough, first=first)


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
        return RULES.found("processes-ok", left=shown, limit=limit)
    level: Level = "problem" if left < needed else "note"
    return RULES.found("processes-few", level, left=left, limit=limit, more=more)
