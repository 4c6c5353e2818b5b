"""The noise of sampled actions: the same for a column wherever drawn, and well distributed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.policy.distributions import Categorical, Gaussian, gumbel, normal, uniforms

DISTRIBUTIONS = {"categorical": Categorical(3), "gaussian": Gaussian(3)}


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    rollout=st.integers(0, 10**6),
    before=st.integers(0, 20),
    columns=st.integers(1, 6),
    after=st.integers(0, 5),
    numbers=st.integers(1, 23),
)
def test_a_column_gets_the_same_numbers_in_whatever_block_it_is_drawn(
    seed, rollout, before, columns, after, numbers
):
    whole = uniforms(seed, rollout, 0, before + columns + after, numbers)
    block = uniforms(seed, rollout, before, columns, numbers)
    np.testing.assert_array_equal(whole[before : before + columns], block)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_draw_the_same_noise_for_a_column_in_whatever_block(name):
    whole = DISTRIBUTIONS[name].noise(5, 2, 0, 7, 11)
    block = DISTRIBUTIONS[name].noise(5, 2, 3, 2, 11)
    assert whole.shape == (11, 7, 3)
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(whole[:, 3:5], block)


def test_columns_rollouts_and_seeds_share_no_numbers():
    drawn = np.concatenate(
        [uniforms(seed, rollout, 0, 4, 50).ravel() for seed in (0, 1) for rollout in (0, 1)]
    )
    assert len(np.unique(drawn)) == len(drawn)


@pytest.mark.parametrize("word", [None, 0, 2**64 - 1])
def test_uniforms_lie_strictly_between_zero_and_one_and_give_finite_noise(word, monkeypatch):
    """Also from the extreme words of the generator, which no run would ever draw."""
    if word is not None:
        philox = SimpleNamespace(
            advance=lambda delta: None, random_raw=lambda size: np.full(size, word, np.uint64)
        )
        monkeypatch.setattr(np.random, "Philox", lambda key: philox)
    drawn = uniforms(0, 0, 0, 100, 10_000)
    assert ((drawn > 0) & (drawn < 1)).all()
    assert np.isfinite(gumbel(drawn)).all()
    assert np.isfinite(normal(drawn)).all()


def moments(sample):
    """Mean, variance, skewness and excess kurtosis."""
    centered = sample - sample.mean()
    var = (centered**2).mean()
    return sample.mean(), var, (centered**3).mean() / var**1.5, (centered**4).mean() / var**2 - 3


def test_gumbel_noise_has_the_moments_of_a_gumbel_distribution():
    mean, var, skewness, kurtosis = moments(gumbel(uniforms(1, 2, 3, 100, 10_000)))
    assert mean == pytest.approx(np.euler_gamma, abs=5 * 1.28e-3)  # five standard errors
    assert var == pytest.approx(np.pi**2 / 6, rel=0.02)
    assert skewness == pytest.approx(1.1395, abs=0.05)
    assert kurtosis == pytest.approx(2.4, abs=0.4)


def test_normal_noise_has_the_moments_of_a_normal_distribution():
    sample = normal(uniforms(1, 2, 3, 100, 20_000))
    assert sample.shape == (100, 10_000)
    mean, var, skewness, kurtosis = moments(sample)
    assert mean == pytest.approx(0, abs=5e-3)
    assert var == pytest.approx(1, abs=7.1e-3)
    assert skewness == pytest.approx(0, abs=1.3e-2)
    assert kurtosis == pytest.approx(0, abs=2.5e-2)
    neighbors = np.corrcoef(sample[:, :-1].ravel(), sample[:, 1:].ravel())[0, 1]
    assert abs(neighbors) < 5e-3


def test_gumbel_samples_follow_the_softmax_of_the_logits():
    distribution, rows = DISTRIBUTIONS["categorical"], 200_000
    logits = np.tile(np.float32([0.0, 1.0, -1.0]), (rows, 1))
    action = np.empty(rows, np.int64)
    distribution.sample(logits, distribution.noise(9, 0, 0, 1, rows)[:, 0], action)
    probabilities = np.exp(logits[0]) / np.exp(logits[0]).sum()
    counts = np.bincount(action, minlength=3) / rows
    errors = np.sqrt(probabilities * (1 - probabilities) / rows)
    assert (np.abs(counts - probabilities) < 5 * errors).all()
