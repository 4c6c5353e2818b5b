"""The actor for images and users' encoders: the module's acting half, on published weights."""

from __future__ import annotations

import torch

from ..rollout import Array
from .actor_critic import Policy, prepared
from .flat import Layout
from .heads import make_head
from .network import NetworkSpec


class TorchActor:
    """Acts like `NumpyActor`, for observations that need more than dense layers."""

    def __init__(self, spec: NetworkSpec) -> None:
        self.spec, self.head = spec, make_head(spec)
        self._policy = Policy(spec).requires_grad_(False)
        self._layout = Layout(self._policy)

    def load(self, weights: Array) -> None:
        at = self.spec.normalizer_size
        self._normalizer = torch.from_numpy(weights[:at]).chunk(2) if at else None
        self.head.load(weights[at : at + self.head.extra])
        self._layout.bind(self._policy, torch.from_numpy(weights[at:]))

    @torch.inference_mode()
    def forward(self, obs: Array, out: Array) -> None:
        parts = {name: torch.from_numpy(part) for name, part in self.spec.obs.split(obs).items()}
        out[...] = self._policy(prepared(self.spec, parts, self._normalizer)).numpy()
