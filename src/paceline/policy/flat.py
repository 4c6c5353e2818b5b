"""All weights in one tensor: [normalizer | policy | value | other loss terms].

One buffer serves clipping, the optimizer, publishing and the checkpoint. Dense weights are stored
as [in, out], which the numpy actor reads in place, convolutions channels-last.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .actor_critic import ActorCritic
from .network import flat_axes


class ParameterLayout:
    """Where each parameter of a module lies in a flat tensor."""

    def __init__(self, module: nn.Module) -> None:
        self.shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        self.sizes = [p.numel() for p in module.parameters()]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views of `flat`."""
        views = {}
        pieces = torch.split(flat, self.sizes)
        for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True):
            order = flat_axes(len(shape))
            back = [order.index(axis) for axis in range(len(order))]
            views[name] = piece.view([shape[axis] for axis in order]).permute(back)
        return views

    def bind(self, module: nn.Module, flat: Tensor) -> None:
        """Make the module's parameters views of `flat`; its content stays."""
        views = self.views(flat)
        for name, parameter in module.named_parameters():
            parameter.data = views[name]


class FlatParameters:
    """Moves the parameters of an actor-critic into one tensor, of which they become views.

    `whole`, if given, is a module with the actor-critic first and other loss terms after it.
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
        """what actors need"""
        self.weights = self.storage[normalizer:]
        """the trainable part"""
        for name, view in self.layout.views(self.weights).items():
            view.copy_(whole.get_parameter(name).detach())
        self.layout.bind(whole, self.weights)
        if normalizer:
            mean, scale = self.storage[:normalizer].chunk(2)
            module.obs_mean = mean.copy_(module.obs_mean)
            module.obs_scale = scale.copy_(module.obs_scale)
