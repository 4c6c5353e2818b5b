"""Environments that change the working directory; run directories that are moved or deleted."""

from __future__ import annotations

import shutil

import pytest
from saved_runs import PLAIN, TINY, iterations, warnings
from saved_runs import TINY_FLAGS as FLAGS

import paceline
from paceline.errors import StoppedEarly

pytestmark = pytest.mark.timeout(120)

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


@pytest.mark.parametrize("at_import", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_environment_that_changes_the_working_directory_does_not_split_a_run(
    shell, elsewhere, at_import
):
    (shell.folder / "restless.py").write_text(RESTLESS.format(at_import=at_import))
    restless = ("--env-id", "restless:Restless-v0", *FLAGS)
    run = shell.train("run", *restless, "--log-jsonl", "copy.jsonl")
    assert run.checkpoints() and run.text("eval.json")
    assert (shell.folder / "copy.jsonl").read_text() == run.text("metrics.jsonl")
    shell.train("other", *restless, "--init-from", "run")
    shell.resume("run", "--total-iters", "6")
    assert iterations(run) == [1, 2, 3, 4, 5, 6]
    before = run.text("eval.json")
    ended = shell("eval", "run", "--episodes", "3")
    assert ended.code == 0 and run.text("eval.json") != before


def test_runs_lies_in_the_directory_that_the_command_was_started_in(shell, elsewhere):
    (shell.folder / "restless.py").write_text(RESTLESS.format(at_import=True))
    ended = shell("train", "--env-id", "restless:Restless-v0", *FLAGS)
    assert ended.code == 0, ended
    (run,) = (shell.folder / "runs").iterdir()
    assert (run / "config.yaml").exists() and (run / "eval.json").exists()


def test_paths_are_shown_relative_to_the_working_directory(shell):
    ended = shell("train", *FLAGS, "--output-dir", "some/run")
    assert ended.code == 0, ended
    assert "→ some/run\n" in ended.out
    ended = shell("train", *FLAGS, "--output-dir", "some/run")
    assert "paceline: some/run already holds a run" in ended.err
    assert "`paceline resume some/run`" in ended.err


def test_scale_writes_to_the_directory_it_was_started_in(shell, elsewhere):
    (shell.folder / "restless.py").write_text(RESTLESS.format(at_import=True))
    (shell.folder / "c.yaml").write_text("env_id: restless:Restless-v0\nhidden: [8]\n")
    flags = "--config c.yaml --num-workers 0 --repeats 1 --iters 2 --warmup-iters 1"
    ended = shell("scale", *flags.split(), "--output-dir", "scaled")
    assert ended.code == 0, ended
    assert (shell.folder / "scaled" / "summary.txt").exists()


# The run directory is moved, deleted or replaced


def config_of(folder, **options):
    defaults = PLAIN | TINY | {"hidden": (8,), "total_iters": 12, "save_every": 48}
    return paceline.Config(output_dir=str(folder), **(defaults | options))


@pytest.fixture(scope="module")
def undisturbed(shell_in, tmp_path_factory):
    run = shell_in(tmp_path_factory.mktemp("undisturbed")).run("run")
    list(paceline.train(config_of(run.path)))
    return run.result()


def disturbed(run, disturb, at=7, **options):
    """Train, and do something to the run after an iteration."""
    for report in paceline.train(config_of(run.path, **options)):
        if report.iter == at:
            disturb()


def test_a_moved_run_stops_with_a_checkpoint_in_its_new_place(shell, undisturbed):
    run, moved = shell.run("run"), shell.run("other/place")
    moved.path.parent.mkdir()
    with pytest.raises(StoppedEarly, match=f"paceline resume {moved.path}`"):
        disturbed(run, lambda: run.path.rename(moved.path))
    assert not run.path.exists()
    assert moved.checkpoints()[-1].name == "00000007"
    assert shell.resume_here("other/place").result() == undisturbed


def test_a_deleted_run_stops_with_a_checkpoint_in_a_new_directory(shell, undisturbed):
    run = shell.run("run")
    with pytest.raises(StoppedEarly, match=f"paceline resume {run.path}`"):
        disturbed(run, lambda: shutil.rmtree(run.path))
    assert run.json("run.json")["choices"]["threads"] == 1
    assert shell.resume_here("run").result() == undisturbed


@pytest.mark.parametrize("what", ["link", "directory", "file"])
def test_what_has_replaced_a_deleted_run_is_left_alone(shell, undisturbed, what):
    run, other = shell.run("run"), shell.folder / "other"
    other.mkdir()
    (other / "metrics.jsonl").write_text("theirs")

    def replace():
        shutil.rmtree(run.path)
        if what == "link":
            run.path.symlink_to(other)
        elif what == "directory":
            other.rename(run.path)
        else:
            run.path.write_text("theirs")

    with pytest.raises(StoppedEarly, match=f"paceline resume {run.path}-2`"):
        disturbed(run, replace)
    theirs = run.path if what == "file" else run.path / "metrics.jsonl"
    assert theirs.read_text() == "theirs"
    assert shell.resume_here("run-2").result() == undisturbed


def test_a_moved_run_with_a_link_in_its_place_trains_on(shell, undisturbed, caplog):
    run = shell.run("run")

    def link():
        run.path.rename(shell.folder / "other")
        run.path.symlink_to(shell.folder / "other")

    disturbed(run, link)
    assert run.result() == undisturbed
    assert not warnings(caplog)


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "config.yaml", "run.json"])
def test_a_deleted_part_is_written_again_with_one_warning(shell, undisturbed, caplog, name):
    run = shell.run("run")

    def delete():
        path = run.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    disturbed(run, delete)
    (warning,) = warnings(caplog)
    assert f"{run.path / name}" in warning and "was deleted" in warning
    assert run.result() == undisturbed
    assert list(paceline.resume(run.path, total_iters=13))[-1].iter == 13


