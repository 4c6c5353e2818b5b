"""Workers on the command line and in Python: options, log, metrics, and what they can run."""

from __future__ import annotations

import os
import textwrap
import time

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from saved_runs import PLAIN, assert_refused, iterations
from trees import workers

import paceline
from paceline.envs.suites.toy import Identity
from paceline.errors import BadInput
from paceline.processes.hardware import available_cpus, cpu_name

pytestmark = pytest.mark.timeout(60)

CPUS = sorted(os.sched_getaffinity(0))
SHORT = ("--track", "none", "--eval-episodes", "1", "--compile", "off")
several_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="there is but one CPU")


@pytest.fixture
def train(shell, command):
    """Trains for an iteration or two into `run`: (output, run)."""

    def run(*arguments, iters=2, name="run"):
        place = ("--output-dir", name, "--total-iters", iters)
        ended = command("train", *place, *SHORT, *arguments)
        assert ended.code == 0, ended
        return ended.out, shell.run(name)

    return run


# How many.


def test_num_envs_per_worker_sets_num_envs(train):
    out, run = train("--num-workers", 2, "--num-envs-per-worker", 8, "--rollout-steps", 16)
    assert (run.config()["num_envs"], run.config()["num_workers"]) == (16, 2)
    assert "16 envs × 16 steps" in out and "2 workers × 8 envs (workers)" in out


def test_auto_workers_are_the_cpus_and_config_yaml_holds_their_number(train):
    out, run = train("--num-workers", "auto", "--num-envs", 8 * available_cpus())
    assert run.config()["num_workers"] == available_cpus()
    assert f"{available_cpus()} workers × 8 envs" in out


REFUSED = {
    "--algo ppo --sampler stream --num-workers 2": ("older weights", "ppo", "--algo impala"),
    "--algo a2c --sampler stream --num-workers 2": ("'stream'", "a2c", "--sampler workers"),
    "--num-workers 3 --num-envs 8": ("num_envs 8", "3 workers", "--num-workers 2", "--num-envs 9"),
    "--num-workers 16 --num-envs 8": ("num_envs 8", "16 workers", "--num-workers 8"),
    "--num-envs-per-worker 4": ("num_envs_per_worker is 4", "no workers", "--num-workers 2"),
    "--num-workers 2 --num-envs-per-worker 4 --num-envs 9": (
        "num_envs 9",
        "per_worker 4",
        "num_workers 2",
    ),
    "--sampler serial --num-workers 2": ("'serial'", "num_workers is 2"),
    "--sampler workers": ("'workers'", "needs workers", "--num-workers 2"),
    "--algo impala --sampler stream": ("'stream'", "needs workers", "auto"),
    "--algo impala --num-workers 2 --max-lag 1": ("max_lag", "1", "greater than or equal to 2"),
    "--num-workers -1": ("num_workers", "-1"),
    "--num-workers many": ("num_workers", "many"),
    "--num-workers 5000": ("num_workers", "5000", "4096"),
    "--num-envs-per-worker 0 --num-workers 2": ("num_envs_per_worker", "0"),
    "--sampler ray --num-workers 2": ("sampler", "ray", "stream"),
    "--worker-timeout 60": ("worker_timeout", "60", "60s"),
    "--worker-timeout 0s": ("worker_timeout", "0s"),
    "--max-restarts -1": ("max_restarts", "-1"),
    "--pin perhaps": ("pin", "perhaps"),
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_an_invalid_combination_is_refused_with_what_to_write_instead(command, arguments):
    assert_refused(command("train", *arguments.split()), REFUSED[arguments])
    assert not psutil.Process().children()


@pytest.mark.parametrize(("workers", "envs"), [(3, 8), (16, 8), (5, 12), (7, 10), (2, 1)])
def test_the_advice_of_a_refusal_is_accepted(workers, envs):
    with pytest.raises(BadInput) as error:
        paceline.Config(preset="none", num_workers=workers, num_envs=envs)
    advice = str(error.value).partition("write --num-workers ")[2].replace(",", "")
    fewer, more = map(int, advice.split(" or --num-envs "))
    paceline.Config(preset="none", num_workers=fewer, num_envs=envs)
    paceline.Config(preset="none", num_workers=workers, num_envs=more)


@pytest.mark.parametrize(
    ("options", "sampling"),
    [
        ({}, "serial"),
        ({"algo": "impala"}, "serial"),
        ({"num_workers": 2}, "workers"),
        ({"algo": "a2c", "num_workers": 2}, "workers"),
        ({"algo": "impala", "num_workers": 2}, "stream"),
        ({"algo": "impala", "num_workers": 2, "sampler": "workers"}, "workers"),
        ({"algo": "impala", "num_workers": 2, "minibatches": 2}, "workers"),
        ({"algo": "impala", "num_workers": 2, "minibatches": 2, "sampler": "stream"}, "stream"),
    ],
    ids=str,
)
def test_the_sampler_follows_from_algorithm_and_workers(options, sampling):
    assert paceline.Config(**options).resolved_sampler == sampling


# What is said.


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--num-workers", 2, "--num-envs", 8), "2 workers × 4 envs (workers), learner 1 thread,"),
        (("--num-envs", 4), "no workers, learner 1 thread,"),
    ],
    ids=["workers", "serial"],
)
def test_the_first_lines_name_the_cpu_and_the_processes(train, flags, said):
    out, _ = train(*flags)
    head = " ".join(out.splitlines()[:2])
    for words in (cpu_name(), f"{available_cpus()} CPUs", said):
        assert words in head


