"""Reads this machine and runs every check; what a system does not have is left out."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path

import psutil

from ...config.text import several
from ...processes.hardware import affinity, available_cpus, cgroup_quota, cpu_name
from ...storage.compiler_cache import CACHE, compiled_cache
from ..findings import Bytes, Finding, Report
from . import machine, software
from .rules import RULES, found

SHOWN = ("paceline", "torch", "numpy", "gymnasium")
ABSENT = (FileNotFoundError, AttributeError, ImportError, psutil.Error)
"""Raised on systems that have no such thing to look at."""
CPUINFO = Path("/proc/cpuinfo")
CPU_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq")
TOTAL_CPUS = os.cpu_count() or 1


def report() -> Report:
    described = describe_machine()
    return Report(described, examine(), ("problem", "note"), {"machine": described})


def describe_machine() -> dict[str, str]:
    cores, usable = psutil.cpu_count(logical=False) or TOTAL_CPUS, available_cpus()
    cpu = f"{cpu_name()}, {cores} cores, {several(TOTAL_CPUS, 'CPU')}"
    versions = [f"{name} {installed(name) or 'missing'}" for name in SHOWN]
    described = {
        "cpu": cpu if usable == TOTAL_CPUS else f"{cpu}, {usable} usable",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "versions": ", ".join([f"python {platform.python_version()}", *versions]),
    }
    with suppress(OSError):
        described["memory"] = f"{Bytes(psutil.virtual_memory().total)}"
    return described


def examine() -> list[Finding]:
    """Every finding, the worst first."""
    findings = []
    for topic, check in CHECKS.items():
        try:
            findings.append(check())
        except ABSENT:
            continue
        except Exception as error:  # what is odd about a machine must not hide the rest
            findings.append(replace(found("failed", error=str(error)), topic=topic))
    return RULES.ordered(finding for finding in findings if finding is not None)


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _versions() -> Finding:
    needed, floor = requires("paceline") or [], metadata("paceline")["Requires-Python"]
    python = ".".join(map(str, sys.version_info[:3]))
    return software.versions(needed, python, floor, installed)


def _compiler() -> Finding:
    missing = software.compiler(os.environ.get("CXX"), sys.platform, shutil.which)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return missing or software.headers(header.exists())


def _gpu() -> Finding | None:
    spec = find_spec("torch")  # which does not import it
    if spec is None or spec.origin is None:
        return None
    build = software.torch_build(Path(spec.origin).with_name("version.py").read_text())
    driver = Path("/proc/driver/nvidia/version").exists()
    return software.gpu(build, driver, Path("/dev/nvidia0").exists())


def _cpus() -> Finding:
    allowed = len(affinity()) if hasattr(os, "sched_getaffinity") else TOTAL_CPUS
    return machine.cpus(TOTAL_CPUS, allowed, cgroup_quota(), available_cpus())


def _frequency() -> Finding | None:
    names = ("scaling_governor", "scaling_driver")
    return machine.frequency(*((CPU_FREQUENCY / name).read_text().strip() for name in names))


def _environment() -> dict[str, str]:
    """As the user has set it: the command itself has changed some variables since."""
    return psutil.Process().environ()


def _memory() -> Finding:
    seen = psutil.virtual_memory()
    group = machine.memory_allowance()
    return machine.memory(seen.total, seen.available, group, available_cpus())


def _shared_memory() -> Finding | None:
    if sys.platform != "linux":
        return None
    try:
        seen = shutil.disk_usage("/dev/shm")
    except FileNotFoundError:
        return found("shm-missing")
    return machine.shared_memory(seen.total, seen.free)


def _disk() -> Finding:
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return found("disk-gone")
    if not os.access(here, os.W_OK | os.X_OK):
        return found("disk-read-only")
    return machine.disk("disk", shutil.disk_usage(here).free)


def _temporary() -> Finding:
    try:
        return machine.disk("temporary", shutil.disk_usage(tempfile.gettempdir()).free)
    except FileNotFoundError:
        return found("temporary-none")


def _cache() -> Finding:
    folder = os.environ.get(CACHE) or compiled_cache()
    return machine.cache(Path(folder), os.environ.get("HOME", ""))


def _limits(name: str) -> tuple[int, int]:
    """Soft and hard; -1, on every system, where there is none."""
    import resource

    both = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    soft, hard = (-1 if limit == resource.RLIM_INFINITY else limit for limit in both)
    return soft, hard


def _processes() -> Finding:
    group = machine.process_allowance()
    return machine.processes(_limits("NPROC")[0], group, available_cpus())


def _suites() -> Finding:
    try:
        extras = metadata("paceline").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        extras = []
    return software.suites(present(software.SUITES), extras)


def present(modules: dict[str, str]) -> dict[str, bool]:
    """A folder of that name in the current directory is no package."""
    specs = {name: find_spec(module) for name, module in modules.items()}
    return {name: spec is not None and spec.origin is not None for name, spec in specs.items()}


CHECKS: dict[str, Callable[[], Finding | None]] = {
    "versions": _versions,
    "compiler": _compiler,
    "gpu": _gpu,
    "cpus": _cpus,
    "load": lambda: machine.load(os.getloadavg()[0], TOTAL_CPUS, available_cpus()),
    "bf16": lambda: machine.bf16(CPUINFO.read_text()),
    "frequency": _frequency,
    "emulation": lambda: machine.emulation(platform.machine(), CPUINFO.read_text()),
    "threads": lambda: machine.threads(_environment()),
    "binding": lambda: machine.binding(_environment()),
    "memory": _memory,
    "swap": lambda: machine.swap(psutil.swap_memory().used, psutil.virtual_memory().total),
    "/dev/shm": _shared_memory,
    "disk": _disk,
    "temporary": _temporary,
    "cache": _cache,
    "files": lambda: machine.files(*_limits("NOFILE"), available_cpus()),
    "processes": _processes,
    "suites": _suites,
}
"""By topic."""
