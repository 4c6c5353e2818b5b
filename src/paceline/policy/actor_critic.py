"""The policy as a torch module: what the learner trains and `agent.module` returns.

R = rows, H = value heads, F = features; with a memory the R rows are N segments of L steps, [L, N].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .distributions import padding_index
from .encoders import Trunk, initialize, make_head, make_trunk
from .network import (
    LOG_SQRT_2PI,
    LOG_STD_RANGE,
    MASKED_LOGIT,
    OBS_CLIP,
    Inputs,
    NetworkSpec,
    Prediction,
)
from .recurrent import Memory, RecurrentInputs, make_memory, recall


def preprocess(
    spec: NetworkSpec, parts: Mapping[str, Tensor], normalizer: Sequence[Tensor] | None
) -> Inputs:
    """Stored observations, by part → inputs of the trunks."""
    inputs = []
    for name, part in parts.items():
        if name == "index":
            part = part - spec.obs.start if spec.obs.start else part
        elif name == "vector":
            part = part.to(torch.float32).reshape(-1, spec.obs.size)
            if normalizer is not None:
                mean, scale = normalizer
                part = ((part - mean) * scale).clamp(-OBS_CLIP, OBS_CLIP)
        inputs.append(part)
    return tuple(inputs)


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy, over the last axis."""
    log_probs = logits.log_softmax(-1)
    logp = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return logp, -(log_probs.exp() * log_probs).sum(-1)


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy; `log_std` is [actions] or [R, actions]."""
    z = (action - mean) * (-log_std).exp()
    logp = (-0.5 * z * z - log_std).sum(-1) - action.shape[-1] * LOG_SQRT_2PI
    entropy = (log_std + (0.5 + LOG_SQRT_2PI)).sum(-1)
    return logp, entropy.expand(logp.shape)


class Policy(nn.Module):
    """The acting half; its parameters, in order, are what an actor loads."""

    _index: Tensor | None

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.log_std: Tensor | None = None
        if spec.own_log_std:
            self.log_std = nn.Parameter(torch.full((spec.act.size,), spec.log_std_init))
        self.trunk, features = make_trunk(spec)
        self.memory = make_memory(spec, features)
        self.carry_size = 0 if self.memory is None else self.memory.carry_size
        self.head = make_head(spec, spec.shown(features), spec.outputs)
        self._masked, self._kind, sizes = bool(spec.obs.mask), spec.act.kind, spec.act.sizes
        self._shape = (len(sizes), max(sizes, default=0))
        index = padding_index(sizes) if self._kind == "multi" else None
        table = None if index is None else torch.from_numpy(index)
        self.register_buffer("_index", table, persistent=False)

    def encoded(self, inputs: Inputs) -> Tensor:
        """Features [R, F] of observations, before the memory."""
        return self.trunk(_without_mask(inputs, self._masked))

    def features(
        self, inputs: Inputs, memory: RecurrentInputs | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Features [R, F] for the heads; and the memory after the last step [N, S], if any."""
        return recall(self.memory, self.encoded(inputs), memory)

    def action_params(self, features: Tensor, inputs: Inputs) -> Tensor:
        """Distribution parameters [R, size]; logits of masked actions are `MASKED_LOGIT`."""
        parameters = self.head(features)
        return parameters.where(inputs[-1], MASKED_LOGIT) if self._masked else parameters

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits of discrete actions, or means of a Box (with log deviations, if those depend on
        the state)."""
        return self.action_params(self.features(inputs)[0], inputs)

    def logp_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability [R] of each action, and entropy [R] of its distribution."""
        if self._kind == "discrete":
            return categorical(parameters, action)
        if self._kind == "multi":
            if self._index is not None:
                low = parameters.new_full((len(parameters), 1), MASKED_LOGIT)
                parameters = torch.cat([parameters, low], -1).index_select(-1, self._index)
            logp, entropy = categorical(parameters.reshape(-1, *self._shape), action)
            return logp.sum(-1), entropy.sum(-1)
        log_std = self.log_std
        if log_std is None:
            parameters, log_std = parameters.chunk(2, -1)
            log_std = log_std.clamp(*LOG_STD_RANGE)
        return gaussian(parameters, log_std, action)


