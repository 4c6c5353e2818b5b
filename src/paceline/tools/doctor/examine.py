"""Reads this machine and asks every check; what can't be read here is left out."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path

import psutil

from ...processes import hardware as machine
from ..findings import Finding, size
from . import limits, processors, software, storage
from .cgroups import memory_allowance, process_allowance

SHOWN = ("paceline", "torch", "numpy", "gymnasium")
ABSENT = (FileNotFoundError, AttributeError, ImportError, psutil.Error)
"""What a system raises that has no such thing to look at."""


def machine_described() -> dict[str, str]:
    """What stands above the findings."""
    cores, total = psutil.cpu_count(logical=False), os.cpu_count() or 1
    cpu = f"{machine.cpu_name()}, {cores or total} cores, {processors.several_cpus(total)}"
    usable = machine.available_cpus()
    described = {
        "cpu": cpu if usable == total else f"{cpu}, of which {usable} usable",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "versions": ", ".join(
            [
                f"python {platform.python_version()}",
                *(f"{n} {installed(n) or 'missing'}" for n in SHOWN),
            ]
        ),
    }
    with suppress(OSError):
        described["memory"] = size(psutil.virtual_memory().total)
    return described


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def given_environment() -> dict[str, str]:
    """As the user has set it: the command itself has changed some variables since."""
    return psutil.Process().environ()


def examined() -> list[Finding]:
    """Every finding, the worst first."""
    found: list[Finding] = []
    for check in CHECKS:
        try:
            finding = check()
        except ABSENT:
            continue
        except Exception as error:  # what is odd about a machine must not hide the rest
            topic = check.__name__.strip("_")
            finding = Finding("note", topic, f"this could not be examined: {error}")
        if finding is not None:
            found.append(finding)
    return sorted(found, key=lambda finding: ("problem", "note", "ok").index(finding.level))


def _cpus() -> Finding:
    total = os.cpu_count() or 1
    allowed = len(machine.affinity()) if hasattr(os, "sched_getaffinity") else total
    return processors.cpus(total, allowed, machine.cgroup_quota(), machine.available_cpus())


def _load() -> Finding:
    return processors.load(os.getloadavg()[0], os.cpu_count() or 1, machine.available_cpus())


def _bf16() -> Finding | None:
    return processors.bf16(Path("/proc/cpuinfo").read_text())


def _frequency() -> Finding | None:
    folder = Path("/sys/devices/system/cpu/cpu0/cpufreq")
    names = ("scaling_governor", "scaling_driver")
    return processors.governor(*((folder / name).read_text().strip() for name in names))


def _emulation() -> Finding | None:
    return processors.emulation(platform.machine(), Path("/proc/cpuinfo").read_text())


def _memory() -> Finding:
    seen = psutil.virtual_memory()
    cpus = machine.available_cpus()
    return storage.memory(seen.total, seen.available, memory_allowance(), cpus)


def _swap() -> Finding | None:
    return storage.swap(psutil.swap_memory().used, psutil.virtual_memory().total)


def _shared_memory() -> Finding | None:
    if sys.platform != "linux":
        return None
    try:
        seen = shutil.disk_usage("/dev/shm")
    except FileNotFoundError:
        return storage.shared_memory(None, 0)
    return storage.shared_memory(seen.total, seen.free)


def _disk() -> Finding:
    try:
        here = Path.cwd()
        return storage.run_disk(shutil.disk_usage(here).free, os.access(here, os.W_OK | os.X_OK))
    except FileNotFoundError:
        return storage.run_disk(None, False)


def _temporary() -> Finding:
    try:
        return storage.temporary_disk(shutil.disk_usage(tempfile.gettempdir()).free)
    except FileNotFoundError:
        return storage.temporary_disk(None)


def _cache() -> Finding:
    folder = os.environ.get(machine.CACHE) or machine.compiled_cache()
    return storage.cache(Path(folder), os.environ.get("HOME", ""))


def _files() -> Finding:
    return limits.files(*_limits("NOFILE"), machine.available_cpus())


def _processes() -> Finding:
    soft, _ = _limits("NPROC")
    return limits.processes(soft, process_allowance(), machine.available_cpus())


def _limits(name: str) -> tuple[int, int]:
    """Soft and hard; -1, on every system, where there is none."""
    import resource

    both = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    soft, hard = (-1 if limit == resource.RLIM_INFINITY else limit for limit in both)
    return soft, hard


def _threads() -> Finding:
    return limits.threads(given_environment())


def _binding() -> Finding | None:
    return limits.binding(given_environment())


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


def _suites() -> Finding:
    return software.optional("suites", _found(software.SUITES), _extras())


def _tools() -> Finding:
    return software.optional("tools", _found(software.TOOLS), _extras())


def _found(modules: dict[str, str]) -> dict[str, bool]:
    """A folder of that name in the current directory, as wandb makes one, is no package."""
    specs = {name: find_spec(module) for name, module in modules.items()}
    return {name: spec is not None and spec.origin is not None for name, spec in specs.items()}


def _extras() -> list[str]:
    try:
        return metadata("paceline").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return []


CHECKS: tuple[Callable[[], Finding | None], ...] = (
    *(_versions, _compiler, _gpu, _cpus, _load, _bf16, _frequency, _emulation),
    *(_threads, _binding, _memory, _swap, _shared_memory, _disk, _temporary, _cache),
    *(_files, _processes, _suites, _tools),
)
