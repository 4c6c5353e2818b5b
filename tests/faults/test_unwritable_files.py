"""Files that can not be written, or are none: a run goes on and says so once, or is refused."""

from __future__ import annotations

import dataclasses
import os
import threading

import pytest
from saved_runs import TINY_FLAGS as FLAGS

import paceline
from paceline.config.files import load_file
from paceline.run.report import Report
from paceline.run.writers import JsonLines

TRAIN = ("train", "--output-dir", "run", *FLAGS)


def report(iteration):
    """A line of metrics: zeros in every field that has no default."""
    needed = [one.name for one in dataclasses.fields(Report) if one.default is dataclasses.MISSING]
    return Report(**dict.fromkeys(needed, 0.0) | {"iter": iteration, "metrics": {}})


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_device_that_takes_nothing_costs_one_warning(shell):
    ended = shell(*TRAIN, "--total-iters", "20", "--log-jsonl", "/dev/full")
    assert ended.code == 0, ended
    assert ended.out.count("/dev/full can't be written: No space left") == 1
    assert "Traceback" not in ended.out + ended.err
    assert len(shell.run("run").metrics()) == 20


def test_a_pipe_without_a_reader_is_refused_before_the_run_begins(shell, pipe):
    ended = shell(*TRAIN, "--total-iters", "5", "--log-jsonl", pipe, timeout=30)
    assert ended.code == 2, ended
    assert "log_jsonl pipe can't be written: this pipe has no reader" in ended.err
    assert not (shell.folder / "run" / "config.yaml").exists()


def test_a_pipe_that_is_read_gets_every_line_to_the_end(shell, pipe):
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    run = shell.train("run", *FLAGS, "--total-iters", "5", "--log-jsonl", pipe)
    reader.join(10)
    assert read == [(run.path / "metrics.jsonl").read_bytes()]


@pytest.mark.parametrize("reader", ["is slow", "leaves"])
def test_a_pipe_whose_reader_does_not_read_holds_nobody_up(pipe, caplog, reader):
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    lines = JsonLines(pipe)
    if reader == "leaves":
        os.close(end)
    for number in range(200):
        lines.write(report(number), {})
    lines.close()
    assert len(caplog.records) == 1
    assert str(pipe) in caplog.text and "training goes on" in caplog.text
    if reader == "is slow":  # every line that did fit is whole
        held = os.read(end, 2**20)
        os.close(end)
        assert held.endswith(b"}\n") and held.startswith(b'{"time"')


def test_a_resumed_run_goes_on_in_a_pipe(shell, pipe, tmp_path):
    run = shell.train_here("run", *FLAGS, "--total-iters", "3")
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for iterations in (4, 5):
        list(paceline.resume(run.path, total_iters=iterations, log_jsonl=str(pipe)))
    assert os.read(end, 2**20).count(b"\n") == 2
    os.close(end)


# Files that are read, and are none


@pytest.mark.parametrize("what", ["pipe", "device", "directory", "loop"])
@pytest.mark.parametrize("suffix", ["yaml", "json", "toml", "py"])
def test_a_configuration_that_is_no_plain_file_is_refused_and_not_waited_for(
    command, shell, what, suffix
):
    path = shell.folder / f"c.{suffix}"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if what == "device" else path.name)
    ended = command("train", "--config", path)
    assert ended.code == 2
    assert path.name in ended.err and len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("suffix", "text"), [("yaml", "lr: 0.5"), ("json", '{"lr": 0.5}'), ("toml", "lr = 0.5")]
)
def test_a_configuration_of_another_system_is_read(tmp_path, suffix, text):
    path = tmp_path / f"c.{suffix}"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
    assert load_file(path) == {"lr": 0.5}
