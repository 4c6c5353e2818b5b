"""Checkpoints: directories of safetensors and JSON, written whole or not at all.

Loading executes nothing. A manifest of sizes and SHA-256 sums tells a damaged checkpoint from an
intact one; a run continues from the newest intact one. A checkpoint of several ranks is that of one
process with all their columns.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes

from ..errors import BadInput
from .arrays import Arrays, under_prefix, with_prefix
from .files import TEMPORARY, irregular, read_plain, shown, sync_directory, write_synced

WEIGHTS, STATE, FACTS = FILES = ("weights.safetensors", "state.safetensors", "state.json")
MANIFEST = "manifest.json"
DAMAGED = ".damaged-"
MAX_JSON = 2**24
"""Bytes of a JSON file."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a resumed run needs."""

    weights: Arrays
    """the policy's, by parameter name"""
    arrays: Arrays
    """state of learner and samplers"""
    facts: dict[str, Any]
    """counters, configuration, description of the network: JSON"""


class Damaged(Exception):
    """A checkpoint is not as it was written; the message says which file, and why."""


# Writing ------------------------------------------------------------------------------------------


def save(folder: Path, iteration: int, checkpoint: Checkpoint) -> Path:
    """Write `folder/<iteration>`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    target, temporary = folder / f"{iteration:08d}", folder / f"{TEMPORARY}{iteration:08d}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        contents = {
            WEIGHTS: to_bytes(_contiguous(checkpoint.weights)),
            STATE: to_bytes(_contiguous(checkpoint.arrays)),
            FACTS: json.dumps(checkpoint.facts, indent=1).encode(),
        }
        manifest = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in contents.items()
        }
        contents[MANIFEST] = json.dumps(manifest, indent=1).encode()
        for name, data in contents.items():
            write_synced(temporary / name, data)
        sync_directory(temporary)
        if target.exists():  # a damaged one, older than where the run was resumed from
            shutil.rmtree(target)
        temporary.rename(target)
        sync_directory(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def _contiguous(arrays: Arrays) -> Arrays:
    return {name: np.asarray(array, order="C") for name, array in arrays.items()}


def mark_best(checkpoint: Path) -> None:
    """Point the link `best` to a checkpoint, which `prune` then keeps."""
    link = checkpoint.with_name(f"{TEMPORARY}best")
    link.unlink(missing_ok=True)
    link.symlink_to(checkpoint.name)
    link.replace(checkpoint.with_name("best"))
    sync_directory(checkpoint.parent)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the last `keep` checkpoints and the best."""
    link = folder / "best"
    best = link.readlink().name if link.is_symlink() else None
    for old in paths(folder)[:-keep]:
        if old.name != best:
            shutil.rmtree(old, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Remove what interrupted writes left in `folder` and in the run."""
    for left in [*folder.glob(f"{TEMPORARY}*"), *folder.parent.glob(f"{TEMPORARY}*")]:
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def set_aside(folder: Path, after: Path) -> None:
    """Rename the checkpoints after `after`, which are damaged, so that they are no longer found."""
    for path in paths(folder):
        if int(path.name) > int(after.name):
            aside = path.with_name(f"{DAMAGED}{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


# Reading ------------------------------------------------------------------------------------------


def paths(folder: Path) -> list[Path]:
    """All checkpoints, damaged ones included, oldest first."""
    found = [path for path in folder.glob("[0-9]*") if re.fullmatch("[0-9]{1,18}", path.name)]
    return sorted(found, key=lambda path: int(path.name))  # names have 8 digits or more


def load_newest(folder: Path) -> tuple[Path, Checkpoint, list[str]]:
    """The newest intact checkpoint, and what is wrong with each newer one."""
    problems: list[str] = []
    for path in reversed(paths(folder)):
        try:
            return path, load(path), problems
        except Damaged as damage:
            problems.append(str(damage))
    listed = "".join(f"\n  {problem}" for problem in problems)
    raise BadInput(f"{shown(folder)} holds no usable checkpoint{listed or ' (it is empty)'}")


def load(path: Path) -> Checkpoint:
    """An intact checkpoint, else `Damaged`. Only `best` may be a link, to its own folder."""
    if path.name == "best" and path.is_symlink():
        target = path.readlink()
        if str(target) != target.name:
            raise Damaged(f"{shown(path)} is a link to another directory")
        path = path.with_name(target.name)
    manifest = _parse(path / MANIFEST, _read(path / MANIFEST, MAX_JSON), json.loads)
    contents = {name: _read_verified(path, name, manifest) for name in FILES}
    return Checkpoint(
        weights=_parse(path / WEIGHTS, contents[WEIGHTS], from_bytes),
        arrays=_parse(path / STATE, contents[STATE], from_bytes),
        facts=_parse(path / FACTS, contents[FACTS], json.loads),
    )


def _parse(path: Path, data: bytes, parse: Callable[[bytes], Any]) -> dict[str, Any]:
    try:
        found = parse(data)
    except Exception as error:  # parsers raise all kinds of errors on malformed input
        raise Damaged(f"{shown(path)} can't be read: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise Damaged(f"{shown(path)} can't be read: it does not hold names and values")
    return found


def _read(path: Path, max_bytes: int) -> bytes:
    for part in (path.parent, path):
        if cause := irregular(part):
            raise Damaged(f"{shown(part)} {cause}")
    try:
        return read_plain(path, max_bytes)
    except (OSError, MemoryError) as error:
        raise Damaged(f"{shown(path)}: {getattr(error, 'strerror', 'too large')}") from None


def _read_verified(folder: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    path, expected = folder / name, manifest.get(name)
    expected = expected if isinstance(expected, dict) else {}
    size, digest = expected.get("bytes"), expected.get("sha256")
    if not isinstance(size, int) or not isinstance(digest, str):
        raise Damaged(f"{shown(folder / MANIFEST)} has no size and SHA-256 of {name}")
    data = _read(path, MAX_JSON if name.endswith(".json") else size)
    if len(data) != size:
        raise Damaged(f"{shown(path)} has {len(data)} bytes instead of {str(size)[:20]}")
    if hashlib.sha256(data).hexdigest() != digest:
        raise Damaged(f"{shown(path)} has changed since it was written (its SHA-256 differs)")
    return data


# The arrays of several ranks ----------------------------------------------------------------------


def rank_arrays(
    learner: Arrays, sampler: dict[str, Any], rank: int, per_column: Set[str]
) -> Arrays:
    """A rank's arrays for a checkpoint: those `per_column`, and from rank 0 the common ones too."""
    if rank:
        learner = {name: array for name, array in learner.items() if name in per_column}
    return with_prefix("learner.", learner) | with_prefix("sampler.", sampler)


def join_ranks(ranks: list[Arrays]) -> Arrays:
    """One set of arrays: columns concatenated, sampler blocks renumbered, in order of rank."""
    whole = {name: array for name, array in ranks[0].items() if not name.startswith("sampler.")}
    for name in ranks[-1] if len(ranks) > 1 else ():
        if name.startswith("learner."):
            whole[name] = np.concatenate([each[name] for each in ranks])
    for rank, each in enumerate(ranks):
        blocks = under_prefix("sampler.", each)
        for name, array in blocks.items():
            number, _, rest = name.partition(".")
            whole[f"sampler.{rank * _block_count(blocks) + int(number)}.{rest}"] = array
    return whole


def split_rank(whole: Arrays, rank: int, size: int, per_column: Set[str]) -> tuple[Arrays, Arrays]:
    """The state of a rank's learner and of its sampler: the inverse of `join_ranks`."""
    learner, blocks = under_prefix("learner.", whole), under_prefix("sampler.", whole)
    if size == 1:
        return learner, blocks
    for name in per_column & learner.keys():
        learner[name] = np.split(learner[name], size)[rank]
    each = max(1, _block_count(blocks) // size)
    own = {}
    for name, array in blocks.items():
        number, _, rest = name.partition(".")
        if int(number) // each == rank:
            own[f"{int(number) - rank * each}.{rest}"] = array
    return learner, own


def _block_count(blocks: dict[str, Any]) -> int:
    return len({name.partition(".")[0] for name in blocks})
