"""The acting half of a policy in plain numpy: a function of the published flat weights.

Nothing here imports torch, so a process that only acts never does. R = rows, one per column.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from ..rollout import Array
from ..spaces import ActionSpec
from . import noise
from .network import OBS_CLIP, NetworkSpec

LOG_SQRT_2PI = 0.5 * float(np.log(2 * np.pi))


class Actor(Protocol):
    """What a sampler needs of a policy."""

    head: Head

    def load(self, weights: Array) -> None:
        """Act with these published weights from now on; they may be viewed, not changed."""

    def forward(self, obs: Array, out: Array) -> None:
        """The distribution's parameters [R, size] for observations [R, ...]."""


class Categorical:
    """Discrete actions: parameters are logits."""

    def __init__(self, spec: ActionSpec) -> None:
        self.size = spec.size

    extra = 0
    """weights of its own, before those of the layers"""

    def load(self, extra: Array) -> None:
        """Nothing to take."""

    def noise(self, seed: int, rollout: int, first: int, columns: int, steps: int) -> Array:
        """[steps, columns, size] Gumbel noise: the arg max of logits plus it is a sample."""
        uniform = noise.uniforms(seed, rollout, first, columns, steps * self.size)
        drawn = noise.gumbel(uniform).reshape(columns, steps, self.size)
        return np.ascontiguousarray(drawn.swapaxes(0, 1), np.float32)

    def sample(self, logits: Array, noise: Array, action: Array) -> None:
        (logits + noise).argmax(-1, out=action)

    def greedy(self, logits: Array, action: Array) -> None:
        logits.argmax(-1, out=action)

    def logp(self, logits: Array, action: Array) -> Array:
        shifted = logits - logits.max(-1, keepdims=True)
        chosen = np.take_along_axis(shifted, action[..., None], -1)[..., 0]
        return chosen - np.log(np.exp(shifted).sum(-1))


class Gaussian:
    """Box actions: parameters are means; the deviation is the same in every state."""

    def __init__(self, spec: ActionSpec) -> None:
        self.size = self.extra = spec.size
        self._log_std = np.zeros(self.size, np.float32)
        self._std = np.ones(self.size, np.float32)

    def load(self, extra: Array) -> None:
        """Take the log of the deviation."""
        self._log_std = extra
        self._std = np.exp(extra)

    def noise(self, seed: int, rollout: int, first: int, columns: int, steps: int) -> Array:
        """[steps, columns, size] standard normal noise."""
        uniform = noise.uniforms(seed, rollout, first, columns, 2 * steps * self.size)
        drawn = noise.normal(uniform).reshape(columns, steps, self.size)
        return np.ascontiguousarray(drawn.swapaxes(0, 1), np.float32)

    def sample(self, mean: Array, noise: Array, action: Array) -> None:
        np.multiply(noise, self._std, out=action)
        np.add(action, mean, out=action)

    def greedy(self, mean: Array, action: Array) -> None:
        action[...] = mean

    def logp(self, mean: Array, action: Array) -> Array:
        z = (action - mean) / self._std
        return (-0.5 * z * z - self._log_std - np.float32(LOG_SQRT_2PI)).sum(-1)


Head = Categorical | Gaussian


def make_head(spec: ActionSpec) -> Head:
    return Categorical(spec) if spec.kind == "discrete" else Gaussian(spec)


class NumpyActor:
    """Dense layers on preallocated buffers, for vectors and discrete observations.

    Weights lie as [in, out], so that they are used where they are.
    """

    def __init__(self, spec: NetworkSpec, rows: int) -> None:
        self.spec, self.head = spec, make_head(spec.act)
        sizes = [spec.obs.size, *spec.hidden, spec.act.size]
        self._shapes = list(pairwise(sizes))
        self._buffers = [np.empty((rows, size), np.float32) for size in spec.hidden]
        self._squash = ACTIVATIONS[spec.activation]
        self._input = np.empty((rows, spec.obs.size), np.float32)
        self._layers: list[tuple[Array, Array, Array]] = []

    def load(self, weights: Array) -> None:
        at = self.spec.normalizer_size
        self._mean, self._scale = np.split(weights[:at], 2)
        self.head.load(weights[at : at + self.head.extra])
        at += self.head.extra
        layers = []
        for inputs, outputs in self._shapes:
            end = at + inputs * outputs
            layers.append((weights[at:end].reshape(inputs, outputs), weights[end : end + outputs]))
            at = end + outputs
        *hidden, self._last = layers
        self._layers = [(*pair, y) for pair, y in zip(hidden, self._buffers, strict=True)]

    def forward(self, obs: Array, out: Array) -> None:
        product: Callable[..., Any] = np.dot
        if self.spec.obs.kind == "discrete":
            x, product = obs - self.spec.obs.start, _rows_of
        else:
            x = self._normalized(obs if obs.ndim == 2 else obs.reshape(len(obs), -1))
        for weight, bias, y in self._layers:
            product(x, weight, y)
            np.add(y, bias, y)
            self._squash(y)
            x, product = y, np.dot
        weight, bias = self._last
        product(x, weight, out)
        np.add(out, bias, out)

    def _normalized(self, x: Array) -> Array:
        if not self.spec.normalize_obs:
            return x
        np.subtract(x, self._mean, out=self._input)
        np.multiply(self._input, self._scale, out=self._input)
        return np.clip(self._input, -OBS_CLIP, OBS_CLIP, out=self._input)


def _rows_of(index: Array, weight: Array, out: Array) -> None:
    """The product of a one-hot matrix and `weight`, without the matrix."""
    np.take(weight, index, axis=0, out=out, mode="clip")


def _tanh(x: Array) -> None:
    np.tanh(x, x)


def _relu(x: Array) -> None:
    np.maximum(x, 0, out=x)


def _elu(x: Array) -> None:
    x[...] = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


ACTIVATIONS: dict[str, Callable[[Array], Any]] = {"tanh": _tanh, "relu": _relu, "elu": _elu}


def make_actor(spec: NetworkSpec, rows: int) -> Actor:
    """The fastest actor for `rows` observations at a time; only images need torch."""
    if spec.obs.kind != "image":
        return NumpyActor(spec, rows)
    from .torch_actor import TorchActor

    return TorchActor(spec)
