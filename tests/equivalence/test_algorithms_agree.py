"""One algorithm or one form of a batch must learn the same as another that is equal on paper."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from environments import env_maker, serial_of
from learners import ONE_STEP, GradientDescent, iterate, needs_compiler
from saved_runs import small_config

from paceline.distributed import Local
from paceline.envs.env_columns import EnvColumns
from paceline.learning.algorithms.a2c import A2C
from paceline.learning.algorithms.impala import IMPALA
from paceline.learning.algorithms.ppo import PPO
from paceline.learning.compiler import CACHE
from paceline.learning.learner import Learner
from paceline.learning.returns import vtrace
from paceline.policy.actor import make_actor
from paceline.policy.network import NetworkSpec
from paceline.run.build import build

GAMMA, LAMBDA = 0.97, 0.9
LONG_STEP = 1e4
"""A learning rate at which a step is so long that no digit of the gradient is lost in it."""


config_of = partial(small_config, gamma=GAMMA, hidden=None)


def assert_learn_the_same(config, other):
    """Both learners move to the same weights on the rollouts of the first; returns the number of
    episodes that ended in them."""
    with build(config) as ours, build(other) as theirs:
        weights, twins = ours.learner.flat.weights, theirs.learner.flat.weights
        start, ends = weights.clone(), 0
        for _ in range(10):
            rollout, _ = iterate(ours)
            ends += rollout.done.sum()
            theirs.learner.update(rollout, 1.0)
            torch.testing.assert_close(twins, weights, rtol=0, atol=2e-6)
        assert (weights - start).abs().max() > 5e-3
    return ends


@pytest.mark.parametrize("normalize", ["none", "rollout"])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a2c_is_ppo_with_one_epoch_and_one_minibatch(env_id, optimizer, normalize):
    """The ratio is then 1, and its gradient that of the log-probability (FACTS 1.6)."""
    same = {"optimizer": optimizer, "lr": 1e-3, "epochs": 1, "minibatches": 1}
    terms = {"gae_lambda": LAMBDA, "entropy_coef": 0.01, "normalize_advantage": normalize}
    a2c = config_of(env_id, algo="a2c", a2c=terms, **same)
    ppo = config_of(env_id, algo="ppo", ppo=terms, **same)
    assert_learn_the_same(a2c, ppo)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_impala_on_its_own_rollouts_is_a2c_with_n_step_returns(env_id, optimizer):
    """V-trace's target is then the n-step return, and every ratio 1."""
    same = {"optimizer": optimizer, "lr": 1e-3, "env": {"time_limit": 30}}
    same |= {"normalize_obs": True, "normalize_return": True}
    terms = {"entropy_coef": 0.01, "vf_coef": 0.4}
    a2c = config_of(env_id, algo="a2c", a2c=terms | {"gae_lambda": 1.0}, **same)
    impala = config_of(env_id, algo="impala", impala=terms | {"vtrace_lambda": 1.0}, **same)
    ends = assert_learn_the_same(impala, a2c)
    assert ends >= 12


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("CartPole-v1", {"normalize_obs": True}),
        ("Pendulum-v1", {"normalize_obs": True, "state_dependent_std": True}),
        ("toy:identity", {"env": {"kwargs": {"image": True}}}),
    ],
    ids=["discrete", "box", "image"],
)
def test_a_rollout_of_the_serial_sampler_is_never_old(env_id, options):
    """What acted is what learns, to rounding: neither weights nor normalizer have moved on."""
    config = config_of(env_id, algo="impala", lr=2e-3, **options)
    with build(config) as parts:
        for version in range(8):
            rollout, metrics = iterate(parts)
            assert (rollout.version == version).all()
            assert metrics["rho_mean"] == pytest.approx(1.0, abs=1e-5)


def logp_and_entropy(module, parameters, action):
    """By torch's own distributions."""
    if action.ndim == 1:
        policy = torch.distributions.Categorical(logits=parameters)
        return policy.log_prob(action), policy.entropy()
    policy = torch.distributions.Normal(parameters, module.policy.log_std.exp())
    return policy.log_prob(action).sum(-1), policy.entropy().sum(-1)


