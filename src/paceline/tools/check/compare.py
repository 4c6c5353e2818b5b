"""Whether two observations are the same, to the bit; and short words for what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...config.text import printable

LONGEST = 70
SINGLE = (bool, int, float, complex, str, bytes, type(None), np.generic)


def alike(one: Any, other: Any) -> bool:
    """Same structure, shapes, types and bits; so NaN is like NaN."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if type(one) is not type(other) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.dtype.hasobject:
            return all(alike(*pair) for pair in zip(one.flat, other.flat, strict=True))
        return one.tobytes() == other.tobytes()
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(alike(*pair) for pair in pairs)
    if isinstance(one, SINGLE) and isinstance(other, SINGLE):
        return bool(one == other) or (one != one and other != other)
    try:
        return np.asarray(one).tobytes() == np.asarray(other).tobytes()
    except Exception:  # what can't be compared is given the benefit of the doubt
        return True


def brief(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, np.ndarray) and value.size > 6:
        flat = value.ravel()
        shown = ", ".join(f"{number:.4g}" for number in flat[:4].astype(float))
        return f"[{shown}, …] of shape {value.shape}"
    if isinstance(value, np.ndarray) and value.dtype.kind in "iufb":
        return f"[{', '.join(f'{number:.6g}' for number in value.ravel().astype(float))}]"
    if isinstance(value, np.generic):
        value = value.item()
    text = printable(f"{value:.6g}" if isinstance(value, float) else repr(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def flat_numbers(value: Any) -> np.ndarray[Any, Any]:
    """All numbers of an observation, in a row."""
    if isinstance(value, Mapping):
        parts = [flat_numbers(value[key]) for key in sorted(value, key=str)]
    elif isinstance(value, (tuple, list)):
        parts = [flat_numbers(part) for part in value]
    else:
        array = np.asarray(value)
        return array.ravel().astype(float) if array.dtype.kind in "biuf" else np.empty(0)
    return np.concatenate([np.empty(0), *parts])
