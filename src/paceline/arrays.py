"""Named arrays: what states are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .rollout import Array


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
