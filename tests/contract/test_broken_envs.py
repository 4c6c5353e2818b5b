"""Environments that raise, or return what no policy can learn from."""

from __future__ import annotations

import logging
import re

import gymnasium as gym
import numpy as np
import pytest
from sampling import collected, copied, made_by, sampler_of

from paceline.envs.env_columns import MAX_FAILURES
from paceline.errors import EnvironmentFailed
from paceline.rollout import Episode


class Counting(gym.Env):
    """Counts its steps, up to `length`; the observation is (time, number of this environment).

    `faults` maps (number of the environment, time) to what goes wrong there. Environments are
    numbered in the order in which they are made; a rebuilt one has a number of its own.
    """

    made = 0

    def __init__(self, faults=None, length=1000, kind="box"):
        self.faults, self.length, self.kind = faults or {}, length, kind
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space = (
            gym.spaces.Discrete(length + 1, start=5)
            if kind == "discrete"
            else gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        )
        self.number = Counting.made
        Counting.made += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        self.time += 1
        observation = self._look()
        reward = np.nan if self._fault() == "nan reward" else 1.0
        return observation, reward, False, self.time >= self.length, {}

    def _fault(self):
        always = self.faults.get(("any", self.time))
        return self.faults.get((self.number, self.time), always)

    def _look(self):
        fault = self._fault()
        if fault == "raise":
            raise RuntimeError("the wheel came off")
        if self.kind == "discrete":
            return {"above": self.length + 6, "below": 4}.get(fault, self.time + 5)
        if fault == "nan obs":
            return np.array([self.time, np.nan], np.float32)
        return np.array([self.time, self.number], np.float32)


@pytest.fixture(autouse=True)
def _numbered_from_zero():
    Counting.made = 0


def test_an_environment_that_raises_once_is_told_and_rebuilt_and_goes_on(caplog):
    faults = {(1, 6): "raise"}  # column 1, sixth step: row 5
    with caplog.at_level(logging.WARNING, "paceline"):
        (broken,), episodes = collected(made_by(Counting, faults=faults), 12, first_column=40)
    (record,) = caplog.records
    assert record.getMessage() == "env 41, step 5: it raised; the environment is rebuilt"
    assert "the wheel came off" in caplog.text
    Counting.made = 0
    (whole,), _ = collected(made_by(Counting), 12)
    assert np.argwhere(~broken["valid"]).tolist() == [[5, 1]]
    assert np.argwhere(broken["truncated"]).tolist() == [[4, 1]]
    assert not broken["terminated"].any()
    assert np.argwhere(broken["first"]).tolist() == [[0, 0], [0, 1], [0, 2], [6, 1]]
    assert broken["reward"][5, 1] == 0
    assert broken["obs"][:, 1, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6]
    assert broken["obs"][:, 1, 1].tolist() == [1] * 6 + [3] * 7  # the fourth one ever made
    assert episodes == [Episode(41, 5.0, 5)]
    for column in (0, 2):
        for name in ("obs", "reward", "valid", "truncated"):
            np.testing.assert_array_equal(broken[name][:, column], whole[name][:, column])


def test_a_failure_in_a_rollouts_first_row_ends_nothing_that_was_handed_over():
    sampler, envs = sampler_of(made_by(Counting, faults={(0, 5): "raise"}), 4, columns=1)
    before = copied(sampler.collect())
    rollout = sampler.collect()
    assert not before["truncated"].any()
    assert rollout.valid[:, 0].tolist() == [False, True, True, True]
    assert rollout.first[:, 0].tolist() == [False, True, False, False, False]
    assert not rollout.done.any()
    assert rollout.episodes == []
    assert rollout.obs[:, 0, 0].tolist() == [4, 0, 1, 2, 3]
    assert envs.failures == 1
    sampler.close()


def test_a_failure_right_after_a_reset_truncates_no_row_that_only_reset():
    """Environment 0 ends after 3 steps, resets in row 3, and raises in row 4."""

    class Twice(Counting):
        episodes = 0

        def reset(self, **options):
            self.episodes += 1
            return super().reset(**options)

        def _look(self):
            if self.number == 0 and self.episodes == 2 and self.time == 1:
                raise RuntimeError
            return super()._look()

    (rollout,), episodes = collected(made_by(Twice, length=3), 9, columns=1)
    assert rollout["valid"][:, 0].tolist() == [True] * 3 + [False] * 2 + [True] * 3 + [False]
    assert np.flatnonzero(rollout["truncated"]).tolist() == [2, 7]
    assert np.flatnonzero(rollout["first"]).tolist() == [0, 4, 5, 9]
    assert [episode.length for episode in episodes] == [3, 3]


