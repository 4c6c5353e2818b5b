"""Checkpoints: directories of safetensors and JSON, written whole or not at all.

Nothing here can execute what it loads. A manifest of sizes and SHA-256 sums tells a damaged
checkpoint from a whole one; the newest whole one is used.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes

from ..errors import BadInput
from ..rollout import Array
from .files import TEMPORARY, read_plain, shown, strange, sync_directory, write_synced

FILES = ("weights.safetensors", "state.safetensors", "state.json")
MANIFEST = "manifest.json"
DAMAGED = ".damaged-"
MOST_JSON = 2**24
"""Bytes of the largest JSON file that is read."""


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
    link = folder / "best"
    best = link.readlink().name if link.is_symlink() else None
    for old in saved(folder)[:-keep]:
        if old.name != best:
            shutil.rmtree(old, ignore_errors=True)


def _contiguous(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.asarray(array, order="C") for name, array in arrays.items()}


def sweep(folder: Path) -> None:
    """Remove what an interrupted write left behind."""
    for left in [*folder.glob(f"{TEMPORARY}*"), *folder.parent.glob(f"{TEMPORARY}*")]:
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def saved(folder: Path) -> list[Path]:
    """Checkpoints by iteration, oldest first, damaged ones included."""
    found = [path for path in folder.glob("[0-9]*") if re.fullmatch("[0-9]{1,18}", path.name)]
    return sorted(found, key=lambda path: int(path.name))  # of 8 digits, or after 10^8 of more


def mark_best(checkpoint: Path) -> None:
    """Point `best` at a checkpoint, which is then kept."""
    link = checkpoint.with_name(f"{TEMPORARY}best")
    link.unlink(missing_ok=True)
    link.symlink_to(checkpoint.name)
    link.replace(checkpoint.with_name("best"))
    sync_directory(checkpoint.parent)


def load(path: Path) -> Checkpoint:
    """A whole checkpoint, or `Damaged` with the cause. Of links, only `best` may be one."""
    if path.name == "best" and path.is_symlink():
        target = path.readlink()
        if str(target) != target.name:
            raise Damaged(f"{shown(path)} is a link to somewhere else")
        path = path.with_name(target.name)
    manifest = _parsed(path, MANIFEST, _read(path, MANIFEST, MOST_JSON), json.loads)
    contents = {name: _verified(path, name, manifest) for name in FILES}
    return Checkpoint(
        weights=_parsed(path, FILES[0], contents[FILES[0]], from_bytes),
        arrays=_parsed(path, FILES[1], contents[FILES[1]], from_bytes),
        facts=_parsed(path, FILES[2], contents[FILES[2]], json.loads),
    )


def _parsed(path: Path, name: str, data: bytes, parse: Callable[[bytes], Any]) -> dict[str, Any]:
    try:
        found = parse(data)
    except Exception as error:  # a parser may trip over anything
        raise Damaged(f"{shown(path / name)} can't be read: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise Damaged(f"{shown(path / name)} can't be read: it holds no names and values")
    return found


def _read(path: Path, name: str, most: int | None = None) -> bytes:
    for part in (path, path / name):
        if cause := strange(part):
            raise Damaged(f"{shown(part)} {cause}")
    try:
        return read_plain(path / name, most)
    except (OSError, MemoryError) as error:
        raise Damaged(f"{shown(path / name)}: {getattr(error, 'strerror', 'too large')}") from None


def _verified(path: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    expected = manifest.get(name)
    if not isinstance(expected, dict):
        raise Damaged(f"{shown(path / MANIFEST)} does not speak of {name}")
    size, digest = expected.get("bytes"), expected.get("sha256")
    if not isinstance(size, int) or not isinstance(digest, str):
        raise Damaged(f"{shown(path / MANIFEST)} does not say what {name} should be")
    data = _read(path, name, MOST_JSON if name.endswith(".json") else size)
    if len(data) != size:
        raise Damaged(f"{shown(path / name)} has {len(data)} bytes instead of {str(size)[:20]}")
    if hashlib.sha256(data).hexdigest() != digest:
        raise Damaged(f"{shown(path / name)} is not what was written (its SHA-256 differs)")
    return data


def set_aside(folder: Path, after: Path) -> None:
    """Rename the checkpoints behind `after`, which are damaged, so that they count no more."""
    for path in saved(folder):
        if int(path.name) > int(after.name):
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
    raise BadInput(
        f"{shown(folder)} holds no checkpoint that can be used{listed or ' (it is empty)'}"
    )
