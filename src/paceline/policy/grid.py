"""The encoder of symbolic grids, as MiniGrid shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ..errors import BadInput

CELL = (11, 6, 4)
"""Kinds of objects, colours and states that a cell may have."""
HIDDEN, FEATURES = 128, 64


class Grid(nn.Module):
    """Cells one-hot, beside the other parts of the observation, through two dense layers.

    A kind of object is a name, not a quantity: a key (5) is no nearer to a ball (6) than to a
    door (4). Dense layers on the numbers have to find that out.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        if not any(_is_grid(part) for part in _spaces(space)):
            raise BadInput(
                f"encoder 'grid' reads cells of (object, colour, state), a Box of shape (rows, "
                f"columns, {len(CELL)}), and this observation has none: {str(space)[:100]}"
            )
        size = 0
        for part in _spaces(space):
            values = gym.spaces.flatdim(part)
            size += values // len(CELL) * sum(CELL) if _is_grid(part) else values
        self.layers = nn.Sequential(
            nn.Linear(size, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, FEATURES), nn.ReLU()
        )

    def forward(self, observation: Any) -> Tensor:
        return self.layers(torch.cat([_flat(part) for part in _parts(observation)], -1))


def _is_grid(space: gym.Space[Any]) -> bool:
    shape = space.shape or ()
    return len(shape) == 3 and shape[-1] == len(CELL) and space.dtype != np.uint8  # an image


def _spaces(space: gym.Space[Any]) -> Iterator[gym.Space[Any]]:
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        for part in space.values() if isinstance(space, gym.spaces.Dict) else space:
            yield from _spaces(part)
    else:
        yield space


def _parts(observation: Any) -> Iterator[Tensor]:
    if isinstance(observation, dict | tuple | list):
        for part in observation.values() if isinstance(observation, dict) else observation:
            yield from _parts(part)
    else:
        yield observation


def _flat(part: Tensor) -> Tensor:
    """[R, …] → [R, F]; cells [R, rows, columns, 3] one-hot."""
    if part.ndim == 4:
        kinds = part.long().unbind(-1)
        hot = [one_hot(kind.clamp(0, n - 1), n) for kind, n in zip(kinds, CELL, strict=True)]
        part = torch.cat(hot, -1)
    return part.flatten(1).to(torch.float32)