def test_an_environment_that_cannot_even_reset_after_failing_waits_invalidly():
    """Environment 0 raises in row 2, and 1, 2 in their resets; 3 works."""
    faults = {(0, 3): "raise", (1, 0): "raise", (2, 0): "raise"}
    (rollout,), _ = collected(made_by(Counting, faults=faults), 8, columns=1)
    assert rollout["valid"][:, 0].tolist() == [True, True, False, False, False, True, True, True]
    assert np.flatnonzero(rollout["truncated"]).tolist() == [1]
    assert np.flatnonzero(rollout["first"]).tolist() == [0, 5]
    assert rollout["obs"][:, 0, 0].tolist() == [0, 1, 2, 2, 2, 0, 1, 2, 3]


def test_failures_far_apart_are_forgiven_for_ever():
    """One every 150 steps, more often than the limit on failures in a row."""
    sampler, envs = sampler_of(made_by(Counting, faults={("any", 150): "raise"}), 400, columns=1)
    for _ in range(6):
        sampler.collect()
    assert envs.failures > MAX_FAILURES
    sampler.close()


@pytest.mark.parametrize("when", [0, 1, 3])
def test_an_environment_that_always_raises_fails_with_its_column_and_cause(when):
    class Second(Counting):
        """The environment of column 1, and all that replace it, raise."""

        def _fault(self):
            return None if self.number in (0, 2) else super()._fault()

    make = made_by(Second, faults={("any", when): "raise"})
    with pytest.raises(EnvironmentFailed) as failure:
        collected(make, 100, first_column=20)
    message = str(failure.value)
    assert message.startswith(f"env 21, step {max(when - 1, 0)}: ")
    assert f"{MAX_FAILURES} times in a row" in message
    assert "RuntimeError: the wheel came off" in message
    assert "test_broken_envs.py" in message


def test_an_environment_that_cannot_be_rebuilt_fails_with_its_column():
    class Once(Counting):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            if self.number > 2:
                raise OSError("no more licences")

    make = made_by(Once, faults={(1, 3): "raise"})
    with pytest.raises(EnvironmentFailed, match=r"env 1,.*can't be rebuilt.*no more licences"):
        collected(make, 10)


@pytest.mark.parametrize(
    ("faults", "kind", "words"),
    [
        ({(1, 3): "nan obs"}, "box", r"env 31, step 3: observation \[ 3. nan\] is not finite"),
        ({(1, 3): "nan reward"}, "box", r"env 31, step 3: reward nan \(or None\) is not a"),
        ({(1, 3): "above"}, "discrete", "env 31, step 3: observation 1006 is not"),
        ({(1, 3): "below"}, "discrete", "env 31, step 3: observation 4 is not"),
        ({(2, 0): "nan obs"}, "box", "env 32, step 0: "),
        # Column 0 is made anew after step 5, as number 3, which goes wrong at its step 2.
        ({(0, 6): "raise", (3, 2): "nan obs"}, "box", "env 30, step 2: "),
    ],
    ids=["observation", "reward", "above", "below", "first observation", "later episode"],
)
@pytest.mark.parametrize("steps", [2, 20], ids=["in a later rollout", "in the first rollout"])
def test_what_no_policy_can_learn_from_is_named_with_column_and_step(faults, kind, words, steps):
    make = made_by(Counting, faults=faults, kind=kind)
    with pytest.raises(EnvironmentFailed, match=words):
        collected(make, steps, rollouts=5, first_column=30)


def test_rewards_and_observations_of_any_finite_size_are_accepted():
    class Huge(Counting):
        def step(self, action):
            _, _, terminated, truncated, info = super().step(action)
            return np.full(2, 3e38, np.float32), -3e38, terminated, truncated, info

    ((rollout,), _) = collected(made_by(Huge), 5)
    assert (rollout["reward"] == np.float32(-3e38)).all()


def test_rebuilds_are_warned_of_at_powers_of_ten_with_the_latest_cause(caplog):
    """One failure every 30 steps, which is forgiven for ever, and not to be overlooked."""
    sampler, envs = sampler_of(made_by(Counting, faults={("any", 30): "raise"}), 400, columns=2)
    with caplog.at_level(logging.WARNING, "paceline"):
        while envs.failures < 110:
            sampler.collect()
    sampler.close()
    first, *later = [record.getMessage() for record in caplog.records]
    assert "it raised; the environment is rebuilt" in first
    for message, count in zip(later, (10, 100), strict=True):
        assert f"environments 0 to 1 were rebuilt {count} times so far" in message
        assert re.search(r"the last was env [01], step 29: RuntimeError: the wheel came", message)
