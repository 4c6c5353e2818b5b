"""Prediction: what the policy module says of a batch of rows. R = rows, H = value heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Inputs = tuple["Tensor", ...]
"""The parts of observations, as the module reads them."""


@dataclass(frozen=True)
class Prediction:
    """What the module says of a batch of rows."""

    logp: Tensor
    """[R]"""
    entropy: Tensor
    """[R]"""
    value: Tensor
    """[R, H]"""
