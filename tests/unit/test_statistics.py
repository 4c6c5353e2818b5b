"""The statistics of few runs against enumeration, tables, simulation, and rliable."""

from __future__ import annotations

import json
import math
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

from paceline.tools.bench.compare.comparison import GroupRow, pairs_of
from paceline.tools.bench.compare.statistics import (
    Estimate,
    aggregate,
    bootstrap,
    difference,
    fewest_runs,
    holm,
    improvement,
    iqm,
    mann_whitney_null,
    mean_interval,
    student,
    student_quantile,
    wilcoxon_null,
)

ORACLE = json.loads((Path(__file__).parent / "rliable_oracle.json").read_text())
CASES = {case["name"]: case for case in ORACLE["cases"]}


def by_seed(scores, first=0):
    return {first + k: [float(score)] for k, score in enumerate(scores)}


def apart(x, y):
    """The difference of groups that share no seed."""
    return difference(by_seed(x), by_seed(y, 1000))


# Interquartile mean


def trimmed(scores):
    """As scipy.stats.trim_mean(scores, 0.25) has it: int(0.25 · n) of each end are left out."""
    kept = sorted(scores)
    for _ in range(int(0.25 * len(scores))):
        kept = kept[1:-1]
    return sum(kept) / len(kept)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0], 1.5),
        ([3.0, 1.0, 2.0], 2.0),
        ([1.0, 2.0, 4.0, 1000.0], 3.0),
        ([-1000.0, 1.0, 2.0, 3.0, 1000.0], 2.0),
        ([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 90.0, 90.0], 2.5),
    ],
)
def test_the_interquartile_mean_leaves_a_quarter_rounded_down_out_on_each_side(scores, expected):
    assert iqm(scores) == expected


@pytest.mark.parametrize("count", range(1, 18))
def test_the_interquartile_mean_is_that_of_a_naive_loop_along_any_axis(count):
    scores = np.random.default_rng(count).normal(size=(count, 4))
    for axis, columns in ((0, scores.T), (1, scores), (None, [scores.ravel()])):
        expected = [trimmed(column.tolist()) for column in columns]
        np.testing.assert_allclose(np.ravel(iqm(scores, axis)), expected, atol=1e-14)


# Bootstrap


def test_runs_are_drawn_anew_within_each_task_and_never_across_tasks():
    scores = np.array([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0], [3.0, 30.0, 300.0]])
    seen = []

    def look(draws):
        seen.append(draws)
        return draws.reshape(len(draws), -1).mean(1)

    bootstrap(scores, look, resamples=500)
    (draws,) = seen
    assert draws.shape == (500, 3, 3)
    for task in range(3):
        assert set(np.unique(draws[:, :, task])) == set(scores[:, task])
    # Tasks are drawn apart from each other: else every row would be one run's scores.
    assert (draws[..., 1] != 10 * draws[..., 0]).mean() > 0.5


def test_the_same_scores_always_have_the_same_interval_and_those_all_alike_that_score():
    scores = np.random.default_rng(3).normal(size=9)
    assert bootstrap(scores) == bootstrap(scores)
    assert bootstrap([5.0] * 6) == (5.0, 5.0)


def test_the_interval_of_a_mean_is_as_wide_as_its_standard_error_says():
    scores = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap(scores, lambda draws: draws.reshape(len(draws), -1).mean(1))
    expected = 2 * 1.96 * scores.std() / math.sqrt(400)
    assert high - low == pytest.approx(expected, rel=0.1)
    assert low < scores.mean() < high


def test_fewer_than_three_runs_have_no_interval_and_none_has_no_score():
    assert aggregate([]) == Estimate(None)
    assert aggregate([None, math.nan, math.inf]) == Estimate(None)
    assert aggregate([4.0, None]) == Estimate(4.0)
    assert aggregate([4.0, 6.0]) == Estimate(5.0)
    found = aggregate([4.0, 5.0, 6.0])
    assert found.value == 5.0 and found.low < 5.0 < found.high


# Exact distributions