@pytest.mark.parametrize(
    ("algo", "workers", "threads", "said"),
    [
        ("ppo", 8, None, ("workers", "take turns", "costs time", "--num-workers auto")),
        ("impala", 8, None, ("workers", "take turns", "costs time", "--num-workers auto")),
        ("ppo", 1, 4, ("threads of the learner", "--threads")),
        ("ppo", 1, None, ()),
        ("impala", 1, None, ()),
    ],
)
def test_more_workers_or_threads_than_cpus_are_warned_of(train, algo, workers, threads, said):
    """So many for each CPU; the run goes on all the same."""
    cpus = available_cpus()
    flags = ("--algo", algo, "--num-workers", workers * cpus, "--num-envs", 8 * cpus)
    out, run = train(*flags, *(("--threads", threads * cpus) if threads else ()))
    assert len(run.metrics()) >= 1
    warned = " ".join(line for line in out.splitlines() if "warning: " in line)
    assert bool(warned) is bool(said)
    if said:
        for word in (*said, f"{(threads or workers) * cpus} {said[0]}", f"{cpus} CPUs"):
            assert word in warned


def start(folder, **options):
    """Train a small run of two workers, in Python: its reports."""
    size = {"num_envs": 4, "num_workers": 2, "rollout_steps": 16, "hidden": (16,)}
    budget = {"total_iters": 3, "log_every": 1, "eval_episodes": 1}
    place = {"env_id": "CartPole-v1", "output_dir": str(folder / "run")}
    return paceline.train(paceline.Config(**(PLAIN | size | budget | place | options)))


@several_cpus
@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_pin_binds_processes_and_unbinds_the_trainer_at_the_end(tmp_path, algo):
    before = os.sched_getaffinity(0)
    bound = []
    for _ in start(tmp_path, algo=algo, pin=True):
        bound.append([os.sched_getaffinity(worker.pid) for worker in workers()])
        assert os.sched_getaffinity(0) == {CPUS[-1]}
    assert os.sched_getaffinity(0) == before
    for theirs in bound:
        assert len(theirs) == 2 and all(len(cpus) == 1 for cpus in theirs)
        if algo == "ppo":  # they rest while it learns, so its CPU is theirs too
            assert sorted(min(cpus) for cpus in theirs) == CPUS[:2]
        else:
            assert all(CPUS[-1] not in cpus for cpus in theirs)


@several_cpus
def test_the_trainer_is_unbound_also_when_its_loop_is_left_or_fails(tmp_path):
    before = os.sched_getaffinity(0)
    for _ in start(tmp_path, pin=True):
        break
    assert os.sched_getaffinity(0) == before
    with pytest.raises(BadInput):
        list(start(tmp_path, pin=True))  # it is there
    assert os.sched_getaffinity(0) == before


