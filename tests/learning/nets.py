"""Encoders of a user, for tests: each a plain torch module made from the observation space."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import nn


class Wide(nn.Module):
    """Dense layers on a Box, with a constant drawn when it is made."""

    def __init__(self, space):
        super().__init__()
        (size,) = space.shape
        self.layers = nn.Sequential(nn.Linear(size, 32), nn.LayerNorm(32), nn.ReLU())
        self.register_buffer("fixed", torch.randn(size, 8))

    def forward(self, obs):
        return torch.cat([self.layers(obs), (obs @ self.fixed).tanh()], -1)


class Sight(nn.Module):
    """An image through a convolution, and the rest of a Dict beside it."""

    def __init__(self, space):
        super().__init__()
        assert isinstance(space, spaces.Dict)
        channels = space["camera"].shape[-1]
        self.look = nn.Conv2d(channels, 4, 3, stride=2)
        self.dropout = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(()))
        self.cube = nn.Parameter(torch.zeros(2, 1, 3))

    def forward(self, obs):
        seen = self.look(obs["camera"].permute(0, 3, 1, 2).float() / 255).relu().flatten(1)
        return torch.cat([self.dropout(seen) * self.scale, obs["speed"] + self.cube.sum()], -1)


class OneLayer(nn.Module):
    def __init__(self, space):
        super().__init__()
        self.one = nn.Linear(space.shape[0], 4)

    def forward(self, obs):
        return self.one(obs)


class Normed(OneLayer):
    def __init__(self, space):
        super().__init__(space)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, obs):
        return self.norm(self.one(obs))


class Tied(OneLayer):
    def __init__(self, space):
        super().__init__(space)
        self.other = nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, obs):
        return self.other(self.one(obs))


class Halved(OneLayer):
    def __init__(self, space):
        super().__init__(space)
        self.one.half()

    def forward(self, obs):
        return self.one(obs.half())


class Wrong(OneLayer):
    def __init__(self, space):
        super().__init__(space)
        self.one = nn.Linear(7, 4)


class NotAModule:
    def __init__(self, space):
        pass


class InPlace(OneLayer):
    def forward(self, obs):
        return self.one(obs.mul_(0.5))


class Double(OneLayer):
    def forward(self, obs):
        return self.one(obs).double()


class Summed(OneLayer):
    def forward(self, obs):
        return self.one(obs).sum(0, keepdim=True)
