"""From a rollout to the rows of a batch, and its metrics.

T = steps, B = columns, R = T·B rows, H = value heads; K segments, S = floats of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..policy.network import Inputs, Prediction
from ..rollout import Array, Rollout
from .batch import Rows, Targets
from .bonus import Metrics
from .observations import RolloutObservations
from .rank_reducer import RankReducer
from .step import LossTerm


@dataclass(frozen=True)
class Batch:
    """All rows of a rollout, ready for minibatches."""

    rows: Rows
    observations: RolloutObservations
    prediction: Prediction | None
    """of all rows, with its graph, if the only minibatch can reuse it"""
    metrics: Metrics
    critic_carry: Array | None = None
    """[columns, S] of the critic's own memory, for the next rollout"""

    def with_images(self, rows: Rows) -> Rows:
        """Rows with images in place of frame indices."""
        gather = self.observations.gather_images
        next_inputs = gather(rows.next_inputs) if rows.next_inputs else ()
        return replace(rows, inputs=gather(rows.inputs), next_inputs=next_inputs)


def rows_tensor(array: Array, device: torch.device) -> torch.Tensor:
    """[T, B, ...] of a rollout as rows [R, ...] on the device."""
    flat = array.reshape(-1, *array.shape[2:]) if array.ndim > 1 else array
    return torch.from_numpy(flat).to(device)


def batch_rows(
    rollout: Rollout,
    inputs: Inputs,
    targets: Targets,
    value: torch.Tensor,
    terms: Sequence[LossTerm],
    states: Array | None = None,
) -> Rows:
    """All R rows; `terms` are the loss terms besides the algorithm's, and `states[K+1, B, S]` what
    memories held between segments."""
    device = inputs[0].device
    count = rollout.steps * rollout.columns
    needs_next = any(term.needs_next for term in terms)
    extra: dict[str, Array] = {}
    for term in terms:
        extra |= term.rows(rollout)
    return Rows(
        inputs=tuple(part[:count] for part in inputs),
        action=rows_tensor(rollout.action, device),
        logp=rows_tensor(rollout.logp, device),
        advantage=rows_tensor(targets.advantage, device),
        returns=rows_tensor(targets.returns, device),
        value=value[:count],
        weight=rows_tensor(rollout.valid.astype(np.float32), device),
        next_inputs=tuple(part[rollout.columns :] for part in inputs) if needs_next else (),
        extra={name: rows_tensor(array, device) for name, array in extra.items()},
        first=None if states is None else rows_tensor(rollout.first[:-1], device),
        carry=None if states is None else rows_tensor(states[:-1], device),
        carry_after=None if states is None else rows_tensor(states[1:], device),
    )


def overwrite_invalid(rows: Rows, valid: Array) -> Rows:
    """Invalid rows become copies of a valid one, with weight 0.

    Their own content may be too large: infinity times 0 is NaN.
    """
    if valid.all():
        return rows
    index = torch.from_numpy(np.where(valid, np.arange(len(valid)), valid.argmax()))
    taken = rows.take(index.to(rows.weight.device))
    return replace(taken, weight=rows.weight, first=rows.first)


def rollout_metrics(
    valid: Array, value: Array, returns: Array, log_ratio: Array | None, ranks: RankReducer
) -> Metrics:
    """1 − Var(R − V)/Var(R) of the environment's returns; and with `log_ratio` the mean of the
    importance weight min(π/μ, 1). Over all ranks."""
    truth = returns[..., 0][valid].astype(np.float64)
    error = truth - value[..., 0][valid]
    rho = 0.0 if log_ratio is None else np.exp(np.minimum(log_ratio, 0.0))[valid].sum()
    sums = np.array(
        [truth.size, truth.sum(), truth @ truth, error.sum(), error @ error, rho, valid.sum()]
    )
    ranks.sum(torch.from_numpy(sums))
    count, *totals, rho, rows = sums.tolist()
    mean, square, error_mean, error_square = (total / max(count, 1.0) for total in totals)
    variance = square - mean * mean
    metrics = {"explained_variance": 0.0}
    if variance > 1e-12 * square:  # else the returns are constant
        error_variance = error_square - error_mean * error_mean
        metrics["explained_variance"] = 1.0 - error_variance / variance
    if log_ratio is not None:
        metrics["rho_mean"] = rho / rows if rows else 1.0
    return metrics
