"""A full disk: training goes on, what was saved stays whole, and the message says what to do.

The disk is filled by a limit on the size of files, which a running process can be given and
relieved of from outside.
"""

from __future__ import annotations

import resource
import shlex

import psutil
import pytest
from saved_runs import iterations

from paceline.storage import checkpoint

FLAGS = shlex.split(
    "--preset none --num-envs 4 --rollout-steps 32 --epochs 2 --minibatches 2 --save-every 1 "
    "--total-iters 150 --eval-episodes 1"
)


@pytest.fixture(scope="module")
def reference(shell_in, tmp_path_factory):
    shell = shell_in(tmp_path_factory.mktemp("reference"))
    return shell.train_here("run", *FLAGS, "--save-every", "1M").result()


def full(size):
    """For a process about to start: no file may grow beyond `size` bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def fill(process, size=1000):
    """From now on; `resource.RLIM_INFINITY` takes it back."""
    psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture
def started(shell, until):
    """A run that has saved a few checkpoints: (process, run)."""

    def start(*more):
        process = shell.start("train", "--output-dir", "run", *FLAGS, *more)
        run = shell.run("run")
        until(lambda: len(run.checkpoints()) >= 2, what="a checkpoint")
        return process, run

    return start


def whole(run):
    """The newest checkpoint, which no failed write has touched."""
    path, found, problems = checkpoint.load_newest(run.path / "checkpoints")
    assert problems == []
    assert found.facts["iter"] == int(path.name)
    return int(path.name)


def test_a_disk_that_fills_up_for_a_while_costs_nothing_but_checkpoints(shell, started, until):
    process, run = started("--track", "none")
    fill(process)
    lines = [process.stdout.readline() for _ in range(2)]  # the introduction
    while "training goes on" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    saved = whole(run)
    fill(process, resource.RLIM_INFINITY)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    said = [line for line in lines if "File too large" in line]
    assert said
    assert all("warning" in line and "run/" in line for line in said), "which file?"
    assert "Traceback" not in out + err
    assert whole(run) == 150 > saved
    assert not run.leftovers()
    written = iterations(run)  # every line that is there is whole
    assert written == sorted(set(written)) and written[-1] == 150


@pytest.mark.parametrize("track", ["none", "tensorboard"])
@pytest.mark.slow
def test_a_disk_that_stays_full_ends_in_a_run_that_resumes_exactly(
    shell, started, reference, track
):
    process, run = started("--track", track)
    fill(process)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, (out, err)
    assert "Traceback" not in out + err
    assert "could not be written" in err
    assert "paceline resume run" in err
    assert 0 < whole(run) < 150
    assert 0 < out.count("training goes on") <= 10, "said again and again"
    assert shell.resume_here("run", track="none").result() == reference
    assert not run.leftovers()


def test_a_disk_that_is_full_from_the_start_is_refused_before_training(shell):
    ended = shell("train", "--output-dir", "run", *FLAGS, "--track", "none", preexec_fn=full(100))
    assert ended.code == 2
    assert "output_dir" in ended.err
    assert "File too large" in ended.err
    assert "Traceback" not in ended.err
    assert not (shell.folder / "run" / "config.yaml").exists()


def test_a_resume_on_a_full_disk_says_so_and_harms_nothing(shell):
    flags = [*FLAGS, "--total-iters", "4", "--track", "none"]
    run = shell.train_here("run", *flags)
    before = {name: (run.path / name).read_bytes() for name in ("config.yaml", "metrics.jsonl")}
    ended = shell("resume", "run", "--total-iters", "8", preexec_fn=full(100))
    assert ended.code in (2, 75), ended
    assert "File too large" in ended.err
    assert "Traceback" not in ended.err
    assert {name: (run.path / name).read_bytes() for name in before} == before
    assert whole(run) == 4
    shell.resume_here("run", total_iters=8)
    assert iterations(run) == list(range(1, 9))
