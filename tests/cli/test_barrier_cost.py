"""Workers that wait longer for each other than they gain: said once, with what to write instead."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace

import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from saved_runs import PLAIN

import paceline
from paceline.run.build import build
from paceline.samplers import barrier_cost
from paceline.samplers.barrier_cost import CLEARLY, FIRST, ROLLOUTS, BarrierCost, barrier_advice

pytestmark = pytest.mark.timeout(60)

SIZES = {"num_envs": 8, "num_workers": 2, "rollout_steps": 5, "minibatches": 1}


class Sleepy(CartPoleEnv):
    """Waits in every step, as for a simulator."""

    def step(self, action):
        time.sleep(0.001)
        return super().step(action)


@pytest.fixture(scope="module")
def spec():
    """Of the pool of a run with two workers."""
    with build(paceline.Config(**PLAIN, **SIZES)) as parts:
        return parts.sampler._pool.spec


def said_by(caplog, folder, **options):
    """What a run warned of."""
    caplog.set_level(logging.WARNING, "paceline")
    options = {"algo": "a2c", "num_workers": 2, "eval_episodes": 0, **options}
    for _ in paceline.train(paceline.Config(output_dir=str(folder), track="none", **options)):
        pass
    return [line for line in caplog.messages if "a rollout of" in line]


def test_a2c_on_cartpole_is_told_once_what_to_write_instead(caplog, tmp_path):
    (said,) = said_by(caplog, tmp_path / "run", duration="4s", compile="off")
    for words in ("8 envs × 5 steps", "with 2 workers", "--num-workers 0", "--rollout-steps"):
        assert words in said


def test_workers_of_a_slow_environment_are_not_warned_of(caplog, tmp_path):
    """Its steps wait without using a CPU, and waiting is what they share."""
    done = tmp_path / "run"
    assert not said_by(caplog, done, env_id=Sleepy, preset="none", total_iters=ROLLOUTS + 40)


@pytest.mark.parametrize(
    ("taken", "alone", "told"),
    [
        (0.0011, 0.0008, True),
        (0.0008, 0.0011, False),
        (CLEARLY * 0.001 * 0.99, 0.001, False),  # within the noise
        (CLEARLY * 0.001 * 1.01, 0.001, True),
        (0.001, math.nan, False),  # of a pool that does not measure
    ],
)
def test_clearly_longer_than_the_work_itself_is_told(spec, taken, alone, told):
    said = barrier_advice(spec, taken, alone)
    assert (said is not None) is told
    if said is not None:
        assert (
            f"takes {1e3 * taken:.2g} ms with 2 workers, and at most {1e3 * alone:.2g} ms" in said
        )


@pytest.fixture
def record(spec, monkeypatch, caplog):
    """Records rollouts of (taken, alone) seconds, by a clock of its own; what was said."""
    caplog.set_level(logging.WARNING, "paceline")
    clock = [0.0]
    monkeypatch.setattr(barrier_cost.time, "perf_counter", lambda: clock[0])

    def run(rollouts, spec=spec):
        cost = BarrierCost(spec)
        for taken, alone in rollouts:
            clock[0] += taken
            if not cost.decided:
                cost.record(taken, alone)
        return list(caplog.messages)

    return run


SLOW, FAST = (0.03, 0.02), (0.03, 0.05)


def test_it_takes_50_rollouts_and_a_second(record):
    assert not record([SLOW] * (FIRST + ROLLOUTS - 1))
    assert not record([(0.002, 0.001)] * (FIRST + 2 * ROLLOUTS))  # 0.2 s
    assert len(record([SLOW] * 4 * ROLLOUTS)) == 1  # and not again


def test_neither_the_first_rollouts_nor_a_few_others_decide(record):
    assert not record([SLOW] * FIRST + ([SLOW] + [FAST] * 2) * ROLLOUTS)


def test_of_several_ranks_only_the_first_speaks(record, spec):
    assert not record([SLOW] * 4 * ROLLOUTS, replace(spec, first_column=8))
