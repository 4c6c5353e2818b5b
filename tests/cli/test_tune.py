"""`paceline tune` as a user has it: what it finds, and what it writes."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
import yaml
from measuring import FAILURE, write_failing

from paceline import Config
from paceline.cli import commands as cli
from paceline.config.files import load_file
from paceline.config.resolve import resolve

pytestmark = pytest.mark.timeout(110)

MACHINES = Path(__file__).resolve().parents[2] / "configs" / "machines"
SMALL = ("--hidden", "16", "--time", "2s")


# What is found and written.


@pytest.fixture(scope="module")
def small(tmp_path_factory, shell_in):
    """The shortest search, with an option of the user's own."""
    shell = shell_in(tmp_path_factory.mktemp("tune"))
    options = ("--lr", "0.002", "--ppo.clip", "0.3", "--save-constants", "constants.json")
    ended = shell("tune", "--env-id", "CartPole-v1", *SMALL, *options)
    assert ended.code == 0, ended
    return ended, shell


def test_the_configuration_holds_what_was_decided_and_what_was_asked_for(small):
    _, shell = small
    values = load_file(shell.folder / "tuned-CartPole-v1-ppo.yaml")
    decided = {"num_envs", "num_workers", "ranks", "rollout_steps", "minibatches", "pin"}
    assert values.keys() <= decided | {"algo", "env_id", "lr", "hidden", "ppo"}
    assert (values["lr"], values["hidden"], values["ppo"]) == (0.002, [16], {"clip": 0.3})
    config = resolve(values)
    assert config.ranks * config.num_envs * config.rollout_steps == 512
    assert config.minibatch_count == 2 and config.rollout_steps >= 16
    assert config.total_steps == Config(env_id="CartPole-v1").total_steps


def test_its_head_says_how_it_was_made_and_what_it_gains(small):
    text = (small[1].folder / "tuned-CartPole-v1-ppo.yaml").read_text()
    head = " ".join(line[2:] for line in text.splitlines() if line.startswith("#"))
    assert "paceline tune --env-id CartPole-v1" in head and "Measured on" in head
    assert re.search(r"[\d,]+ (\([\d,]+ to [\d,]+\) )?steps/s", head)
    assert "Bound: " in head and "512 rows an update, 256 a minibatch, unchanged" in head
    assert "write a longer --time" in head  # 2 s are not enough to rely on


def test_the_table_and_the_sentences_are_printed(small):
    ended, _ = small
    assert re.search(r"^8 envs × 64 steps, one process +[\d,]+ steps/s ", ended.out, re.M)
    assert re.search(
        r"^shape .*steps/s .*env .*inference .*update .*sync .*memory", ended.out, re.M
    )
    assert " (now) " in ended.out and "MB" in ended.out
    for begin in ("Choice: ", "It made ", "Bound: ", "Batch: "):
        assert re.search(f"^{begin}", ended.out, re.M), begin
    assert "  paceline train --config tuned-CartPole-v1-ppo.yaml" in ended.out


def test_train_takes_the_configuration(small):
    shell = small[1]
    run = shell.train_here(
        "run", "--config", shell.folder / "tuned-CartPole-v1-ppo.yaml", "--total-iters", 2
    )
    assert len(run.metrics()) == 2


def test_the_constants_serve_another_machine(small, monkeypatch, capsys):
    shell = small[1]
    monkeypatch.chdir(shell.folder)
    given = ["--env-id", "CartPole-v1", "--hidden", "16", "--constants", "constants.json"]
    assert cli.run(["tune", *given, "--for-cpus", "8", "--output", "eight.yaml"]) == 0
    text = (shell.folder / "eight.yaml").read_text()
    assert "Predicted for 8 CPUs by a model" in text and "not measured" in text
    assert "Predicted for 8 CPUs" in capsys.readouterr().out
    assert resolve(load_file(shell.folder / "eight.yaml")).hidden == (16,)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["a2c", "impala", "a3c"])
def test_other_algorithms_are_tuned_in_their_own_ways(shell, algo):
    ended = shell("tune", "--algo", algo, "--env-id", "CartPole-v1", "--time", "25s")
    assert ended.code == 0, ended
    assert ("learner" if algo == "a3c" else "worker") in ended.out
    file = shell.folder / f"tuned-CartPole-v1-{algo}.yaml"
    assert load_file(file)["algo"] == algo
    assert shell.train_here("run", "--config", file, "--total-iters", 2).metrics()


@pytest.mark.slow
def test_a_file_of_the_users_own_is_the_training_that_is_tuned(shell):
    mine = {"algo": "ppo", "env_id": "CartPole-v1", "num_envs": 16, "rollout_steps": 32}
    mine |= {"num_workers": 2, "total_steps": 5000, "eval_every": 100, "minibatches": 1}
    (shell.folder / "mine.yaml").write_text(yaml.safe_dump(mine))
    options = ("--config", "mine.yaml", "--mode", "sequential", "--output", "out.yaml")
    ended = shell("tune", *options, *SMALL)
    assert ended.code == 0, ended
    assert "16 envs × 32 steps, 2 workers (now)" in ended.out
    values = load_file(shell.folder / "out.yaml")
    assert values["num_workers"] == 0 and values["total_steps"] == 5000
    assert values["eval_every"] == 100 and values["minibatches"] == 1


# What goes wrong.


@pytest.mark.slow
def test_a_shape_that_fails_is_named_and_the_search_goes_on(shell):
    """The environment fails in ranks alone."""
    failing = write_failing(shell.folder, '"RANK" in os.environ')
    ended = shell("tune", *failing, "--hidden", "16", "--time", "40s")
    assert ended.code == 0, ended
    assert re.search(rf"^2 ranks × .* failed: .*{FAILURE}", ended.out, re.M), ended.out
    assert load_file(shell.folder / "tuned-failing-Failing-v0-ppo.yaml").get("ranks", 1) == 1


# What is committed for machines of several sizes.

FILES = sorted(MACHINES.glob("*.yaml"))


def test_there_is_a_file_for_every_size_mode_and_algorithm():
    assert {path.stem for path in FILES} == {
        f"{algo}_{mode}_{cpus}"
        for algo in ("ppo", "impala")
        for mode in ("sequential", "parallel")
        for cpus in (4, 8, 16, 28, 32)
    }


def test_the_files_are_what_the_model_makes_of_the_constants(tmp_path):
    place = tmp_path / "machines"
    shutil.copytree(MACHINES, place, ignore=shutil.ignore_patterns("*.yaml", "__pycache__"))
    spec = importlib.util.spec_from_file_location("generate_machines", place / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    for path in FILES:
        assert (place / path.name).read_text() == path.read_text(), f"run {MACHINES}/generate.py"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_says_that_it_is_predicted_and_resolves_on_any_machine(path, monkeypatch):
    monkeypatch.setattr("paceline.processes.hardware.available_cpus", lambda: 1)
    algo, mode, cpus = path.stem.split("_")
    text = " ".join(line[2:] for line in path.read_text().splitlines() if line.startswith("#"))
    assert f"Predicted for {cpus} CPUs by a model" in text and "not measured on such" in text
    config = resolve(load_file(path))
    assert (config.algo, config.env_id) == (algo, "LunarLander-v3")
    processes = config.ranks * (1 + config.num_workers)
    assert (processes == 1) == (mode == "sequential")
    assert config.ranks * max(1, config.num_workers) <= int(cpus)
