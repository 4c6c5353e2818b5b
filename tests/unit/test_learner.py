"""The learner on rollouts made by hand: targets at episode ends, the KL stop, divergence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from learners import ONE_STEP
from saved_runs import assert_same

from paceline.distributed import Local
from paceline.envs.spaces import ActionSpec, observation_spec
from paceline.errors import Diverged
from paceline.learning.algorithms.a2c import A2C
from paceline.learning.algorithms.impala import IMPALA
from paceline.learning.algorithms.ppo import PPO
from paceline.learning.learner import Learner
from paceline.learning.optimizers import Adam
from paceline.policy.network import NetworkSpec
from paceline.rollout import Rollout

OBS = observation_spec(spaces.Box(-1, 1, (2,)))
ACT = ActionSpec("discrete", 3)
NORMALIZED = {"normalize_obs": True, "normalize_return": True}
GAMMA = ONE_STEP.gamma


def make_learner(algorithm=None, columns=2, normalize_obs=False, activation="tanh", **options):
    config = replace(ONE_STEP, **options)
    network = NetworkSpec(OBS, ACT, (16,), activation, normalize_obs=normalize_obs)
    algorithm = algorithm or A2C()
    return Learner(network, algorithm, Adam(), Local(), config, columns, torch.device("cpu"))


def random_rollout(learner, steps=12, columns=2, seed=0):
    """Valid rows without an end; log-probabilities are the learner's own."""
    rng = np.random.default_rng(seed)
    out = Rollout.allocate(steps, columns, ((2,), np.float32), ((), np.int64))
    out.obs[:] = rng.normal(size=out.obs.shape)
    out.action[:] = rng.integers(3, size=out.action.shape)
    out.reward[:] = rng.normal(size=out.reward.shape)
    out.valid[:] = True
    refresh_logp(learner, out)
    return out


def refresh_logp(learner, out):
    module = learner.module
    with torch.no_grad():
        inputs = module.inputs({"vector": torch.from_numpy(out.obs[:-1]).flatten(0, 1)})
        logp = module.predict(inputs, torch.from_numpy(out.action).flatten()).logp
    out.logp[:] = logp.numpy().reshape(out.logp.shape)


def value_of(learner, obs):
    with torch.no_grad():
        return float(learner.module(torch.from_numpy(obs).reshape(1, 2))[1])


def end_episodes(rollout, kind, columns=slice(None)):
    """An end after row 4: row 5 only resets, and row 6 is the first of the next episode."""
    getattr(rollout, kind)[4, columns], rollout.first[6, columns] = True, True
    rollout.valid[5, columns], rollout.reward[5, columns] = False, 0.0


def weights_of(learner):
    return learner.flat.storage.clone()


@pytest.mark.parametrize(
    ("ends", "bootstraps"),
    [(["truncated"], True), (["terminated"], False), (["terminated", "truncated"], False)],
    ids=["truncated", "terminated", "both"],
)
@pytest.mark.parametrize(
    "algorithm", [PPO(gae_lambda=1.0, normalize_advantage="none"), A2C(), IMPALA()]
)
def test_only_a_truncated_end_bootstraps_from_its_final_observation(algorithm, ends, bootstraps):
    """With both flags set, terminated wins. What follows the end must not matter."""
    learner = make_learner(algorithm)
    rollout = random_rollout(learner)
    for kind in ends:
        end_episodes(rollout, kind, 0)
    final = value_of(learner, rollout.obs[5, 0])
    assert abs(final) > 1e-3, "a value of zero would prove nothing"
    expected = GAMMA * final if bootstraps else 0.0
    returns = {}
    for t in range(4, -1, -1):
        expected = float(rollout.reward[t, 0]) + (expected if t == 4 else GAMMA * expected)
        returns[t] = expected
    rows = learner.prepare_batch(rollout).rows
    found = rows.returns.reshape(12, 2)[:, 0].tolist()
    assert {t: found[t] for t in returns} == pytest.approx(returns, rel=1e-5)
    gain = rows.advantage.reshape(12, 2)[:, 0].tolist()
    expected = {t: returns[t] - value_of(learner, rollout.obs[t, 0]) for t in returns}
    assert {t: gain[t] for t in returns} == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_last_row_bootstraps_from_the_observation_after_it():
    learner = make_learner(A2C())
    rollout = random_rollout(learner, steps=1)
    rows = learner.prepare_batch(rollout).rows
    for column in range(2):
        after = value_of(learner, rollout.obs[1, column])
        expected = float(rollout.reward[0, column]) + GAMMA * after
        assert rows.returns[column].item() == pytest.approx(expected, rel=1e-5)


def test_rollout_advantages_are_standardised_over_valid_rows_alone():
    learner = make_learner(PPO(normalize_advantage="rollout"))
    rollout = random_rollout(learner)
    rollout.valid[3:6, 1] = False
    rollout.truncated[2, 1] = True
    rows = learner.prepare_batch(rollout).rows
    kept = rows.advantage[rows.weight > 0].double()
    assert float(kept.mean()) == pytest.approx(0, abs=1e-6)
    assert float(kept.std(correction=0)) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("kind", [PPO, A2C, IMPALA])
