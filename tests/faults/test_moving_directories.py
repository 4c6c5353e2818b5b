"""A working directory that an environment changes, and run directories that somebody moves."""

from __future__ import annotations

import shlex

import pytest

FLAGS = shlex.split(
    "--preset none --num-envs 2 --rollout-steps 8 --epochs 1 --minibatches 1 --hidden 8 "
    "--eval-episodes 1 --track none --total-iters 4"
)
RESTLESS = """
import os, tempfile
import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

elsewhere = os.path.join(os.path.dirname(__file__), "elsewhere")
if {at_import}:
    os.chdir(elsewhere)


class Restless(CartPoleEnv):
    def __init__(self, **options):
        super().__init__(**options)
        os.chdir(elsewhere)


gym.register("Restless-v0", Restless, max_episode_steps=50)
"""


@pytest.fixture
def elsewhere(shell):
    """The directory to which `restless:Restless-v0` changes; it stays empty."""
    folder = shell.folder / "elsewhere"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("at_import", [True, False])
def test_an_environment_that_changes_the_directory_splits_no_run(shell, elsewhere, at_import):
    (shell.folder / "restless.py").write_text(RESTLESS.format(at_import=at_import))
    restless = ("--env-id", "restless:Restless-v0", *FLAGS)
    run = shell.train("run", *restless, "--log-jsonl", "copy.jsonl")
    assert run.checkpoints() and run.text("eval.json")
    assert (shell.folder / "copy.jsonl").read_text() == run.text("metrics.jsonl")
    shell.train("other", *restless, "--init-from", "run")
    shell.resume("run", "--total-iters", "6")
    assert [line["iter"] for line in run.metrics()] == [1, 2, 3, 4, 5, 6]
    before = run.text("eval.json")
    ended = shell("eval", "run", "--episodes", "3")
    assert ended.code == 0 and run.text("eval.json") != before


def test_its_run_without_a_name_lies_where_it_was_asked_for(shell, elsewhere):
    (shell.folder / "restless.py").write_text(RESTLESS.format(at_import=True))
    ended = shell("train", "--env-id", "restless:Restless-v0", *FLAGS)
    assert ended.code == 0, ended
    (run,) = (shell.folder / "runs").iterdir()
    assert (run / "config.yaml").exists() and (run / "eval.json").exists()


def test_paths_that_are_shown_are_short(shell):
    ended = shell("train", *FLAGS, "--output-dir", "some/run")
    assert ended.code == 0, ended
    assert "→ some/run\n" in ended.out
    ended = shell("train", *FLAGS, "--output-dir", "some/run")
    assert "paceline: some/run already holds a run" in ended.err
    assert "`paceline resume some/run`" in ended.err


def test_a_measuring_command_writes_where_it_was_asked_to(shell, elsewhere):
    (shell.folder / "restless.py").write_text(RESTLESS.format(at_import=True))
    (shell.folder / "c.yaml").write_text("env_id: restless:Restless-v0\nhidden: [8]\n")
    flags = "--config c.yaml --num-workers 0 --repeats 1 --iters 2 --warmup-iters 1"
    ended = shell("scale", *flags.split(), "--output-dir", "scaled")
    assert ended.code == 0, ended
    assert (shell.folder / "scaled" / "summary.txt").exists()
