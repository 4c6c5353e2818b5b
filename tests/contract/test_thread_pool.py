"""Samplers know nothing of their pool but its protocol: they work over threads as over processes.

`ThreadPool` is also the shortest example of a pool.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from contextlib import closing, contextmanager

import gymnasium as gym
import numpy as np
import pytest
from sampling import turns
from saved_runs import PLAIN, assert_same

import paceline
from paceline.errors import EnvironmentFailed
from paceline.processes.heartbeat import Heartbeat
from paceline.rollout import Rollout
from paceline.run.build import build
from paceline.samplers.pool import Arrival
from paceline.samplers.process_pool import start_workers
from paceline.samplers.stream import Stream
from paceline.samplers.unroll import RolloutCancelled
from paceline.samplers.workers import Workers

pytestmark = pytest.mark.timeout(60)

WORKERS, WIDTH, STEPS = 2, 2, 16


class ThreadPool:
    """A thread per worker, each with an inbox of its own; what they have done is in one outbox.

    None is replaced: an exception of a worker ends the run.
    """

    restarts = env_restarts = 0

    def __init__(self, spec):
        count, rollout = spec.slots
        rollouts = [Rollout.from_spec(rollout).poisoned() for _ in range(count)]
        workers = range(spec.workers)
        self.spec, self.ledgers, self.common = spec, spec.make_ledgers(), rollouts[0]
        self.t_wait, self._begun = 0.0, False
        self._published = np.empty(0, np.float32), 0
        self._slots = [spec.slots_of(worker, rollouts) for worker in workers]
        self._pending = [deque() for _ in workers]
        self._heartbeats = [Heartbeat() for _ in workers]
        self._inboxes, self._outbox = [queue.SimpleQueue() for _ in workers], queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, args=(i,)) for i in workers]
        for thread in self._threads:
            thread.start()

    def begin(self):
        if self._begun:
            return []
        self._begun, different = True, []
        for inbox, ledger in zip(self._inboxes, self.ledgers, strict=True):
            inbox.put(ledger.state(ledger.latest))
        for _ in self.ledgers:
            worker, (snapshot, found) = self._received(None)
            self.ledgers[worker].begin(snapshot)
            different += found
        return sorted(different)

    def publish(self, weights, version):
        self._published = weights.copy(), version

    def fill(self, worker, slot):
        self._pending[worker].append(slot)
        self._inboxes[worker].put(slot)

    def arrivals(self, timeout):
        try:
            worker, (episodes, counters) = self._received(timeout)
        except queue.Empty:
            return []
        slot = self._pending[worker].popleft()
        rollout = self._slots[worker][slot]
        snapshot = self.ledgers[worker].record(rollout, counters)
        return [Arrival(worker, slot, rollout, episodes, snapshot)]

    def acting_version(self, worker):
        pending = self._pending[worker]
        return int(self._slots[worker][pending[0]].version[0]) if pending else self._published[1]

    def close(self):
        for heartbeat, inbox in zip(self._heartbeats, self._inboxes, strict=True):
            heartbeat.leave = 1
            inbox.put(None)
        for thread in self._threads:
            thread.join()

    def _received(self, timeout):
        began = time.perf_counter()
        try:
            worker, message = self._outbox.get(timeout=timeout)
        finally:
            self.t_wait += time.perf_counter() - began
        if isinstance(message, Exception):
            columns = self.spec.columns_of(worker)
            name = f"worker {worker} (columns {columns[0]}–{columns[-1]})"
            raise EnvironmentFailed(f"{name} died: {message}") from message
        return worker, message

    def _work(self, worker):
        try:
            with closing(self.spec.make_block(worker, self._heartbeats[worker])) as block:
                state = self._inboxes[worker].get()
                if state is None:
                    return
                different = block.restore(state)
                self._outbox.put((worker, (block.snapshot(), different)))
                while (slot := self._inboxes[worker].get()) is not None:
                    block.load(*self._published)
                    episodes = block.fill(self._slots[worker][slot])
                    self._outbox.put((worker, (episodes, block.counters())))
        except RolloutCancelled:
            pass
        except Exception as error:
            self._outbox.put((worker, error))


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@contextmanager
def over(make_pool, env_id="CartPole-v1", **options):
    """The parts of a run, with a sampler over a pool of this kind."""
    sizes = {"num_envs": WORKERS * WIDTH, "rollout_steps": STEPS, "hidden": (16,)}
    plain = PLAIN | sizes | {"num_workers": WORKERS, "pool": make_pool, "total_iters": 1000}
    with build(paceline.Config(env_id=env_id, **(plain | options))) as parts:
        yield parts


def copied(rollout):
    arrays = {name: array.tobytes() for name, array in rollout.arrays().items()}
    return arrays | {"episodes": rollout.episodes}


def sampled(parts, number):
    return [copied(rollout) for rollout, _ in turns(parts, number)]


def test_threads_sample_and_learn_what_processes_do():
    with over(ThreadPool) as ours, over("processes") as theirs:
        assert isinstance(ours.sampler, Workers) and isinstance(theirs.sampler, Workers)
        one, other = sampled(ours, 8), sampled(theirs, 8)
        assert one == other
        assert_same(ours.sampler.state(), theirs.sampler.state())
        assert_same(ours.learner.state(), theirs.learner.state())
    assert sum(len(rollout["episodes"]) for rollout in one) > 5


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_sampler_over_threads_goes_on_as_if_it_had_never_stopped(env_id):
    """Also over processes: the state is not the pool's affair."""
    with over(ThreadPool, env_id) as parts:
        sampled(parts, 3)
        state, learner = parts.sampler.state(), parts.learner.state()
        expected, last = sampled(parts, 3), parts.sampler.state()
    for make_pool in (ThreadPool, start_workers):
        with over(make_pool, env_id) as twin:
            twin.learner.restore(learner)
            assert twin.sampler.restore({k: np.array(v) for k, v in state.items()}) == []
            twin.sampler.publish(twin.learner.weights, twin.learner.version)
            assert sampled(twin, 3) == expected
            assert_same(twin.sampler.state(), last)


