"""What `--parallel` chooses from known constants, and what it says about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import paceline
from paceline.envs.source import inspect_env
from paceline.errors import BadInput
from paceline.processes.hardware import available_cpus
from paceline.run.calibration import Calibration, Stopwatch
from paceline.run.choices import Choices
from paceline.run.cost_model import Constants, Shape, fps
from paceline.run.parallel import GAIN, best, describe, layouts, sentence

CHEAP = Constants(
    env=5e-6, call=10e-6, act=1e-6, step=1e-3, row=1e-6, wake=2e-4, sync=1e-4, epochs=4
)
LEARNER_BOUND = replace(CHEAP, step=5e-3)
ENV_BOUND = replace(CHEAP, env=1e-3, sync=5e-3)
TOO_CHEAP = replace(CHEAP, step=1e-5, sync=1e-3, wake=5e-3)
IMAGES = replace(CHEAP, act=1e-3, step=0.0, row=3e-3, sync=0.1)

ONE = Shape(envs=8, steps=128, minibatches=4)
RANKS = replace(ONE, learners=2)
WORKERS = replace(ONE, workers=2)
SHAPES = [ONE, WORKERS, RANKS]


@pytest.mark.parametrize(
    ("known", "chosen", "said"),
    [
        (LEARNER_BOUND, RANKS, "2 ranks × 8 envs: learning takes 92% of an iteration, which"),
        (ENV_BOUND, WORKERS, "2 workers × 4 envs: sampling takes 98% of an iteration, which"),
        (TOO_CHEAP, ONE, "one process: nothing else would gain enough (2 workers × 4 envs 0."),
    ],
    ids=["learner", "environment", "nothing"],
)
def test_what_takes_the_time_decides(known, chosen, said):
    assert best(SHAPES, known, 2) == chosen
    assert sentence(SHAPES, chosen, known, 2).startswith(said)


def test_the_gain_is_said():
    gain = fps(RANKS, LEARNER_BOUND, 2) / fps(ONE, LEARNER_BOUND, 2)
    assert gain > 1.8
    assert sentence(SHAPES, RANKS, LEARNER_BOUND, 2).endswith(f"about {gain:.1f} × sequential")


def test_a_gain_within_noise_is_not_taken():
    slow = replace(LEARNER_BOUND, together=1.9)
    assert 1.0 < fps(RANKS, slow, 2) / fps(ONE, slow, 2) < GAIN
    assert best(SHAPES, slow, 2) == ONE
    said = sentence(SHAPES, ONE, slow, 2)
    assert said.startswith("one process: side by side, processes are 1.9 × slower")


def test_of_nearly_equal_layouts_the_one_with_fewest_processes_is_taken():
    four, pairs = replace(ONE, learners=4), replace(ONE, learners=2, workers=2)
    known = replace(LEARNER_BOUND, env=1e-3, sync=0.0, wake=0.0)
    rates = [fps(shape, known, 4) for shape in (four, pairs)]
    assert best([ONE, pairs, four], known, 4) == (four if rates[0] >= 0.97 * rates[1] else pairs)
    same = replace(four, envs=8)
    assert best([ONE, replace(WORKERS, workers=4), same], replace(known, env=5e-3), 4) == same


def test_ranks_with_one_thread_compete_with_the_threads_of_one_learner():
    threads = replace(ONE, threads=2)
    alone, shapes = replace(ONE, threads=1), [threads, ONE, RANKS]
    # Threads that divide everything are as good as ranks, and one process.
    assert best(shapes, replace(IMAGES, threaded=1.0), 2) == threads
    assert best(shapes, replace(IMAGES, threaded=0.3), 2) == RANKS
    # Beside other busy programs neither gains.
    busy = replace(IMAGES, threaded=0.0, together=2.0)
    assert best(shapes, busy, 2) == alone
    assert "one thread, since 2 threads of the learner hinder each other" in sentence(
        shapes, alone, busy, 2
    )
    assert describe(threads) == "one process with 2 threads"


def test_learners_of_a3c_are_compared_with_one():
    one = Shape(envs=8, steps=5, schedule="hogwild")
    two = replace(one, learners=2)
    assert best([one, two], CHEAP, 2) == two
    said = sentence([one, two], two, CHEAP, 2)
    assert said.startswith("2 learners × 8 envs: ") and said.endswith(" × one learner")


def shapes_of(cpus, large=False, **options):
    config = paceline.Config(**{"parallel": "auto", "num_envs": 8, **options})
    return [layout.shape for layout in layouts(config, cpus, large)]


def test_layouts_fit_the_cpus_and_divide_the_environments():
    found = [(shape.learners, shape.workers) for shape in shapes_of(4)]
    assert found[0] == (1, 0)
    assert set(found) == {(1, 0), (1, 2), (1, 4), (2, 0), (2, 2), (3, 0), (4, 0)}


def test_a_stream_may_have_one_worker_and_a3c_has_learners():
    found = [(shape.learners, shape.workers) for shape in shapes_of(2, algo="impala")]
    assert set(found) == {(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)}
    found = [(shape.learners, shape.workers) for shape in shapes_of(2, algo="a3c")]
    assert found == [(1, 0), (2, 0)]


def test_threads_are_those_that_the_run_will_have():
    config = paceline.Config(parallel="auto")
    found = {(x.shape.learners, x.shape.threads): x.config for x in layouts(config, 4, large=True)}
    assert found[1, 4].threads == 0 and found[1, 1].threads == 1 and found[2, 2].threads == 0
    config = paceline.Config(parallel=4)
    assert layouts(config, 4, large=True)[0].config.threads == 4
    config = paceline.Config(parallel="auto", threads=3)
    assert {x.shape.threads for x in layouts(config, 4, large=True)} == {3}


def test_a_layout_is_a_configuration_without_parallel():
    config = paceline.Config(parallel="auto", algo="a3c", preset="none", seed=3)
    for layout in layouts(config, 2, large=False):
        assert layout.config.parallel is None and layout.config.seed == 3
        assert layout.config.num_workers == layout.shape.learners
        assert paceline.Config(**layout.config.as_dict()) == layout.config


def test_what_is_wrong_with_a_training_is_said_whatever_its_processes():
    config = paceline.Config(parallel="auto", num_envs=8, rollout_steps=64)
    broken = replace(config, given={**config.given, "minibatches": 7})
    with pytest.raises(BadInput, match="minibatches 7 does not divide"):
        layouts(broken, 2, large=False)


@pytest.mark.parametrize(
    "options",
    [
        {"env_id": "CartPole-v1"},
        {"env_id": "CartPole-v1", "algo": "a3c"},
        {"env_id": "Pendulum-v1", "algo": "impala", "num_envs": 1},
        {"env_id": "CartPole-v1", "num_envs": 64, "rollout_steps": 1024, "minibatches": 2},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
@pytest.mark.timeout(60)
def test_every_constant_is_measured_on_a_real_training(options):
    config = paceline.Config(parallel="auto", compile="off", **options)
    env_info = inspect_env(config.env_id)
    found = layouts(config, 2, large=False)
    calibration = Calibration(env_info, Choices(1, False, "cpu"), 2, large=False)
    known = calibration.constants(found[0].config, [layout.config for layout in found])
    assert 1e-7 < known.env < 1e-2 and known.call + known.act >= 0.0
    assert 1e-5 < known.step + known.row * 64 < 1.0
    assert known.wake >= 5e-5 and known.together >= 1.0 and known.threaded == 0.0
    assert known.epochs == config.epochs
    assert calibration.seconds < 3.0 * (1 if available_cpus() > 4 else 5)


@pytest.mark.timeout(60)
def test_a_step_has_a_fixed_time_where_a_layout_has_larger_minibatches():
    """Two workers of a stream share an update of twice the rows, which takes less than twice."""
    config = paceline.Config(parallel="auto", env_id="CartPole-v1", algo="impala", compile="off")
    found = layouts(config, 2, large=False)
    one, two = found[0].shape, max((layout.shape for layout in found), key=lambda s: s.share)
    assert two.share == 2 * one.share
    calibration = Calibration(inspect_env("CartPole-v1"), Choices(1, False, "cpu"), 2, large=False)
    known = calibration.constants(found[0].config, [layout.config for layout in found])
    assert known.step > 0.0


def test_the_clock_of_a_calibration_leaves_out_what_does_not_count():
    watch = Stopwatch(0.0)
    before = watch.seconds
    with watch.paused():
        sum(range(2_000_000))
    assert watch.seconds - before < watch.left_out
