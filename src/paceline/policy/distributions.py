"""Action distributions in numpy, parametrized by a network's outputs [R, size]. R = rows."""

from __future__ import annotations

import numpy as np

from ..rollout import Array
from .network import LOG_SQRT_2PI, LOG_STD_RANGE, MASKED_LOGIT, NetworkSpec

PHILOX_WORDS = 4
"""Random numbers per increment of the Philox counter."""


def uniforms(seed: int, rollout: int, first_column: int, columns: int, numbers: int) -> Array:
    """[columns, numbers] in (0, 1): the same for a column, whichever block it is in.

    The generator is counter-based, and is advanced to the block's first column.
    """
    ticks = -(-numbers // PHILOX_WORDS)
    generator = np.random.Philox(key=np.array([seed, rollout], np.uint64))
    generator.advance(first_column * ticks)
    words = generator.random_raw(columns * ticks * PHILOX_WORDS)
    words = words.reshape(columns, ticks * PHILOX_WORDS)
    # The upper 52 bits plus a half: never 0 or 1.
    return ((words[:, :numbers] >> np.uint64(12)) + 0.5) * 2.0**-52


def gumbel(uniform: Array) -> Array:
    return -np.log(-np.log(uniform))


def normal(uniform: Array) -> Array:
    """Box-Muller: the last axis holds pairs of uniforms, and is halved."""
    radius = np.sqrt(-2.0 * np.log(uniform[..., 0::2]))
    return radius * np.cos(2.0 * np.pi * uniform[..., 1::2])


class Categorical:
    """Discrete actions; the parameters are logits."""

    num_weights = 0
    """its own weights, in front of those of the layers"""

    def __init__(self, size: int) -> None:
        self.size = size

    def load(self, weights: Array) -> None:
        """There are none."""

    def noise(self, seed: int, rollout: int, first: int, columns: int, steps: int) -> Array:
        """[steps, columns, size] Gumbel noise: argmax(logits + noise) is a sample."""
        uniform = uniforms(seed, rollout, first, columns, steps * self.size)
        drawn = gumbel(uniform).reshape(columns, steps, self.size)
        return np.ascontiguousarray(drawn.swapaxes(0, 1), np.float32)

    def sample(self, logits: Array, noise: Array, action: Array) -> None:
        (logits + noise).argmax(-1, out=action)

    def greedy(self, logits: Array, action: Array) -> None:
        logits.argmax(-1, out=action)

    def logp(self, logits: Array, action: Array) -> Array:
        shifted = logits - logits.max(-1, keepdims=True)
        chosen = np.take_along_axis(shifted, action[..., None], -1)[..., 0]
        return chosen - np.log(np.exp(shifted).sum(-1))


class MultiCategorical(Categorical):
    """Several independent discrete actions; the parameters are their logits, concatenated."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sum(sizes))
        self._shape = (len(sizes), max(sizes))
        self._index = padding_index(sizes)

    def _padded(self, logits: Array) -> Array:
        """[..., size] → [..., choices, widest], padded with masked logits."""
        if self._index is not None:
            low = np.full((*logits.shape[:-1], 1), MASKED_LOGIT, logits.dtype)
            logits = np.concatenate([logits, low], -1).take(self._index, -1)
        return logits.reshape(*logits.shape[:-1], *self._shape)

    def sample(self, logits: Array, noise: Array, action: Array) -> None:
        self._padded(logits + noise).argmax(-1, out=action)

    def greedy(self, logits: Array, action: Array) -> None:
        self._padded(logits).argmax(-1, out=action)

    def logp(self, logits: Array, action: Array) -> Array:
        return super().logp(self._padded(logits), action).sum(-1)


class Gaussian:
    """Box actions; the parameters are means, the standard deviation is a weight."""

    def __init__(self, size: int) -> None:
        self.size = self.num_weights = self._action_size = size
        self._log_std = np.zeros(size, np.float32)
        self._std = np.ones(size, np.float32)

    def load(self, weights: Array) -> None:
        """Take the log of the standard deviation."""
        self._log_std = weights
        self._std = np.exp(weights)

    def noise(self, seed: int, rollout: int, first: int, columns: int, steps: int) -> Array:
        """[steps, columns, action size] standard normal noise."""
        uniform = uniforms(seed, rollout, first, columns, 2 * steps * self._action_size)
        drawn = normal(uniform).reshape(columns, steps, self._action_size)
        return np.ascontiguousarray(drawn.swapaxes(0, 1), np.float32)

    def sample(self, mean: Array, noise: Array, action: Array) -> None:
        np.multiply(noise, self._std, out=action)
        np.add(action, mean, out=action)

    def greedy(self, mean: Array, action: Array) -> None:
        action[...] = mean

    def logp(self, mean: Array, action: Array) -> Array:
        z = (action - mean) / self._std
        return (-0.5 * z * z - self._log_std - np.float32(LOG_SQRT_2PI)).sum(-1)


class StateDependentGaussian(Gaussian):
    """Box actions; the parameters are means, then logs of standard deviations."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size, self.num_weights = 2 * size, 0

    def load(self, weights: Array) -> None:
        """There are none."""

    def _split(self, parameters: Array) -> tuple[Array, Array]:
        mean, log_std = np.split(parameters, 2, -1)
        return mean, np.clip(log_std, *LOG_STD_RANGE)

    def sample(self, parameters: Array, noise: Array, action: Array) -> None:
        mean, log_std = self._split(parameters)
        action[...] = mean + noise * np.exp(log_std)

    def greedy(self, parameters: Array, action: Array) -> None:
        action[...] = self._split(parameters)[0]

    def logp(self, parameters: Array, action: Array) -> Array:
        mean, log_std = self._split(parameters)
        z = (action - mean) * np.exp(-log_std)
        return (-0.5 * z * z - log_std - np.float32(LOG_SQRT_2PI)).sum(-1)


Distribution = Categorical | Gaussian


def make_distribution(network: NetworkSpec) -> Distribution:
    act = network.act
    if act.kind == "discrete":
        return Categorical(act.size)
    if act.kind == "multi":
        return MultiCategorical(act.sizes)
    return (StateDependentGaussian if network.state_dependent_std else Gaussian)(act.size)


def padding_index(sizes: tuple[int, ...]) -> Array | None:
    """[choices · widest] where each entry of the padded table lies among concatenated logits;
    padding is one behind the last. None if all sizes are equal and a reshape does."""
    widest, total = max(sizes), sum(sizes)
    if all(size == widest for size in sizes):
        return None
    table = np.full((len(sizes), widest), total)
    at = 0
    for row, size in enumerate(sizes):
        table[row, :size] = np.arange(at, at + size)
        at += size
    return table.ravel()
