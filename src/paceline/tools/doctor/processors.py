"""Checks of the CPUs: how many may be used, who else uses them, what they can't do."""

from __future__ import annotations

from ...processes.hardware import bf16_abilities
from ..findings import Finding

NIMBLE_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""Their `powersave` goes up to full speed when there is work."""


def cpus(total: int, allowed: int, quota: float | None, usable: int) -> Finding:
    """Affinity and quota, and which of them is the narrower."""
    if quota is not None and quota < allowed:
        return Finding(
            "note",
            "cpus",
            f"the control group grants the time of {several_cpus(quota)}, and the machine has "
            f"{total}: who takes more is halted until the next period begins",
            f"Paceline counts on {several_cpus(usable)}; for more, raise docker's --cpus, "
            "Kubernetes' limits.cpu or systemd's CPUQuota",
        )
    if allowed < total:
        return Finding(
            "note",
            "cpus",
            f"{allowed} of the machine's {several_cpus(total)} may be used: this process is bound "
            f"to {'it' if allowed == 1 else 'them'} by taskset, a batch system or a container",
            "ask for more CPUs where the process is started (taskset -c, docker's --cpuset-cpus)",
        )
    if total == 1:
        return Finding("ok", "cpus", "the machine has one CPU: more workers gain nothing here")
    return Finding("ok", "cpus", f"all {several_cpus(total)} of the machine may be used")


def several_cpus(count: float) -> str:
    return f"{count:g} CPU{'' if count == 1 else 's'}"


def load(average: float, total: int, usable: int) -> Finding:
    """The average of the last minute counts the whole machine, whoever may use what of it."""
    idle = total - average
    if idle >= usable - 0.5:
        said = f"the load of the last minute, {average:.1f}, leaves the usable CPUs idle"
        return Finding("ok", "load", said)
    return Finding(
        "note" if idle >= usable / 2 else "problem",
        "load",
        f"the load of the last minute is {average:.1f} on {several_cpus(total)}: runs share the "
        "CPUs with others, and measurements will be noisy",
        "see with top who is at work; measure when the machine is idle",
    )


def bf16(cpuinfo: str) -> Finding | None:
    """None where the system does not say what its CPU can do."""
    found = bf16_abilities(cpuinfo)
    if found is None:
        return None
    if found:
        return Finding("ok", "bf16", f"the CPU computes in bf16 ({', '.join(found)})")
    return Finding(
        "note",
        "bf16",
        "the CPU has no instructions for bf16: precision bf16 is not available here",
        "stay with precision fp32, the default",
    )


def governor(name: str, driver: str) -> Finding | None:
    """Only the one that holds a CPU at its lowest speed is worth a word."""
    if name != "powersave" or driver in NIMBLE_DRIVERS:
        return None
    return Finding(
        "note",
        "frequency",
        f"the governor powersave of {driver} keeps the CPU at its lowest frequency",
        "as root: cpupower frequency-set -g performance",
    )


def emulation(machine: str, cpuinfo: str) -> Finding | None:
    """x86 code on an ARM processor gives itself away in what the kernel says of the CPU."""
    if machine.lower() not in ("x86_64", "amd64"):
        return None
    if "VirtualApple" not in cpuinfo and not _field(cpuinfo, "CPU implementer"):
        return None
    return Finding(
        "problem",
        "emulation",
        "x86 code is translated for an ARM processor: everything takes several times as long",
        "use a Python, or a container image, that was built for arm64",
    )


def _field(cpuinfo: str, name: str) -> str:
    """Of the first processor."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
