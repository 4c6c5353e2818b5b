"""The noise of sampled actions, drawn for a whole rollout at once.

A counter-based generator keyed by (seed, rollout) and advanced to a block's first column gives
every column the same numbers, however columns are spread over processes.
"""

from __future__ import annotations

import numpy as np

from ..rollout import Array

WORDS = 4
"""Numbers that one tick of Philox' counter yields."""


def uniforms(seed: int, rollout: int, first_column: int, columns: int, numbers: int) -> Array:
    """[columns, numbers] uniforms in (0, 1)."""
    ticks = -(-numbers // WORDS)
    generator = np.random.Philox(key=np.array([seed, rollout], np.uint64))
    generator.advance(first_column * ticks)
    words = generator.random_raw(columns * ticks * WORDS).reshape(columns, ticks * WORDS)
    # 52 bits and a half: neither 0 nor 1 can come out.
    return ((words[:, :numbers] >> np.uint64(12)) + 0.5) * 2.0**-52


def gumbel(uniform: Array) -> Array:
    return -np.log(-np.log(uniform))


def normal(uniform: Array) -> Array:
    """Box-Muller; the last axis holds pairs of uniforms and loses half its length."""
    radius = np.sqrt(-2.0 * np.log(uniform[..., 0::2]))
    return radius * np.cos(2.0 * np.pi * uniform[..., 1::2])
