"""Named arrays: what states are made of, and how those of all ranks become one checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from ..rollout import Array

Arrays = dict[str, Array]


def prefixed(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The same under longer names."""
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def part(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What `prefixed` put there."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def fitting(arrays: Mapping[str, Array], template: Mapping[str, Array]) -> None:
    """`ValueError` unless each array of `template` is there, alike in shape and type, finite."""
    for name, like in template.items():
        found = arrays.get(name)
        if found is None:
            raise ValueError(f"there is no {name}")
        if found.shape != like.shape or found.dtype != like.dtype:
            raise ValueError(
                f"{name} is {found.dtype} {found.shape}, not {like.dtype} {like.shape}"
            )
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise ValueError(f"{name} is not finite")


def own(learner: Arrays, sampler: dict[str, Any], rank: int, per_column: Set[str]) -> Arrays:
    """What a rank adds to a checkpoint: arrays `per_column`, and from rank 0 all the others too."""
    if rank:
        learner = {name: array for name, array in learner.items() if name in per_column}
    return prefixed("learner.", learner) | prefixed("sampler.", sampler)


def joined(parts: list[Arrays]) -> Arrays:
    """A checkpoint's arrays: as if one process had had the blocks of all ranks, in order."""
    whole = {name: array for name, array in parts[0].items() if not name.startswith("sampler.")}
    for name in parts[-1] if len(parts) > 1 else ():
        if name.startswith("learner."):
            whole[name] = np.concatenate([each[name] for each in parts])
    for rank, each in enumerate(parts):
        blocks = part("sampler.", each)
        for name, array in blocks.items():
            number, _, rest = name.partition(".")
            whole[f"sampler.{rank * _count(blocks) + int(number)}.{rest}"] = array
    return whole


def taken(whole: Arrays, rank: int, size: int, per_column: Set[str]) -> tuple[Arrays, Arrays]:
    """From a checkpoint's arrays, the state of a rank's learner and of its sampler."""
    learner, blocks = part("learner.", whole), part("sampler.", whole)
    if size == 1:
        return learner, blocks
    for name in per_column & learner.keys():
        learner[name] = np.split(learner[name], size)[rank]
    each = max(1, _count(blocks) // size)
    own = {}
    for name, array in blocks.items():
        number, _, rest = name.partition(".")
        if int(number) // each == rank:
            own[f"{int(number) - rank * each}.{rest}"] = array
    return learner, own


def _count(blocks: dict[str, Any]) -> int:
    return len({name.partition(".")[0] for name in blocks})
