"""The random generators that all of a process shares, and who has drawn from them."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

NAMES = {
    "random": "Python's random",
    "numpy": "numpy's np.random",
    "torch": "torch's global generator",
}


def states() -> dict[str, Any]:
    """What would differ if one of them had been used or seeded."""
    seen: dict[str, Any] = {"random": random.getstate()}
    legacy: Any = np.random.get_state(legacy=False)
    seen["numpy"] = (legacy["state"]["key"].tobytes(), legacy["state"]["pos"], legacy["gauss"])
    if torch := sys.modules.get("torch"):
        seen["torch"] = torch.get_rng_state().numpy().tobytes()
    return seen


def touched(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of those that have changed."""
    return [NAMES[name] for name in before if before[name] != after[name]]
