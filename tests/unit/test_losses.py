"""The losses of PPO, A2C and IMPALA on inputs whose answer can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.learning.algorithms.a2c import A2C
from paceline.learning.algorithms.impala import IMPALA
from paceline.learning.algorithms.ppo import PPO
from paceline.learning.batch import Rows
from paceline.policy.network import Prediction


def case(log_ratio, advantage, *, value=0.0, returns=0.0, old_value=0.0, entropy=0.0, weight=1.0):
    """One row per element; what is given as one number is the same in all. In float64."""
    log_ratio = torch.as_tensor(log_ratio, dtype=torch.float64)

    def full(x):
        return torch.as_tensor(x, dtype=torch.float64).expand(log_ratio.shape).clone()

    old_logp = full(-1.25)
    prediction = Prediction(
        logp=(old_logp + log_ratio).requires_grad_(),
        entropy=full(entropy).requires_grad_(),
        value=full(value).unsqueeze(-1).requires_grad_(),
    )
    rows = Rows(
        inputs=(torch.zeros(len(log_ratio), 1),),
        action=torch.zeros(len(log_ratio)),
        logp=old_logp,
        advantage=full(advantage),
        returns=full(returns).unsqueeze(-1),
        value=full(old_value).unsqueeze(-1),
        weight=full(weight),
    )
    return prediction, rows


def terms(algorithm, prediction, rows, **factors):
    """The loss of each row, and the metrics by name."""
    loss, values = algorithm.loss(prediction, rows, 1.0, **factors)
    return loss, dict(zip(algorithm.metrics, values, strict=True))


def close(tensor, expected):
    expected = torch.as_tensor(expected, dtype=tensor.dtype)
    torch.testing.assert_close(tensor.detach(), expected, rtol=1e-12, atol=1e-12)


def logp_gradient(algorithm, prediction, rows):
    """Of the weighted sum of the loss."""
    loss, _ = terms(algorithm, prediction, rows)
    (loss * rows.weight).sum().backward()
    return prediction.logp.grad


PLAIN = PPO(clip=0.2, normalize_advantage="none")
each_kind = pytest.mark.parametrize("kind", [PPO, A2C, IMPALA])


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "moves"),
    [
        (1.5, 1.0, -1.2, False),  # a gain beyond the limit no longer counts
        (0.5, -1.0, 0.8, False),  # nor does taking away more than the limit
        (0.5, 1.0, -0.5, True),  # but what has become worse is felt in full
        (1.5, -1.0, 1.5, True),
        (1.0, 2.0, -2.0, True),
        (1.1, 1.0, -1.1, True),
        (0.9, -1.0, 0.9, True),
    ],
)
def test_ppo_clips_only_where_the_policy_would_gain(ratio, advantage, expected, moves):
    rows = case([math.log(ratio)], [advantage])
    _, seen = terms(PLAIN, *rows)
    close(seen["policy_loss"], [expected])
    close(seen["clip_frac"], [float(not 0.8 <= ratio <= 1.2)])
    close(logp_gradient(PLAIN, *rows), [-advantage * ratio if moves else 0.0])


numbers = st.floats(-3, 3, allow_subnormal=False)


@settings(deadline=None)
@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20),
    st.sampled_from([0.05, 0.2, 0.5]),
)
def test_ppo_gradient_is_that_of_the_textbook_minimum(pairs, clip):
    log_ratio, advantage = (list(column) for column in zip(*pairs, strict=True))
    prediction, rows = case(log_ratio, advantage)
    algorithm = PPO(clip=clip, normalize_advantage="none")
    _, seen = terms(algorithm, prediction, rows)

    logp = prediction.logp.detach().clone().requires_grad_()
    ratio = torch.exp(logp - rows.logp)
    limited = torch.clamp(ratio, 1 - clip, 1 + clip)
    textbook = -torch.min(ratio * rows.advantage, limited * rows.advantage)
    textbook.sum().backward()
    close(seen["policy_loss"], textbook.detach())
    close(logp_gradient(algorithm, prediction, rows), logp.grad)


@settings(deadline=None)
@given(st.lists(st.floats(-20, 20, allow_subnormal=False), min_size=1, max_size=20))
def test_kl_is_k3_and_never_negative(log_ratio):
    _, seen = terms(PLAIN, *case(log_ratio, 1.0))
    ratio = torch.exp(torch.tensor(log_ratio, dtype=torch.float64))
    rounding = 4 * torch.finfo(torch.float64).eps * ratio.clamp(min=1.0) * 20
    assert (seen["approx_kl"] >= -rounding).all()
    k3 = (ratio - 1) - torch.tensor(log_ratio, dtype=torch.float64)
    torch.testing.assert_close(seen["approx_kl"], k3, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("algorithm", [PLAIN, A2C(), IMPALA()])
def test_value_loss_is_half_the_squared_error_times_its_weight(algorithm):
    loss, seen = terms(algorithm, *case([0.0, 0.0], 0.0, value=[1.0, -2.0], returns=[4.0, 2.0]))
    close(seen["value_loss"], [0.5 * 9.0, 0.5 * 16.0])
    close(loss, [0.5 * 4.5, 0.5 * 8.0])


@each_kind
def test_vf_coef_scales_the_value_loss_and_nothing_else(kind):
    prediction, rows = case([0.0], 3.0, value=[1.0], returns=[4.0])
    without, _ = terms(kind(vf_coef=0.0, normalize_advantage="none"), prediction, rows)
    twice, _ = terms(kind(vf_coef=2.0, normalize_advantage="none"), prediction, rows)
    close(twice - without, [2.0 * 4.5])


@each_kind
def test_entropy_is_a_bonus(kind):
    """A more random policy must cost less: the loss falls by coefficient × entropy."""
    algorithm = kind(entropy_coef=0.5, normalize_advantage="none")
    calm, _ = terms(algorithm, *case([0.0], 1.0, entropy=0.0))
    lively, seen = terms(algorithm, *case([0.0], 1.0, entropy=2.0))
    close(lively - calm, [-1.0])
    close(seen["entropy"], [2.0])


@settings(deadline=None)
@given(
    st.floats(-0.19, 0.19, allow_subnormal=False),
    st.floats(-5, 5, allow_subnormal=False),
    st.floats(-5, 5, allow_subnormal=False),
)
def test_value_clipping_changes_nothing_near_the_old_value(shift, old, target):
    prediction, rows = case([0.0], 0.0, value=old + shift, old_value=old, returns=target)
    _, clipped = terms(PPO(value_clip=0.2), prediction, rows)
    _, plain = terms(PPO(value_clip=None), prediction, rows)
    close(clipped["value_loss"], plain["value_loss"].detach())


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        (3.0, 3.0, 0.5 * (0.2 - 3.0) ** 2),  # hit the target, but by moving too far
        (3.0, -3.0, 0.5 * 6.0**2),  # moved the wrong way: the plain error is the worse one
    ],
)
def test_value_clipping_takes_the_worse_of_both_errors(value, target, expected):
    prediction, rows = case([0.0], 0.0, value=value, old_value=0.0, returns=target)
    _, seen = terms(PPO(value_clip=0.2), prediction, rows)
    close(seen["value_loss"], [expected])


@pytest.mark.parametrize("factor", [1.0, 0.5, 0.25, 0.0])
def test_scheduled_clip_and_entropy_bonus_are_multiplied_by_their_factors(factor):
    ppo = PPO(entropy_coef=0.5, vf_coef=0.0, normalize_advantage="none")
    rows = case([math.log(1.5)], 1.0, entropy=2.0)
    loss, seen = terms(ppo, *rows, clip=factor, entropy_coef=factor)
    close(seen["policy_loss"], [-(1 + 0.2 * factor)])
    close(loss - seen["policy_loss"], [-1.0 * factor])


@pytest.mark.parametrize("kind", [A2C, IMPALA])
def test_the_entropy_bonus_of_a_policy_gradient_has_a_factor_too(kind):
    loss, seen = terms(
        kind(entropy_coef=0.5, vf_coef=0.0), *case([0.1], 1.0, entropy=2.0), entropy_coef=0.25
    )
    close(loss - seen["policy_loss"], [-0.25])


def test_a2c_loss_is_minus_log_probability_times_advantage():
    algorithm, rows = A2C(vf_coef=0.0), case([0.5, -0.25], [2.0, -3.0])
    _, seen = terms(algorithm, *rows)
    close(seen["policy_loss"], [-(-1.25 + 0.5) * 2.0, (-1.25 - 0.25) * 3.0])
    close(logp_gradient(algorithm, *rows), [-2.0, 3.0])


@pytest.mark.parametrize(
    ("options", "weight"),
    [({}, [1.0, 0.25]), ({"rho_bar": 3.0}, [2.0, 0.25]), ({"correction": False}, [1.0, 1.0])],
    ids=["plain", "rho_bar", "uncorrected"],
)
def test_impala_weighs_a_row_by_the_ratio_of_the_policy_that_takes_the_step(options, weight):
    """A constant: without the ratio's own gradient, and limited to ρ̄."""
    algorithm = IMPALA(vf_coef=0.0, **options)
    gradient = logp_gradient(algorithm, *case([math.log(2.0), math.log(0.25)], [2.0, -3.0]))
    close(gradient, [-2.0 * weight[0], 3.0 * weight[1]])


