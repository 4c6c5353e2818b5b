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
from ...processes import hardware
from ...storage.compiler_cache import CACHE, compiled_cache
from ..findings import Bytes, Finding, Report, ordered
from . import machine, software
from .cgroups import memory_allowance, process_allowance
from .rules import RULES

SHOWN = ("paceline", "torch", "numpy", "gymnasium")
ABSENT = (FileNotFoundError, AttributeError, ImportError, psutil.Error)
"""Raised on systems that have no such thing to look at."""
CPUINFO = Path("/proc/cpuinfo")


def report() -> Report:
    described = describe_machine()
    return Report(described, examine(), ("problem", "note"), {"machine": described})


def describe_machine() -> dict[str, str]:
    cores, total, usable = psutil.cpu_count(logical=False), _total_cpus(), hardware.available_cpus()
    cpu = f"{hardware.cpu_name()}, {cores or total} cores, {several(total, 'CPU')}"
    versions = [f"{name} {installed(name) or 'missing'}" for name in SHOWN]
    described = {
        "cpu": cpu if usable == total else f"{cpu}, {usable} usable",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "versions": ", ".join([f"python {platform.python_version()}", *versions]),
    }
    with suppress(OSError):
        described["memory"] = f"{Bytes(psutil.virtual_memory().total)}"
    return described


def examine() -> list[Finding]:
    """Every finding, the worst first."""
    findings: list[Finding] = []
    for topic, check in CHECKS.items():
        try:
            finding = check()
        except ABSENT:
            continue
        except Exception as error:  # what is odd about a machine must not hide the rest
            finding = replace(RULES.found("failed", error=str(error)), topic=topic)
        if finding is not None:
            findings.append(finding)
    return ordered(findings)


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _total_cpus() -> int:
    return os.cpu_count() or 1


def _cpus() -> Finding:
    total, usable = _total_cpus(), hardware.available_cpus()
    allowed = len(hardware.affinity()) if hasattr(os, "sched_getaffinity") else total
    return machine.cpus(total, allowed, hardware.cgroup_quota(), usable)


def _frequency() -> Finding | None:
    folder = Path("/sys/devices/system/cpu/cpu0/cpufreq")
    names = ("scaling_governor", "scaling_driver")
    return machine.frequency(*((folder / name).read_text().strip() for name in names))


def _environment() -> dict[str, str]:
    """As the user has set it: the command itself has changed some variables since."""
    return psutil.Process().environ()


def _memory() -> Finding:
    seen = psutil.virtual_memory()
    cpus = hardware.available_cpus()
    return machine.memory(seen.total, seen.available, memory_allowance(), cpus)


def _shared_memory() -> Finding | None:
    if sys.platform != "linux":
        return None
    try:
        seen = shutil.disk_usage("/dev/shm")
    except FileNotFoundError:
        return machine.shared_memory(None, 0)
    return machine.shared_memory(seen.total, seen.free)


def _disk() -> Finding:
    try:
        here = Path.cwd()
        return machine.run_disk(shutil.disk_usage(here).free, os.access(here, os.W_OK | os.X_OK))
    except FileNotFoundError:
        return machine.run_disk(None, False)


def _temporary() -> Finding:
    try:
        return machine.temporary_disk(shutil.disk_usage(tempfile.gettempdir()).free)
    except FileNotFoundError:
        return machine.temporary_disk(None)


def _cache() -> Finding:
    folder = os.environ.get(CACHE) or compiled_cache()
    return machine.cache(Path(folder), os.environ.get("HOME", ""))


def _limits(name: str) -> tuple[int, int]:
    """Soft and hard; -1, on every system, where there is none."""
    import resource

    both = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    soft, hard = (-1 if limit == resource.RLIM_INFINITY else limit for limit in both)
    return soft, hard


def _versions() -> Finding:
    needed, floor = requires("paceline") or [], metadata("paceline")["Requires-Python"]
    return software.versions(needed, platform.python_version(), floor, installed)


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


def _optional(topic: str, modules: dict[str, str]) -> Finding:
    try:
        extras = metadata("paceline").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        extras = []
    return software.optional(topic, present(modules), extras)


def present(modules: dict[str, str]) -> dict[str, bool]:
    """A folder of that name in the current directory, as wandb makes one, is no package."""
    specs = {name: find_spec(module) for name, module in modules.items()}
    return {name: spec is not None and spec.origin is not None for name, spec in specs.items()}


CHECKS: dict[str, Callable[[], Finding | None]] = {
    "versions": _versions,
    "compiler": _compiler,
    "gpu": _gpu,
    "cpus": _cpus,
    "load": lambda: machine.load(os.getloadavg()[0], _total_cpus(), hardware.available_cpus()),
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
    "files": lambda: machine.files(*_limits("NOFILE"), hardware.available_cpus()),
    "processes": lambda: machine.processes(
        _limits("NPROC")[0], process_allowance(), hardware.available_cpus()
    ),
    "suites": lambda: _optional("suites", software.SUITES),
    "tools": lambda: _optional("tools", software.TOOLS),
}
"""By topic, in the order in which findings of one level are shown."""
