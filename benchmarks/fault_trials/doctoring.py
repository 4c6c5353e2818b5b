"""What can be done to a run's directory: steps that a trial prepares with."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .harness import Case


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("[0-9]*"))


def edit(name: str, change: Callable[[Any], Any]) -> Callable[[Case], None]:
    """Change a JSON file of the run, or of its newest checkpoint; manifests are put right."""

    def prepare(case: Case) -> None:
        path = case.run / name if name == "run.json" else newest(case.run) / name
        facts = json.loads(path.read_text())
        changed = change(facts)
        path.write_text(json.dumps(facts if changed is None else changed))
        if name == "state.json":
            _sign(path.parent)

    return prepare


def _sign(checkpoint: Path) -> None:
    """The manifest says what is there: what is wrong has to be found by reading it."""
    sums = {}
    for name in ("weights.safetensors", "state.safetensors", "state.json"):
        data = (checkpoint / name).read_bytes()
        sums[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(sums))


def put(name: str, data: bytes | None) -> Callable[[Case], None]:
    """Replace or remove a file of the run ({new}: of its newest checkpoint)."""

    def prepare(case: Case) -> None:
        path = newest(case.run) / name[6:] if name.startswith("{new}/") else case.run / name
        if path.parent.is_file():
            path.parent.unlink()
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if data is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    return prepare


def damage(name: str, how: str) -> Callable[[Case], None]:
    def prepare(case: Case) -> None:
        path = newest(case.run) / name
        data = bytearray(path.read_bytes())
        if how == "bit":
            data[len(data) // 2] ^= 1
        elif how == "half":
            del data[len(data) // 2 :]
        else:
            data += b"\0" * 100
        path.write_bytes(data)

    return prepare


def swap(name: str, way: str) -> Callable[[Case], None]:
    """A part of another run in place of its own."""

    def prepare(case: Case) -> None:
        other = case.kept.of(way) / "run"
        if name == "checkpoint":
            target = newest(case.run)
            shutil.rmtree(target)
            shutil.copytree(newest(other), target)
            if target.name != newest(other).name:
                facts = json.loads((target / "state.json").read_text())
                facts["iter"] = int(target.name)
                (target / "state.json").write_text(json.dumps(facts))
                _sign(target)
        else:
            (case.run / name).write_bytes((other / name).read_bytes())

    return prepare


def link(name: str, target: str) -> Callable[[Case], None]:
    def prepare(case: Case) -> None:
        path = case.run / name
        if (path.is_dir() and not path.is_symlink()) or path.exists():
            path.rename(case.here / "moved")
        path.symlink_to(target.replace("{here}", str(case.here)))

    return prepare


def call(*steps: Callable[[Case], Any]) -> Callable[[Case], None]:
    def prepare(case: Case) -> None:
        for step in steps:
            step(case)

    return prepare


def chmod(name: str, mode: int) -> Callable[[Case], None]:
    return lambda case: (case.run / name).chmod(mode)


def set_values(**values: Any) -> Callable[[Any], None]:
    return lambda facts: facts.update(values)


def drop(name: str) -> Callable[[Any], None]:
    return lambda facts: facts.pop(name) and None


def network(**values: Any) -> Callable[[Any], None]:
    return lambda facts: facts["network"].update(values)