@pytest.mark.parametrize(("n", "m"), [*product(range(1, 6), repeat=2), (3, 7), (7, 3)])
def test_the_null_of_mann_and_whitney_is_that_of_all_orders(n, m):
    counts = np.zeros(n * m + 1)
    for places in combinations(range(n + m), n):  # of the xs, in the order of all
        ys = [place for place in range(n + m) if place not in places]
        counts[sum(y > x for x in places for y in ys)] += 1
    assert counts.sum() == math.comb(n + m, n)
    np.testing.assert_allclose(mann_whitney_null(n, m), counts / counts.sum(), atol=1e-14)


@pytest.mark.parametrize("n", range(1, 11))
def test_the_null_of_wilcoxon_is_that_of_all_signs(n):
    counts = np.zeros(n * (n + 1) // 2 + 1)
    for signs in product((0, 1), repeat=n):
        counts[sum(rank for rank, sign in enumerate(signs, 1) if sign)] += 1
    np.testing.assert_allclose(wilcoxon_null(n), counts / counts.sum(), atol=1e-15)


@pytest.mark.parametrize(("n", "m"), [(20, 20), (30, 50), (100, 100)])
def test_the_null_of_many_runs_keeps_its_tails(n, m):
    """Against whole numbers: partitions of k into at most n parts of at most m."""
    exact = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for k in range(n * m, m + i - 1, -1):
            exact[k] -= exact[k - m - i]
        for k in range(i, n * m + 1):
            exact[k] += exact[k - i]
    whole = math.comb(n + m, n)
    found = np.cumsum(mann_whitney_null(n, m))
    so_far = 0
    for k in range(n * m // 2):
        so_far += exact[k]
        if so_far / whole > 1e-6:
            assert found[k] == pytest.approx(so_far / whole, rel=1e-6)
        if so_far / whole > 0.2:
            break


def test_both_nulls_are_chances_and_symmetric():
    for null in (mann_whitney_null(12, 9), wilcoxon_null(20)):
        assert null.min() >= 0 and null.sum() == pytest.approx(1)
        np.testing.assert_allclose(null, null[::-1], atol=1e-12)


# Student's t: values of printed tables, two-sided.

TABLE = [
    (1, 12.706, 0.05),
    (2, 4.303, 0.05),
    (4, 2.776, 0.05),
    (5, 2.571, 0.05),
    (8, 2.306, 0.05),
    (10, 2.228, 0.05),
    (30, 2.042, 0.05),
    (120, 1.980, 0.05),
    (1, 63.657, 0.01),
    (4, 4.604, 0.01),
    (8, 3.355, 0.01),
    (30, 2.750, 0.01),
    (4, 8.610, 0.001),
    (8, 5.041, 0.001),
    (3, 1.638, 0.2),
]


@pytest.mark.parametrize(("free", "t", "chance"), TABLE)
def test_students_chances_are_those_of_the_tables(free, t, chance):
    assert student(t, 1.0, free) == pytest.approx(chance, rel=2e-3)
    assert student(-3 * t, 3.0, free) == pytest.approx(chance, rel=2e-3)


@pytest.mark.parametrize("t", [0.01, 0.5, 1.0, 3.0, 20.0, 300.0])
def test_students_chances_are_exact_where_there_is_a_formula(t):
    assert student(t, 1.0, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-9)
    assert student(t, 1.0, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-7)


@pytest.mark.parametrize("free", [500.0, 5e3, 1e5, 1e7])
def test_with_many_degrees_of_freedom_it_is_the_normal_distribution(free):
    assert student(1.959964, 1.0, free) == pytest.approx(0.05, rel=2e-2 if free < 1e3 else 2e-3)


def test_without_spread_any_difference_is_certain_and_none_is_chance():
    assert student(0.0, 0.0, 4) == 1.0
    assert student(1e-9, 0.0, 4) == 0.0
    assert student(0.0, 1.0, 4) == pytest.approx(1.0)


@pytest.mark.parametrize(("free", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (999, 1.962)])
def test_students_quantiles_are_those_of_the_tables(free, quantile):
    assert student_quantile(free) == pytest.approx(quantile, abs=1e-3)


def test_a_mean_of_few_runs_has_students_interval_and_that_of_one_has_none():
    found = mean_interval([1.0, None, 2.0, 3.0])
    assert (found.value, found.low) == pytest.approx((2.0, 2.0 - 4.303 / math.sqrt(3)), abs=1e-3)
    assert found.high - found.value == pytest.approx(found.value - found.low)
    assert mean_interval([7.0]) == Estimate(7.0) and mean_interval([None]) == Estimate(None)


# Differences


def groups(seed, n=5, m=6):
    random = np.random.default_rng(seed)
    return random.normal(0, 1, n), random.normal(1, 2, m)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("paired", [False, True])
def test_a_difference_moves_with_its_groups_and_changes_its_sign_with_their_order(seed, paired):
    x, y = groups(seed, 7, 7)
    if not paired:  # Hodges and Lehmann
        assert apart(x, y).value == pytest.approx(np.median([b - a for a in x for b in y]))
    compare = (lambda a, b: difference(by_seed(a), by_seed(b))) if paired else apart
    there, back, moved = compare(x, y), compare(y, x), compare(x + 10, y + 13.5)
    assert there.paired == back.paired == paired
    for name in ("value", "low", "high"):
        assert getattr(moved, name) == pytest.approx(getattr(there, name) + 3.5)
    assert (back.value, back.low, back.high) == pytest.approx(
        (-there.value, -there.high, -there.low)
    )
    assert (back.p_ranks, back.p_means) == pytest.approx((there.p_ranks, there.p_means))


@pytest.mark.parametrize("seed", range(20))
def test_zero_is_outside_the_interval_just_where_the_ranks_say_so(seed):
    random = np.random.default_rng(seed)
    x, y = random.normal(0, 1, 6), random.normal(1.2, 1, 5)
    found = apart(x, y)
    assert (found.p_ranks < 0.05) == (not found.low <= 0 <= found.high)


def test_of_five_against_five_the_chances_are_those_of_the_table_of_mann_and_whitney():
    x = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert apart(x, [6.0, 7.0, 8.0, 9.0, 10.0]).p_ranks == pytest.approx(2 / 252)
    assert apart(x, [4.5, 7.0, 8.0, 9.0, 10.0]).p_ranks == pytest.approx(4 / 252)
    assert apart(x, [3.5, 7.0, 8.0, 9.0, 10.0]).p_ranks == pytest.approx(8 / 252)
    found = apart(x, [6.0, 7.0, 8.0, 9.0, 10.0])
    every = sorted(b - a for a in x for b in [6.0, 7.0, 8.0, 9.0, 10.0])
    assert (found.low, found.high) == (every[2], every[-3])  # U ≤ 2 has 4 of 252 orders


def test_of_six_pairs_the_chances_are_those_of_the_table_of_wilcoxon():
    x = by_seed([0.0] * 6)
    found = difference(x, by_seed([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    assert found.paired and found.p_ranks == pytest.approx(2 / 64)
    found = difference(x, by_seed([-1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    assert found.p_ranks == pytest.approx(4 / 64)


def test_welchs_chance_is_that_of_a_worked_example():
    """Equal sizes and spreads: Student's own t = Δ / √(2 s²/n), with 2n − 2 degrees."""
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = apart(x, x + 2.306)  # s² = 2.5, √(2 · 2.5 / 5) = 1
    assert found.p_means == pytest.approx(0.05, rel=1e-3)


def test_seeds_are_paired_where_both_groups_have_the_same_six_or_more():
    same = np.random.default_rng(0).normal(size=9)
    for count in range(2, 9):
        found = difference(by_seed(same[:count]), by_seed(same[:count] + 1))
        assert found.paired == (count >= 6)
    assert not difference(by_seed(same[:7]), by_seed(same[:7], 1)).paired
    twice = by_seed(same[:7]) | {0: [1.0, 2.0]}
    assert not difference(twice, by_seed(same[:7])).paired


def test_pairs_take_away_what_seeds_share():
    """Seeds that differ much more than the groups: found by pairs, lost without."""
    random = np.random.default_rng(0)
    seeds = random.normal(0, 100, 8)
    x, y = seeds + random.normal(0, 1, 8), seeds + 5 + random.normal(0, 1, 8)
    assert difference(by_seed(x), by_seed(y)).p_ranks < 0.05 < apart(x, y).p_ranks


def test_too_few_runs_have_no_interval_and_prove_nothing():
    assert fewest_runs() == 4
    assert difference(by_seed([1.0]), by_seed([9.0])) == difference({5: [1.0]}, {7: [9.0]})
    for n, m in ((1, 1), (1, 30), (2, 3), (3, 3)):
        found = apart(np.arange(n), np.arange(m) + 1000.0)
        assert found.low is None and found.high is None and found.p_ranks >= 0.05
    found = apart(np.arange(4), np.arange(4) + 1000.0)
    assert found.low is not None and found.p_ranks < 0.05


def test_runs_that_are_all_alike_do_not_differ():
    for found in (
        apart([500.0] * 5, [500.0] * 5),
        difference(by_seed([3.0] * 7), by_seed([3.0] * 7)),
    ):
        assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
        assert found.p_ranks == found.p_means == 1.0


def test_ties_make_the_ranks_more_careful_and_never_less():
    """Rounding scores to a few values may lose a difference, but finds no new ones by chance."""
    found = 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        found += apart(random.integers(0, 3, 5), random.integers(0, 3, 5)).p_ranks < 0.05
    assert found <= 0.05 * 300


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(
    "draw",
    [
        lambda random, n: random.normal(0, 1, n),
        lambda random, n: random.exponential(1, n),
        lambda random, n: random.standard_cauchy(n),
    ],
    ids=["normal", "skewed", "wild"],
)
def test_the_interval_covers_a_known_shift_at_least_as_often_as_it_says(draw, paired):
    """3 standard errors of 500 draws below 95 % would be a fault."""
    covered = 0
    for seed in range(500):
        random = np.random.default_rng(seed)
        n = 7 if paired else 5
        x, y = draw(random, n), draw(random, n) + 2.0
        found = difference(by_seed(x), by_seed(y, 0 if paired else 1000))
        covered += found.low <= 2.0 <= found.high
    assert covered / 500 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 500)


def row(name, scores, first=0):
    """A group of a comparison that has these scores, and nothing else."""
    estimates = dict.fromkeys(("evaluation", "fps", "time_to", "steps_to"), Estimate(None))
    unknown = dict.fromkeys(("memory_mb", "cpu_percent", "startup"))
    empty = {"algo": "", "way": "", "reached": 0, "phases": {}, "curves": {}, "runs": []}
    score = {"score": aggregate(scores), "scores": by_seed(scores, first)}
    return GroupRow(name=name, count=len(scores), **score, **estimates, **unknown, **empty)


@pytest.fixture
def hasty(monkeypatch):
    """Without the interval of P(better), which takes most of the time and decides nothing."""
    monkeypatch.setattr(
        "paceline.tools.bench.compare.comparison.improvement", lambda *_: Estimate(0.5)
    )


# Required: 2 × 5 runs, seeds 0 … 199, once.


def test_identical_groups_of_five_are_called_different_in_at_most_five_percent_of_draws(hasty):
    alarms = 0
    for seed in range(200):
        x, y = np.random.default_rng(seed).normal(100, 20, (2, 5))
        (pair,) = pairs_of([row("a", x.tolist()), row("b", y.tolist())])
        alarms += pair.clear
    assert alarms <= 0.05 * 200


def test_the_interval_covers_a_known_difference_of_groups_of_five():
    covered = 0
    for seed in range(200):
        x, y = np.random.default_rng(seed).normal([[100], [130]], 20, (2, 5))
        found = difference(by_seed(x), by_seed(y))
        covered += found.low <= 30.0 <= found.high
    assert covered >= 0.95 * 200


def test_with_many_groups_alike_any_is_called_different_in_at_most_five_percent_of_draws(hasty):
    alarms = 0
    for seed in range(200):
        scores = np.random.default_rng(seed).normal(100, 20, (6, 5))
        made = pairs_of([row(str(k), own.tolist()) for k, own in enumerate(scores)])
        alarms += any(pair.clear for pair in made)
    assert alarms <= 0.05 * 200


def test_a_large_difference_of_groups_of_five_is_found(hasty):
    found = 0
    for seed in range(50):
        x, y = np.random.default_rng(seed).normal([[100], [180]], 20, (2, 5))
        (pair,) = pairs_of([row("a", x.tolist()), row("b", y.tolist())])
        found += pair.clear and pair.better.name == "b"
    assert found >= 48


def test_no_group_is_called_clearly_better_by_less_than_nothing():
    """Six of 20 runs fail wholly, the others are a little better: ranks and means disagree."""
    random = np.random.default_rng(0)
    bold = [1 + random.normal(0, 0.01) for _ in range(14)] + [-100.0 - k for k in range(6)]
    steady = [random.normal(0, 0.01) for _ in range(20)]
    (pair,) = pairs_of([row("bold", bold), row("steady", steady, 100)])
    assert not (pair.clear and pair.difference.value <= 0), pair


def test_the_group_that_is_ahead_is_ahead_by_something():
    (pair,) = pairs_of([row("a", [10.0]), row("b", [11.0, 11.0, 11.0, 11.0, -100.0], 5)])
    assert pair.difference.value >= 0


# Holm


def test_holm_by_hand():
    assert holm([]) == []
    assert holm([0.03]) == [0.03]
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.01, 0.6]) == pytest.approx([1.0, 0.03, 1.0])
    assert holm([0.02, 0.02, 0.02]) == pytest.approx([0.06, 0.06, 0.06])
    assert holm([0.001, 0.011, 0.02, 0.04]) == pytest.approx([0.004, 0.033, 0.04, 0.04])


# Probability of improvement


def test_the_probability_of_improvement_counts_a_tie_half():
    assert improvement([2.0], [1.0]) == Estimate(1.0)
    assert improvement([1.0], [2.0]) == Estimate(0.0)
    assert improvement([1.0], [1.0]) == Estimate(0.5)
    assert improvement([1.0, 2.0, 3.0], [2.0, 2.0]) == Estimate(pytest.approx((0 + 1 + 2) / 6))


# rliable


@pytest.mark.parametrize("name", CASES)
def test_estimates_are_those_of_rliable(name):
    case = CASES[name]
    first, second = np.array(case["first"]), np.array(case["second"])
    assert iqm(first) == pytest.approx(case["iqm"]["value"], abs=1e-12, rel=1e-12)
    tasks = [
        improvement(ours, theirs).value for ours, theirs in zip(second.T, first.T, strict=True)
    ]
    assert np.mean(tasks) == pytest.approx(case["improvement"]["value"], abs=1e-12)


def within(found, told):
    """The bounds are where the oracle's samples lie 4 standard errors around 2.5 and 97.5 %."""
    for end, name in zip(found, ("low_between", "high_between"), strict=True):
        low, high = told[name]
        assert low - 1e-9 <= end <= high + 1e-9, (found, told)


@pytest.mark.parametrize("name", CASES)
def test_the_interval_of_the_interquartile_mean_is_that_of_rliable(name):
    within(bootstrap(CASES[name]["first"], resamples=ORACLE["fewer"]), CASES[name]["iqm"])


@pytest.mark.parametrize("name", [name for name in CASES if len(CASES[name]["first"][0]) == 1])
def test_the_interval_of_the_probability_of_improvement_is_that_of_rliable(name):
    case = CASES[name]
    first, second = (np.ravel(case[which]) for which in ("first", "second"))
    found = improvement(second, first, resamples=ORACLE["fewer"])
    within((found.low, found.high), case["improvement"])