@pytest.mark.parametrize("max_lag", [2, 4])
def test_a_stream_over_threads_learns_loses_nothing_and_keeps_to_its_lag(max_lag):
    lengths, rows, lags = dict.fromkeys(range(WORKERS * WIDTH), 0), {}, []
    with over(ThreadPool, algo="impala", max_lag=max_lag) as parts:
        assert isinstance(parts.sampler, Stream)
        before, episodes = parts.learner.weights.copy(), 0
        for rollout, version in turns(parts, 40):
            lags += (version - rollout.version).tolist()
            for place, column in enumerate(rollout.column.tolist()):
                last = rows.get(column, rollout.obs[0, place])
                np.testing.assert_array_equal(rollout.obs[0, place], last)
                rows[column] = rollout.obs[-1, place].copy()
                lengths[column] += int(rollout.valid[:, place].sum())
            for episode in rollout.episodes:
                lengths[episode.column] -= episode.length
            episodes += len(rollout.episodes)
        state = parts.sampler.state()
        assert (parts.learner.weights != before).any()
    assert min(lags) >= 0 and 0 < max(lags) <= max_lag
    assert episodes > 5
    for worker in range(WORKERS):  # what is left of the steps are the open episodes'
        columns = range(worker * WIDTH, (worker + 1) * WIDTH)
        left = np.where(state[f"{worker}.ended"], 0, state[f"{worker}.length"])
        assert left.tolist() == [lengths[column] for column in columns]


class Poor(gym.make("CartPole-v1").unwrapped.__class__):
    """Shows what no policy can learn from, once it has made a few steps."""

    steps = 0

    def step(self, action):
        self.steps += 1
        seen, *rest = super().step(action)
        return seen * np.float32(np.nan if self.steps > 20 else 1), *rest


@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_a_worker_that_died_ends_the_run_with_a_sentence(algo):
    with over(ThreadPool, Poor, algo=algo) as parts:
        with pytest.raises(EnvironmentFailed, match=r"^worker \d \(columns \d–\d\) died: env \d, "):
            sampled(parts, 10)
        assert parts.sampler.state() is not None  # of what was learned before
