"""Paths in a run directory that lead out of it are used only if the user repeats them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import ranked
import yaml
from ranked import Command
from saved_runs import TINY_FLAGS as FLAGS
from saved_runs import iterations, warnings

import paceline
from paceline.errors import BadInput
from paceline.run.saved import open_run

pytestmark = pytest.mark.timeout(120)


def change(run, **values):
    """Edit config.yaml."""
    path = run.path / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values))


@pytest.mark.parametrize("there", [True, False])
def test_log_jsonl_outside_the_run_is_written_only_if_repeated(shell, run, there, caplog):
    copy = shell.folder / "copy.jsonl"
    lines = "".join(f'{{"time": 1.0, "iter": {number}}}\n' for number in range(1, 31))
    if there:
        copy.write_text(lines)
    change(run, log_jsonl=str(copy))
    shell.resume_here("run", total_iters=5)
    assert copy.exists() == there
    assert not there or copy.read_text() == lines
    (warning,) = warnings(caplog)
    assert f"{copy} is not written to" in warning and f"--log-jsonl {copy}" in warning
    caplog.clear()
    shell.resume_here("run", total_iters=7, log_jsonl=str(copy))
    copied = [json.loads(line)["iter"] for line in copy.read_text().splitlines()]
    assert copied == ([1, 2, 3, 4, 5] if there else []) + [6, 7]
    assert not warnings(caplog)


def test_log_jsonl_inside_the_run_is_written_on_resume(shell, caplog):
    run = shell.train_here("run", *FLAGS, "--log-jsonl", shell.folder / "run" / "more.jsonl")
    shell.resume_here("run", total_iters=6)
    assert run.text("more.jsonl") == run.text("metrics.jsonl")
    assert not warnings(caplog)
    (run.path / "more.jsonl").rename(shell.folder / "outside.jsonl")
    (run.path / "more.jsonl").symlink_to(shell.folder / "outside.jsonl")
    shell.resume_here("run", total_iters=8)
    assert len((shell.folder / "outside.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "checkpoints/x.jsonl", "."])
def test_log_jsonl_that_is_a_file_of_the_run_is_ignored(shell, run, name):
    change(run, log_jsonl=str(run.path / name))
    shell.resume_here("run", total_iters=6)
    assert iterations(run) == [1, 2, 3, 4, 5, 6]
    assert not (run.path / "checkpoints" / "x.jsonl").exists()


@pytest.mark.parametrize("method", ["tcp://198.51.100.1:80", "file:///elsewhere/meeting"])
def test_init_method_is_used_only_if_repeated(run, method):
    change(run, init_method=method)
    assert open_run(run.path, {}).config.init_method == "env://"
    assert open_run(run.path, {"init_method": method}).config.init_method == method


@pytest.mark.slow
def test_ranks_ignore_an_init_method_that_is_not_repeated(shell):
    meeting = shell.folder / "meeting"
    shell.train("run", *FLAGS, "--ranks", "2")
    change(shell.run("run"), init_method=f"file://{meeting}")
    ended = shell("resume", "run", "--total-iters", "5")
    assert ended.code == 0, ended
    assert not meeting.exists()
    assert f"--init-method file://{meeting}" in ended.out


def test_init_from_is_read_again_only_if_repeated(shell, run, made):
    shutil.rmtree(run.path / "checkpoints")
    change(run, init_from=str(made.path))
    with pytest.raises(BadInput, match=f"--init-from {made.path}"):
        shell.resume_here("run")
    with pytest.raises(BadInput, match=r"^init_from can't change"):
        shell.resume_here("run", init_from=str(shell.folder))
    shell.resume_here("run", init_from=str(made.path))
    assert len(run.metrics()) == 4


def test_restarted_ranks_keep_the_options_that_lead_out_of_the_run(shell):
    """Before the first checkpoint, so that `init_from` is read again."""
    (shell.folder / "ranked.py").write_text(Path(ranked.__file__).read_text())
    flags = [*FLAGS, "--env-id", "ranked:Ranked-v0", "--env.kwargs", '{"slow": 0.001}']
    shell.train("source", *flags)
    outward = shlex.split("--log-jsonl copy.jsonl --init-from source --save-every 1M --ranks 2")
    outward += ["--init-method", f"file://{shell.folder / 'meeting'}", "--total-iters", "20"]
    train, program = ["train", "--output-dir", "run"], (sys.executable, "-m", "paceline")
    command = Command(shell, *train, *flags, *outward, name="run", prefix=program)
    command.await_reports(5)
    command.await_(command.ranks)[1].kill()
    assert command.end(timeout=90) == 0, (command.out, command.err)
    run = shell.run("run")
    assert "all ranks start again" in command.out
    assert "leads out" not in command.out + command.err
    assert (shell.folder / "copy.jsonl").read_text() == run.text("metrics.jsonl")
    assert iterations(run) == list(range(1, 21))
    assert run.config()["init_method"].endswith("/meeting")


PLANTED = """
import gymnasium as gym
from paceline.envs.suites.toy import Identity

gym.register("Planted-v0", Identity)
"""


@pytest.mark.parametrize(
    ("how", "ways"), [("module", ""), ("script", "--num-workers 2"), ("script", "--ranks 2")]
)
def test_modules_of_the_current_directory_are_found_after_all_others(shell, how, ways):
    """As `paceline` is called by a user, whose PYTHONPATH does not have the directory."""
    (shell.folder / "planted.py").write_text(PLANTED)
    for name in ("tomllib", "yaml", "gymnasium"):
        (shell.folder / f"{name}.py").write_text("open('canary', 'w')")
    script = Path(sys.executable).with_name("paceline")
    command = [sys.executable, "-m", "paceline"] if how == "module" else [str(script)]

    def run(*arguments, **more):
        return subprocess.run(
            [*command, *arguments],
            cwd=shell.folder,
            env=os.environ | more,
            capture_output=True,
            timeout=90,
        )

    train = ["train", "--env-id", "planted:Planted-v0", "--output-dir", "run", *FLAGS]
    refused = run(*train, PYTHONSAFEPATH="1")  # which forbids such imports
    assert refused.returncode == 2 and b"planted" in refused.stderr
    for arguments in ([*train, *ways.split()], ["eval", "run", "--episodes", "1"]):
        ended = run(*arguments)
        assert ended.returncode == 0, ended
    assert not (shell.folder / "canary").exists()


def test_log_jsonl_can_be_turned_off_from_python(run):
    change(run, log_jsonl=str(run.path.parent / "copy.jsonl"))
    list(paceline.resume(run.path, total_iters=5, log_jsonl=None))
    assert not (run.path.parent / "copy.jsonl").exists()
    assert run.config()["log_jsonl"] is None
