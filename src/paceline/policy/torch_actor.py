"""Actor and critic for images and user modules, by the torch module."""

from __future__ import annotations

import torch
from torch import nn

from ..rollout import Array
from .actor_critic import ActorCritic, Policy, preprocess
from .distributions import make_distribution
from .flat import ParameterLayout
from .network import NetworkSpec
from .recurrent import RecurrentInputs
from .settings import standard_settings


class TorchActor:
    @standard_settings()
    def __init__(self, spec: NetworkSpec) -> None:
        self.spec, self.distribution = spec, make_distribution(spec)
        self._value_head: nn.Linear | None = None
        if spec.acts_with_value:
            whole = ActorCritic(spec)
            self._module: nn.Module = whole
            self._policy, self._value_head = whole.policy, whole.value_head
        else:
            self._module = self._policy = Policy(spec)
        self._module.requires_grad_(False)
        self._layout = ParameterLayout(self._module)
        self.carry_size = self._policy.carry_size

    def load(self, weights: Array) -> None:
        at = self.spec.normalizer_size
        self._normalizer = torch.from_numpy(weights[:at]).chunk(2) if at else None
        self.distribution.load(weights[at : at + self.distribution.num_weights])
        self._layout.bind(self._module, torch.from_numpy(weights[at:]))

    @standard_settings()
    @torch.inference_mode()
    def step(
        self, obs: Array, first: Array, carry: Array, out: Array, value: Array | None = None
    ) -> None:
        parts = {name: torch.from_numpy(part) for name, part in self.spec.obs.split(obs).items()}
        inputs = preprocess(self.spec, parts, self._normalizer)
        memory = _memory(first, carry) if self.carry_size else None
        features, after = self._policy.features(inputs, memory)
        if after is not None:
            carry[...] = after.numpy()
        out[...] = self._policy.action_params(features, inputs).numpy()
        if value is not None:
            assert self._value_head is not None
            value[...] = self._value_head(features).numpy()


class TorchCritic:
    def __init__(self, module: ActorCritic) -> None:
        self._module = module
        memory = module.policy.memory if module.spec.shared_trunk else module.value_memory
        self.carry_size = 0 if memory is None else memory.carry_size

    @standard_settings()
    @torch.inference_mode()
    def step(self, obs: Array, first: Array, carry: Array) -> Array:
        parts = self._module.spec.obs.split(obs).items()
        inputs = self._module.inputs({name: torch.from_numpy(part) for name, part in parts})
        memory = _memory(first, carry) if self.carry_size else None
        value, after = self._module.value_and_carry(inputs, memory)
        if after is not None:
            carry[...] = after.numpy()
        return value.numpy()


def _memory(first: Array, carry: Array) -> RecurrentInputs:
    """Of rows that are segments of one step."""
    return RecurrentInputs(torch.from_numpy(first)[None], torch.from_numpy(carry))