class ActorCritic(nn.Module):
    """A policy and a value function, on separate trunks or a shared one."""

    obs_mean: Tensor
    obs_scale: Tensor

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.spec = spec
        self.policy = Policy(spec)
        self.value_memory: Memory | None = None
        if spec.shared_trunk:
            features = self.policy.head.in_features
            self.value_trunk = Trunk([], bf16=False)
        else:
            self.value_trunk, features = make_trunk(spec)
            self.value_memory = make_memory(spec, features)
            features = spec.shown(features)
        self.value_head = make_head(spec, features, spec.value_heads)
        if spec.normalize_obs:
            self.register_buffer("obs_mean", torch.zeros(spec.obs.size))
            self.register_buffer("obs_scale", torch.ones(spec.obs.size))

    def initialize(self, seed: int) -> None:
        """Draw all weights from a generator of this seed."""
        generator = torch.Generator().manual_seed(seed)
        for trunk in (self.policy.trunk, self.value_trunk):
            initialize(trunk, math.sqrt(2), generator)
        for memory in (self.policy.memory, self.value_memory):
            if memory is not None:
                memory.initialize(generator)
        initialize(self.policy.head, 0.01, generator)
        if self.spec.state_std:
            with torch.no_grad():
                self.policy.head.bias[self.spec.act.size :] = self.spec.log_std_init
        initialize(self.value_head, 1.0, generator)

    def named_weights(self) -> dict[str, Tensor]:
        """Everything that is learned, by name: the parameters, then the normalizer."""
        named: dict[str, Tensor] = dict(self.named_parameters())
        if self.spec.normalize_obs:
            named |= {"obs_mean": self.obs_mean, "obs_scale": self.obs_scale}
        return {name: weight.detach() for name, weight in named.items()}

    def inputs(self, parts: Mapping[str, Tensor]) -> Inputs:
        """Stored observations, by part → inputs of the trunks."""
        normalizer = (self.obs_mean, self.obs_scale) if self.spec.normalize_obs else None
        return preprocess(self.spec, parts, normalizer)

    def encoded(self, inputs: Inputs) -> Tensor:
        """Features [R, F] for the value, before its memory."""
        if self.spec.shared_trunk:
            return self.policy.encoded(inputs)
        return self.value_trunk(_without_mask(inputs, bool(self.spec.obs.mask)))

    def value(self, inputs: Inputs) -> Tensor:
        """[R, H] of rows that each start an episode, if there is a memory."""
        return self.value_and_carry(inputs, None)[0]

    def value_and_carry(
        self, inputs: Inputs, memory: RecurrentInputs | None
    ) -> tuple[Tensor, Tensor | None]:
        """[R, H]; and what the memory in front of the value, if any, holds after the last step."""
        own = self.policy.memory if self.spec.shared_trunk else self.value_memory
        features, carry = recall(own, self.encoded(inputs), memory)
        return self.value_head(features), carry

    def predict(
        self, inputs: Inputs, action: Tensor, memory: RecurrentInputs | None = None
    ) -> Prediction:
        """Log-probability, entropy and value, in one forward pass.

        Where policy and value have a memory each, the carry is the policy's, then the critic's.
        """
        critic = memory
        if memory is not None and self.value_memory is not None:
            sizes = [self.policy.carry_size, self.value_memory.carry_size]
            carries = torch.split(memory.carry, sizes, -1)
            memory, critic = (RecurrentInputs(memory.first, carry) for carry in carries)
        features, carry = self.policy.features(inputs, memory)
        parameters = self.policy.action_params(features, inputs)
        logp, entropy = self.policy.logp_and_entropy(parameters, action)
        if self.spec.shared_trunk:
            return Prediction(logp, entropy, self.value_head(features), carry)
        value, own = self.value_and_carry(inputs, critic)
        if carry is not None and own is not None:
            carry = torch.cat([carry, own], -1)
        return Prediction(logp, entropy, value, carry)

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits or means, and values, of raw observations; several parts come by name."""
        parts = {next(iter(self.spec.obs.parts)): obs} if isinstance(obs, Tensor) else obs
        inputs = self.inputs(parts)
        return self.policy(inputs), self.value(inputs)


def _without_mask(inputs: Inputs, masked: bool) -> Any:
    """Input of a trunk: one tensor, or a tuple of several; never the action mask."""
    parts = inputs[:-1] if masked else inputs
    return parts[0] if len(parts) == 1 else parts
