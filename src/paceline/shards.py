"""One checkpoint for all ranks: each knows the state of its own columns, and takes it up again."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from .arrays import part, prefixed
from .rollout import Array

Arrays = dict[str, Array]


def own(learner: Arrays, sampler: dict[str, Any], rank: int, per_column: Set[str]) -> Arrays:
    """What a rank has to contribute; what is the same everywhere comes from rank 0.

    Of the learner's state only arrays `per_column`, over a rank's own columns, differ.
    """
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
    learner = part("learner.", whole)
    if size == 1:
        return learner, part("sampler.", whole)
    for name in per_column & learner.keys():
        learner[name] = np.split(learner[name], size)[rank]
    blocks = part("sampler.", whole)
    each = max(1, _count(blocks) // size)
    own = {}
    for name, array in blocks.items():
        number, _, rest = name.partition(".")
        if int(number) // each == rank:
            own[f"{int(number) - rank * each}.{rest}"] = array
    return learner, own


def _count(blocks: dict[str, Any]) -> int:
    return len({name.partition(".")[0] for name in blocks})
