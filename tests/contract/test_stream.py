"""The stream: no rollout too old, none lost, none twice, and nobody waits who need not."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from sampling import turns
from saved_runs import PLAIN, assert_same
from test_thread_pool import ThreadPool

import paceline
from paceline.envs.columns import episode_seed
from paceline.policy.actor import make_actor
from paceline.rollout import Episode
from paceline.run.build import build
from paceline.samplers.stream import SLOTS, Stream

pytestmark = pytest.mark.timeout(60)

WIDTH = 2
"""Columns of a worker."""
STEPS = 5


def uneven(slow_columns=(), pause=0.0, first_pause=0.0):
    """An environment that shows how often it was stepped and reset, in certain columns slowly.

    It knows its column by the seed of its first episode. It reaches a worker by value.
    """
    slow = {episode_seed(0, column, 0) for column in slow_columns}

    class Uneven(gym.Env):
        observation_space = gym.spaces.Box(0, np.inf, (2,), np.float32)
        action_space = gym.spaces.Discrete(2)
        rows = resets = 0

        def look(self):
            return np.float32([self.rows, self.resets])

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            if not self.resets:
                self.slow = seed in slow
            else:
                self.rows += 1
            self.resets += 1
            return self.look(), {}

        def step(self, action):
            if self.slow:
                time.sleep(pause if self.rows else first_pause or pause)
            self.rows += 1
            return self.look(), 1.0, bool(self.np_random.random() < 0.15), False, {}

    return Uneven


@contextmanager
def streaming(env_id, workers=2, **options):
    sizes = {"num_envs": workers * WIDTH, "num_workers": workers, "rollout_steps": STEPS}
    plain = PLAIN | sizes | {"algo": "impala", "hidden": (16,), "total_iters": 1000}
    with build(paceline.Config(env_id=env_id, **(plain | options))) as parts:
        assert isinstance(parts.sampler, Stream)
        yield parts


def lanes(batch):
    """The rollouts of single workers that a batch is made of, in order."""
    return [batch.column_range(at, at + WIDTH) for at in range(0, batch.columns, WIDTH)]


def copied(lane):
    return {name: array.copy() for name, array in lane.arrays().items()}


def followed(parts, number):
    """Every lane of so many turns by its first column, in the order of arrival; and episodes."""
    by_worker, episodes, twice = defaultdict(list), [], 0
    for batch, _ in turns(parts, number):
        for lane in lanes(batch):
            by_worker[int(lane.column[0])].append(copied(lane))
        episodes += batch.episodes
        twice += len(set(batch.column.tolist())) < batch.columns
    return by_worker, episodes, twice


def slow_worker(pause=0.004, **options):
    """Two workers, of which the second takes longer by `pause` for every step of a column."""
    return streaming(uneven(slow_columns=(2, 3), pause=pause), **options)


def lags_of(parts, number):
    """Of every column in so many turns."""
    return [lag for batch, now in turns(parts, number) for lag in (now - batch.version).tolist()]


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("max_lag", "workers", "pause"),
    [(2, 2, 0.004), slow(3, 2, 0.006), slow(8, 2, 0.016), (2, 4, 0.002), slow(4, 4, 0.002)],
)
def test_no_rollout_is_older_than_max_lag_however_slow_its_worker(max_lag, workers, pause):
    """Half of the workers pause in every step; four take turns on the CPUs, too."""
    columns = range(workers * WIDTH)
    env = uneven(columns[workers * WIDTH // 2 :], pause)
    with streaming(env, workers=workers, max_lag=max_lag) as parts:
        lags = lags_of(parts, 60)
    assert min(lags) >= 0 and max(lags) <= max_lag
    assert max(lags) >= max_lag - 1 or workers > 2  # so the limit was felt


def test_workers_of_the_same_speed_lag_too_and_are_measured():
    with streaming("CartPole-v1") as parts:
        assert max(lags_of(parts, 40)) >= 1


def test_every_rollout_was_made_by_the_one_version_that_it_names():
    """The log-probabilities of its actions are those of the weights of that version, and no other.

    To the bit: they are computed again in the same shapes.
    """
    published, others = {}, 0
    with streaming("Pendulum-v1", lr=0.01) as parts:
        published[0] = parts.learner.weights.copy()
        actor = make_actor(parts.network, WIDTH)
        head = np.empty((STEPS, WIDTH, actor.distribution.size), np.float32)

        def logp(version, lane):
            actor.load(published[version])
            for obs, parameters in zip(lane.obs, head, strict=False):
                actor.step(obs, None, None, parameters)
            return actor.distribution.logp(head, lane.action)

        for batch, now in turns(parts, 30):
            published[now] = parts.learner.weights.copy()
            for lane in lanes(batch):
                assert len(set(lane.version.tolist())) == 1
                version = int(lane.version[0])
                np.testing.assert_array_equal(logp(version, lane), lane.logp)
                if version != now:
                    others += 1
                    assert (logp(now, lane) != lane.logp).any()
    assert others > 5


def test_rows_of_a_column_come_in_order_and_without_gaps():
    """Also through batches that hold the same worker twice."""
    with slow_worker() as parts:
        by_worker, _, twice = followed(parts, 40)
    assert twice > 3 and set(by_worker) == {0, 2}
    for first, rollouts in by_worker.items():
        assert rollouts[0]["obs"][0].tolist() == [[0, 1], [0, 1]]
        for one, following in pairwise(rollouts):
            np.testing.assert_array_equal(one["obs"][-1], following["obs"][0])
            np.testing.assert_array_equal(one["first"][-1], following["first"][0])
            assert (one["version"] <= following["version"]).all()
        for number, rollout in enumerate(rollouts):
            assert rollout["column"].tolist() == [first, first + 1]
            rows = np.arange(STEPS + 1) + number * STEPS
            np.testing.assert_array_equal(rollout["obs"][..., 0], np.stack([rows, rows], 1))


def test_episodes_and_steps_add_up():
    """Counted again from the rows of each column, one behind the other."""
    with slow_worker() as parts:
        by_worker, episodes, _ = followed(parts, 40)
    found = []
    for first, rollouts in by_worker.items():
        for i in range(WIDTH):
            length = 0
            for rollout in rollouts:
                for t in range(STEPS):
                    length += int(rollout["valid"][t, i])
                    if rollout["terminated"][t, i] or rollout["truncated"][t, i]:
                        found.append(Episode(first + i, float(length), length))
                        length = 0
            valid = sum(int(rollout["valid"][:, i].sum()) for rollout in rollouts)
            rows, resets = rollouts[-1]["obs"][-1, i].tolist()
            assert rows == len(rollouts) * STEPS
            assert valid == rows - (resets - 1)
            assert sum(e.length for e in episodes if e.column == first + i) == valid - length
    assert sorted(episodes, key=repr) == sorted(found, key=repr)
    assert len(episodes) > 20


def rows_made(parts):
    """Rows that all workers have stepped so far."""
    return sum(heartbeat.row + 1 for heartbeat in parts.sampler._pool._memory.heartbeats)


def test_workers_stop_when_their_slots_are_full(until):
    """The learner has taken one batch and then takes no more."""
    with streaming("CartPole-v1") as parts:
        parts.sampler.collect()
        taken, workers = 2, 2
        full = (taken + SLOTS * workers) * STEPS
        until(lambda: rows_made(parts) >= full, 20)
        time.sleep(0.3)
        assert rows_made(parts) == full
        parts.sampler.publish(parts.learner.weights, 1)
        batch = parts.sampler.collect()  # what had to wait is not lost
        assert (batch.version == 0).all()
        until(lambda: rows_made(parts) == full + taken * STEPS, 20)


def test_the_learner_does_not_wait_for_a_slow_worker_while_the_lag_allows():
    """The fast worker fills whole batches, until the slow one's rollout would be too old."""
    pause, max_lag, fast_only = 2.0, 8, 0
    slow = uneven(slow_columns=(2, 3), first_pause=pause)
    with streaming(slow, max_lag=max_lag) as parts:
        began = waited = time.monotonic()
        for batch, version in turns(parts, 30):
            lag = version - batch.version[batch.column >= 2]
            if lag.size:
                break
            waited = time.monotonic()
            fast_only += 1
    assert waited - began < 2 * pause  # it steps two columns, each of which pauses
    assert fast_only >= max_lag - 1 and (lag == max_lag - 1).all()


