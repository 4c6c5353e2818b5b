"""From a rollout to the rows of a batch: predictions, reward signals, rows, metrics.

T = steps, B = columns, R = T·B rows, H = value heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..policy.actor_critic import ActorCritic, RecurrentInputs
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

    def with_images(self, rows: Rows) -> Rows:
        """Rows with images in place of frame indices."""
        gather = self.observations.gather_images
        next_inputs = gather(rows.next_inputs) if rows.next_inputs else ()
        return replace(rows, inputs=gather(rows.inputs), next_inputs=next_inputs)


def rows_tensor(array: Array, device: torch.device) -> torch.Tensor:
    """[T, B, ...] of a rollout as rows [R, ...] on the device."""
    flat = array.reshape(-1, *array.shape[2:]) if array.ndim > 1 else array
    return torch.from_numpy(flat).to(device)


@dataclass(frozen=True)
class RolloutPrediction:
    """What the learner's weights predict of a whole rollout."""

    value: torch.Tensor
    """[(T+1)·B, H]"""
    log_ratio: Array
    """[T, B] log π − log μ, 0 where not valid; a scalar 0 if not needed"""
    rows: Prediction | None = None
    """of all R rows, with its graph, if asked for"""


def predict_rollout(
    module: ActorCritic,
    rollout: Rollout,
    observations: RolloutObservations,
    inputs: Inputs,
    needs_log_ratio: bool,
    chunk: int,
    keep_graph: bool,
) -> RolloutPrediction:
    """Values of all observations; log-ratios of all actions too, if needed.

    Images are gathered for `chunk` rows at a time. Values that the actor computed are used as they
    are, unless log-ratios are needed, which take a forward pass anyway.
    """
    device, images = inputs[0].device, observations.gather_images
    no_ratio = np.zeros((), np.float32)
    if rollout.value.size and not needs_log_ratio:
        value = torch.from_numpy(rollout.value).to(device).flatten(0, 1)
        return RolloutPrediction(value, no_ratio)
    if not needs_log_ratio:
        with torch.no_grad():
            values = [module.value(images(piece)) for piece in _chunks(inputs, chunk)]
        return RolloutPrediction(torch.cat(values), no_ratio)

    count = rollout.steps * rollout.columns
    acting = tuple(part[:count] for part in inputs)
    last = tuple(part[count:] for part in inputs)
    action = rows_tensor(rollout.action, device)
    values, logps, prediction = [], [], None
    with torch.no_grad():
        if rollout.segment:  # with a memory: each column as one sequence from its first step
            memory = _whole_rollout(rollout, rollout.steps + 1, device)
            values.append(module.value(images(inputs), memory))
            memory = _whole_rollout(rollout, rollout.steps, device)
            logps.append(module.predict(images(acting), action, memory).logp)
        else:
            for *piece, taken in _chunks((*acting, action), chunk):
                with torch.set_grad_enabled(keep_graph):
                    prediction = module.predict(images(tuple(piece)), taken)
                values.append(prediction.value.detach())
                logps.append(prediction.logp.detach())
            values.append(module.value(images(last)))
    logp = torch.cat(logps).numpy(force=True).reshape(rollout.reward.shape)
    log_ratio = np.where(rollout.valid, logp - rollout.logp, np.float32(0.0))
    return RolloutPrediction(torch.cat(values), log_ratio, prediction if keep_graph else None)


def _whole_rollout(rollout: Rollout, steps: int, device: torch.device) -> RecurrentInputs:
    """Memory inputs of the first `steps` observations, as one segment per column."""
    first = torch.from_numpy(rollout.first[:steps]).to(device)
    return RecurrentInputs(first, torch.from_numpy(rollout.state[0]).to(device))


def _chunks(parts: tuple[torch.Tensor, ...], size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Rows of several tensors, `size` at a time."""
    return zip(*(part.split(size) for part in parts), strict=True)  # type: ignore[no-untyped-call]


def batch_rows(
    rollout: Rollout,
    inputs: Inputs,
    targets: Targets,
    value: torch.Tensor,
    terms: Sequence[LossTerm],
) -> Rows:
    """All R rows; `terms` are the loss terms besides the algorithm's."""
    device = inputs[0].device
    count, memory = rollout.steps * rollout.columns, bool(rollout.segment)
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
        first=rows_tensor(rollout.first[:-1], device) if memory else None,
        carry=rows_tensor(rollout.state[:-1], device) if memory else None,
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
