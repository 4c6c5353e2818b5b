"""Rollout and the bookkeeping of open episodes."""

from __future__ import annotations

import numpy as np
import pytest
from learners import scalar_rollout

from paceline.rollout import Episode, OpenEpisodes, Rollout


class Stream:
    """Columns that step, end and are rebuilt at random, with the true episodes kept by hand.

    A failed row begins the next episode at once; the row before it was the last of the old one,
    unless that row lies in an earlier rollout, which is out of reach: then the episode vanishes.
    """

    def __init__(self, columns, seed):
        self.rng = np.random.default_rng(seed)
        self.columns = columns
        self.running = [[] for _ in range(columns)]
        self.ended = [False] * columns
        self.first = np.ones(columns, bool)

    def rollout(self, steps):
        out = scalar_rollout(steps, self.columns)
        out.first[0] = self.first
        true_ends = []
        for t in range(steps):
            for i in range(self.columns):
                true_ends += self.step(out, t, i)
        self.first = out.first[-1].copy()
        return out, [Episode(i, total, length) for _, i, total, length in sorted(true_ends)]

    def step(self, out, t, i):
        """One row; returns the episodes that it closes, with the row of their last step."""
        failed = not self.ended[i] and self.rng.random() < 0.1
        if self.ended[i] or failed:
            rewards, self.running[i] = self.running[i], []
            out.valid[t, i], out.reward[t, i], out.first[t + 1, i] = False, 0.0, True
            seen = failed and t > 0 and out.valid[t - 1, i]
            self.ended[i] = False
            if seen:
                out.truncated[t - 1, i] = True
                return [(t - 1, i, float(sum(rewards)), len(rewards))]
            return []
        reward = int(self.rng.integers(-5, 6))
        out.reward[t, i] = reward
        self.running[i].append(reward)
        out.terminated[t, i] = self.rng.random() < 0.1
        out.truncated[t, i] = self.rng.random() < 0.1
        if out.done[t, i]:
            self.ended[i] = True
            return [(t, i, float(sum(self.running[i])), len(self.running[i]))]
        return []


@pytest.mark.parametrize("steps", [1, 3, 16])
def test_episodes_are_counted_across_rollouts_even_when_some_vanish_without_an_end(steps):
    stream, opened = Stream(columns=4, seed=steps), OpenEpisodes.none(4)
    closed = 0
    for _ in range(400 // steps):
        rollout, expected = stream.rollout(steps)
        assert opened.close(rollout) == expected
        closed += len(expected)
    assert closed > 50, "the stream should hold enough episodes to mean anything"


def test_an_episode_that_began_anew_without_an_end_leaves_nothing_in_the_next():
    opened = OpenEpisodes.none(1)
    rollout = scalar_rollout(3, 1, reward=[[1], [2], [4]])
    assert opened.close(rollout) == []
    rollout.first[1], rollout.valid[0], rollout.reward[0] = True, False, 0  # rebuilt in row 0
    rollout.reward[1:, 0] = [8, 16]
    rollout.terminated[2] = True
    assert opened.close(rollout) == [Episode(0, 24.0, 2)]


def test_closed_episodes_carry_their_number_in_the_whole_run():
    opened = OpenEpisodes.none(2)
    rollout = scalar_rollout(1, 2, reward=1.0, terminated=[False, True])
    assert opened.close(rollout, first_column=6) == [Episode(7, 1.0, 1)]


def test_a_float_that_nobody_wrote_is_obvious():
    rollout = Rollout.allocate(2, 3, ((4,), np.float32), ((1,), np.float32))
    for array in (rollout.obs, rollout.action, rollout.logp, rollout.reward):
        assert np.isnan(array).all()
    assert rollout.obs.shape == (3, 3, 4)
    assert rollout.first.shape == (3, 3)
    assert (rollout.steps, rollout.columns) == (2, 3)
    assert not (rollout.valid.any() or rollout.done.any() or rollout.first.any())
