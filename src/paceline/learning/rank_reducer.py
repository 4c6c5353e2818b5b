"""Sums and moments over all ranks."""

from __future__ import annotations

import time

import numpy as np
import torch

from ..distributed import Sync
from ..rollout import Array


class RankReducer:
    """Sums over ranks, and the time spent in them."""

    def __init__(self, sync: Sync) -> None:
        self._sync = sync
        self.seconds = 0.0
        """spent waiting for other ranks, in total"""

    def sum(self, buffer: torch.Tensor) -> None:
        """Replace `buffer` by its sum over all ranks."""
        began = time.perf_counter()
        self._sync.sum(buffer)
        self.seconds += time.perf_counter() - began

    def moments(self, rows: Array) -> tuple[Array, Array, float]:
        """Rows [n, d] → mean [d] and variance [d] over all ranks, and the number of rows."""
        width = rows.shape[1]
        sums = np.empty(width + 1)
        sums[:width], sums[width] = rows.sum(0, dtype=np.float64), len(rows)
        self.sum(torch.from_numpy(sums))
        count = max(float(sums[width]), 1.0)
        mean = sums[:width] / count
        squares = np.square(rows - mean).sum(0, dtype=np.float64)
        self.sum(torch.from_numpy(squares))
        return mean, squares / count, float(sums[width])
