"""Plain data as bytes, for ranks to send each other. Reading it executes nothing; pickle would."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from safetensors.numpy import load, save

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
