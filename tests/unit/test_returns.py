"""GAE and V-trace against the sums in their papers, written out as loops."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.learning.returns import gae, vtrace

# Numbers that float32 holds exactly, so that a tight tolerance is fair.
LAMBDAS = [0.0, 0.25, 0.5, 0.9375, 1.0]


def random_case(seed, steps=13, columns=5):
    """Rewards, values, log-ratios and both kinds of episode end, often at once, in float64."""
    rng = np.random.default_rng(seed)
    shape = (steps, columns)
    return SimpleNamespace(
        reward=rng.normal(size=shape),
        value=rng.normal(size=(steps + 1, columns)),
        terminated=rng.random(shape) < 0.15,
        truncated=rng.random(shape) < 0.15,
        log_ratio=rng.normal(scale=0.7, size=shape),
        gamma=0.9,
    )


def signals(case):
    """Discount and trace, as `returns` wants them."""
    return case.gamma * ~case.terminated, 1.0 * ~(case.terminated | case.truncated)


def steps_left(case, t, b):
    """Rows from `t` to the end of the episode or of the data, both included."""
    for n in range(1, len(case.reward) - t + 1):
        if case.terminated[t + n - 1, b] or case.truncated[t + n - 1, b]:
            return n
    return len(case.reward) - t


def n_step_return(case, t, b, n):
    """r[t] + γ·r[t+1] + … + γⁿ·V[t+n], without the last term after a terminal state."""
    total = sum(case.gamma**k * case.reward[t + k, b] for k in range(n))
    if not case.terminated[t + n - 1, b]:
        total += case.gamma**n * case.value[t + n, b]
    return total


def gae_of_the_paper(case, lam):
    """(1−λ)·(Â⁽¹⁾ + λ·Â⁽²⁾ + …), the last term taking all remaining weight (Schulman 2016)."""
    out = np.zeros_like(case.reward)
    for t, b in np.ndindex(out.shape):
        left = steps_left(case, t, b)
        for n in range(1, left + 1):
            weight = lam ** (n - 1) * (1.0 if n == left else 1.0 - lam)
            out[t, b] += weight * (n_step_return(case, t, b, n) - case.value[t, b])
    return out


def vtrace_of_the_paper(case, rho_bar, c_bar, lam):
    """v[s] = V[s] + Σ γ^(t−s)·(Π c)·δ[t] (Espeholt 2018, eq. 1), and r + γ·v[s+1] − V[s]."""
    ratio = np.exp(case.log_ratio)
    target = np.zeros_like(case.reward)
    for s, b in np.ndindex(target.shape):
        target[s, b] = case.value[s, b]
        for t in range(s, s + steps_left(case, s, b)):
            product = 1.0
            for i in range(s, t):
                product *= lam * min(c_bar, ratio[i, b])
            after = 0.0 if case.terminated[t, b] else case.gamma * case.value[t + 1, b]
            delta = min(rho_bar, ratio[t, b]) * (case.reward[t, b] + after - case.value[t, b])
            target[s, b] += case.gamma ** (t - s) * product * delta
    advantage = np.zeros_like(target)
    for s, b in np.ndindex(target.shape):
        at_end = steps_left(case, s, b) == 1
        following = case.value[s + 1, b] if at_end else target[s + 1, b]
        after = 0.0 if case.terminated[s, b] else case.gamma * following
        advantage[s, b] = case.reward[s, b] + after - case.value[s, b]
    return target, advantage


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), lam=st.sampled_from(LAMBDAS))
def test_gae_is_the_exponential_average_of_all_n_step_advantages(seed, lam):
    case = random_case(seed)
    ours = gae(case.reward, *signals(case), case.value, lam)
    np.testing.assert_allclose(ours, gae_of_the_paper(case, lam), rtol=1e-11, atol=1e-11)


def test_gae_in_float32_with_the_usual_numbers_stays_within_float32_rounding():
    case = random_case(1, steps=128)
    case.gamma = 0.99
    discount, trace = signals(case)
    single = [array.astype(np.float32) for array in (case.reward, discount, trace, case.value)]
    ours = gae(*single, 0.95)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, gae_of_the_paper(case, 0.95), rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    lam=st.sampled_from(LAMBDAS),
    bars=st.sampled_from([(1.0, 1.0), (2.0, 1.0), (1.0, 0.5), (64.0, 64.0)]),
)
def test_vtrace_is_the_sum_of_products_in_the_paper(seed, lam, bars):
    case, (rho_bar, c_bar) = random_case(seed), bars
    ours = vtrace(case.reward, *signals(case), case.value, case.log_ratio, rho_bar, c_bar, lam)
    for found, expected in zip(ours, vtrace_of_the_paper(case, rho_bar, c_bar, lam), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("lam", LAMBDAS)
def test_vtrace_of_equal_policies_is_value_plus_gae(lam):
    """With λ = 1 that is the n-step return."""
    case = random_case(7)
    same = np.zeros_like(case.reward)
    target, _ = vtrace(case.reward, *signals(case), case.value, same, lam=lam)
    expected = case.value[:-1] + gae_of_the_paper(case, lam)
    np.testing.assert_allclose(target, expected, rtol=1e-11, atol=1e-11)


def test_streams_of_reward_on_a_last_axis_do_not_mix():
    first, second = random_case(10), random_case(11)
    second.terminated, second.truncated = first.terminated, first.truncated
    both = [
        np.stack(pair, -1) for pair in ((first.reward, second.reward), (first.value, second.value))
    ]
    discount, trace = (array[..., None] for array in signals(first))
    together = gae(both[0], discount, trace, both[1], 0.5)
    for stream, case in enumerate((first, second)):
        alone = gae(case.reward, *signals(case), case.value, 0.5)
        np.testing.assert_array_equal(together[..., stream], alone)


def test_gae_and_vtrace_leave_their_inputs_as_they_were():
    case = random_case(12)
    discount, trace = signals(case)
    inputs = [case.reward, discount, trace, case.value, case.log_ratio]
    copies = [array.copy() for array in inputs]
    gae(*inputs[:4], 0.9)
    vtrace(*inputs)
    for array, copy in zip(inputs, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
