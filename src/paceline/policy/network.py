"""NetworkSpec: the architecture of a policy as plain data, for actor and learner; and Prediction,
its outputs. R = rows, H = value heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from ..config.registry import MEMORIES, entry
from ..envs.spaces import STRICT, ActionSpec, ObservationSpec
from .memory import Cell

if TYPE_CHECKING:
    from torch import Tensor

Activation = Literal["tanh", "relu", "elu"]
Encoder = str | Callable[..., Any]
"""A user's encoder or memory: `module:Class`, or from Python the class or the torch module."""
ImageEncoder = Literal["mlp", "small", "nature", "impala"]
"""Built-in encoders of images: dense layers, or convolutions (see encoders.py)."""
ENCODERS = {"grid": "paceline.policy.grid:Grid"}
"""Built-in encoders that read whole observations, as a user's do."""
Precision = Literal["fp32", "bf16"]
Inputs = tuple["Tensor", ...]
"""Parts of observations, preprocessed for the trunks."""

OBS_CLIP = 10.0
"""Normalized observations are clipped to this many standard deviations."""
MASKED_LOGIT = -1e8
"""Logit of a masked action: probability 0, and finite, so that 0 times it is 0."""
LOG_STD_RANGE = (-20.0, 2.0)
"""Limits of a state-dependent log standard deviation."""
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def flat_axes(axes: int) -> tuple[int, ...]:
    """Order of a weight's axes in the flat buffer: dense [in, out], convolutions channels-last."""
    return {2: (1, 0), 4: (0, 2, 3, 1)}.get(axes, tuple(range(axes)))


@dataclass(frozen=True)
class NetworkSpec:
    """Encoder, hidden layers and head of the policy; the same for the value."""

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
    """a name in `ENCODERS`, or the user's; replaces `pictures`"""
    pictures: ImageEncoder | None = None
    """built-in encoder of images; None: by their size"""
    precision: Precision = "fp32"
    """of everything before the heads"""
    memory: Encoder | None = None
    """recurrent cell between the layers and the heads: a name in `MEMORIES`, or the user's"""
    memory_size: Annotated[int, Ge(1)] = 64
    """output features of the memory"""
    value_heads: Annotated[int, Ge(1)] = 1

    @property
    def normalizer_size(self) -> int:
        """Floats in front of the weights: mean and inverse deviation of the vector part."""
        return 2 * self.obs.size if self.normalize_obs else 0

    @property
    def state_std(self) -> bool:
        """Whether the deviation of a Box action is an output of the network, not a weight."""
        return self.act.kind == "box" and self.state_dependent_std

    @property
    def own_log_std(self) -> bool:
        return self.act.kind == "box" and not self.state_std

    @property
    def outputs(self) -> int:
        """Size of the policy's last layer."""
        return 2 * self.act.size if self.state_std else self.act.size

    @property
    def cell(self) -> type[Cell] | None:
        """The memory, if it is a built-in one."""
        known = isinstance(self.memory, str) and self.memory in MEMORIES
        return entry("memory", self.memory) if known else None

    @property
    def own_encoder(self) -> Encoder | None:
        """The encoder, if it is the user's."""
        known = isinstance(self.encoder, str) and self.encoder in ENCODERS
        return None if known else self.encoder

    @property
    def own_memory(self) -> Encoder | None:
        """The memory, if it is the user's."""
        return self.memory if self.cell is None else None

    @property
    def critic_memory(self) -> bool:
        """Whether the value function has a memory of its own, which lives in the learner."""
        return self.memory is not None and not self.shared_trunk

    @property
    def compiles(self) -> bool:
        """Whether a minibatch step with its memory can be compiled."""
        return self.memory is None or (self.cell is not None and not self.cell.recurrent)

    @property
    def needs_torch(self) -> bool:
        """Whether acting takes more than dense layers and a built-in memory."""
        return self.large or self.own_memory is not None

    @property
    def large(self) -> bool:
        """Whether acting is worth several threads: images, or a user's encoder."""
        return self.encoder is not None or self.obs.kind in ("image", "mixed")

    @property
    def acts_with_value(self) -> bool:
        """Whether the actor computes values too, nearly for free, so that the learner need not."""
        return self.needs_torch and self.shared_trunk

    def shown(self, features: int) -> int:
        """Features that a head sees, of `features` that its trunk computes."""
        return features if self.memory is None else self.memory_size

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all weights in the module's order; for networks without torch."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.own_log_std:
            shapes["policy.log_std"] = (self.act.size,)
        shapes |= self.branch_shapes("policy.", self.outputs)
        if self.shared_trunk:
            width = self.shown([self.obs.size, *self.hidden][-1])
            shapes |= _dense("value_head", width, self.value_heads)
        else:
            shapes |= self.branch_shapes("value_", self.value_heads)
        if self.normalize_obs:
            shapes["obs_mean"] = shapes["obs_scale"] = (self.obs.size,)
        return shapes

    def branch_shapes(self, branch: str, outputs: int) -> dict[str, tuple[int, ...]]:
        """Of the layers, memory and head of a branch (`policy.` or `value_`), in order."""
        shapes: dict[str, tuple[int, ...]] = {}
        sizes = [self.obs.size, *self.hidden]
        for layer, (before, after) in enumerate(pairwise(sizes)):
            shapes |= _dense(f"{branch}trunk.{2 * layer}", before, after)
        features = sizes[-1]
        if self.cell is not None:
            found = self.cell.shapes(features, self.memory_size)
            shapes |= {f"{branch}memory.{name}": shape for name, shape in found.items()}
        return shapes | _dense(f"{branch}head", self.shown(features), outputs)


def _dense(name: str, before: int, after: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (after, before), f"{name}.bias": (after,)}


@dataclass(frozen=True)
class Prediction:
    """Outputs of an actor-critic for R rows."""

    logp: Tensor
    """[R] log-probability of the action taken"""
    entropy: Tensor
    """[R]"""
    value: Tensor
    """[R, H]"""
    carry: Tensor | None = None
    """[N, S] the memory after each segment, if there is one"""
