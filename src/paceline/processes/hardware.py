"""Hardware: CPUs, memory and threads that this process may use, and how much its tree uses."""

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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

MEMBERSHIP, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""The control groups of this process, and the root of their file system."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""From glibc's malloc.h."""
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""CPU flags of bfloat16 instructions."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def available_cpus() -> int:
    """CPUs that this process may use: by its affinity and its control group's quota."""
    try:
        cpus = len(affinity())
    except AttributeError:
        cpus = os.cpu_count() or 1
    quota = cgroup_quota()
    return cpus if quota is None else min(cpus, max(1, round(quota)))


def bf16_abilities(cpuinfo: str | None = None) -> list[str] | None:
    """The CPU's flags for bfloat16 instructions; None where the system does not list flags."""
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text()
        except OSError:
            return None
    named = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.M)
    return sorted(BF16 & set(named[1].split())) if named else None


def cgroup_quota(proc: Path = MEMBERSHIP, root: Path = CGROUPS) -> float | None:
    """Quota in CPUs: the smallest of this process's control groups and their parents, or None."""
    quotas = [quota for group in control_groups("cpu", proc, root) for quota in _quota_of(group)]
    return min(quotas, default=None)


def control_groups(controller: str, proc: Path = MEMBERSHIP, root: Path = CGROUPS) -> list[Path]:
    """Control groups of this process under `controller`, each followed by its parents."""
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
    """CPUs' worth of time that a control group (version 2 or 1) grants; empty without a limit."""
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return [] if quota == "max" else [int(quota) / int(period)]
    with suppress(OSError, ValueError):
        quota, period = ((folder / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
        return [int(quota) / int(period)] if int(quota) > 0 else []
    return []


_unbound: set[int] | None = None


def affinity() -> set[int]:
    """CPUs that this process was allowed before `bound` restricted it."""
    return os.sched_getaffinity(0) if _unbound is None else _unbound


@contextmanager
def bound(cpus: list[int]) -> Iterator[None]:
    """Run this process, and what it starts, on these CPUs only; on any if the list is empty."""
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
    named = _search(Path("/proc/cpuinfo"), r"^model name.*?:(.*)$")
    return named or platform.processor() or platform.machine()


def keep_memory() -> None:
    """Have malloc keep freed memory (glibc).

    Activations of images are large: returned to the system after every minibatch, their pages are
    zeroed again for the next one, which takes a tenth of the time of IMPALA's network.
    """
    with suppress(AttributeError, OSError):
        allocate = ctypes.CDLL(None).mallopt
        allocate(M_MMAP_MAX, 0)
        allocate(M_TRIM_THRESHOLD, 2**31 - 1)


def limit_threads(threads: int) -> None:
    """Before numerical libraries are imported: small products gain nothing from threads."""
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, str(threads))


def description() -> dict[str, Any]:
    """Versions, CPU and command of this process, for the record of a run."""
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
    """Commit of the current directory, if it is in a git checkout."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "rev-parse", "HEAD"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return answer.stdout.strip() or None
    return None


MIN_INTERVAL = 0.1
"""Seconds below which the kernel's CPU times, with ticks of 10 ms, are too coarse."""


class Usage:
    """Memory and CPU of this process and its descendants, read at most every few seconds.

    The first rank of a host also counts the `launchers` above it, without the other ranks.
    """

    def __init__(self, interval: float = 3.0, launchers: int = 0) -> None:
        self._interval, self._read_at, self._cost = interval, time.monotonic(), 0.0
        self._above: list[psutil.Process] = []
        with suppress(psutil.Error):
            self._above = psutil.Process().parents()[:launchers]
        self._cpu_seconds = self._cpu()
        self._values: tuple[float, float | None] | None = None

    def read(self) -> tuple[float, float | None]:
        """Megabytes, and per cent of one CPU since the last reading (None if too recent)."""
        now = time.monotonic()
        since = now - self._read_at
        if self._values is None or since > self._pause(self._values[1]):
            busy = None
            if since > MIN_INTERVAL:
                cpu = self._cpu()
                busy = round(100 * max(0.0, cpu - self._cpu_seconds) / since, 1)
                self._read_at, self._cpu_seconds = now, cpu
            self._values = (round(self._total(memory_mb), 1), busy)
            self._cost = time.monotonic() - now
        return self._values

    def _pause(self, busy: float | None) -> float:
        """Seconds until the next reading: short after one without CPU, as the run may end soon."""
        return MIN_INTERVAL if busy is None else max(self._interval, 200 * self._cost)

    def _total(self, measure: Callable[[psutil.Process], float]) -> float:
        """Sum over all processes that can be read; 0 where /proc is missing."""
        total = 0.0
        with suppress(psutil.Error):
            this = psutil.Process()
            for process in (*self._above, this, *this.children(recursive=True)):
                with suppress(psutil.Error):
                    total += measure(process)
        return total

    def _cpu(self) -> float:
        """Seconds, including children that have ended, so that the sum never decreases."""

        def seconds(process: psutil.Process) -> float:
            return float(sum(process.cpu_times()[: 2 if process in self._above else 4]))

        return self._total(seconds)


def memory_mb(process: psutil.Process) -> float:
    """Memory of a process; pages shared by several count in equal parts where that is known."""
    if kilobytes := _search(Path(f"/proc/{process.pid}/smaps_rollup"), r"^Pss:\s*(\d+)"):
        return int(kilobytes) / 2**10
    return float(process.memory_info().rss) / 2**20


def oom_kills(
    proc: Path = MEMBERSHIP, root: Path = CGROUPS, vmstat: Path = Path("/proc/vmstat")
) -> int:
    """Count of processes that the kernel has killed for lack of memory.

    In this control group, or else on the whole machine; 0 where neither is reported.
    """
    groups = control_groups("memory", proc, root)
    names = ("memory.events", "memory.oom_control")  # of version 2 and of version 1
    for file in (*(group / name for group in groups for name in names), vmstat):
        if count := _search(file, r"^oom_kill (\d+)$"):
            return int(count)
    return 0


def _search(file: Path, pattern: str) -> str | None:
    """What the group of `pattern` finds first in a file; None if there is no such file or match."""
    with suppress(OSError):
        if found := re.search(pattern, file.read_text(), re.M):
            return found[1].strip()
    return None