def ratios_and_values(module, rollout):
    """exp(log π − log μ) [T, B] and V [T+1, B]."""
    shape, size = rollout.obs.shape[:2], rollout.logp.size
    with torch.no_grad():
        parameters, value = module(torch.from_numpy(rollout.obs).flatten(0, 1))
        action = torch.from_numpy(rollout.action).flatten(0, 1)
        logp, _ = logp_and_entropy(module, parameters[:size], action)
    logp = logp.numpy().reshape(rollout.logp.shape)
    return np.exp(logp - rollout.logp), value.numpy().reshape(shape)


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_targets_of_an_old_rollout_are_vtraces_of_its_ratios(env_id, correction):
    """test_returns compares the recursion itself with the sum in the paper."""
    terms = {"vtrace_lambda": LAMBDA, "rho_bar": 1.5, "correction": correction}
    options = {"lr": 2e-3, "env": {"time_limit": 11}}
    with build(config_of(env_id, algo="impala", impala=terms, **options)) as parts:
        learner = parts.learner
        parts.sampler.publish(learner.weights.copy(), 0)  # not a view of what moves on
        for _ in range(6):
            rollout = parts.sampler.collect()
            assert (rollout.version == 0).all()
            metrics = learner.update(rollout, 1.0)
        assert 0.1 < metrics["rho_mean"] < 0.98
        rollout = parts.sampler.collect()
        batch = learner.prepare_batch(rollout)
        rows, metrics = batch.rows, batch.metrics
        ratio, value = ratios_and_values(learner.module, rollout)
    found = np.minimum(ratio, 1.0)[rollout.valid].mean()
    assert metrics["rho_mean"] == pytest.approx(found, rel=1e-5)
    assert rollout.truncated.any() and (~rollout.valid).any()
    log_ratio = np.log(ratio.astype(np.float64)) if correction else np.zeros(ratio.shape)
    signals = rollout.reward, GAMMA * ~rollout.terminated, 1.0 * ~rollout.done, value, log_ratio
    expected = vtrace(*signals, rho_bar=1.5, c_bar=1.0, lam=LAMBDA)
    for ours, theirs in zip((rows.returns, rows.advantage), expected, strict=True):
        ours = ours.numpy().reshape(rollout.reward.shape)[rollout.valid]
        np.testing.assert_allclose(ours, theirs[rollout.valid], rtol=1e-4, atol=1e-4)


def same_step_columns(rollout):
    """The rollout as an environment with same-step autoreset and final observations gives it.

    Each column is a list of (obs, action, logp, reward, terminated, final obs or None), the next
    entry's obs being the reset one; and the observation that its last row led to.
    """
    columns = []
    for i in range(rollout.columns):
        rows = []
        for t in np.flatnonzero(rollout.valid[:, i]):
            final = rollout.obs[t + 1, i] if rollout.done[t, i] else None
            fields = (rollout.obs, rollout.action, rollout.logp, rollout.reward, rollout.terminated)
            rows.append((*(field[t, i] for field in fields), final))
        columns.append((rows, rollout.obs[-1, i]))
    return columns


def same_step_targets(columns, value_of, ratios=None):
    """Advantages and returns by the usual loop, with one more forward pass at every end: GAE's, or
    V-trace's with the `ratios` of all rows in turn."""
    advantages, targets, at = [], [], 0
    for rows, last in columns:
        target, found = value_of(last), []
        for k in range(len(rows) - 1, -1, -1):
            obs, _, _, reward, terminated, final = rows[k]
            if final is not None:
                successor = target = value_of(final)
            else:
                successor = value_of(rows[k + 1][0] if k + 1 < len(rows) else last)
            gamma, value = 0.0 if terminated else GAMMA, value_of(obs)
            rho = 1.0 if ratios is None else min(1.0, ratios[at + k])
            advantage = reward + gamma * target - value
            delta = rho * (reward + gamma * successor - value)
            target = value + delta + gamma * LAMBDA * rho * (target - successor)
            found.append((target - value if ratios is None else advantage, target))
        at += len(rows)
        advantages += [advantage for advantage, _ in reversed(found)]
        targets += [target for _, target in reversed(found)]
    return np.array(advantages), np.array(targets)


