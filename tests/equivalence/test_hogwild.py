"""Hogwild: with one learner what Local is; with several, weights and counters that all share."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from saved_runs import PLAIN, assert_same

import paceline
from paceline.distributed import Local
from paceline.distributed.hogwild import NUMBERS, RING, Hogwild
from paceline.distributed.rank_memory import FUTEX
from paceline.distributed.rendezvous import join_group
from paceline.errors import Diverged, LostRank
from paceline.ring import ring, watch
from paceline.rollout import Episode
from paceline.run.budget import Budget, Progress
from paceline.run.build import build
from paceline.run.topology import topology_of

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(not FUTEX, reason="a3c needs Linux on x86"),
]

COLUMNS = 4
"""Of one learner."""


def joined(place, rank, size, timeout=20.0):
    return closing(Hogwild(join_group(place, rank, size, timeout), timeout))


def config_of(learners, **options):
    """a3c with this many learners; plain a2c with none."""
    sizes = {"num_envs": COLUMNS * max(1, learners), "num_workers": learners, "hidden": (16,)}
    budget = {"lr": 5e-3, "total_iters": 1000, "log_every": 1}
    algo = "a3c" if learners else "a2c"
    return paceline.Config(**(PLAIN | {"algo": algo} | sizes | budget | options))


@contextmanager
def parts_of(place, rank, size, **options):
    """A process of a3c, with its parts; rank 0 is the monitor."""
    with joined(place, rank, size) as sync:
        config = config_of(size - 1, **options)
        topology = replace(topology_of(config), rank=rank, started=True)
        with build(config, sync=sync, topology=topology) as parts:
            yield parts
        sync.gather("done")  # nobody ends while others still read


# One learner.


RUNS = {
    "rmsprop": {"total_iters": 40},
    "adam, annealed": {"total_iters": 40, "lr_schedule": "linear", "optimizer": "adam"},
    "annealed by steps": {"total_steps": 700, "lr_schedule": "linear"},
}


def run_of(place, rank, size, options):
    """A run to its end, by one process of it: its learner's state, and how far it says it came."""
    config, progress = config_of(size - 1, **options), Progress()
    with parts_of(place, rank, size, **options) as parts:
        learner, sync = parts.learner, parts.sync
        counted = Budget.of(config), progress, config.log_every, lambda: False
        reports = list((ring if rank else watch)(parts, *counted))
        sync.finish()
        steps = sum(report.steps_global for report in reports)
        scores = [report.episode_return for report in reports if report.episode_return is not None]
        assert (learner.flat.storage == learner._shared).all()
        return learner.state(), progress.iter, progress.steps, steps, scores


def alone(options):
    config, progress = config_of(0, **options), Progress()
    with build(config, sync=Local()) as parts:
        budget = Budget.of(config)
        turns = ring(parts, budget, progress, config.log_every)
        scores = [r.episode_return for r in turns if r.episode_return is not None]
        return parts.learner.state(), progress.iter, progress.steps, scores


@pytest.mark.parametrize("name", RUNS)
def test_one_learner_learns_what_it_would_without_hogwild_to_the_bit(together, name):
    """And the monitor ends with the same weights, having counted every step."""
    state, iters, steps, scores = alone(RUNS[name])
    monitor, learner = together(run_of, 2, RUNS[name])
    assert len(scores) > 5
    assert_same(learner[0], state)
    assert learner[1:] == (iters, steps, steps, scores)
    assert_same({n: monitor[0][n] for n in state if n != "counts"}, without_counts(state))
    assert monitor[1:4] == (iters, steps, steps)


def without_counts(state):
    return {name: array for name, array in state.items() if name != "counts"}


# Several learners.


def seen_of(place, rank, size):
    """Rank 1 makes an update; what all have before, after having looked, and after rank 2's."""
    with parts_of(place, rank, size, optimizer="adam") as parts:
        learner, gather = parts.learner, parts.sync.gather
        before = learner.state()
        gather("seen")
        if rank == 1:
            learner.update(parts.sampler.collect(), 1.0)
        gather("made")
        stale = learner.flat.storage.numpy().copy()
        learner.pull_shared_weights()
        fresh = learner.flat.storage.numpy().copy()
        after = learner.state()
        moved = [bool((after[n] != before[n]).any()) for n in ("storage", "moment0", "moment1")]
        gather("seen")
        if rank == 2:
            learner.update(parts.sampler.collect(), 1.0)
        gather("made")
        last, state = learner.state()["storage"].tobytes(), without_counts(after)
        return state, moved, stale.tobytes(), fresh.tobytes(), before["storage"], last


