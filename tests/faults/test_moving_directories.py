"""A working directory that an environment changes, and run directories that somebody moves."""

from __future__ import annotations

import shlex
import shutil

import pytest

import paceline
from paceline.errors import StoppedEarly

pytestmark = pytest.mark.timeout(120)

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


@pytest.mark.parametrize("at_import", [True, pytest.param(False, marks=pytest.mark.slow)])
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


# Somebody else moves, deletes or replaces it


def config_of(folder, **options):
    defaults = {"preset": "none", "num_envs": 2, "rollout_steps": 8, "minibatches": 1, "epochs": 1}
    more = {"hidden": (8,), "eval_episodes": 1, "compile": "off", "track": "none"}
    budget = {"total_iters": 12, "save_every": 48}
    return paceline.Config(output_dir=str(folder), **(defaults | more | budget | options))


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


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


def test_a_run_that_is_moved_stops_saved_where_it_is_now(shell, undisturbed):
    run, moved = shell.run("run"), shell.run("other/place")
    moved.path.parent.mkdir()
    with pytest.raises(StoppedEarly, match=f"paceline resume {moved.path}`"):
        disturbed(run, lambda: run.path.rename(moved.path))
    assert not run.path.exists()
    assert moved.checkpoints()[-1].name == "00000008"
    assert shell.resume_here("other/place").result() == undisturbed


def test_a_run_that_is_deleted_stops_saved_anew(shell, undisturbed):
    run = shell.run("run")
    with pytest.raises(StoppedEarly, match=f"paceline resume {run.path}`"):
        disturbed(run, lambda: shutil.rmtree(run.path))
    assert run.json("run.json")["choices"]["threads"] == 1
    assert shell.resume_here("run").result() == undisturbed


@pytest.mark.parametrize("what", ["link", "directory", "file"])
def test_what_has_taken_its_place_is_left_alone(shell, undisturbed, what):
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


def test_a_link_to_where_it_was_moved_is_as_good(shell, undisturbed, caplog):
    run = shell.run("run")

    def link():
        run.path.rename(shell.folder / "other")
        run.path.symlink_to(shell.folder / "other")

    disturbed(run, link)
    assert run.result() == undisturbed
    assert not warnings(caplog)


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "config.yaml", "run.json"])
def test_a_part_that_is_deleted_is_written_again_and_said_once(shell, undisturbed, caplog, name):
    run = shell.run("run")

    def delete():
        path = run.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    disturbed(run, delete)
    (warning,) = warnings(caplog)
    assert f"{run.path / name}" in warning and "was deleted" in warning
    assert run.result() == undisturbed
    assert list(paceline.resume(run.path, total_iters=13))[-1].iter == 13


def test_checkpoints_that_are_deleted_are_missed_before_the_next_is_due(shell):
    run = shell.run("run")
    for report in paceline.train(config_of(run.path, save_every=16 * 5)):
        if report.iter == 7:
            shutil.rmtree(run.path / "checkpoints")
        if report.iter == 8:
            assert run.checkpoints()[-1].name == "00000008"


@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_metrics_that_are_replaced_stop_no_run(shell, caplog, what):
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
        assert [line["iter"] for line in run.metrics()] == [8, 9, 10, 11, 12]


def test_curves_that_are_deleted_are_given_up_with_a_word(shell, caplog, monkeypatch):
    monkeypatch.setattr("paceline.run.writers.TensorBoard.EVERY", 0.0)
    run = shell.run("run")
    disturbed(run, lambda: shutil.rmtree(run.path / "events"), track="tensorboard")
    (warning,) = warnings(caplog)
    assert "events" in warning and "deleted" in warning


def test_ranks_of_a_run_that_is_moved_stop_with_a_checkpoint(shell, until):
    flags = ["--ranks", "2", "--total-iters", "100000", "--save-every", "1M", "--compile", "off"]
    command = shell.start("train", "--output-dir", "run", *FLAGS, *flags)
    run = shell.run("run")
    until(lambda: (run.path / "metrics.jsonl").exists() and run.metrics(), what="a report")
    run.path.rename(shell.folder / "moved")
    out, err = command.communicate(timeout=60)
    assert command.returncode == 75, (out, err)
    assert "run was moved to moved while it trained; go on with `paceline resume moved`" in err
    assert shell.run("moved").checkpoints()