def same_step_gradient(module, columns, kind):
    """Of the textbook loss, averaged over all rows, with entropy and half the squared error."""

    def value_of(obs):
        with torch.no_grad():
            return float(module(torch.from_numpy(np.asarray(obs)[None]))[1])

    rows = [row for rows, _ in columns for row in rows]
    obs = torch.from_numpy(np.stack([row[0] for row in rows]))
    action = torch.from_numpy(np.stack([row[1] for row in rows]))
    old = torch.from_numpy(np.stack([row[2] for row in rows]))
    parameters, value = module(obs)
    logp, entropy = logp_and_entropy(module, parameters, action)
    ratio = (logp - old).exp()
    targets = same_step_targets(columns, value_of, ratio.tolist() if kind is IMPALA else None)
    advantage, target = (torch.from_numpy(array) for array in targets)
    advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    if kind is PPO:
        limited = ratio.clamp(0.8, 1.2)
        gain = torch.min(ratio * advantage, limited * advantage)
    else:
        rho = ratio.detach().clamp(max=1.0) if kind is IMPALA else 1.0
        gain = rho * logp * advantage
    error = (value.squeeze(-1) - target).square()
    loss = (-gain + 0.5 * 0.5 * error - 0.01 * entropy).mean()
    return torch.autograd.grad(loss, list(module.parameters()))


@pytest.mark.parametrize("kind", [PPO, A2C, IMPALA])
@pytest.mark.parametrize(
    ("env_id", "limit"), [("CartPole-v1", 12), ("Pendulum-v1", 7), ("FrozenLake-v1", 5)]
)
def test_masked_next_step_gradients_are_those_of_same_step_with_final_observations(
    env_id, limit, kind
):
    """The acting policy differs from the learner's, so that no ratio is 1."""
    columns = EnvColumns(env_maker(env_id, time_limit=limit), 4, 0)
    network = NetworkSpec(columns.obs_spec, columns.act_spec, (16, 16))
    lam = "vtrace_lambda" if kind is IMPALA else "gae_lambda"
    terms = {lam: LAMBDA, "entropy_coef": 0.01, "normalize_advantage": "rollout"}
    config = replace(ONE_STEP, gamma=GAMMA, lr=LONG_STEP, max_grad_norm=1e9)
    cpu = torch.device("cpu")
    learner = Learner(network, kind(**terms), GradientDescent(), Local(), config, 4, cpu)
    sampler = serial_of(columns, make_actor(network, 4), 61, 0)
    noise = np.random.default_rng(0).normal(scale=0.3, size=learner.weights.shape)
    sampler.publish(learner.weights + noise.astype(np.float32), 0)
    rollout = sampler.collect()
    assert rollout.truncated.sum() >= 4
    assert (~rollout.valid).sum() >= 8

    twin = copy.deepcopy(learner.module)
    before = [parameter.detach().clone() for parameter in learner.module.parameters()]
    metrics = learner.update(rollout, 1.0)
    sampler.close()
    if kind is PPO:
        assert metrics["clip_frac"] > 0, "the clip should be at work"
    if kind is IMPALA:
        assert metrics["rho_mean"] < 0.99, "the correction should be at work"
    expected = same_step_gradient(twin, same_step_columns(rollout), kind)
    after = learner.module.named_parameters()
    for old, (name, new), gradient in zip(before, after, expected, strict=True):
        found, largest = (old - new.detach()) / LONG_STEP, float(gradient.abs().max())
        torch.testing.assert_close(
            found, gradient, rtol=1e-4, atol=1e-5 * largest, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("env_id", "algo"), [("Pendulum-v1", "ppo"), ("FrozenLake-v1", "a2c")])
def test_a_compiled_step_learns_what_the_eager_one_learns(monkeypatch, tmp_path, env_id, algo):
    """Compiled once, whatever the schedules say."""
    monkeypatch.setenv(CACHE, str(tmp_path))
    options = {"algo": algo, "lr": 1e-3}
    if algo == "ppo":
        terms = {"entropy_coef": 0.01, "entropy_schedule": "cosine", "clip_schedule": "linear:0.05"}
        terms |= {"normalize_advantage": "minibatch"}
        options |= {"epochs": 2, "minibatches": 2, "ppo": terms, "lr_schedule": "linear:5e-4"}
    with (
        build(config_of(env_id, **options)) as eager,
        build(config_of(env_id, compile="on", **options)) as compiled,
    ):
        assert compiled.choices.compiled
        assert not eager.choices.compiled
        weights, twins = eager.learner.flat.weights, compiled.learner.flat.weights
        start = weights.clone()
        assert torch.equal(start, twins), "compiling must learn nothing"
        for update in range(5):
            rollout = eager.sampler.collect()
            remaining = 1.0 - update / 5
            ours = eager.learner.update(rollout, remaining)
            theirs = compiled.learner.update(rollout, remaining)
            assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-5)
            eager.sampler.publish(eager.learner.weights, eager.learner.version)
        assert (weights - start).abs().max() > 2e-3
        torch.testing.assert_close(twins, weights, rtol=0, atol=1e-6)
