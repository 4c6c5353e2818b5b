"""What this machine is, and how much of it this process tree uses."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

MEMBERSHIP, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""Where a process' control groups are named, and where they are."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of glibc's malloc.h."""
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def available_cpus() -> int:
    """CPUs that this process may really use: its affinity, and the cgroup's quota."""
    try:
        cpus = len(affinity())
    except AttributeError:
        cpus = os.cpu_count() or 1
    quota = cgroup_quota()
    return cpus if quota is None else min(cpus, max(1, round(quota)))


def bf16_abilities(cpuinfo: str | None = None) -> list[str] | None:
    """The CPU's instructions for bfloat16; None where the system does not say what it has."""
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text()
        except OSError:
            return None
    named = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.M)
    return sorted(BF16 & set(named[1].split())) if named else None


def cgroup_quota(proc: Path = MEMBERSHIP, root: Path = CGROUPS) -> float | None:
    """CPUs' worth of time that this process' groups and those around them grant it, or None."""
    quotas = [quota for group in control_groups("cpu", proc, root) for quota in _quota_of(group)]
    return min(quotas, default=None)


def control_groups(controller: str, proc: Path = MEMBERSHIP, root: Path = CGROUPS) -> list[Path]:
    """The groups of this process that have a say in it, and those around them."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for number, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if number != "0" and controller not in controllers.split(","):
            continue
        base = root if number == "0" else root / controller
        inner = base / path.lstrip("/")
        around = [folder for folder in inner.parents if folder.is_relative_to(base)]
        found += dict.fromkeys([inner, *around])
    return found


def _quota_of(folder: Path) -> list[float]:
    """At most one number: what the files of a control group say, if they are there."""
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return [] if quota == "max" else [int(quota) / int(period)]
    with suppress(OSError, ValueError):
        quota, period = ((folder / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
        return [int(quota) / int(period)] if int(quota) > 0 else []
    return []


_unbound: set[int] | None = None


def affinity() -> set[int]:
    """CPUs that this process was allowed before it bound itself to some of them."""
    return os.sched_getaffinity(0) if _unbound is None else _unbound


@contextmanager
def bound(cpus: list[int]) -> Iterator[None]:
    """This process, and what it starts, on these CPUs alone; on any if there are none."""
    if not cpus:
        yield
        return
    global _unbound
    outer, before = _unbound, os.sched_getaffinity(0)
    _unbound = affinity()
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        _unbound = outer
        os.sched_setaffinity(0, before)


def cpu_name() -> str:
    with suppress(OSError):
        if found := re.search(r"^model name.*?:(.*)$", Path("/proc/cpuinfo").read_text(), re.M):
            return found[1].strip()
    return platform.processor() or platform.machine()


def keep_memory() -> None:
    """Have this process keep what it frees, where that can be asked for (glibc).

    Activations of images are large: given back to the system after every minibatch, their pages are
    cleared anew for the next one, which takes a tenth of the time of IMPALA's network.
    """
    with suppress(AttributeError, OSError):
        allocate = ctypes.CDLL(None).mallopt
        allocate(M_MMAP_MAX, 0)
        allocate(M_TRIM_THRESHOLD, 2**31 - 1)


def limit_threads(threads: int) -> None:
    """Set before anything numerical is imported: a small product gains nothing from threads."""
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, str(threads))


def description() -> dict[str, Any]:
    """What a reader needs to know about where a run was made."""
    versions = {}
    for package in ("paceline", "torch", "gymnasium", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return {
        "versions": {"python": platform.python_version(), **versions},
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpus": available_cpus(),
        "git_commit": git_commit(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def git_commit() -> str | None:
    """The commit of the directory the run was started from, if it is a git checkout."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "rev-parse", "HEAD"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return answer.stdout.strip() or None
    return None


TOO_SHORT = 0.1
"""Seconds over which the kernel's clock of CPU time, with ticks of 10 ms, says little."""


class Usage:
    """Memory and CPU of this process and its children, read every few seconds at most.

    To the first rank of a host belong the processes that started its ranks, without the others.
    """

    def __init__(self, every: float = 3.0, launchers: int = 0) -> None:
        self._every, self._read_at, self._cost = every, time.monotonic(), 0.0
        self._above: list[psutil.Process] = []
        with suppress(psutil.Error):
            self._above = psutil.Process().parents()[:launchers]
        self._cpu_seconds = self._cpu()
        self._values: tuple[float, float | None] | None = None

    def read(self) -> tuple[float, float | None]:
        """Megabytes, and per cent of one CPU since the last reading (None if that was just now)."""
        now = time.monotonic()
        since = now - self._read_at
        if self._values is None or since > self._rest(self._values[1]):
            busy = None
            if since > TOO_SHORT:
                cpu = self._cpu()
                busy = round(100 * max(0.0, cpu - self._cpu_seconds) / since, 1)
                self._read_at, self._cpu_seconds = now, cpu
            self._values = (round(self._total(memory_mb), 1), busy)
            self._cost = time.monotonic() - now
        return self._values

    def _rest(self, busy: float | None) -> float:
        """Seconds between two readings; a run may be over before it would be asked again."""
        return TOO_SHORT if busy is None else max(self._every, 200 * self._cost)

    def _total(self, measured: Callable[[psutil.Process], float]) -> float:
        """Over all processes that tell; none does where /proc is missing."""
        total = 0.0
        with suppress(psutil.Error):
            this = psutil.Process()
            for process in (*self._above, this, *this.children(recursive=True)):
                with suppress(psutil.Error):
                    total += measured(process)
        return total

    def _cpu(self) -> float:
        """Seconds, with those of children that have ended, or what they did would seem undone."""

        def seconds(process: psutil.Process) -> float:
            return float(sum(process.cpu_times()[: 2 if process in self._above else 4]))

        return self._total(seconds)


def memory_mb(process: psutil.Process) -> float:
    """What a process takes; where that is known, what several share counts once among them."""
    with suppress(OSError):
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        if found := re.search(r"^Pss:\s*(\d+)", rollup, re.M):
            return int(found[1]) / 2**10
    return float(process.memory_info().rss) / 2**20


@dataclass(frozen=True)
class Choices:
    """What is decided once per run from the machine, and kept when it is resumed."""

    threads: int
    compiled: bool
    device: str


def oom_kills(
    proc: Path = MEMBERSHIP, root: Path = CGROUPS, vmstat: Path = Path("/proc/vmstat")
) -> int:
    """How many processes of this control group the kernel has killed for want of memory.

    Where the group does not say, of the whole machine; 0 where nobody does.
    """
    groups = control_groups("memory", proc, root)
    names = ("memory.events", "memory.oom_control")  # of version 2 and of version 1
    for file in (*(group / name for group in groups for name in names), vmstat):
        with suppress(OSError):
            if found := re.search(r"^oom_kill (\d+)$", file.read_text(), re.M):
                return int(found[1])
    return 0
