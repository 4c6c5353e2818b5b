"""NetworkSpec: what a policy is made of, as plain data that actor and learner both read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from annotated_types import Ge

from ..envs.spaces import STRICT, ActionSpec, ObservationSpec

Activation = Literal["tanh", "relu", "elu"]
Encoder = str | Callable[..., Any]
"""`module:Class` of a user's own, or from Python the class or the torch module itself."""

ImageEncoder = Literal["mlp", "small", "nature", "impala"]
"""What reads an image: dense layers, or convolutions by name (see encoders.py)."""
Precision = Literal["fp32", "bf16"]

OBS_CLIP = 10.0
"""Normalised observations are cut off at this many standard deviations."""
FORBIDDEN = -1e8
"""Logit of an action that a mask forbids: its probability is 0, its products with 0 are 0."""
LOG_STD_RANGE = (-20.0, 2.0)
"""A deviation that depends on the state is kept within these logs."""
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def stored_as(axes: int) -> tuple[int, ...]:
    """Order of axes in the flat buffer: dense [in, out], convolutions channels last."""
    return {2: (1, 0), 4: (0, 2, 3, 1)}.get(axes, tuple(range(axes)))


@dataclass(frozen=True)
class NetworkSpec:
    """An encoder, hidden layers and a head for the policy; the same for the value."""

    __pydantic_config__ = STRICT

    obs: ObservationSpec
    act: ActionSpec
    hidden: tuple[Annotated[int, Ge(1)], ...] = (64, 64)
    activation: Activation = "tanh"
    shared_trunk: bool = False
    normalize_obs: bool = False
    log_std_init: float = 0.0
    state_dependent_std: bool = False
    encoder: Encoder | None = None
    """a user's own; it takes the place of `pictures`"""
    pictures: ImageEncoder | None = None
    """None: what suits their size"""
    precision: Precision = "fp32"
    """of what comes before the heads"""
    memory: Encoder | None = None
    """a recurrent cell between the layers and the heads, as encoders are given"""
    memory_size: Annotated[int, Ge(1)] = 64
    """features that it gives"""
    value_heads: Annotated[int, Ge(1)] = 1

    @property
    def normalizer_size(self) -> int:
        """Floats in front of the weights: the vector's mean, then its inverse deviation."""
        return 2 * self.obs.size if self.normalize_obs else 0

    @property
    def state_std(self) -> bool:
        """Whether the deviation of a Box action is the network's to give; else it is a weight."""
        return self.act.kind == "box" and self.state_dependent_std

    @property
    def own_log_std(self) -> bool:
        return self.act.kind == "box" and not self.state_std

    @property
    def outputs(self) -> int:
        """Numbers that the policy's last layer gives."""
        return 2 * self.act.size if self.state_std else self.act.size

    @property
    def needs_torch(self) -> bool:
        """Whether acting takes more than dense layers."""
        return self.large or self.memory is not None

    @property
    def large(self) -> bool:
        """Whether it computes enough for several threads: images, a user's own encoder."""
        return self.encoder is not None or self.obs.kind in ("image", "mixed")

    @property
    def acts_with_value(self) -> bool:
        """Whether the value comes nearly for free while acting: nobody computes it again."""
        return self.needs_torch and self.shared_trunk

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all that is learnt, in the module's order, if it needs no torch."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.own_log_std:
            shapes["policy.log_std"] = (self.act.size,)
        sizes = [self.obs.size, *self.hidden]
        for trunk, head, outputs in (
            ("policy.trunk", "policy.head", self.outputs),
            ("value_trunk", "value_head", self.value_heads),
        ):
            if trunk != "value_trunk" or not self.shared_trunk:
                for layer, (before, after) in enumerate(pairwise(sizes)):
                    shapes[f"{trunk}.{2 * layer}.weight"] = (after, before)
                    shapes[f"{trunk}.{2 * layer}.bias"] = (after,)
            shapes[f"{head}.weight"] = (outputs, sizes[-1])
            shapes[f"{head}.bias"] = (outputs,)
        if self.normalize_obs:
            shapes["obs_mean"] = shapes["obs_scale"] = (self.obs.size,)
        return shapes
