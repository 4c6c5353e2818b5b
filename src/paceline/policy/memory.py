"""Recurrent cells as an actor steps them, in numpy. R = rows, F = features, H = size.

The torch modules that learn are in recurrent.py; names and shapes of the weights are these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import BadInput
from ..rollout import Array

if TYPE_CHECKING:
    from ..config.schema import Config

Shape = tuple[int, ...]


class Cell:
    """A built-in memory. `carry[R, S]` is what a row remembers; its first H floats are shown."""

    states: ClassVar[int] = 1
    """S / H"""
    gates: ClassVar[int]
    """blocks of H columns in each weight"""
    recurrent: ClassVar[bool] = True
    """whether gates depend on what was shown before; if not, a step with it can be compiled"""

    @classmethod
    def refuse(cls, config: Config) -> None:
        if config.compile == "on" and cls.recurrent:
            raise BadInput(
                f"compile is 'on', and memory is {config.memory!r}, which can't be compiled: its "
                "steps depend on each other, and a loop of hundreds would be written out; write "
                "--compile auto, or --memory mingru"
            )

    @classmethod
    def shapes(cls, features: int, size: int) -> dict[str, Shape]:
        """Names and shapes of the weights, in order, each [out, in] as torch has them."""
        width = cls.gates * size
        shapes: dict[str, Shape] = {"weight_ih": (width, features)}
        if cls.recurrent:
            shapes["weight_hh"] = (width, size)
        shapes["bias_ih"] = (width,)
        if cls.recurrent:
            shapes["bias_hh"] = (width,)
        return shapes

    def __init__(self, size: int, rows: int) -> None:
        self._size = size
        self._input = np.empty((rows, self.gates * size), np.float32)
        self._hidden = np.empty((rows, self.gates * size), np.float32)
        self._new = np.empty((rows, size), np.float32)

    def load(self, *weights: Array) -> None:
        """Use these from now on: those of `shapes`, transposed to [in, out]."""
        raise NotImplementedError

    def step(self, x: Array, carry: Array, product: Callable[..., Any]) -> Array:
        """Take in `x[R, F]`; changes `carry[R, S]` and returns what is shown, [R, H].

        `product(x, weight, out)` multiplies `x` by a weight [F, …].
        """
        raise NotImplementedError


class LSTM(Cell):
    """Gates in the order of torch: input, forget, candidate, output. The carry is [h | c]."""

    states, gates = 2, 4

    def __init__(self, size: int, rows: int) -> None:
        super().__init__(size, rows)
        # σ(x) = ½·tanh(½·x) + ½, so that all gates take one call.
        self._half = np.repeat(np.array([0.5, 0.5, 1, 0.5], np.float32), size)
        self._offset = np.repeat(np.array([0.5, 0.5, 0, 0.5], np.float32), size)

    def load(self, *weights: Array) -> None:
        self._weight_ih, self._weight_hh, bias_ih, bias_hh = weights
        self._bias = bias_ih + bias_hh

    def step(self, x: Array, carry: Array, product: Callable[..., Any]) -> Array:
        gates, size, new = self._input, self._size, self._new
        h, c = carry[:, :size], carry[:, size:]
        product(x, self._weight_ih, gates)
        np.dot(h, self._weight_hh, self._hidden)
        np.add(gates, self._hidden, gates)
        np.add(gates, self._bias, gates)
        np.multiply(gates, self._half, gates)
        np.tanh(gates, gates)
        np.multiply(gates, self._half, gates)
        np.add(gates, self._offset, gates)
        np.multiply(gates[:, :size], gates[:, 2 * size : 3 * size], new)
        np.multiply(c, gates[:, size : 2 * size], c)
        np.add(c, new, c)
        np.tanh(c, new)
        np.multiply(new, gates[:, 3 * size :], new)
        h[...] = new
        return new


class GRU(Cell):
    """Gates in the order of torch: reset, update, candidate. The carry is h."""

    gates = 3

    def load(self, *weights: Array) -> None:
        self._weight_ih, self._weight_hh, self._bias_ih, self._bias_hh = weights

    def step(self, x: Array, carry: Array, product: Callable[..., Any]) -> Array:
        gates, hidden, size, new = self._input, self._hidden, self._size, self._new
        product(x, self._weight_ih, gates)
        np.add(gates, self._bias_ih, gates)
        np.dot(carry, self._weight_hh, hidden)
        np.add(hidden, self._bias_hh, hidden)
        both = gates[:, : 2 * size]
        np.add(both, hidden[:, : 2 * size], both)
        _sigmoid(both)
        np.multiply(gates[:, :size], hidden[:, 2 * size :], new)
        np.add(new, gates[:, 2 * size :], new)
        np.tanh(new, new)
        # h' = n + z·(h − n)
        np.subtract(carry, new, carry)
        np.multiply(carry, gates[:, size : 2 * size], carry)
        np.add(carry, new, carry)
        return carry


class MinGRU(Cell):
    """h' = (1 − z)·h + z·candidate, both of the input alone (Feng 2024). The carry is h."""

    gates, recurrent = 2, False

    def load(self, *weights: Array) -> None:
        self._weight_ih, self._bias_ih = weights

    def step(self, x: Array, carry: Array, product: Callable[..., Any]) -> Array:
        gates, size, new = self._input, self._size, self._new
        product(x, self._weight_ih, gates)
        np.add(gates, self._bias_ih, gates)
        new[...] = gates[:, :size]
        _sigmoid(new)
        # h' = h + z·(n − h)
        change = gates[:, size:]
        np.subtract(change, carry, change)
        np.multiply(change, new, change)
        np.add(carry, change, carry)
        return carry


def _sigmoid(x: Array) -> None:
    """In place. tanh can't overflow, as exp can."""
    np.multiply(x, 0.5, x)
    np.tanh(x, x)
    np.multiply(x, 0.5, x)
    np.add(x, 0.5, x)
