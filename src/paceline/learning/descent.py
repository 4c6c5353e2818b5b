"""Gradient descent on a batch: epochs of shuffled minibatches, with an early stop.

T = steps, B = columns; K·B segments of L steps, N of them in a minibatch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..distributed import Sync
from ..rollout import Array, Rollout
from .algorithms import Algorithm
from .batch import Rows
from .prepare import Batch, rows_tensor
from .rank_reducer import RankReducer
from .step import Step

if TYPE_CHECKING:
    from .learner import LearnerConfig


class Descent:
    """Takes the steps of an update; `shares_weights` if other processes use the same (Hogwild)."""

    def __init__(
        self,
        step: Step,
        algorithm: Algorithm,
        config: LearnerConfig,
        sync: Sync,
        ranks: RankReducer,
        shares_weights: bool,
    ) -> None:
        self.step, self._config, self._ranks = step, config, ranks
        self._stop_above, self._shares_weights = algorithm.stop_above, shares_weights
        self._first_block = sync.rank * config.blocks
        self._fused = sync.size == 1 and not shares_weights and not algorithm.stop_above
        """whether nothing happens between a gradient and its application"""

    def run(
        self, batch: Batch, rollout: Rollout, iteration: int, progress_remaining: float, lr: float
    ) -> list[float]:
        """All epochs; returns the means of the step's metrics over all steps taken."""
        step, rows, prediction = self.step, batch.rows, batch.prediction
        size = len(rows.weight) // self._config.minibatches
        scheduled = step.scheduled(progress_remaining)
        total, steps = torch.zeros(len(step.names), device=rows.weight.device), 0
        for epoch in range(self._config.epochs):
            for minibatch in self.shuffled(rows, rollout, iteration, epoch).split(size):
                if batch.observations.frames and prediction is None:
                    minibatch = batch.with_images(minibatch)
                if self._fused:
                    total += step.fused(minibatch, scheduled, lr, prediction)
                else:
                    self._ranks.sum(step.gradient(minibatch, scheduled, prediction))
                    if self._stop_early():
                        return (total / max(steps, 1)).tolist()
                    if self._shares_weights and not step.buffer.isfinite().all():
                        return [math.nan] * len(total)  # keeps the shared weights finite
                    total += step.apply(lr)
                steps += 1
        return (total / steps).tolist()

    def compile(self, batch: Batch, rollout: Rollout) -> None:
        """Compile the step for minibatches of such a batch; changes no weights."""
        rows = self.shuffled(batch.rows, rollout, 0, 0)
        minibatch = next(rows.split(len(rows.weight) // self._config.minibatches))
        self.step.compile(batch.with_images(minibatch), self._fused)

    def _stop_early(self) -> bool:
        """Whether a metric of the minibatch is above its limit, as in PPO's KL stop."""
        return any(self.step.metric_mean(name) > limit for name, limit in self._stop_above.items())

    def shuffled(self, rows: Rows, rollout: Rollout, iteration: int, epoch: int) -> Rows:
        """Rows in the order of an epoch's minibatches; of a policy with memory by segments."""
        config, length = self._config, rollout.segment or 1
        if config.minibatches == 1 and length == 1:
            return rows
        order = permutation(
            config.seed,
            iteration,
            epoch,
            rollout.steps // length,
            rollout.columns,
            config.blocks,
            config.minibatches,
            self._first_block,
        )
        index = segment_rows(order, rollout.columns, length, config.minibatches)
        device = rows.weight.device
        return rows.take(rows_tensor(index, device), rows_tensor(order, device))


def segment_rows(segments: Array, columns: int, length: int, parts: int) -> Array:
    """Rows of the segments [K·B] of `parts` equal minibatches; those of each are [L, N] flat."""
    if length == 1:
        return segments
    number, column = np.divmod(segments.reshape(parts, 1, -1), columns)
    return ((number * length + np.arange(length)[:, None]) * columns + column).ravel()


def permutation(
    seed: int,
    iteration: int,
    epoch: int,
    steps: int,
    columns: int,
    blocks: int,
    parts: int,
    first_block: int = 0,
) -> Array:
    """A shuffled order of all rows [T·B], or segments [K·B], for `parts` equal minibatches.

    Each of `blocks` equal groups of columns is shuffled by a generator keyed by its number, and
    contributes equally to every minibatch. So one process with W blocks learns from the same
    minibatches as W ranks with one block each, where rank w has `first_block` w.
    """
    width = columns // blocks
    pieces = []
    for block in range(blocks):
        order = np.random.default_rng([seed, iteration, epoch, first_block + block]).permutation(
            steps * width
        )
        row, column = np.divmod(order, width)
        pieces.append((row * columns + block * width + column).reshape(parts, -1))
    return np.concatenate(pieces, axis=1).ravel()
