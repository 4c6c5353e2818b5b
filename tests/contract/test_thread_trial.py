"""Threads of the learner that hinder each other: noticed before the first update, and left."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from contextlib import closing, contextmanager

import gymnasium as gym
import numpy as np
import pytest
import torch
from environments import ACTIONS, OBSERVATIONS, Anything
from saved_runs import last_state, left_after

import paceline
from paceline.distributed.allreduce import Allreduce
from paceline.distributed.rendezvous import join_group
from paceline.processes.hardware import available_cpus
from paceline.run import thread_trial
from paceline.run.build import env_info_of, network_for
from paceline.run.choices import Choices
from paceline.run.thread_trial import HINDER, compare, slowdown_of_ranks, trial
from paceline.run.topology import Topology

pytestmark = pytest.mark.timeout(60)
several_cpus = pytest.mark.skipif(available_cpus() < 2, reason="there is but one CPU")
SMALL = {"num_envs": 2, "rollout_steps": 8, "minibatches": 1, "epochs": 1, "eval_episodes": 0}
SMALL |= {"preset": "none", "track": "none", "device": "cpu", "total_iters": 2}


class Pixels(gym.Env):
    """Random images as large as Procgen's."""

    observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action):
        return self._look(), 1.0, False, False, {}

    def _look(self):
        return self.np_random.integers(0, 256, (64, 64, 3), np.uint8)


IMAGES = {"env_id": "toy:identity", "env": {"kwargs": {"image": True}}}


def config_of(folder, **options):
    return paceline.Config(output_dir=str(folder), **(SMALL | (options or IMAGES)))


def threads_of(folder):
    return json.loads((folder / "run.json").read_text())["choices"]["threads"]


@pytest.fixture
def slower(monkeypatch):
    """Sets how many times slower than one thread all threads are found; a list of the trials."""

    def set_to(times):
        trials = []

        def found(threads, network, rows):
            trials.append((threads, rows))
            return times, 1.0

        monkeypatch.setattr(thread_trial, "trial", found)
        return trials

    return set_to


@pytest.fixture
def two_cpus(monkeypatch):
    monkeypatch.setattr("paceline.run.choices.available_cpus", lambda: 2)


@pytest.mark.parametrize(
    ("taken", "slowdown"),
    [
        ([[0.5, 1.0]], 0.5),
        ([[3.0, 1.0]], 3.0),
        ([[0.5, 1.0], [3.0, 1.0]], 3.0),  # all wait for the rank whose threads are hindered
        ([[2.0, 1.0], [2.0, 4.0]], 0.5),  # one thread of rank 1 would keep all waiting longer
        ([[0.0, 0.0], [3.0, 1.0]], 3.0),  # the first does not learn
    ],
)
def test_the_slowest_rank_decides(taken, slowdown):
    assert slowdown_of_ranks(taken) == slowdown


def decided_by(place, rank, size, found):
    """Threads that a rank ends with, where its trial found these times; and what it said."""
    said = []
    thread_trial.log.warning = said.append
    thread_trial.trial = lambda *_: found[rank]
    topology = Topology(rank=rank, size=size, started=True, learners=size)
    with closing(Allreduce(join_group(place, rank, size, 20.0), "auto", timeout=20.0)) as sync:
        choices = Choices(threads=2, compiled=False, device="cpu")
        chosen = thread_trial.without_hindering_threads(choices, None, 8, sync, topology)
    return chosen.threads, len(said)


@pytest.mark.parametrize("other", [0.5, 3.0])
def test_ranks_decide_the_same_and_the_first_says_so(together, clean, other):
    """Their weights would differ in the last bits if they had different numbers of threads."""
    found = together(decided_by, 2, [(0.5, 1.0), (other, 1.0)])
    assert found == ([(2, 0), (2, 0)] if other < 1 else [(1, 1), (1, 0)])


