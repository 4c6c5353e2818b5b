"""Checkpoints: directories of safetensors and JSON, written whole or not at all.

Nothing here can execute what it loads. A manifest of sizes and SHA-256 sums tells a damaged
checkpoint from a whole one; the newest whole one is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes

from .errors import BadInput
from .rollout import Array

FILES = ("weights.safetensors", "state.safetensors", "state.json")
MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"
DAMAGED = ".damaged-"


@dataclass(frozen=True)
class Checkpoint:
    """`weights` by parameter name; `arrays` and `facts` are all else that a resume needs."""

    weights: dict[str, Array]
    arrays: dict[str, Array]
    facts: dict[str, Any]


class Damaged(Exception):
    """Says what is wrong with a checkpoint."""


def save(folder: Path, iteration: int, checkpoint: Checkpoint) -> Path:
    """Write `folder/<iteration>`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    target, temporary = folder / f"{iteration:08d}", folder / f"{TEMPORARY}{iteration:08d}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        contents = {
            FILES[0]: to_bytes(_contiguous(checkpoint.weights)),
            FILES[1]: to_bytes(_contiguous(checkpoint.arrays)),
            FILES[2]: json.dumps(checkpoint.facts, indent=1).encode(),
        }
        manifest = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in contents.items()
        }
        contents[MANIFEST] = json.dumps(manifest, indent=1).encode()
        for name, data in contents.items():
            write_synced(temporary / name, data)
        sync_directory(temporary)
        if target.exists():  # a damaged one that a resume went behind
            shutil.rmtree(target)
        temporary.rename(target)
        sync_directory(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def prune(folder: Path, keep: int) -> None:
    """Drop all but the last `keep` checkpoints and the best."""
    best = best_of(folder)
    for old in saved(folder)[:-keep]:
        if old != best:
            shutil.rmtree(old, ignore_errors=True)


def _contiguous(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.asarray(array, order="C") for name, array in arrays.items()}


def write_synced(path: Path, data: bytes) -> None:
    """Write and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        write_synced(temporary, data)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove what an interrupted write left behind."""
    for left in [*folder.glob(f"{TEMPORARY}*"), *folder.parent.glob(f"{TEMPORARY}*")]:
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def saved(folder: Path) -> list[Path]:
    """Checkpoints by iteration, oldest first, damaged ones included."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit())


def mark_best(checkpoint: Path) -> None:
    """Point `best` at a checkpoint, which is then kept."""
    link = checkpoint.with_name(f"{TEMPORARY}best")
    link.unlink(missing_ok=True)
    link.symlink_to(checkpoint.name)
    link.replace(checkpoint.with_name("best"))
    sync_directory(checkpoint.parent)


def best_of(folder: Path) -> Path | None:
    link = folder / "best"
    return folder / link.readlink().name if link.is_symlink() else None


def load(path: Path) -> Checkpoint:
    """A whole checkpoint, or `Damaged` with the cause."""
    try:
        manifest = json.loads(_read(path, MANIFEST))
        contents = {name: _verified(path, name, manifest[name]) for name in FILES}
        weights, arrays = from_bytes(contents[FILES[0]]), from_bytes(contents[FILES[1]])
        facts = json.loads(contents[FILES[2]])
    except (KeyError, TypeError, ValueError, RecursionError, SafetensorError) as error:
        raise Damaged(f"{path}: {MANIFEST} or what it names can't be read ({error})") from None
    return Checkpoint(weights, arrays, facts)


def _read(path: Path, name: str) -> bytes:
    file = path / name
    if file.is_symlink():
        raise Damaged(f"{file} is a link to somewhere else")
    try:
        return file.read_bytes()
    except OSError as error:
        raise Damaged(f"{file}: {error.strerror}") from None


def _verified(path: Path, name: str, expected: Mapping[str, Any]) -> bytes:
    data = _read(path, name)
    if len(data) != expected["bytes"]:
        raise Damaged(f"{path / name} has {len(data)} bytes instead of {expected['bytes']}")
    if hashlib.sha256(data).hexdigest() != expected["sha256"]:
        raise Damaged(f"{path / name} is not what was written (its SHA-256 differs)")
    return data


def set_aside(folder: Path, after: Path) -> None:
    """Rename the checkpoints behind `after`, which are damaged, so that they count no more."""
    for path in saved(folder):
        if path.name > after.name:
            aside = path.with_name(f"{DAMAGED}{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def newest(folder: Path) -> tuple[Path, Checkpoint, list[str]]:
    """The newest whole checkpoint, and a sentence about each damaged one that was passed over."""
    problems: list[str] = []
    for path in reversed(saved(folder)):
        try:
            return path, load(path), problems
        except Damaged as damage:
            problems.append(str(damage))
    listed = "".join(f"\n  {problem}" for problem in problems)
    raise BadInput(f"{folder} holds no checkpoint that can be used{listed or ' (it is empty)'}")