def test_a_fast_worker_gives_more_than_its_share():
    with slow_worker(pause=0.01) as parts:
        by_worker, _, _ = followed(parts, 30)
    assert len(by_worker[0]) > 2 * len(by_worker[2]) > 0


@pytest.mark.parametrize(
    ("env_id", "pool"),
    [("CartPole-v1", "processes"), slow("Pendulum-v1", "processes"), ("CartPole-v1", ThreadPool)],
)
def test_a_restored_stream_goes_on_with_the_same_open_episodes(env_id, pool):
    """From the batch that was learned last; what had been sampled ahead of it is made anew."""
    with streaming(env_id, pool=pool) as parts:
        for _ in turns(parts, 11):
            pass
        state, weights = parts.sampler.state(), parts.learner.weights.copy()
    assert {name.partition(".")[0] for name in state} == {"0", "1"}
    with streaming(env_id, pool=pool) as parts:
        assert parts.sampler.restore({k: np.array(v) for k, v in state.items()}) == []
        parts.sampler.publish(weights, 11)
        assert_same(parts.sampler.state(), state)
        seen = {}
        while len(seen) < 2:
            batch = parts.sampler.collect()
            for lane in lanes(batch):
                seen.setdefault(int(lane.column[0]), copied(lane))
            parts.sampler.publish(weights, 11)
    for number, first in enumerate((0, 2)):
        np.testing.assert_array_equal(seen[first]["obs"][0], state[f"{number}.obs.vector"])
        np.testing.assert_array_equal(seen[first]["first"][0], state[f"{number}.first"])
        assert (seen[first]["version"] == 11).all()