def test_without_pin_no_process_is_bound(tmp_path):
    for _ in start(tmp_path):
        for process in (psutil.Process(), *workers()):
            assert sorted(os.sched_getaffinity(process.pid)) == CPUS


@several_cpus
def test_a_pinned_run_names_all_its_cpus_and_is_not_warned_of(train):
    out, run = train("--pin", "--num-workers", "auto", "--num-envs", 8 * available_cpus())
    assert f"{available_cpus()} CPUs: {available_cpus()} workers" in out and "pinned" in out
    assert "take turns" not in out
    assert run.json("run.json")["cpus"] == available_cpus()


# What is written.


def test_the_metrics_of_workers_hold_the_time_the_learner_waited(train):
    _, run = train("--num-workers", 2, "--num-envs", 8, iters=4)
    lines = run.metrics()
    assert len(lines) == 4
    for line in lines:
        assert 0 < line["t_wait"] <= line["t_rollout"]
        assert (line["restarts"], line["env_restarts"]) == (0, 0)
        assert (line["lag_mean"], line["lag_max"]) == (0.0, 0)


def test_the_metrics_of_a_serial_run_have_no_wait(train):
    _, run = train("--num-envs", 4)
    assert {line["t_wait"] for line in run.metrics()} == {0.0}


def test_the_metrics_of_a_stream_hold_the_lag_of_its_rollouts(train):
    options = ("--num-workers", 2, "--num-envs", 4, "--log-every", 1)
    _, run = train("--algo", "impala", *options, iters=40)
    lines = run.metrics()
    assert any(line["lag_mean"] > 0 for line in lines)
    assert all(line["lag_mean"] <= line["lag_max"] <= 8 for line in lines)
    assert all(0 <= line["t_wait"] <= line["t_rollout"] + 1e-6 for line in lines)


def test_memory_counts_the_workers_too(tmp_path):
    """What the first report says is at least what this process alone has."""
    for report in start(tmp_path, total_iters=1):
        own = psutil.Process().memory_full_info().uss / 2**20
        assert report.memory_mb > own


# What a resumed run may do differently.


def test_a_resume_may_change_timeouts_and_pinning_but_not_workers(train, command):
    _, run = train("--num-workers", 2, "--num-envs", 4, "--seed", 1)
    for change in (("--num-workers", 4), ("--sampler", "serial"), ("--max-lag", 4)):
        ended = command("resume", "run", "--total-iters", 4, *change)
        name = change[0][2:].replace("-", "_")
        assert ended.code == 2 and f"{name} can't change" in ended.err
    allowed = ("--pin", "--worker-timeout", "90s", "--max-restarts", 1)
    ended = command("resume", "run", "--total-iters", 4, *allowed)
    assert ended.code == 0, ended
    assert iterations(run) == [1, 2, 3, 4]
    config = run.config()
    assert (config["pin"], config["worker_timeout"], config["max_restarts"]) == (True, "90s", 1)


def test_a_run_resumed_with_other_timeouts_and_pinning_learns_the_same(train, command):
    options = ("--num-workers", 2, "--num-envs", 4, "--preset", "none")
    _, whole = train(*options, iters=4, name="whole")
    _, run = train(*options, iters=2)
    changes = ("--total-iters", 4, "--pin", "--max-restarts", 0)
    assert command("resume", "run", *changes).code == 0
    assert run.last() == whole.last()
    assert run.last("state.safetensors") == whole.last("state.safetensors")


# What may run in a worker.


def test_a_lambda_a_closure_and_a_local_class_reach_the_workers(tmp_path):
    length = 6

    class Short(Identity):
        def __init__(self):
            super().__init__(length=length)

    makers = {
        "lambda": lambda: Identity(length=length),
        "closure": lambda: gym.wrappers.TransformReward(Identity(length=length), lambda r: r),
        "class": Short,
    }
    results = []
    for name, env_id in makers.items():
        reports = list(start(tmp_path / name, env_id=env_id, env={"kwargs": {}}))
        assert {report.episode_length for report in reports} == {float(length)}
        results.append([report.episode_return for report in reports])
    assert results[0] == results[1] == results[2]


