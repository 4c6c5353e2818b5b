"""NetworkSpec: what a policy is made of, as plain data that actor and learner both read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..spaces import ActionSpec, ObservationSpec

Activation = Literal["tanh", "relu", "elu"]

OBS_CLIP = 10.0
"""Normalised observations are cut off at this many standard deviations."""

STORED_AS = {1: (0,), 2: (1, 0), 4: (0, 2, 3, 1)}
"""Order of a weight's axes in the flat buffer, by their number: dense [in, out], channels last."""


@dataclass(frozen=True)
class NetworkSpec:
    """An encoder, hidden layers and a head for the policy; the same for the value."""

    obs: ObservationSpec
    act: ActionSpec
    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    shared_trunk: bool = False
    normalize_obs: bool = False
    log_std_init: float = 0.0

    @property
    def normalizer_size(self) -> int:
        """Floats in front of the weights: the observation's mean, then its inverse deviation."""
        return 2 * self.obs.size if self.normalize_obs else 0
