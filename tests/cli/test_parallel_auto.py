"""`--parallel auto`: the processes of a run are chosen, recorded, and kept."""

from __future__ import annotations

import re
import signal
import time

import psutil
import pytest
from saved_runs import assert_refused
from trees import gone, workers

import paceline
from paceline.errors import BadInput
from paceline.processes.hardware import available_cpus
from paceline.run import calibration
from paceline.run.cost_model import Constants
from paceline.run.directory import CONFIG

pytestmark = pytest.mark.timeout(120)

SHORT = ("--track", "none", "--eval-episodes", 0, "--compile", "off", "--total-iters", 2)
several_cpus = pytest.mark.skipif(available_cpus() < 2, reason="there is but one CPU")
CHEAP = Constants(env=1e-6, call=1e-6, act=1e-6, step=1e-6, row=1e-6, wake=1.0, sync=1.0)
ENV_BOUND = Constants(env=1.0, call=0.0, act=0.0, step=1e-3, row=1e-6, sync=10.0, wake=1e-4)
LEARNER_BOUND = Constants(env=1e-6, call=0.0, act=0.0, step=1.0, row=1e-2)


@pytest.fixture
def measured(monkeypatch):
    """The choice is made from these constants, whatever this machine is doing."""

    def use(known):
        monkeypatch.setattr(calibration.Calibration, "constants", lambda *_: known)

    return use


def test_the_choice_is_said_recorded_and_not_made_again(shell, command):
    ended = command("train", "--parallel", "auto", "--output-dir", "run", *SHORT)
    assert ended.code == 0, ended
    said = re.search(r"parallel auto: (.+)", ended.out)[1]
    config = shell.run("run").config()
    assert config["parallel"] is None
    if available_cpus() > 1:
        assert re.search(r"\(calibrated in \d\.\d s", said)
        assert "the same seed may give another run" in ended.out
    processes = [config["num_workers"], config["ranks"]]
    assert (processes == [0, 1]) == said.startswith("one process")

    again = command("train", "--config", "run/config.yaml", "--output-dir", "again", *SHORT)
    assert again.code == 0 and "calibrat" not in again.out
    assert shell.run("again").learned() == shell.run("run").learned()

    resumed = command("resume", "run", "--total-iters", 3)
    assert resumed.code == 0 and "calibrat" not in resumed.out
    assert shell.run("run").metrics()[-1]["iter"] == 3


@several_cpus
@pytest.mark.parametrize(
    ("known", "flags", "chosen"),
    [
        (CHEAP, "", {"num_workers": 0, "ranks": 1}),
        (ENV_BOUND, "", {"num_workers": 2, "ranks": 1}),
        (LEARNER_BOUND, "", {"num_workers": 0, "ranks": 2}),
        (LEARNER_BOUND, "--algo a3c", {"num_workers": 2, "sync": "hogwild"}),
        (ENV_BOUND, "--algo impala", {"num_workers": 2, "sampler": "auto"}),
    ],
    ids=["serial", "workers", "ranks", "a3c", "stream"],
)
def test_every_way_of_running_is_started(shell, command, measured, known, flags, chosen):
    measured(known)
    flags = ("--parallel", 2, "--output-dir", "run", *flags.split(), *SHORT)
    ended = command("train", *flags)
    assert ended.code == 0, ended
    config = shell.run("run").config()
    assert {name: config[name] for name in chosen} == chosen and config["parallel"] is None


def test_one_cpu_is_one_process_without_a_calibration(shell, command):
    ended = command("train", "--parallel", 1, "--output-dir", "run", *SHORT)
    assert ended.code == 0, ended
    assert "parallel 1: one process: there is one CPU" in ended.out
    assert "calibrated" not in ended.out
    serial = command("train", "--output-dir", "serial", *SHORT)
    assert serial.code == 0
    assert shell.run("run").learned() == shell.run("serial").learned()


REFUSED = {
    "--num-workers 2": ("chooses num_workers", "num_workers is '2'", "leave one of them out"),
    "--ranks 2": ("chooses ranks", "leave one of them out"),
    "--sampler serial": ("chooses sampler", "leave one of them out"),
    "--num-envs-per-worker 4": ("chooses num_envs_per_worker", "leave one of them out"),
    "--algo ddppo": ("ddppo", "write --algo ppo"),
    "--parallel 0": ("parallel is '0'", "such as 4"),
    "--parallel all": ("parallel is 'all'", "should be auto"),
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_parallel_decides_is_not_given_beside_it(command, flags):
    assert_refused(command("train", "--parallel", "auto", *flags.split()), REFUSED[flags])


def test_a_flag_replaces_what_a_file_says(tmp_path):
    assert paceline.Config(parallel="auto", num_envs=4).replace(num_workers=2).parallel is None
    assert paceline.Config(num_workers=2).replace(parallel="auto").num_workers == 0
    assert paceline.Config(parallel="auto").replace(seed=3).parallel == "auto"


def test_a_rank_of_a_launcher_chooses_nothing(command, monkeypatch):
    places = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    ended = command("train", "--parallel", "auto")
    assert_refused(ended, ("a launcher has started 2", "without torchrun"))


@pytest.mark.parametrize("name", ["tune", "scale --ranks 1,2", "bench"])
def test_commands_that_set_processes_refuse_it(shell, command, name):
    name, *more = name.split()
    assert_refused(command(name, *more, "--parallel", "auto"), ("--parallel", name, "leave it out"))
    (shell.folder / "file.yaml").write_text("parallel: auto\n")
    in_file = command(name, *more, "--config", "file.yaml")
    assert_refused(in_file, ("--parallel is 'auto' in", "leave it out"))


def test_a_resumed_run_has_its_processes(shell, command):
    shell.train_here("run", *map(str, SHORT))
    assert_refused(command("resume", "run", "--parallel", "auto"), ("parallel can't change",))


@several_cpus
def test_several_seeds_are_calibrated_for_once(shell, command, measured):
    measured(ENV_BOUND)
    flags = ("--seeds", 2, "--parallel", 2, "--output-dir", "runs", *SHORT)
    ended = command("train", *flags)
    assert ended.code == 0, ended
    assert ended.out.count("parallel 2: 2 workers × 4 envs") == 1
    for seed in range(2):
        config = shell.run(f"runs/seed-{seed}").config()
        assert (config["num_workers"], config["parallel"]) == (2, None)


@several_cpus
def test_in_python_a_run_shows_what_was_chosen(tmp_path, measured):
    measured(ENV_BOUND)
    config = paceline.Config(
        parallel=2, total_iters=1, eval_episodes=0, track="none", output_dir=str(tmp_path / "run")
    )
    refused = pytest.raises(BadInput, match=r"parallel is 2.+use paceline.train")
    with refused, paceline.build(config):
        pass
    run = paceline.train(config)
    assert run.config.parallel is None and run.config.num_workers == 2
    run.finish()
    assert (run.directory / CONFIG).exists()


@several_cpus
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM], ids=lambda kind: kind.name)
def test_a_signal_ends_the_calibration_at_once_and_leaves_nothing(shell, until, kind):
    process = shell.start("train", "--parallel", "auto", "--env-id", "LunarLander-v3", *SHORT)
    until(lambda: workers(process.pid) or process.poll() is not None, 60)
    family = psutil.Process(process.pid).children(recursive=True)
    began = time.monotonic()
    process.send_signal(kind)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 75 and f"stopped by {kind.name}" in err, (out, err)
    assert time.monotonic() - began < 5
    assert gone(family, within=5)
    assert "calibrated in" not in out and not (shell.folder / "runs").exists()
