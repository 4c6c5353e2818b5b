"""Named arrays, of which states and checkpoints are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..rollout import Array

Arrays = dict[str, Array]


def with_prefix(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def under_prefix(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays whose names begin with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def check_like(arrays: Mapping[str, Array], template: Mapping[str, Array]) -> None:
    """`ValueError` unless `arrays` has each of `template`, finite and of its shape and dtype."""
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