@pytest.mark.parametrize("normalize", ["rollout", "minibatch", "none"])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_what_an_invalid_row_holds_changes_no_weight_and_no_metric(kind, normalize, end):
    """Whatever its action, log-probability and reward say, and however large they are; after a
    terminal state not even its observation has a say."""
    results = []
    for size in (0.5, -1e30):
        learner = make_learner(kind(normalize_advantage=normalize), **NORMALIZED)
        rollout = random_rollout(learner)
        end_episodes(rollout, end)
        rollout.reward[5] = rollout.logp[5] = size
        rollout.action[5] = 2 if size < 0 else 0
        if end == "terminated":
            rollout.obs[5] = size
        results.append((learner.update(rollout, 1.0), learner.state()))
    (metrics, state), (spoilt, spoilt_state) = results
    assert spoilt == metrics
    assert_same(spoilt_state, state)


@pytest.mark.parametrize("size", [1e3, 1e10, 1e20, 1e30])
def test_an_extreme_final_observation_does_not_break_the_update(size):
    """It is seen on the reset row, which counts for nothing, and its episode is over.

    But 0 · ∞ is NaN: a weight that only multiplies would let such a row through.
    """
    learner = make_learner(PPO(), activation="relu", epochs=4, minibatches=2)
    rollout = random_rollout(learner)
    end_episodes(rollout, "terminated")
    rollout.obs[5] = size
    refresh_logp(learner, rollout)
    learner.update(rollout, 1.0)
    assert torch.isfinite(learner.flat.storage).all()


@pytest.mark.parametrize("kind", [PPO, IMPALA])
def test_a_rollout_without_a_single_valid_row_changes_no_weight(kind):
    learner = make_learner(kind(), minibatches=2, **NORMALIZED)
    rollout = random_rollout(learner)
    rollout.valid[:] = False
    before = weights_of(learner)
    metrics = learner.update(rollout, 1.0)
    assert torch.equal(weights_of(learner), before)
    assert metrics["loss"] == 0


@pytest.mark.parametrize("kind", [PPO, A2C, IMPALA])
@pytest.mark.parametrize("normalize", ["rollout", "minibatch"])
def test_a_rollout_with_a_single_valid_row_moves_the_policy(kind, normalize):
    learner = make_learner(kind(normalize_advantage=normalize, entropy_coef=0.0))
    rollout = random_rollout(learner)
    rollout.valid[:] = False
    rollout.valid[4, 1] = True
    policy = {k: v.clone() for k, v in learner.module.named_weights().items() if "policy" in k}
    learner.update(rollout, 1.0)
    assert policy
    now = learner.module.named_weights()
    assert any(not torch.equal(now[name], weight) for name, weight in policy.items())


def test_epochs_end_once_the_policy_has_moved_too_far_and_the_step_is_not_taken():
    """The rollout comes from another policy: the very first minibatch is beyond the limit."""
    learner = make_learner(PPO(target_kl=0.01), epochs=4, minibatches=2)
    rollout = random_rollout(learner)
    rollout.logp[:] -= 1.0
    before = weights_of(learner)
    learner.update(rollout, 1.0)
    assert torch.equal(weights_of(learner), before)


def test_epochs_go_on_while_the_policy_stays_near():
    with_limit, without = (
        make_learner(PPO(target_kl=limit), epochs=4, minibatches=2) for limit in (1e3, None)
    )
    for learner in (with_limit, without):
        learner.update(random_rollout(learner), 1.0)
    assert torch.equal(weights_of(with_limit), weights_of(without))


def test_a_diverged_update_leaves_everything_as_it_was():
    learner = make_learner(PPO(), minibatches=2, **NORMALIZED)
    learner.update(random_rollout(learner), 1.0)
    before = learner.state()
    rollout = random_rollout(learner, seed=1)
    rollout.logp[3, 0] = -200.0  # a ratio of e²⁰⁰
    with pytest.raises(Diverged, match="update 2"):
        learner.update(rollout, 1.0)
    assert_same(learner.state(), before)


def test_observation_statistics_hold_every_valid_row_and_no_other():
    learner = make_learner(PPO(), normalize_obs=True)
    seen = []
    for seed in range(3):
        rollout = random_rollout(learner, seed=seed)
        rollout.truncated[4], rollout.valid[5], rollout.obs[5] = True, False, 77.0
        learner.update(rollout, 1.0)
        seen.append(rollout.obs[:-1][rollout.valid])
    rows = np.concatenate(seen).astype(np.float64)
    # The start weighs 1e-4 of a row among 66.
    np.testing.assert_allclose(learner.module.obs_mean.numpy(), rows.mean(0), atol=1e-5)
    np.testing.assert_allclose(1 / learner.module.obs_scale.numpy(), rows.std(0), rtol=1e-5)


def test_warming_up_on_a_blank_rollout_learns_nothing():
    learner = make_learner(PPO(), minibatches=2, **NORMALIZED)
    learner.update(random_rollout(learner), 1.0)
    before = learner.state()
    rollout = random_rollout(learner, seed=5)
    learner.warm_up(rollout)
    assert_same(learner.state(), before)
