"""Checks of what is installed: versions, the C++ compiler, torch's build, suites and tools."""

from __future__ import annotations

import re
from collections.abc import Callable

from ...config.text import listed
from ...processes.hardware import wanted_compiler
from ..findings import Finding

SUITES = {
    "box2d": "Box2D",
    "mujoco": "mujoco",
    "atari": "ale_py",
    "envpool": "envpool",
    "procgen": "procgen",
    "minigrid": "minigrid",
    "pettingzoo": "pettingzoo",
}
TOOLS = {"tensorboard": "tensorboard", "wandb": "wandb", "ray": "ray"}
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
    lost = "long runs are not compiled, and update more slowly"
    others = [name for name in ("g++", "clang++", "c++") if name != wanted and which(name)]
    if cxx:
        text = f"CXX names {cxx}, which is no command here, and torch tries no other: {lost}"
        return Finding("note", "compiler", text, f"export CXX={others[0]}" if others else _INSTALL)
    if others:
        text = f"there is {others[0]}, but torch looks for {wanted} alone: {lost}"
        return Finding("note", "compiler", text, f"export CXX={others[0]}")
    return Finding("note", "compiler", f"there is no C++ compiler: {lost}", _INSTALL)


_INSTALL = "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)"


def headers(there: bool) -> Finding:
    """What a C++ compiler needs beside itself."""
    if there:
        return Finding("ok", "compiler", "long runs can be compiled")
    return Finding(
        "note",
        "compiler",
        "Python's C headers are missing: long runs are not compiled, and update more slowly",
        "install them (Debian, Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel)",
    )


def torch_build(version_file: str) -> str:
    """`cuda`, `rocm` or `cpu`, from the text of torch/version.py."""
    for name, kind in (("cuda", "cuda"), ("hip", "rocm")):
        if re.search(rf"^{name}\b[^=\n]*= *['\"]", version_file, re.MULTILINE):
            return kind
    return "cpu"


def gpu(build: str, driver: bool, device: bool) -> Finding | None:
    """Of NVIDIA's: whether the machine has one, and torch was built for it."""
    if build == "rocm":
        return None
    if driver and not device:
        return Finding(
            "note",
            "gpu",
            "there is an NVIDIA driver, but no device that this process may use",
            "start the container with docker's --gpus all, or ask the batch system for a GPU",
        )
    if device and build == "cpu":
        return Finding(
            "note",
            "gpu",
            "there is an NVIDIA GPU, but torch is a build for CPUs: --device cuda is refused",
            "only if networks are large: install a build of torch for CUDA",
        )
    if device:
        return Finding("ok", "gpu", "there is an NVIDIA GPU, and torch is built for it")
    if build == "cuda":
        return Finding(
            "note",
            "gpu",
            "torch is a build for CUDA, and there is no GPU: it works, but takes gigabytes of disk",
            "install torch's build for CPUs, whose version ends in +cpu",
        )
    return Finding("ok", "gpu", "there is no NVIDIA GPU, and torch is a build for CPUs")


def optional(topic: str, found: dict[str, bool], extras: list[str]) -> Finding:
    """In one line which of them are installed, and how the rest is."""
    there = [name for name, is_there in found.items() if is_there]
    missing = [name for name in found if name not in there]
    said = f"{listed(there)} {'is' if len(there) == 1 else 'are'} installed" if there else ""
    if not missing:
        return Finding("ok", topic, said)
    absent = f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} not"
    if not there:
        absent = f"none of {listed(missing)} is installed"
    own = [name for name in missing if name in extras]
    parts = [f"'paceline[{','.join(own)}]'"] if own else []
    parts += [PACKAGES.get(name, name) for name in missing if name not in extras]
    text = f"{said}, {absent}" if there else absent
    steps = [f"pip install {' '.join(parts)}", *(APART[name] for name in missing if name in APART)]
    return Finding("ok", topic, text, f"to add what is not: {', then '.join(steps)}")


def versions(requirements: list[str], python: str, floor: str, installed: Versions) -> Finding:
    """What is missing, or outside the bounds that this package declares."""
    wrong = [] if meets(python, floor) else [f"python is {python} (needs {floor})"]
    upgrade = []
    for requirement in requirements:
        parts = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*([<>=!~\w.,* ]*)$", requirement)
        if parts is None:  # an extra's, of another system, or from a place of its own
            continue
        name, bounds = parts.groups()
        version = installed(name)
        if version is None or not meets(version, bounds):
            upgrade.append(f"'{name}{bounds}'")
            needs = f" (needs {bounds})" if bounds else ""
            wrong.append(f"{name} is {version or 'missing'}{needs}")
    if not wrong:
        return Finding("ok", "versions", "all that Paceline needs is installed, and new enough")
    fix = f"pip install {' '.join(upgrade)}" if upgrade else "install with a newer Python"
    return Finding("problem", "versions", ", ".join(wrong), fix)


def meets(version: str, bounds: str) -> bool:
    """Whether a release lies within `>=a,<b`; other kinds of bounds are not judged."""
    release = _release(version)
    for bound in bounds.split(","):
        number = _release(bound.lstrip("<>=!~ "))
        if bound.strip().startswith(">=") and release < number:
            return False
        if re.match(r"\s*<(?!=)", bound) and release >= number:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` → (2, 13): trailing zeros do not count."""
    numbers = [int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part]  # type: ignore[index]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
