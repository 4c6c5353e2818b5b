"""What `paceline tune` computes: the model, its constants, the shapes, and the search."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring import report

from paceline.envs.source import inspect_env
from paceline.run.cost_model import (
    PHASE_NAMES,
    Burst,
    Constants,
    Shape,
    fit,
    fps,
    predict,
    rollout_time,
    slowdown,
    split_phases,
)
from paceline.tools.bench.tune_plan import parse_tune
from paceline.tools.bench.tune_search import Search, burst_from, time_env_row
from paceline.tools.bench.tune_space import (
    NEAR,
    Limits,
    candidates,
    horizon,
    min_rollout,
    shortlist,
    simplest,
)

KNOWN = Constants(
    env=30e-6,
    call=12e-6,
    act=1e-6,
    step=300e-6,
    row=2e-6,
    other=1e-3,
    wake=200e-6,
    sync=60e-6,
    together=1.3,
    valid=0.98,
    epochs=4,
)
BASE = Shape(envs=16, steps=256, minibatches=32)
STREAM = replace(BASE, schedule="stream", minibatches=8)
HOGWILD = Shape(envs=8, steps=5, schedule="hogwild")
FREE = replace(KNOWN, wake=0.0, sync=0.0, together=1.0, other=0.0, call=0.0, step=0.0)
"""Nothing but what can be divided."""

seconds = st.floats(1e-7, 1e-3)
costs = ("env", "call", "act", "step", "row", "other", "wake", "sync")
constants = st.builds(
    Constants,
    **dict.fromkeys(costs, seconds),
    together=st.floats(1.0, 3.0),
    valid=st.floats(0.5, 1.0),
    epochs=st.integers(1, 10),
)
cpus = st.integers(1, 64)
bases = st.builds(
    Shape,
    envs=st.integers(1, 64),
    steps=st.sampled_from([5, 16, 20, 64, 100, 256]),
    schedule=st.sampled_from(["alternate", "stream", "hogwild"]),
)


def limits(base, times=1, **more):
    return Limits(**{"max_rows": times * base.rows, "min_steps": min(16, base.steps)} | more)


# The model.


def test_an_iteration_of_one_process_is_the_sum_of_its_parts():
    phases = predict(BASE, KNOWN, 8)
    assert phases.env == pytest.approx(4096 * 30e-6)
    assert phases.inference == pytest.approx(256 * 12e-6 + 4096 * 1e-6)
    assert phases.update == pytest.approx(4 * 32 * (300e-6 + 128 * 2e-6))
    assert (phases.sync, phases.waiting, phases.other) == (0.0, 0.0, 1e-3)
    assert fps(BASE, KNOWN, 8) == pytest.approx(4096 * 0.98 / phases.seconds)


def test_workers_divide_the_rollout_and_ranks_everything_that_costs_by_the_row():
    alone, workers = predict(BASE, FREE, 8), predict(replace(BASE, workers=4), FREE, 8)
    assert workers.env == pytest.approx(alone.env / 4) and workers.update == alone.update
    ranks = replace(BASE, learners=4, envs=4)
    assert predict(ranks, FREE, 8).seconds == pytest.approx(alone.seconds / 4)
    fixed = replace(FREE, step=1e-3)  # which no rank divides
    assert 128 * 1e-3 < predict(ranks, fixed, 8).update < predict(BASE, fixed, 8).update


def test_a_stream_takes_as_long_as_its_slower_side_or_as_all_its_work_on_the_cpus():
    quick_env, slow_env = replace(FREE, env=1e-9, act=1e-9), replace(FREE, env=1e-3)
    shape = replace(STREAM, workers=2)
    update = predict(STREAM, quick_env, 8).update
    assert predict(shape, quick_env, 8).seconds == pytest.approx(update)
    assert predict(shape, slow_env, 8).seconds == pytest.approx(sum(rollout_time(shape, slow_env)))
    work = 2 * sum(rollout_time(shape, FREE)) + predict(STREAM, FREE, 8).update
    assert predict(shape, FREE, 2).seconds >= work / 2 - 1e-12


def test_hogwild_learners_multiply_the_steps():
    ratio = fps(replace(HOGWILD, learners=4), FREE, 8) / fps(HOGWILD, FREE, 8)
    assert ratio == pytest.approx(4)


@pytest.mark.parametrize("processes", [3, 8])
def test_more_processes_than_cpus_take_turns(processes):
    assert slowdown(processes, 2, 1.3) == pytest.approx(1.3 * processes / 2)
    assert slowdown(2, 2, 1.3) == 1.3 and slowdown(1, 2, 1.3) == 1.0
    assert slowdown(processes, 1, 1.3) == processes


@given(constants, cpus, st.integers(1, 6))
def test_more_workers_than_cpus_never_help(known, number, more):
    envs = number * (number + more)
    full, over = (Shape(envs=envs, steps=8, workers=w) for w in (number, number + more))
    assert fps(over, known, number) <= fps(full, known, number) * (1 + 1e-9)


@given(constants, cpus)
def test_where_sharing_costs_nothing_more_workers_are_never_slower(known, number):
    free = replace(known, wake=0.0, together=1.0)
    workers = [n for n in (0, 1, 2, 4, 8, 16, 32, 64) if n <= number]
    rates = [fps(Shape(envs=64, steps=32, workers=n), free, number) for n in workers]
    assert np.all(np.diff(rates) >= -1e-9 * max(rates))


@given(constants, cpus, st.sampled_from([name for name in costs if name != "sync"]))
def test_a_higher_cost_is_never_faster(known, number, name):
    dearer = replace(known, **{name: 2 * getattr(known, name)})
    for shape in (BASE, replace(BASE, workers=2), replace(STREAM, workers=2)):
        before, after = (predict(shape, k, number).seconds for k in (known, dearer))
        assert after >= before * (1 - 1e-9)


@given(constants, cpus, bases)
def test_phases_are_never_negative_and_their_shares_add_up(known, number, base):
    for shape in candidates(base, limits(base), number)[:40]:
        phases = predict(shape, known, number)
        assert min(vars(phases).values()) >= 0
        assert sum(phases.shares.values()) == pytest.approx(1)
        assert phases.bound == max(PHASE_NAMES[:-1], key=phases.shares.get)  # never `other`


# Its constants, from bursts.


def burst_of(shape, known, number=2):
    """What the model itself would measure."""
    phases = predict(shape, known, number)
    return Burst(
        shape=shape,
        fps=fps(shape, known, number),
        t_iter=phases.seconds,
        t_rollout=phases.env + phases.inference + phases.waiting,
        t_learn=phases.update,
        t_sync=phases.sync,
        t_other=phases.other,
        valid=known.valid,
    )


def assert_recovered(known, base, cpus=2, **changes):
    """Bursts of `base`, of a quarter of its environments and of its changes give the constants."""
    shapes = {"base": base, "other": replace(base, envs=base.envs // 4)}
    shapes |= {name: replace(base, **change) for name, change in changes.items()}
    bursts = {name: burst_of(shape, known, cpus) for name, shape in shapes.items()}
    found = fit(known.env, epochs=known.epochs, cpus=cpus, **bursts)
    for field in dataclasses.fields(Constants):
        wanted = getattr(known, field.name)
        assert getattr(found, field.name) == pytest.approx(wanted, rel=1e-6), field.name


@settings(max_examples=50)
@given(constants)
def test_constants_are_recovered_from_what_they_predict(known):
    assert_recovered(known, BASE, workers={"workers": 2}, learners={"learners": 2, "envs": 8})


def test_constants_of_other_schedules_and_of_threads_are_recovered_too():
    assert_recovered(KNOWN, STREAM, workers={"workers": 2}, learners={"learners": 2, "envs": 8})
    assert_recovered(replace(KNOWN, wake=0.0, epochs=1), HOGWILD, learners={"learners": 2})
    known = replace(KNOWN, threaded=0.8, wake=0.0, sync=0.0, together=1.0)
    assert_recovered(known, BASE, cpus=4, threads={"threads": 4})


def test_noise_makes_no_constant_negative_and_no_time_vanish():
    base = burst_of(BASE, KNOWN)
    other = replace(burst_of(replace(BASE, envs=4), KNOWN), t_rollout=1.0, t_learn=9.0)
    workers = replace(burst_of(replace(BASE, workers=2), KNOWN), t_rollout=1e-6)
    ranks = replace(burst_of(replace(BASE, learners=2, envs=8), KNOWN), t_rollout=1e-6, t_learn=0.0)
    found = fit(1.0, base, other, 4, 2, workers, ranks)
    assert min(dataclasses.astuple(found)) >= 0 and found.together == 1.0
    alone = predict(BASE, found, 2)
    assert alone.env + alone.inference == pytest.approx(base.t_rollout)
    assert alone.update == pytest.approx(base.t_learn)


@pytest.mark.parametrize(
    "shape", [BASE, replace(BASE, workers=2), replace(BASE, learners=2, envs=8)], ids=str
)
def test_a_burst_as_the_model_predicts_it_is_split_into_the_predicted_phases(shape):
    found = split_phases(burst_of(shape, KNOWN), KNOWN, 2)
    for name, seconds in vars(predict(shape, KNOWN, 2)).items():
        assert getattr(found, name) == pytest.approx(seconds, rel=1e-6), name


def test_a_learner_that_waits_for_a_stream_waits_for_environments_and_policies():
    slow = replace(KNOWN, env=1e-3, wake=0.0)
    found = split_phases(burst_of(replace(STREAM, workers=2), slow), slow, 4)
    assert found.bound == "env" and found.waiting == 0.0


@pytest.mark.parametrize("number", [1, 2, 30])
def test_a_burst_is_what_its_metrics_say_without_its_first_moments(number):
    lines = [report(n, rollout=0.075) for n in range(1, number + 1)]
    if number > 1:
        lines[0] |= {"t_iter": 9.0, "t_rollout": 9.0}
    found = burst_from(lines, BASE)
    assert (found.t_iter, found.fps, found.valid) == pytest.approx((0.1, 1000, 100 / 4096))
    assert (found.t_rollout, found.t_learn) == pytest.approx((0.075, 0.025))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Taxi-v4"])
def test_environments_are_timed_alone_with_valid_actions(env_id):
    assert 1e-7 < time_env_row(inspect_env(env_id), 0, 2, 0.05) < 1e-2


# The shapes.


@settings(max_examples=60)
@given(bases, st.integers(1, 12), st.integers(1, 4))
def test_candidates_keep_the_batch_and_fit_the_machine(base, number, times):
    found = candidates(base, limits(base, times), number)
    for shape in found:
        assert base.rows <= shape.rows <= times * base.rows
        assert shape.batch == base.batch and shape.rows % shape.batch == 0
        assert shape.steps >= min(16, base.steps)
        assert shape.envs % max(1, shape.workers) == 0
        assert shape.schedule == "hogwild" or shape.batch % shape.learners == 0
        assert max(shape.samplers, shape.learners) <= max(number, base.samplers)
    assert times > 1 or {shape.rows for shape in found} == {base.rows}


def test_the_layouts_of_a_rollout_have_one_product():
    found = candidates(BASE, limits(BASE), 1)
    assert {(s.envs, s.steps) for s in found} == {(4096 // n, n) for n in (16, 32, 64, 128, 256)}


def test_a_number_of_workers_that_never_divides_is_had_with_more_rows():
    found = candidates(BASE, limits(BASE, 2, min_steps=64), 28)
    assert {7, 14, 28} <= {shape.workers for shape in found if shape.learners == 1}
    assert 28 not in {shape.workers for shape in candidates(BASE, limits(BASE), 28)}


def test_the_largest_machine_and_batch_are_laid_out_at_once():
    assert 1000 < len(candidates(BASE, limits(BASE, max_rows=10**8), 512)) < 10**6


def test_limits_restrict_processes_threads_and_minibatches():
    one, more, threaded = (
        candidates(BASE, limits(BASE, **limit), 4)
        for limit in ({"mode": "sequential"}, {"mode": "parallel"}, {"threaded": True})
    )
    assert {shape.processes for shape in one} == {1} == {shape.threads for shape in more}
    assert more and min(shape.processes for shape in more) > 1
    assert {shape.threads for shape in threaded if shape.processes == 1} == {1, 2, 3, 4}
    assert max(shape.threads * shape.learners for shape in threaded) == 4
    a2c = Shape(envs=8, steps=5)
    found = candidates(a2c, limits(a2c, 4, one_minibatch=True), 2)
    assert {(shape.minibatches, shape.rows) for shape in found} == {(1, 40), (1, 80), (1, 160)}


def test_rollouts_stay_as_long_as_advantages_look_ahead():
    assert horizon(0.99, 0.95) == pytest.approx(16.8, abs=0.05)
    assert min_rollout(256, 0.995, 0.98) == 41 and min_rollout(64, 0.98, 0.9) == 16
    assert min_rollout(20, 0.99, 1.0) == 20 and min_rollout(5, 0.99, 1.0) == 5


def test_of_shapes_nearly_as_fast_the_simplest_is_chosen():
    two, tall = replace(BASE, workers=2), replace(BASE, envs=32, steps=128)
    assert simplest({BASE: 98.0, two: 100.0, tall: 99.0}, BASE) == BASE
    assert simplest({BASE: 96.9, two: 100.0}, BASE) == two
    assert simplest({tall: 98.0, two: 100.0}, BASE) == tall
    assert simplest({two: 100.0, replace(two, pinned=True): 101.0}, BASE) == two


@given(st.dictionaries(st.integers(1, 40), st.floats(1, 1e6), min_size=1, max_size=8))
def test_the_choice_is_never_much_slower_than_the_best(rates):
    shapes = {replace(BASE, workers=number): value for number, value in rates.items()}
    assert shapes[simplest(shapes, BASE)] >= NEAR * max(shapes.values())


def test_the_shortlist_holds_the_present_shape_and_the_best_of_each_kind():
    shapes = candidates(BASE, limits(BASE, min_steps=64), 4)
    found = shortlist(BASE, shapes, KNOWN, 4, 8)
    assert found[0] == BASE and len(found) == len(set(found)) == 8
    assert {(False, False), (False, True), (True, False)} <= {shape.kind for shape in found}
    assert replace(found[1], pinned=True) in found
    assert fps(found[1], KNOWN, 4) == max(fps(shape, KNOWN, 4) for shape in shapes)


# The search, on simulated machines.

MACHINES = {
    "cheap environments": replace(KNOWN, env=2e-6),
    "dear environments": replace(KNOWN, env=300e-6),
    "dear processes": replace(KNOWN, wake=20e-3, sync=2e-3, together=1.9),
    "dear learning": replace(KNOWN, row=20e-6, step=1e-3),
}


class SimulatedMachine:
    """Bursts take no time: the model's rates, each shape's own deviation from them that the
    model does not know, and noise that only slows."""

    def __init__(self, known, number, seed, patch):
        self.known, self.cpus, self.clock = known, number, 0.0
        self._draw = np.random.default_rng(seed)
        self._own = {}
        bench = "paceline.tools.bench"
        patch.setattr(f"{bench}.tune_search.time.monotonic", lambda: self.clock)
        patch.setattr(f"{bench}.tune_search.run_burst", self.burst)
        patch.setattr(f"{bench}.tune_search.available_cpus", lambda: number)
        patch.setattr(f"{bench}.tune_plan.available_cpus", lambda: number)
        patch.setattr(f"{bench}.tune_search.time_env_row", lambda *_: known.env)

    def slower(self, shape):
        return self._own.setdefault(replace(shape, pinned=False), self._draw.uniform(0.95, 1.05))

    def rate(self, shape):
        return fps(shape, self.known, self.cpus) / self.slower(shape)

    def burst(self, options, shape, folder):
        self.clock += 4.0 + float(options["duration"][:-1])
        factor = self.slower(shape) * (1 + abs(self._draw.normal(0, 0.02)))
        found = burst_of(shape, self.known, self.cpus)
        times = ("t_iter", "t_rollout", "t_learn", "t_sync", "t_other")
        changed = {name: factor * getattr(found, name) for name in times}
        return replace(found, fps=found.fps / factor, overhead=4.0, **changed)


@pytest.mark.parametrize("number", [1, 2, 8])
@pytest.mark.parametrize("name", MACHINES)
def test_the_search_finds_nearly_the_best_of_all_shapes(name, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        machine = SimulatedMachine(MACHINES[name], number, seed, monkeypatch)
        plan = parse_tune(["--env-id", "CartPole-v1", "--epochs", "4", "--compile", "off"])
        search = Search(plan, tmp_path)
        search.run(search.constants())
        shapes = candidates(search.base, plan.limits, number)
        best = max(machine.rate(shape) for shape in shapes)
        assert machine.rate(search.choice()) >= 0.95 * best, (search.choice(), seed)
        assert len(search.rounds) >= 3 and machine.clock <= 1.1 * plan.budget
