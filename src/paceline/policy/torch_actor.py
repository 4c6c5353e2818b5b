"""The actor for images: the torch module's acting half, on published weights."""

from __future__ import annotations

import torch

from ..rollout import Array
from .actor import make_head
from .actor_critic import Policy
from .flat import Layout
from .network import NetworkSpec


class TorchActor:
    """Acts like `NumpyActor`, for observations that need convolutions."""

    def __init__(self, spec: NetworkSpec) -> None:
        self.spec, self.head = spec, make_head(spec.act)
        self._policy = Policy(spec).requires_grad_(False)
        self._layout = Layout(self._policy)

    def load(self, weights: Array) -> None:
        self.head.load(weights[: self.head.extra])
        self._layout.bind(self._policy, torch.from_numpy(weights))

    @torch.inference_mode()
    def forward(self, obs: Array, out: Array) -> None:
        out[...] = self._policy(torch.from_numpy(obs)).numpy()
