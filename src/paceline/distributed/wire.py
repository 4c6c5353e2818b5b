"""Plain data that ranks send each other, as bytes. Reading it executes nothing; pickle would."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load, save
from torch import Tensor

ARRAY = "__array__"
"""Key of a mapping that stands for an array."""
LENGTH = struct.Struct("<Q")


def encode(item: Any) -> bytes:
    """Numbers, text, None, numpy arrays, and lists and mappings of them; tuples become lists."""
    arrays: dict[str, Any] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            name = str(len(arrays))
            arrays[name] = np.asarray(value, order="C")
            return {ARRAY: name}
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{type(value).__name__} is not plain data")

    text = json.dumps(item, default=plain).encode()
    return LENGTH.pack(len(text)) + text + (save(arrays) if arrays else b"")


def decode(data: bytes) -> Any:
    """What `encode` was given."""
    end = LENGTH.size + LENGTH.unpack_from(data)[0]
    arrays = load(data[end:]) if len(data) > end else {}
    return json.loads(
        data[LENGTH.size : end],
        object_hook=lambda found: arrays[found[ARRAY]] if ARRAY in found else found,
    )


def gather(add_up: Callable[[Tensor], None], rank: int, size: int, item: Any) -> list[Any]:
    """Every rank's item, in the order of ranks; `add_up` replaces a tensor by its sum over them.

    They are added up in one buffer, in which each rank has a place of its own.
    """
    mine = np.frombuffer(encode(item), np.uint8)
    sizes = np.zeros(size, np.int64)
    sizes[rank] = len(mine)
    add_up(torch.from_numpy(sizes))
    bounds = [0, *sizes.cumsum().tolist()]
    buffer = np.zeros(bounds[-1], np.uint8)
    buffer[bounds[rank] : bounds[rank + 1]] = mine
    add_up(torch.from_numpy(buffer))
    return [decode(buffer[begin:end].tobytes()) for begin, end in pairwise(bounds)]
