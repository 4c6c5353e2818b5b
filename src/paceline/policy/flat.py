"""All that is learnt in one tensor: [normalizer | acting weights | value weights | other losses'].

One buffer then serves clipping, the optimiser, publishing and the checkpoint. Dense weights lie as
[in, out], which the numpy actor reads in place; convolutions lie channels-last.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .actor_critic import ActorCritic
from .network import stored_as


class ParameterLayout:
    """Where each parameter of a module lies in a flat tensor."""

    def __init__(self, module: nn.Module) -> None:
        self.shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        self.sizes = [p.numel() for p in module.parameters()]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The named parameters as views of `flat`."""
        views = {}
        pieces = torch.split(flat, self.sizes)
        for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True):
            order = stored_as(len(shape))
            back = [order.index(axis) for axis in range(len(order))]
            views[name] = piece.view([shape[axis] for axis in order]).permute(back)
        return views

    def bind(self, module: nn.Module, flat: Tensor) -> None:
        """Make the module's parameters views of `flat`, whatever it holds."""
        views = self.views(flat)
        for name, parameter in module.named_parameters():
            parameter.data = views[name]


class FlatParameters:
    """Moves an actor-critic's numbers into one tensor; the module's own become views of it.

    `whole` holds the actor-critic in front of what other losses train.
    """

    def __init__(
        self, module: ActorCritic, device: torch.device, whole: nn.Module | None = None
    ) -> None:
        whole = whole or module
        self.layout = ParameterLayout(whole)
        acts = module if module.spec.acts_with_value else module.policy
        acting = sum(parameter.numel() for parameter in acts.parameters())
        normalizer = module.spec.normalizer_size
        self.storage = torch.zeros(normalizer + sum(self.layout.sizes), device=device)
        self.published = self.storage[: normalizer + acting]
        self.weights = self.storage[normalizer:]
        """the trainable part"""
        for name, view in self.layout.views(self.weights).items():
            view.copy_(whole.get_parameter(name).detach())
        self.layout.bind(whole, self.weights)
        if normalizer:
            mean, scale = self.storage[:normalizer].chunk(2)
            module.obs_mean = mean.copy_(module.obs_mean)
            module.obs_scale = scale.copy_(module.obs_scale)