def test_deleted_checkpoints_are_replaced_before_the_next_is_due(shell):
    run = shell.run("run")
    for report in paceline.train(config_of(run.path, save_every=16 * 5)):
        if report.iter == 7:
            shutil.rmtree(run.path / "checkpoints")
        if report.iter == 8:
            assert run.checkpoints()[-1].name == "00000007"


@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_replaced_metrics_do_not_stop_a_run(shell, caplog, what):
    run, theirs = shell.run("run"), shell.folder / "theirs"
    metrics = run.path / "metrics.jsonl"

    def replace():
        metrics.unlink()
        if what == "file":
            metrics.touch()
        elif what == "directory":
            metrics.mkdir()
        else:
            metrics.symlink_to(theirs)

    disturbed(run, replace)
    (warning,) = warnings(caplog)
    assert str(metrics) in warning
    assert not theirs.exists()
    if what == "file":
        assert iterations(run) == [7, 8, 9, 10, 11, 12]


def test_deleted_curves_are_given_up_with_a_warning(shell, caplog, monkeypatch):
    monkeypatch.setattr("paceline.run.writers.TensorBoard.EVERY", 0.0)
    run = shell.run("run")
    disturbed(run, lambda: shutil.rmtree(run.path / "events"), track="tensorboard")
    (warning,) = warnings(caplog)
    assert "events" in warning and "deleted" in warning


def test_ranks_of_a_moved_run_stop_with_a_checkpoint(shell, until):
    flags = ["--ranks", "2", "--total-iters", "100000", "--save-every", "1M"]
    command = shell.start("train", "--output-dir", "run", *FLAGS, *flags)
    run = shell.run("run")
    until(lambda: (run.path / "metrics.jsonl").exists() and run.metrics(), what="a report")
    run.path.rename(shell.folder / "moved")
    out, err = command.communicate(timeout=60)
    assert command.returncode == 75, (out, err)
    assert "run was moved to moved while it trained; go on with `paceline resume moved`" in err
    assert shell.run("moved").checkpoints()
