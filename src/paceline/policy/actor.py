"""Actors: the acting half of a policy as a function of flat weights. Numpy only. R = rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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


class NumpyNetwork:
    """Dense layers, a memory, and a last layer, on preallocated buffers.

    Weights are [in, out], views of the flat weights. `branch` is `policy.` or `value_`.
    """

    def __init__(self, spec: NetworkSpec, branch: str, outputs: int, rows: int) -> None:
        self._shapes = list(spec.branch_shapes(branch, outputs).values())
        self._buffers = [np.empty((rows, size), np.float32) for size in spec.hidden]
        self._activation = ACTIVATIONS[spec.activation]
        self._layers: list[tuple[Array, Array, Array]] = []
        self._memory = None if spec.cell is None else spec.cell(spec.memory_size, rows)
        self.carry_size = 0 if spec.cell is None else spec.cell.states * spec.memory_size

    def load(self, weights: Array) -> None:
        """Use these from now on; they are viewed, not copied."""
        views, at = [], 0
        for shape in self._shapes:
            end = at + math.prod(shape)
            views.append(weights[at:end].reshape(shape[::-1]))
            at = end
        depth = len(self._buffers)
        pairs = zip(views[: 2 * depth : 2], views[1 : 2 * depth : 2], self._buffers, strict=True)
        self._layers, self._last = list(pairs), (views[-2], views[-1])
        if self._memory is not None:
            self._memory.load(*views[2 * depth : -2])

    def __call__(self, x: Array, carry: Array, out: Array, one_hot: bool) -> None:
        """`x[R, F]`, or with `one_hot` the index [R] of its only 1; changes `carry[R, S]`."""
        product: Callable[..., Any] = _one_hot_product if one_hot else np.dot
        for weight, bias, y in self._layers:
            product(x, weight, y)
            np.add(y, bias, y)
            self._activation(y)
            x, product = y, np.dot
        if self._memory is not None:
            x, product = self._memory.step(x, carry, product), np.dot
        weight, bias = self._last
        product(x, weight, out)
        np.add(out, bias, out)


class NumpyInputs:
    """From stored observations to the input of a `NumpyNetwork`."""

    def __init__(self, spec: NetworkSpec, rows: int) -> None:
        self._normalize, self._start = spec.normalize_obs, spec.obs.start
        self._buffer = np.empty((rows, spec.obs.size), np.float32)
        self.one_hot = spec.obs.kind == "discrete"
        self._part = next(iter(spec.obs.parts)) if len(spec.obs.parts) > 1 else None

    def load(self, normalizer: Array) -> None:
        """The published mean and scale, if observations are normalized."""
        self._mean, self._scale = np.split(normalizer, 2)

    def __call__(self, obs: Array) -> Array:
        x = obs if self._part is None else obs[self._part]
        if self.one_hot:
            return x - self._start
        x = x if x.ndim == 2 else x.reshape(len(x), -1)
        if self._normalize:
            np.subtract(x, self._mean, out=self._buffer)
            np.multiply(self._buffer, self._scale, out=self._buffer)
            x = np.clip(self._buffer, -OBS_CLIP, OBS_CLIP, out=self._buffer)
        return x


class NumpyActor:
    """Of dense layers and a built-in memory."""

    def __init__(self, spec: NetworkSpec, rows: int) -> None:
        self.spec, self.distribution = spec, make_distribution(spec)
        self._inputs = NumpyInputs(spec, rows)
        self._network = NumpyNetwork(spec, "policy.", spec.outputs, rows)
        self.carry_size = self._network.carry_size

    def load(self, weights: Array) -> None:
        at = self.spec.normalizer_size
        self._inputs.load(weights[:at])
        self.distribution.load(weights[at : at + self.distribution.num_weights])
        self._network.load(weights[at + self.distribution.num_weights :])

    def step(
        self, obs: Array, first: Array, carry: Array, out: Array, value: Array | None = None
    ) -> None:
        if self.carry_size:
            carry[first] = 0.0
        inputs = self._inputs
        self._network(inputs(obs), carry, out, inputs.one_hot)
        if self.spec.obs.mask:
            np.copyto(out, MASKED_LOGIT, where=~obs["mask"])


class Critic(Protocol):
    """The value function, for whoever acts with a policy outside of training."""

    carry_size: int
    """S, floats of the memory in front of the value, per row; 0 without memory"""

    def step(self, obs: Array, first: Array, carry: Array) -> Array:
        """Values [R, H] of stored observations [R, ...].

        `carry[R, S]` is zeroed where `first[R]`, then updated in place.
        """


class NumpyCritic:
    """Of dense layers and a built-in memory; `weights` by name."""

    def __init__(self, spec: NetworkSpec, rows: int, weights: Mapping[str, Array]) -> None:
        self._inputs = NumpyInputs(spec, rows)
        if spec.normalize_obs:
            self._inputs.load(np.concatenate([weights["obs_mean"], weights["obs_scale"]]))
        branch = "policy." if spec.shared_trunk else "value_"
        self._network = NumpyNetwork(spec, branch, spec.value_heads, rows)
        names = spec.branch_shapes(branch, spec.value_heads)
        found = (weights[name.replace("policy.head", "value_head")] for name in names)
        self._network.load(np.concatenate([weight.T.ravel() for weight in found]))
        self.carry_size = self._network.carry_size
        self._value = np.empty((rows, spec.value_heads), np.float32)

    def step(self, obs: Array, first: Array, carry: Array) -> Array:
        if self.carry_size:
            carry[first] = 0.0
        self._network(self._inputs(obs), carry, self._value, self._inputs.one_hot)
        return self._value


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
