"""The page of plain PyTorch in examples/ learns what the library learns."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from saved_runs import PLAIN

import paceline
from paceline.run.build import build

EXAMPLE = Path(__file__).parents[2] / "examples" / "ppo_in_one_file.py"
ROWS = ("action", "logp", "reward", "terminated", "truncated", "valid")


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("ppo_in_one_file", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_with(page, module):
    """The example's model with the weights of the library's."""
    model = page.ActorCritic(4, 2)
    ours = [*module.policy.parameters(), *module.value_trunk.parameters()]
    ours += module.value_head.parameters()
    for own, weight in zip(model.parameters(), ours, strict=True):
        own.data.copy_(weight.detach())
    return model, ours


def test_on_the_same_rollout_its_gradient_is_the_librarys(page):
    terms = {"clip": page.CLIP, "gae_lambda": page.LAMBDA}
    terms |= {"vf_coef": page.VF_COEF, "entropy_coef": page.ENTROPY_COEF}
    one_step = {"num_envs": 8, "rollout_steps": 64, "epochs": 1, "minibatches": 1}
    options = PLAIN | one_step | {"gamma": page.GAMMA, "total_iters": 10, "ppo": terms}
    config = paceline.Config(env_id="CartPole-v1", env={"time_limit": 20}, **options)
    with build(config) as parts:
        learner, sampler = parts.learner, parts.sampler
        # A policy that differs from the one that learns, so that ratios are not 1.
        noise = np.random.default_rng(0).normal(scale=0.3, size=learner.weights.shape)
        sampler.publish(learner.weights + noise.astype(np.float32), 0)
        rollout = sampler.collect()
        assert rollout.truncated.any() and rollout.terminated.any() and not rollout.valid.all()
        tensors = [torch.from_numpy(getattr(rollout, name).copy()) for name in ("obs", *ROWS)]
        model, ours = model_with(page, learner.module)
        metrics = learner.update(rollout, 1.0)
        assert metrics["clip_frac"] > 0
        rows = rollout.valid.sum()
        gradients = [parameter.grad / rows for parameter in ours]  # the buffer holds sums
    page.ppo_loss(model, *page.batch_of(page.Rollout(*tensors), model)).backward()
    for own, gradient in zip(model.parameters(), gradients, strict=True):
        largest = float(gradient.abs().max())
        torch.testing.assert_close(own.grad, gradient, rtol=1e-4, atol=1e-5 * largest)


def test_it_learns(page, monkeypatch):
    """A random policy keeps the pole up for about 20 steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    said = []
    monkeypatch.setattr(page, "print", said.append, raising=False)
    try:
        page.train(iterations=40)
    finally:
        torch.set_num_threads(threads)
    assert float(said[-1].split()[-1]) > 60
