"""The minibatch step: rows that don't count, the clipped gradient, the mean of each term."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from gymnasium import spaces
from learners import GradientDescent, needs_compiler

from paceline.envs.spaces import ActionSpec, observation_spec
from paceline.learning.algorithms.a2c import A2C
from paceline.learning.algorithms.impala import IMPALA
from paceline.learning.algorithms.ppo import PPO
from paceline.learning.batch import Rows
from paceline.learning.compiler import CACHE
from paceline.learning.optimizers import RMSprop
from paceline.learning.step import Objective, PolicyLoss, Step
from paceline.policy.actor_critic import ActorCritic
from paceline.policy.flat import FlatParameters
from paceline.policy.network import NetworkSpec

OBS = observation_spec(spaces.Box(-1, 1, (3,)))
ACTIONS = {
    "discrete": ActionSpec("discrete", 4),
    "box": ActionSpec("box", 2, (2,), "float32", low=(-1, -1), high=(1, 1)),
}


def make_step(algorithm, kind="discrete", max_norm=1e9, optimizer=None, activation="relu"):
    module = ActorCritic(NetworkSpec(OBS, ACTIONS[kind], hidden=(8,), activation=activation))
    module.initialize(0)
    objective = Objective(PolicyLoss(module, algorithm, max_norm))
    flat = FlatParameters(module, torch.device("cpu"), objective)
    return Step(objective, flat, optimizer or GradientDescent()), module


def some_rows(module, kind, count, seed=0):
    """Rows whose old log-probability is near the policy's own."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    inputs = (normal(count, 3),)
    if kind == "discrete":
        action = torch.randint(4, (count,), generator=generator)
    else:
        action = normal(count, 2)
    with torch.no_grad():
        logp = module.predict(inputs, action).logp + 0.2 * normal(count)
    return Rows(
        inputs, action, logp, normal(count), normal(count, 1), normal(count, 1), torch.ones(count)
    )


def with_garbage(rows, garbage):
    """The same rows with others behind them that have weight 0 and make no sense."""
    garbage = dataclasses.replace(
        garbage,
        inputs=(1e4 * garbage.inputs[0],),
        action=garbage.action if garbage.action.ndim == 1 else 1e3 * garbage.action,
        logp=garbage.logp + 20.0 * garbage.advantage.sign(),
        advantage=1e4 * garbage.advantage,
        returns=1e4 * garbage.returns,
        value=1e4 * garbage.value,
        weight=torch.zeros_like(garbage.weight),
    )
    pairs = zip(rows.tensors(), garbage.tensors(), strict=True)
    return rows.like([torch.cat(pair) for pair in pairs])


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize("normalize", ["none", "minibatch"])
@pytest.mark.parametrize("algorithm", [PPO, A2C, IMPALA])
def test_rows_of_weight_zero_change_neither_the_terms_nor_the_gradient(algorithm, normalize, kind):
    step, module = make_step(algorithm(normalize_advantage=normalize, entropy_coef=0.1), kind)
    rows = some_rows(module, kind, 32)
    clean = step.gradient(rows, [1.0]).clone()
    spoilt = step.gradient(with_garbage(rows, some_rows(module, kind, 32, seed=1)), [1.0])
    assert clean[-1] == spoilt[-1] == 32
    torch.testing.assert_close(spoilt, clean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("limit", [0.01, 0.5, 1e9])
def test_a_step_is_clip_grad_norm_and_then_torchs_own_optimizer(limit):
    """The norm is that of policy and value together, and a metric."""
    algorithm = A2C(entropy_coef=0.01)
    step, module = make_step(algorithm, max_norm=limit, optimizer=RMSprop())
    _, twin = make_step(algorithm)
    optimizer = torch.optim.RMSprop(twin.parameters(), lr=1e-2, alpha=0.99, eps=1e-5)
    for seed in range(10):
        rows = some_rows(module, "discrete", 64, seed)
        step.gradient(rows, [1.0])
        terms = dict(zip(step.names, step.apply(1e-2).tolist(), strict=True))
        loss, _ = algorithm.loss(twin.predict(rows.inputs, rows.action), rows, 1.0)
        optimizer.zero_grad()
        loss.mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), limit)
        optimizer.step()
        assert terms["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    for (name, ours), theirs in zip(module.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: n + m)


def test_terms_are_means_over_the_rows_that_count():
    algorithm = PPO(normalize_advantage="none", entropy_coef=0.1)
    step, module = make_step(algorithm)
    rows = some_rows(module, "discrete", 40)
    rows = dataclasses.replace(rows, weight=(torch.arange(40) % 3 != 0).float())
    loss, terms = algorithm.loss(module.predict(rows.inputs, rows.action), rows, 1.0)
    expected = [float(term.detach()[rows.weight > 0].mean()) for term in (loss, *terms)]
    step.gradient(rows, [1.0])
    kl = step.metric_mean("approx_kl")
    found = step.apply(0.0).tolist()
    assert found[:-1] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert kl == pytest.approx(found[step.names.index("approx_kl")], rel=1e-6)


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize(
    "compiling", [False, pytest.param(True, marks=[pytest.mark.slow, needs_compiler])]
)
def test_a_step_in_one_call_is_the_step_in_two(kind, compiling):
    """To the bit when eager; compiled together, the last one may differ."""
    results = []
    for fused in (False, True):
        step, module = make_step(PPO(), kind, 0.5, RMSprop(), activation="tanh")
        if compiling:
            step.compile(some_rows(module, kind, 16), fused)
        terms = []
        for seed in range(3):
            rows = some_rows(module, kind, 16, seed)
            if fused:
                terms.append(step.fused(rows, [0.7], 1e-2).clone())
            else:
                step.gradient(rows, [0.7])
                terms.append(step.apply(1e-2).clone())
        results.append((step._flat.weights.clone(), torch.stack(terms), step.count))
    (one, ours, steps), (other, theirs, again) = results
    assert steps == again == 3
    if not compiling:
        assert torch.equal(one, other)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.slow
def test_what_is_compiled_is_kept_in_the_cache_and_not_in_the_temp_folder(tmp_path, shell):
    temp = tmp_path / "temp"
    temp.mkdir()
    env = shell.environment(TMPDIR=str(temp), XDG_CACHE_HOME=str(tmp_path / "cache"))
    env.pop(CACHE, None)
    shell.train("run", "--compile", "on", "--total-iters", "1", env=env)
    assert list(temp.iterdir()) == []
    assert any((tmp_path / "cache" / "paceline").rglob("*.so"))