def test_an_update_of_one_learner_is_seen_by_all_and_built_on(together):
    """Weights and the optimizer's moments are the same memory; gradients need a copy of them."""
    found = together(seen_of, 3)
    for state, moved, _, fresh, before, last in found:
        assert moved == [True, True, True]
        assert fresh != last == found[0][5]
        assert_same(state, found[1][0])
        assert fresh == state["storage"].tobytes()
        assert before.tobytes() == found[0][4].tobytes()
    assert found[1][2] == found[1][3]  # who made the update has its result
    assert found[2][2] == found[2][4].tobytes()  # others go on with what they copied


def reduced_of(place, rank, size):
    """What each process gets when it asks."""
    with joined(place, rank, size) as sync:
        reduced = []

        def ask(numbers, episodes):
            sums, found = sync.reduce_metrics(np.array(numbers, float), episodes)
            reduced.append((sums.tolist(), found))

        sync.gather("begin")
        if rank:
            ask([1, 10 * rank], [Episode(rank, rank / 2, rank, {f"of {rank}": 1 / 3, "all": 2.0})])
        sync.gather("added")
        ask([0, 0], [])
        ask([0, 0], [])
        sync.gather("asked")
        if rank == 2:
            ask([1, 5], [Episode(7, 1.0, 3, {"all": 5.0}), Episode(8, 2.0, 4, {"new": 6.0})])
        sync.gather("added again")
        ask([0, 0], [])
        sync.max(rank)
        sync.gather("given")
        largest = sync.max(0)
        sync.gather("done")
        return reduced, largest


def test_counters_add_up_and_every_process_gets_everything_once(together):
    for rank, (reduced, largest) in enumerate(together(reduced_of, 3)):
        sums = np.sum([sums for sums, _ in reduced], axis=0)
        assert sums.tolist() == [3, 35]
        found = [episode for _, episodes in reduced for episode in episodes]
        assert sorted(found, key=lambda episode: episode.column) == [
            Episode(1, 0.5, 1, {"of 1": 1 / 3, "all": 2.0}),
            Episode(2, 1.0, 2, {"of 2": 1 / 3, "all": 2.0}),
            Episode(7, 1.0, 3, {"all": 5.0}),
            Episode(8, 2.0, 4, {"new": 6.0}),
        ]
        unchanged = reduced[1 + bool(rank)]
        assert unchanged == ([0, 0], [])  # asked twice, nothing has happened
        assert largest == 2


def flood_of(place, rank, size):
    with joined(place, rank, size) as sync:
        sync.gather("begin")
        if rank:
            names = [f"{n} é" * 20 for n in range(2 * NUMBERS)]  # too many, and too long
            info = dict.fromkeys(names, 1.0)
            episodes = [Episode(0, float(n), n, info) for n in range(3 * RING)]
            sync.reduce_metrics(np.zeros(1), episodes)
        sync.gather("added")
        _, found = sync.reduce_metrics(np.zeros(1), [])
        sync.gather("done")
        return [(episode.length, len(episode.info)) for episode in found]


def test_of_more_episodes_than_are_kept_the_latest_are_read(together):
    assert together(flood_of, 2)[0] == [(n, NUMBERS) for n in range(2 * RING, 3 * RING)]


def annealed_of(place, rank, size):
    """Learners take turns; the share of the run that was left at each of their updates."""
    options, progress = {"lr_schedule": "linear", "total_iters": 10}, Progress()
    left, versions = [], []
    with parts_of(place, rank, size, **options) as parts:
        learner, gather = parts.learner, parts.sync.gather
        update = learner.update

        def noting(rollout, remaining):
            left.append(round(remaining, 6))
            metrics = update(rollout, remaining)
            assert metrics["lr"] == pytest.approx(5e-3 * remaining)
            return metrics

        learner.update = noting
        turns = None
        if rank:
            turns = ring(parts, Budget(iters=10), progress)
        for who, times in ((1, 4), (2, 2), (1, 2), (2, 9), (1, 9)):
            for _ in range(times if rank == who else 0):
                if next(turns, None) is not None:
                    versions.append(learner.version)
            gather("turn")
        return left, versions, progress.iter


