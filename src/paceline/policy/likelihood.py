"""What actions are worth under a distribution: log-probability [R] and entropy [R]. Torch.

The learner's counterpart of `heads`. R = rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .heads import spread
from .network import FORBIDDEN, LOG_SQRT_2PI, LOG_STD_RANGE, NetworkSpec


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Over the last axis."""
    log_probs = logits.log_softmax(-1)
    logp = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return logp, -(log_probs.exp() * log_probs).sum(-1)


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """`log_std` is one for all rows, or one for each."""
    z = (action - mean) * (-log_std).exp()
    logp = (-0.5 * z * z - log_std).sum(-1) - action.shape[-1] * LOG_SQRT_2PI
    entropy = (log_std + (0.5 + LOG_SQRT_2PI)).sum(-1)
    return logp, entropy.expand(logp.shape)


class Likelihood(nn.Module):
    """Log-probability and entropy for a network's actions; has no parameters."""

    _index: Tensor | None

    def __init__(self, network: NetworkSpec) -> None:
        super().__init__()
        act = network.act
        self._kind = "state" if network.state_dependent_std and act.kind == "box" else act.kind
        self._shape = (len(act.sizes), max(act.sizes, default=0))
        index = spread(act.sizes) if act.kind == "multi" else None
        table = None if index is None else torch.from_numpy(index)
        self.register_buffer("_index", table, persistent=False)

    def forward(
        self, parameters: Tensor, action: Tensor, log_std: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if self._kind == "discrete":
            return categorical(parameters, action)
        if self._kind == "multi":
            if self._index is not None:
                low = parameters.new_full((len(parameters), 1), FORBIDDEN)
                parameters = torch.cat([parameters, low], -1).index_select(-1, self._index)
            logp, entropy = categorical(parameters.reshape(-1, *self._shape), action)
            return logp.sum(-1), entropy.sum(-1)
        if self._kind == "state":
            parameters, log_std = parameters.chunk(2, -1)
            log_std = log_std.clamp(*LOG_STD_RANGE)
        assert log_std is not None
        return gaussian(parameters, log_std, action)
