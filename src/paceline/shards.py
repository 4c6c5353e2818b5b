"""One checkpoint for all ranks: each knows the state of its own columns, and takes it up again."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import part, prefixed
from .rollout import Array

RUNNING = "learner.return.running"
"""Of the learner's state, what differs from rank to rank: an array over its columns."""
Arrays = dict[str, Array]


def own(learner: Arrays, sampler: dict[str, Any], rank: int) -> Arrays:
    """What a rank has to contribute; what is the same everywhere comes from rank 0."""
    found = prefixed("learner.", learner)
    if rank:
        found = {name: found[name] for name in found if name == RUNNING}
    return found | prefixed("sampler.", sampler)


def joined(parts: list[Arrays]) -> Arrays:
    """A checkpoint's arrays: as if one process had had the blocks of all ranks, in order."""
    whole = {name: array for name, array in parts[0].items() if not name.startswith("sampler.")}
    if RUNNING in whole:
        whole[RUNNING] = np.concatenate([each[RUNNING] for each in parts])
    for rank, each in enumerate(parts):
        blocks = part("sampler.", each)
        for name, array in blocks.items():
            number, _, rest = name.partition(".")
            whole[f"sampler.{rank * _count(blocks) + int(number)}.{rest}"] = array
    return whole


def taken(whole: Arrays, rank: int, size: int) -> tuple[Arrays, Arrays]:
    """From a checkpoint's arrays, the state of a rank's learner and of its sampler."""
    if size == 1:
        return part("learner.", whole), part("sampler.", whole)
    learner = dict(whole)
    if RUNNING in whole:
        learner[RUNNING] = np.split(whole[RUNNING], size)[rank]
    blocks = part("sampler.", whole)
    each = max(1, _count(blocks) // size)
    own = {}
    for name, array in blocks.items():
        number, _, rest = name.partition(".")
        if int(number) // each == rank:
            own[f"{int(number) - rank * each}.{rest}"] = array
    return part("learner.", learner), own


def _count(blocks: dict[str, Any]) -> int:
    return len({name.partition(".")[0] for name in blocks})