def test_the_learning_rate_falls_with_the_updates_of_all(together):
    """Each learns of the others' when it tells of its own; the run ends for all at its limit."""
    _, (first, counts, ended), (second, counts_too, ended_too) = together(annealed_of, 3)
    assert first == [1.0, 0.9, 0.8, 0.7, 0.6, 0.3, 0.2]
    assert counts == [1, 2, 3, 4, 7, 8, 11]
    # Its first update is made before it knows of any; nine and ten after the others' eight.
    assert second == [1.0, 0.5, 0.4, 0.1]
    assert counts_too == [5, 6, 9, 10]
    assert (ended, ended_too) == (11, 10)


def watching_of(place, rank, size):
    """Learners that have finished, and a monitor that hangs before it has: what they say of it."""
    with joined(place, rank, size, timeout=1.0) as sync:
        sync.gather("begin")
        if rank == 0:
            time.sleep(600)
        with pytest.raises(LostRank) as error:
            sync.finish()
        return str(error.value)


def test_a_monitor_that_hangs_is_noticed_by_learners_that_have_finished(together):
    for said in together(watching_of, 3, absent=(0,))[1:]:
        assert "rank 0 (pid" in said and "no sign of life" in said


# Traps.


def repeated_of(place, rank, size):
    """The same rollout three times, at a rate of 0: its gradients."""
    found = []
    with parts_of(place, rank, size, lr=0.0) as parts:
        learner = parts.learner
        if rank:
            rollout = parts.sampler.collect()
            for _ in range(3):
                learner.update(rollout, 1.0)
                found.append(learner._step.buffer.numpy().copy())
    return found


def test_a_gradient_is_not_added_to_the_one_before(together):
    """As it is where a shared module's .grad is the local one's, and the wrong one is cleared."""
    for gradients in together(repeated_of, 3)[1:]:
        assert np.abs(gradients[0]).max() > 0
        assert [g.tobytes() for g in gradients] == [gradients[0].tobytes()] * 3


BROKEN = {"reward": np.nan, "obs": np.inf}


def diverged_of(place, rank, size, field):
    """Rank 1 has a rollout of which no good can come."""
    with parts_of(place, rank, size) as parts:
        learner, gather = parts.learner, parts.sync.gather
        gather("begin")
        if rank == 2:
            learner.update(parts.sampler.collect(), 1.0)
        gather("made")
        before, said = learner.state(), ""
        gather("seen")
        if rank == 1:
            learner.pull_shared_weights()
            rollout = parts.sampler.collect()
            getattr(rollout, field)[1, 0] = BROKEN[field]
            with pytest.raises(Diverged) as error:
                learner.update(rollout, 1.0)
            said = str(error.value)
        gather("diverged")
        after = learner.state()
        same = [after[name].tobytes() == before[name].tobytes() for name in without_counts(before)]
        finite = bool(torch.isfinite(learner._shared).all())
        return same, finite, said


@pytest.mark.parametrize("field", BROKEN)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_no_number_never_reaches_the_shared_weights(together, field):
    found = together(diverged_of, 3, field)
    for same, finite, _ in found:
        assert all(same) and finite
    assert "became nan" in found[1][2]


# The whole command.


SHORT = ("--compile", "off", "--eval-episodes", "1", "--preset", "none", "--num-envs", "4")


@pytest.mark.slow
def test_a3c_of_one_learner_is_a2c_to_the_byte(shell):
    options = (*SHORT, "--total-iters", "60", "--lr-schedule", "linear", "--log-every", "10")
    ours = shell.train("a3c", "--algo", "a3c", "--num-workers", "1", *options)
    theirs = shell.train("a2c", "--algo", "a2c", *options)
    assert ours.last() == theirs.last()
    assert ours.metrics()[-1]["steps"] == theirs.metrics()[-1]["steps"]


@pytest.mark.slow
def test_a3c_of_two_learners_ends_within_its_number_of_iterations(shell):
    run = shell.train("a3c", "--algo", "a3c", "--num-workers", "2", *SHORT, "--total-iters", "200")
    last = run.metrics()[-1]
    assert 200 <= last["iter"] <= 202  # one more of each learner at most
    assert last["iter"] * 20 >= last["steps"] > last["iter"] * 16