def test_the_state_of_a_stream_is_that_of_what_was_learnt_not_of_what_was_sampled():
    with slow_worker() as parts:
        by_worker, _, _ = followed(parts, 15)
        before = parts.sampler.state()
        parts.sampler.collect()
        after = parts.sampler.state()
    for number, first in enumerate((0, 2)):
        last = by_worker[first][-1]
        np.testing.assert_array_equal(before[f"{number}.obs.vector"], last["obs"][-1])
        assert before[f"{number}.row"] == len(by_worker[first]) * STEPS
    assert_same(before, after)


def config_of(folder, **options):
    plain = PLAIN | {"algo": "impala", "num_workers": 2, "eval_episodes": 1}
    return paceline.Config(output_dir=str(folder), **(plain | options))


def test_a_stream_that_was_left_resumes_in_the_middle_of_its_episodes(tmp_path):
    """Every episode has 37 steps, also those that were open in between."""
    env = {"kwargs": {"length": 37}}
    options = {"env_id": "toy:constant", "env": env, "total_iters": 40, "log_every": 1}
    options["num_envs"] = 8
    reports = []
    for report in paceline.train(config_of(tmp_path / "run", **options)):
        reports.append(report)
        if report.iter == 17:
            break
    reports += paceline.resume(tmp_path / "run")
    assert [report.iter for report in reports] == list(range(1, 41))
    assert {report.episode_length for report in reports} == {None, 37.0}
    assert reports[-1].steps == sum(report.steps_global for report in reports)
    ended = sum(report.episodes for report in reports)
    assert 40 * 20 * 8 - ended <= reports[-1].steps + 8  # one row of each episode only resets
    assert reports[-1].steps <= 40 * 20 * 8


def test_impala_learns_from_a_stream(tmp_path):
    options = {"num_envs": 8, "rollout_steps": 8, "lr": 3e-3, "log_every": 50}
    config = config_of(tmp_path / "run", env_id="toy:identity", total_steps=40_000, **options)
    reports = list(paceline.train(config))
    assert max(report.lag_max for report in reports) >= 1
    result = paceline.evaluate(paceline.load(tmp_path / "run"), "toy:identity", 50)
    assert result.mean >= 9.5  # of 10


def talkative(every):
    """An environment that raises now and then, and again when it is closed: two lines each time."""

    class Talkative(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        action_space = gym.spaces.Discrete(2)
        steps, clumsy = 0, False

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.clumsy |= seed in {episode_seed(0, column, 0) for column in range(WIDTH)}
            return np.zeros(3, np.float32), {}

        def step(self, action):
            self.steps += 1
            if self.clumsy and self.steps >= every:
                raise RuntimeError("the rope broke")
            return np.zeros(3, np.float32), 0.0, False, False, {}

        def close(self):
            if self.clumsy:
                raise RuntimeError("and so did the net")

    return Talkative


@pytest.mark.parametrize("max_lag", [2, 4])
def test_a_rollout_that_waits_behind_other_messages_is_not_forgotten(max_lag):
    """A worker that has a lot to say is heard one line at a time; its rollout ages meanwhile."""
    with streaming(talkative(30), max_lag=max_lag) as parts:
        lags = lags_of(parts, 300)
        assert parts.sampler.env_restarts > 0
    assert max(lags) <= max_lag
