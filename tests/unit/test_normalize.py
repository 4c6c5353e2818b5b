"""Running statistics against numpy on everything at once, and against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from learners import scalar_rollout

from paceline.policy.normalize import REWARD_CLIP, ReturnScaler, RunningMoments


def batches(size, seed=0):
    """Of unequal lengths, far from zero, on very different scales."""
    rng = np.random.default_rng(seed)
    scale, shift = 10.0 ** rng.integers(-2, 3, size), rng.normal(size=size) * 50
    return [rng.normal(size=(n, size)) * scale + shift for n in (1, 7, 300, 2, 64)]


def test_running_moments_are_those_of_all_batches_together():
    """The start counts as 1e-4 of a row with mean 0 and variance 1: two half rows at ±1."""
    moments, seen = RunningMoments(3), batches(3)
    for batch in seen:
        moments.update(len(batch), batch.mean(0), batch.var(0))
    rows = np.concatenate([np.ones((1, 3)), -np.ones((1, 3)), *seen])
    weights = np.r_[0.5e-4, 0.5e-4, np.ones(len(rows) - 2)]
    mean = np.average(rows, axis=0, weights=weights)
    var = np.average((rows - mean) ** 2, axis=0, weights=weights)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(moments.var, var, rtol=1e-10)
    assert moments.count == pytest.approx(weights.sum(), rel=1e-14)
    scaled = (np.concatenate(seen) - moments.mean) * moments.scale()
    np.testing.assert_allclose(scaled.std(0), 1.0, rtol=1e-4)


def test_an_empty_batch_changes_nothing():
    moments = RunningMoments(2)
    moments.update(3, np.array([1.0, 2.0]), np.array([4.0, 9.0]))
    before = {name: np.copy(array) for name, array in moments.state().items()}
    moments.update(0, np.full(2, np.nan), np.full(2, np.nan))
    for name, array in moments.state().items():
        np.testing.assert_array_equal(array, before[name])


def test_restored_moments_go_on_as_the_original_does():
    original, copy, (*seen, last) = RunningMoments(3), RunningMoments(3), batches(3)
    for batch in seen:
        original.update(len(batch), batch.mean(0), batch.var(0))
    copy.restore({name: np.copy(array) for name, array in original.state().items()})
    for moments in (original, copy):
        moments.update(len(last), last.mean(0), last.var(0))
    np.testing.assert_array_equal(original.mean, copy.mean)
    np.testing.assert_array_equal(original.var, copy.var)


def next_step_rollout(steps, columns, rng, ended, first):
    """A random rollout under next-step autoreset; the row after an end only resets."""
    out = scalar_rollout(steps, columns)
    out.first[0] = first
    for t, i in np.ndindex(steps, columns):
        if ended[i]:
            out.valid[t, i], out.reward[t, i], out.first[t + 1, i] = False, 0.0, True
            ended[i] = False
        else:
            out.reward[t, i] = rng.normal()
            out.terminated[t, i], out.truncated[t, i] = rng.random(2) < 0.1
            ended[i] = out.done[t, i]
    return out


def test_running_returns_start_anew_after_either_kind_of_end():
    gamma, columns = 0.9, 4
    scaler, rng = ReturnScaler(columns, gamma), np.random.default_rng(0)
    ended, first = [False] * columns, np.ones(columns, bool)
    running, ends = [0.0] * columns, 0
    for _ in range(6):
        rollout = next_step_rollout(20, columns, rng, ended, first)
        expected = []
        for t in range(rollout.steps):
            for i in range(columns):
                if not rollout.valid[t, i]:
                    continue
                running[i] = gamma * running[i] + float(rollout.reward[t, i])
                expected.append(running[i])
                if rollout.terminated[t, i] or rollout.truncated[t, i]:
                    running[i] = 0.0
                    ends += 1
        np.testing.assert_allclose(scaler.returns(rollout), expected, rtol=1e-12, atol=1e-12)
        first = rollout.first[-1]
    assert ends > 20


def test_running_return_starts_anew_when_an_environment_was_rebuilt_without_an_end():
    scaler = ReturnScaler(1, 1.0)
    rollout = scalar_rollout(2, 1, reward=5.0)
    scaler.returns(rollout)
    rollout.valid[0], rollout.reward[0], rollout.first[1] = False, 0.0, True
    assert scaler.returns(rollout).tolist() == [5.0]


def side_by_side(rollouts, columns):
    """One rollout in which rollouts of some columns stand beside each other, as from a stream."""
    joined = {
        name: np.concatenate([rollout.arrays()[name] for rollout in rollouts], axis=-1)
        for name in ("reward", "terminated", "truncated", "valid", "first")
    }
    column = np.concatenate(columns)
    return scalar_rollout(rollouts[0].steps, len(column), column=column, **joined)


@pytest.mark.parametrize(
    "order",
    [
        ("a0", "a1"),
        ("a0", "a1", "a2", "a3"),
        ("a0", "b0", "a1", "a2"),
        ("b0", "a0", "a1", "b1"),
        ("a0", "a1", "b0"),
    ],
    ids=" ".join,
)
def test_columns_that_come_twice_count_as_two_rollouts_one_after_the_other(order):
    """`a1` is the rollout of worker a that follows `a0`; each has two columns."""
    gamma, rng = 0.9, np.random.default_rng(1)
    numbers = {"a": np.array([0, 1]), "b": np.array([2, 3])}
    together, apart = ReturnScaler(4, gamma), ReturnScaler(4, gamma)
    ended = {worker: [False, False] for worker in numbers}
    first = {worker: np.ones(2, bool) for worker in numbers}
    for _ in range(5):
        rollouts = []
        for worker, _number in order:
            made = next_step_rollout(12, 2, rng, ended[worker], first[worker])
            first[worker] = made.first[-1].copy()
            rollouts.append(made)
        columns = [numbers[worker] for worker, _ in order]
        batch = side_by_side(rollouts, columns)
        expected = np.full(batch.reward.shape, np.nan)
        for place, (rollout, column) in enumerate(zip(rollouts, columns, strict=True)):
            rollout = side_by_side([rollout], [column])
            expected[:, 2 * place : 2 * place + 2][rollout.valid] = apart.returns(rollout)
        np.testing.assert_array_equal(together.returns(batch), expected[batch.valid])
        np.testing.assert_array_equal(together.state()["running"], apart.state()["running"])
    assert not batch.valid.all()


def test_a_column_is_known_by_its_number_and_not_by_its_place():
    """Workers of a stream arrive in any order."""
    scaler = ReturnScaler(2, 1.0)
    rollout = scalar_rollout(1, 2, reward=[1.0, 10.0])
    assert scaler.returns(rollout).tolist() == [1.0, 10.0]
    rollout.column[:] = [1, 0]
    assert scaler.returns(rollout).tolist() == [11.0, 11.0]


def test_scaled_rewards_have_a_running_return_of_unit_deviation_and_are_limited():
    scaler, rng = ReturnScaler(1, 0.0), np.random.default_rng(0)
    rollout = scalar_rollout(5000, 1, reward=100 * rng.normal(size=(5000, 1)))
    seen = scaler.returns(rollout)
    scaler.moments.update(len(seen), seen.mean(), seen.var())
    scaled = scaler(rollout.reward)
    assert scaled.dtype == np.float32
    assert scaled.std() == pytest.approx(1.0, rel=1e-4)  # γ = 0: the return is the reward
    assert scaler(np.float32([1e9, -1e9])).tolist() == [REWARD_CLIP, -REWARD_CLIP]