@each_kind
def test_minibatch_normalization_uses_only_rows_that_count(kind):
    algorithm = kind(normalize_advantage="minibatch", vf_coef=0.0)
    counted = [1.0, 2.0, 6.0]
    mean = sum(counted) / 3
    deviation = (sum((a - mean) ** 2 for a in counted) / 3) ** 0.5
    weight = [1.0, 0.0, 1.0, 1.0, 0.0]
    prediction, rows = case([0.0] * 5, [1.0, 1e6, 2.0, 6.0, -1e9], weight=weight)
    gradient = logp_gradient(algorithm, prediction, rows)
    close(gradient[rows.weight > 0], [-(a - mean) / (deviation + 1e-8) for a in counted])
    assert (gradient[rows.weight == 0] == 0).all()


@each_kind
@pytest.mark.parametrize("weight", [[1.0], [0.0, 1.0, 0.0], [0.0, 0.0]])
def test_the_only_row_that_counts_keeps_its_advantage(kind, weight):
    """It is its own mean: normalized, it would be 0, and the policy would never learn. Without any
    row that counts there is nothing to learn, and no NaN."""
    algorithm = kind(normalize_advantage="minibatch", vf_coef=0.0)
    gradient = logp_gradient(algorithm, *case([0.0] * len(weight), 3.0, weight=weight))
    close(gradient, [-3.0 * w for w in weight])


@each_kind
def test_two_streams_of_value_add_their_errors(kind):
    prediction, rows = case([0.0], 0.0)
    prediction = Prediction(prediction.logp, prediction.entropy, torch.tensor([[1.0, 5.0]]))
    rows = replace(rows, returns=torch.tensor([[3.0, 2.0]]))
    _, seen = terms(kind(), prediction, rows)
    assert seen["value_loss"].tolist() == [0.5 * 4.0 + 0.5 * 9.0]
