"""Prediction: outputs of the actor-critic for a batch of rows. R = rows, H = value heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Inputs = tuple["Tensor", ...]
"""Parts of observations, preprocessed for the trunks."""


@dataclass(frozen=True)
class Prediction:
    logp: Tensor
    """[R] log-probability of the action taken"""
    entropy: Tensor
    """[R]"""
    value: Tensor
    """[R, H]"""
