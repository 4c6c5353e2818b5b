"""Learners, rollouts and the ring in small, for tests of the learning path."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.learning.compiler import compiler_missing
from paceline.learning.learner import LearnerConfig
from paceline.rollout import Rollout

needs_compiler = pytest.mark.skipif(bool(compiler_missing()), reason=str(compiler_missing()))
ONE_STEP = LearnerConfig(
    epochs=1,
    minibatches=1,
    gamma=0.9,
    lr=1e-2,
    lr_schedule="constant",
    max_grad_norm=0.5,
    normalize_return=False,
    seed=0,
)
"""One step on each rollout."""


class GradientDescent:
    """An optimizer whose step is the gradient itself, so that it can be read off the weights."""

    moments = 0

    def step_size_and_eps(self, lr, count):
        return lr, 0.0

    def step(self, flat, grad, state, step_size, eps):
        flat.sub_(grad * step_size)


def scalar_rollout(steps, columns, **fields):
    """A rollout of scalar observations, all rows valid unless `fields` say otherwise."""
    out = Rollout.allocate(steps, columns, ((), np.float32), ((), np.int64))
    for name, value in ({"valid": True} | fields).items():
        getattr(out, name)[...] = value
    return out


def iterate(parts, times=1):
    """Collect, update, publish; returns the last rollout and its metrics."""
    for _ in range(times):
        rollout = parts.sampler.collect()
        metrics = parts.learner.update(rollout, 1.0)
        parts.sampler.publish(parts.learner.weights, parts.learner.version)
    return rollout, metrics