def test_a_locally_defined_encoder_acts_in_the_workers(tmp_path):
    width = 12

    class Own(torch.nn.Module):
        def __init__(self, space):
            super().__init__()
            self.layer = torch.nn.Linear(space.shape[0], width)

        def forward(self, obs):
            return torch.tanh(self.layer(obs))

    reports = list(start(tmp_path, encoder=Own))
    assert len(reports) == 3 and np.isfinite(reports[-1].loss)
    # Both sides compute the same probabilities: the first ratios are 1.
    assert all(report.approx_kl < 0.05 for report in reports)


@pytest.mark.slow
def test_an_encoder_instance_acts_in_the_workers(tmp_path):
    made = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
    assert len(list(start(tmp_path, encoder=made, hidden=None))) == 3


@pytest.fixture
def registered():
    """Registers environments for as long as the test lasts."""
    before = dict(gym.registry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gymnasium.logger.warn", lambda *_, **__: None)  # of overriding
        yield gym.register
    gym.registry.clear()
    gym.registry.update(before)


def three():
    """A class that can't be imported, so that it reaches a worker by value."""

    class Three(gym.Env):
        """Episodes of three steps, in the spaces of CartPole."""

        observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.time = 0
            return np.zeros(4, np.float32), {}

        def step(self, action):
            self.time += 1
            return np.zeros(4, np.float32), 1.0, self.time == 3, False, {}

    return Three


def test_an_overridden_registration_holds_in_workers(tmp_path, registered):
    """Not Gymnasium's own environment of that name."""
    registered("CartPole-v1", three())
    for number in (0, 2):
        reports = start(tmp_path / str(number), num_workers=number)
        assert {report.episode_length for report in reports} == {3.0}


def test_a_callable_can_make_an_environment_that_only_the_trainer_registered(tmp_path, registered):
    registered("Three-v0", three())
    options = {"env_id": lambda: gym.make("Three-v0"), "max_restarts": 0}
    for number in (0, 2):
        reports = start(tmp_path / str(number), num_workers=number, **options)
        assert {report.episode_length for report in reports} == {3.0}


@pytest.mark.slow
def test_worker_timeout_does_not_count_the_start(tmp_path):
    """Workers have a minute to make their environments; after that, worker_timeout for a step."""

    class Late(three()):
        begun = False

        def __init__(self):
            time.sleep(3)

        def step(self, action):
            time.sleep(0 if self.begun else 1)
            self.begun = True
            return super().step(action)

    options = {"worker_timeout": "2s", "max_restarts": 0, "total_iters": 1}
    (report,) = start(tmp_path, env_id=Late, num_envs=2, **options)
    assert report.restarts == 0


CONFIG = """
    import paceline
    from paceline.envs.suites.toy import Identity

    LENGTH = 5


    class Mine(Identity):
        def __init__(self):
            super().__init__(length=LENGTH)


    config = paceline.Config(env_id=Mine, preset="none", num_envs=4, rollout_steps=16)
"""


def test_an_environment_of_a_configuration_in_python_reaches_the_workers(shell, train):
    (shell.folder / "config.py").write_text(textwrap.dedent(CONFIG))
    _, run = train("--config", "config.py", "--num-workers", 2)
    assert {line["episode_length"] for line in run.metrics()} == {5.0}


def test_an_environment_of_a_module_beside_the_run_is_found_by_workers(shell):
    """`module:Id-v0`, on the command line, with the module in the current directory."""
    (shell.folder / "mine.py").write_text(
        "import gymnasium as gym\n"
        "from paceline.envs.suites.toy import Identity\n"
        "gym.register('Mine-v0', Identity, kwargs={'length': 4})\n"
    )
    options = ("--env-id", "mine:Mine-v0", "--num-workers", 2, "--num-envs", 4)
    run = shell.train("run", *options, "--total-iters", 1, "--eval-episodes", 1)
    assert run.metrics()[0]["episode_length"] == 4
