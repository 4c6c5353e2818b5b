"""Actors: the acting half of a policy as a function of flat weights. Numpy only. R = rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from ..rollout import Array
from .distributions import Distribution, make_distribution
from .network import MASKED_LOGIT, OBS_CLIP, NetworkSpec


class Actor(Protocol):
    """What a sampler needs of a policy."""

    distribution: Distribution
    carry_size: int
    """S, floats of recurrent memory per row; 0 without memory"""

    def load(self, weights: Array) -> None:
        """Act with these published weights from now on; they are viewed, not copied."""

    def step(
        self, obs: Array, first: Array, carry: Array, out: Array, value: Array | None = None
    ) -> None:
        """Write the distribution's parameters `out[R, size]` for stored observations [R, ...].

        `carry[R, S]` is zeroed where `first[R]`, then updated in place. `value[R, H]` is written if
        given, which only networks with `acts_with_value` can do.
        """


class NumpyActor:
    """Dense layers on preallocated buffers; weights are [in, out], views of the flat weights."""

    carry_size = 0

    def __init__(self, spec: NetworkSpec, rows: int) -> None:
        self.spec, self.distribution = spec, make_distribution(spec)
        sizes = [spec.obs.size, *spec.hidden, spec.outputs]
        self._shapes = list(pairwise(sizes))
        self._buffers = [np.empty((rows, size), np.float32) for size in spec.hidden]
        self._activation = ACTIVATIONS[spec.activation]
        self._input = np.empty((rows, spec.obs.size), np.float32)
        self._layers: list[tuple[Array, Array, Array]] = []
        self._discrete, self._start = spec.obs.kind == "discrete", spec.obs.start
        self._part = next(iter(spec.obs.parts)) if len(spec.obs.parts) > 1 else None

    def load(self, weights: Array) -> None:
        at = self.spec.normalizer_size
        self._mean, self._scale = np.split(weights[:at], 2)
        self.distribution.load(weights[at : at + self.distribution.num_weights])
        at += self.distribution.num_weights
        layers = []
        for inputs, outputs in self._shapes:
            end = at + inputs * outputs
            layers.append((weights[at:end].reshape(inputs, outputs), weights[end : end + outputs]))
            at = end + outputs
        *hidden, self._last = layers
        self._layers = [(*pair, y) for pair, y in zip(hidden, self._buffers, strict=True)]

    def step(
        self, obs: Array, first: Array, carry: Array, out: Array, value: Array | None = None
    ) -> None:
        product: Callable[..., Any] = np.dot
        x = obs if self._part is None else obs[self._part]
        if self._discrete:
            x, product = x - self._start, _one_hot_product
        else:
            x = x if x.ndim == 2 else x.reshape(len(x), -1)
            if self.spec.normalize_obs:
                np.subtract(x, self._mean, out=self._input)
                np.multiply(self._input, self._scale, out=self._input)
                x = np.clip(self._input, -OBS_CLIP, OBS_CLIP, out=self._input)
        for weight, bias, y in self._layers:
            product(x, weight, y)
            np.add(y, bias, y)
            self._activation(y)
            x, product = y, np.dot
        weight, bias = self._last
        product(x, weight, out)
        np.add(out, bias, out)
        if self.spec.obs.mask:
            np.copyto(out, MASKED_LOGIT, where=~obs["mask"])


def _one_hot_product(index: Array, weight: Array, out: Array) -> None:
    """one_hot(index) @ weight."""
    np.take(weight, index, axis=0, out=out, mode="clip")


def _elu(x: Array) -> None:
    x[...] = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


ACTIVATIONS: dict[str, Callable[[Array], Any]] = {
    "tanh": lambda x: np.tanh(x, x),
    "relu": lambda x: np.maximum(x, 0, out=x),
    "elu": _elu,
}
"""In place."""


def make_actor(spec: NetworkSpec, rows: int) -> Actor:
    """The fastest actor for `rows` observations at a time; imports torch only if it has to."""
    if not spec.needs_torch:
        return NumpyActor(spec, rows)
    from .torch_actor import TorchActor

    return TorchActor(spec)
