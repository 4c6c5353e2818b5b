"""The policy as a torch module: what the learner trains and `agent.module` hands out.

R = rows, S = streams of value.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..batch import Prediction
from .actor import LOG_SQRT_2PI
from .encoders import OneHotLinear, initialize, make_trunk
from .network import OBS_CLIP, NetworkSpec


class Policy(nn.Module):
    """The acting half. Its parameters, in order, are what an actor needs."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        if spec.act.kind == "box":
            self.log_std = nn.Parameter(torch.full((spec.act.size,), spec.log_std_init))
        self.trunk, features = make_trunk(spec)
        last = OneHotLinear if spec.obs.kind == "discrete" and not spec.hidden else nn.Linear
        self.head = last(features, spec.act.size)
        self.discrete = spec.act.kind == "discrete"

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of a discrete action, or means of a Box."""
        return self.head(self.trunk(inputs))

    def judge(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability [R] of each action, and the entropy [R] of its distribution."""
        if self.discrete:
            log_probs = parameters.log_softmax(-1)
            logp = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
            return logp, -(log_probs.exp() * log_probs).sum(-1)
        z = (action - parameters) * (-self.log_std).exp()
        logp = (-0.5 * z * z - self.log_std).sum(-1) - action.shape[-1] * LOG_SQRT_2PI
        entropy = (self.log_std + (0.5 + LOG_SQRT_2PI)).sum()
        return logp, entropy.expand(logp.shape)


class ActorCritic(nn.Module):
    """A policy and a value function, on trunks of their own or on a shared one."""

    obs_mean: Tensor
    obs_scale: Tensor

    def __init__(self, spec: NetworkSpec, streams: int = 1) -> None:
        super().__init__()
        self.spec = spec
        self.policy = Policy(spec)
        if spec.shared_trunk:
            features = self.policy.head.in_features
            self.value_trunk = nn.Sequential()
        else:
            self.value_trunk, features = make_trunk(spec)
        first = OneHotLinear if spec.obs.kind == "discrete" and not spec.hidden else nn.Linear
        self.value_head = first(features, streams)
        if spec.normalize_obs:
            self.register_buffer("obs_mean", torch.zeros(spec.obs.size))
            self.register_buffer("obs_scale", torch.ones(spec.obs.size))

    def initialize(self, seed: int) -> None:
        """Weights that depend on the seed alone."""
        generator = torch.Generator().manual_seed(seed)
        for trunk in (self.policy.trunk, self.value_trunk):
            initialize(trunk, math.sqrt(2), generator)
        initialize(self.policy.head, 0.01, generator)
        initialize(self.value_head, 1.0, generator)

    def inputs(self, obs: Tensor) -> Tensor:
        """Observations as an environment gives them → what the trunks read."""
        if self.spec.obs.kind == "image":
            return obs
        if self.spec.obs.kind == "discrete":
            return obs - self.spec.obs.start if self.spec.obs.start else obs
        obs = obs.to(torch.float32).reshape(-1, self.spec.obs.size)
        if not self.spec.normalize_obs:
            return obs
        return ((obs - self.obs_mean) * self.obs_scale).clamp(-OBS_CLIP, OBS_CLIP)

    def value(self, inputs: Tensor) -> Tensor:
        """[R, S]"""
        if self.spec.shared_trunk:
            inputs = self.policy.trunk(inputs)
        return self.value_head(self.value_trunk(inputs))

    def predict(self, inputs: Tensor, action: Tensor) -> Prediction:
        """What a loss needs, in one pass."""
        features = self.policy.trunk(inputs)
        logp, entropy = self.policy.judge(self.policy.head(features), action)
        shared = features if self.spec.shared_trunk else self.value_trunk(inputs)
        return Prediction(logp, entropy, self.value_head(shared))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits or means, and values, of raw observations."""
        inputs = self.inputs(obs)
        return self.policy(inputs), self.value(inputs)
