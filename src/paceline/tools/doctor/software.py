"""Checks of what is installed: versions, the C++ compiler, torch's build, suites."""

from __future__ import annotations

import re
from collections.abc import Callable

from ...config.text import listed
from ...storage.compiler_cache import wanted_compiler
from ..findings import Finding
from .rules import RULES, found

SUITES = {
    "box2d": "Box2D",
    "mujoco": "mujoco",
    "atari": "ale_py",
    "envpool": "envpool",
    "procgen": "procgen",
    "minigrid": "minigrid",
    "popgym": "popgym",
}
"""Name → the module that is imported."""
PACKAGES = {"atari": "ale-py"}
"""Where pip knows it by another name."""
APART = {"procgen": "pip install --no-deps procgen-mirror==0.10.7 gym3==0.3.3"}
"""What an extra can't bring, since it would replace numpy by an old one."""

Versions = Callable[[str], str | None]
"""The installed version of a package, or None."""


def compiler(cxx: str | None, system: str, which: Callable[[str], str | None]) -> Finding | None:
    """None if it is there. torch tries $CXX or one name, and no other."""
    wanted = wanted_compiler(cxx, system)
    if which(wanted):
        return None
    other = next((n for n in ("g++", "clang++", "c++") if n != wanted and which(n)), None)
    if cxx:
        install = f"export CXX={other}" if other else RULES["compiler-missing"].fix
        return found("compiler-cxx", wanted=cxx, install=install)
    if other:
        return found("compiler-other", wanted=wanted, other=other)
    return found("compiler-missing")


def headers(present: bool) -> Finding:
    """What a C++ compiler needs beside itself."""
    return found("compiler-ok" if present else "compiler-headers")


def torch_build(version_file: str) -> str:
    """`cuda`, `rocm` or `cpu`, from the text of torch/version.py."""
    for name, kind in (("cuda", "cuda"), ("hip", "rocm")):
        if re.search(rf"^{name}\b[^=\n]*= *['\"]", version_file, re.MULTILINE):
            return kind
    return "cpu"


def gpu(build: str, driver: bool, device: bool) -> Finding | None:
    """Whether the machine has an NVIDIA GPU, and torch was built for it; ROCm is not judged."""
    if build == "rocm":
        return None
    if driver and not device:
        return found("gpu-no-device")
    if device:
        return found("gpu-torch-for-cpu" if build == "cpu" else "gpu-ok")
    return found("gpu-torch-for-cuda" if build == "cuda" else "gpu-none")


def suites(present: dict[str, bool], extras: list[str]) -> Finding:
    """Which suites of environments are installed, and how to install the others."""
    missing = [name for name in present if not present[name]]
    lists = {"installed": [name for name in present if present[name]], "not installed": missing}
    summary = "; ".join(f"{state}: {listed(names)}" for state, names in lists.items() if names)
    install = ""
    if missing:
        own = [name for name in missing if name in extras]
        parts = [f"'paceline[{','.join(own)}]'"] if own else []
        parts += [PACKAGES.get(name, name) for name in missing if name not in extras]
        steps = ["pip install " + " ".join(parts), *(APART[n] for n in missing if n in APART)]
        install = f"to add them: {', then '.join(steps)}"
    return found("suites", summary=summary, missing=missing, install=install)


def versions(requirements: list[str], python: str, floor: str, installed: Versions) -> Finding:
    """What is missing, or outside the bounds that this package declares."""
    try:
        from packaging.requirements import Requirement
        from packaging.specifiers import SpecifierSet
    except ImportError:
        missing = {"wrong": "packaging is missing", "install": "pip install packaging"}
        return found("versions-wrong", **missing)
    wrong, upgrade = [], []
    if not SpecifierSet(floor).contains(python, prereleases=True):
        wrong.append(f"python is {python} (needs {floor})")
    for needed in map(Requirement, requirements):
        if needed.marker and not needed.marker.evaluate({"extra": ""}):
            continue  # of an extra, or of another system
        version = installed(needed.name)
        if version is None or not needed.specifier.contains(version, prereleases=True):
            upgrade.append(f"'{needed.name}{needed.specifier}'")
            needs = f" (needs {needed.specifier})" if needed.specifier else ""
            wrong.append(f"{needed.name} is {version or 'missing'}{needs}")
    if not wrong:
        return found("versions-ok")
    install = f"pip install {' '.join(upgrade)}" if upgrade else "install with a newer Python"
    return found("versions-wrong", wrong=", ".join(wrong), install=install)