@pytest.mark.parametrize(
    ("times", "threads"), [(0.3, 2), (1.0, 2), (HINDER - 0.01, 2), (HINDER, 1), (3.14, 1)]
)
def test_threads_that_are_clearly_slower_than_one_are_left(
    tmp_path, slower, two_cpus, caplog, times, threads
):
    caplog.set_level(logging.INFO, "paceline")
    trials = slower(times)
    before = torch.get_num_threads()
    list(paceline.train(config_of(tmp_path / "run")))
    assert trials == [(2, 16)]  # once, with all CPUs and a minibatch
    assert threads_of(tmp_path / "run") == threads
    said = [line for line in caplog.messages if "times slower" in line]
    assert len(said) == (threads == 1)
    if said:
        assert f"2 threads of the learner were {times:.1f} times slower than one" in said[0]
    assert any(f"learner {threads} thread" in line for line in caplog.messages)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "options", [IMAGES | {"threads": 2}, {"env_id": "CartPole-v1"}], ids=["given", "vectors"]
)
def test_without_a_choice_of_threads_nothing_is_tried(tmp_path, slower, two_cpus, options):
    trials = slower(9.0)
    list(paceline.train(config_of(tmp_path / "run", **options)))
    assert not trials
    assert threads_of(tmp_path / "run") == options.get("threads", 1)


@pytest.mark.parametrize("times", [0.5, 3.0])
def test_a_resumed_run_keeps_its_threads_to_the_byte(tmp_path, slower, two_cpus, times):
    slower(times)
    list(paceline.train(config_of(tmp_path / "whole")))
    left_after(config_of(tmp_path / "parts"), 1)
    trials = slower(1 / times)  # meanwhile the machine is another
    assert list(paceline.resume(tmp_path / "parts"))
    assert not trials
    assert threads_of(tmp_path / "parts") == threads_of(tmp_path / "whole")
    assert last_state(tmp_path / "parts") == last_state(tmp_path / "whole")


@pytest.mark.parametrize("rows", [1, 100])
@pytest.mark.parametrize(
    ("observation", "action", "options"),
    [
        ("two images", "multidiscrete", {}),
        ("image and numbers", "box", {"shared_trunk": False}),
        ("discrete", "discrete", {"hidden": (8,)}),
    ],
)
def test_a_trial_leaves_threads_and_random_numbers_as_they_were(observation, action, options, rows):
    spaces = OBSERVATIONS[observation], ACTIONS[action]
    masked = action != "box"
    config = paceline.Config(env_id=lambda: Anything(*spaces, masked), **(SMALL | options))
    info = env_info_of(config)
    network = network_for(config, info.obs_spec.seen, info.act_spec)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert all(seconds > 0 for seconds in trial(2, network, rows))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_the_first_round_does_not_count_and_a_few_slow_ones_do(monkeypatch):
    fast, slow = [0.05, 0.1], [0.6, 0.1]
    durations = iter([0.9, 0.9, *fast, *fast, *slow, *slow])  # in turns with two threads and one
    clock = [0.0]

    def work():
        clock[0] += next(durations)

    monkeypatch.setattr(thread_trial.time, "perf_counter", lambda: clock[0])
    before = torch.get_num_threads()
    try:
        assert compare(work, 2) == pytest.approx((1.3, 0.4))
    finally:
        torch.set_num_threads(before)


def test_a_trial_that_takes_long_ends_early():
    rounds = []

    def work():
        rounds.append(torch.get_num_threads())
        time.sleep(2.0 if rounds[-1] == 2 else 0.0)

    before = torch.get_num_threads()
    try:
        many, one = compare(work, 2)
    finally:
        torch.set_num_threads(before)
    assert rounds == [2, 1, 2, 1] and many > 1.9 > 1.0 > one


@contextmanager
def busy_programs(number):
    loops = [
        subprocess.Popen([sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"],
                         stdout=subprocess.PIPE)
        for _ in range(number)
    ]  # fmt: skip
    try:
        for loop in loops:
            loop.stdout.readline()
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()


@pytest.mark.slow  # it keeps the whole machine busy
@several_cpus
def test_beside_busy_programs_the_learner_has_one_thread(tmp_path):
    """One more than CPUs, so that no thread has one for itself."""
    with busy_programs(available_cpus() + 1):
        list(paceline.train(config_of(tmp_path / "run", env_id=Pixels, encoder="impala")))
    assert threads_of(tmp_path / "run") == 1
