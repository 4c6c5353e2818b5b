"""`paceline scale` as a user has it: what it refuses, what it measures, what it leaves behind."""

from __future__ import annotations

import csv
import json
import math
import re
import signal
import subprocess
import sys

import pytest

from paceline.cli import commands as cli
from paceline.tools.bench.metrics import PHASES

pytestmark = pytest.mark.timeout(110)

SHORT = ("--repeats", 1, "--warmup-iters", 1, "--iters", 4, "--num-envs", 4, "--hidden", "16")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def scale(shell, monkeypatch, capsys):
    """The command within this process; its runs are processes of their own."""
    monkeypatch.chdir(shell.folder)

    def run(*arguments):
        code = cli.run(["scale", *(str(argument) for argument in arguments)])
        return code, *capsys.readouterr()

    return run


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# What is refused, before anything runs.

REFUSED = {
    "": ("--ranks 1,2", "--num-workers 1,2"),
    "--ranks 1,2 --num-workers 1,2": ("--ranks", "--num-workers"),
    "--num-workers 1,two": ("--num-workers", "'1,two'", "1,2,4"),
    "--num-workers 1.5": ("'1.5'", "whole numbers"),
    "--num-workers=-1,2": ("--num-workers", "-1,2", "1,2,4"),
    "--num-workers auto": ("'auto'", "whole numbers"),
    "--ranks 0,1": ("--ranks", "'0,1'", "1,2"),
    "--num-workers 1,3 --num-envs 8": ("num_envs 8", "3 workers", "--num-envs 9"),
    "--ranks 1,3 --num-envs 8": ("num_envs 8", "3 ranks", "--num-envs 9"),
    "--num-workers 2,3 --num-envs 8": ("3 workers", "--num-envs 12"),
    "--num-workers 1 --total-steps 1000": ("--total-steps", "'1000'", "--iters", "--seconds"),
    "--num-workers 1 --total-iters 10": ("--total-iters", "'10'", "--iters"),
    "--num-workers 1 --duration 10s": ("--duration", "'10s'", "--seconds"),
    "--num-workers 1 --stop-at-return 9": ("--stop-at-return", "'9'", "--target-return"),
    "--num-workers 1 --log-jsonl x": ("--log-jsonl", "logs/"),
    "--num-workers 1 --num-envs-per-worker few": ("num_envs_per_worker", "'few'"),
    "--ranks 1,2 --num-envs-per-worker 4": ("num_envs_per_worker is 4", "no workers"),
    "--ranks 1,2 --sync local": ("'local'", "ranks is 2"),
    "--algo a3c --ranks 1,2": ("a3c", "--num-workers"),
    "--num-workers 1 --repeat 3": ("--repeat", "--repeats"),
    "--num-workers 1 --repeats 0": ("--repeats", "'0'", "from 1"),
    "--num-workers 1 --warmup-iters few": ("--warmup-iters", "'few'", "from 0"),
    "--num-workers 1 --iters 2.5": ("--iters", "'2.5'", "whole number"),
    "--num-workers 1 --seconds 0": ("--seconds", "'0'", "number"),
    "--num-workers 1 --target-return nan": ("--target-return", "'nan'", "number"),
    "--num-workers 1 --algo sarsa": ("algo", "sarsa", "ppo"),
    "--num-workers 1 --env-id Nope-v0": ("Nope",),
    "--num-workers 1 --config missing.yaml": ("missing.yaml", "no such file"),
    "--num-workers 1 --sampler serial": ("'serial'", "num_workers is 1"),
    "--num-workers 1 stray": ("stray", "no such argument"),
    "--num-workers 1 --output-dir full": ("full", "not empty", "notes.txt", "--overwrite"),
    "--num-workers 1 --output-dir full/notes.txt": ("full/notes.txt", "can't be"),
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_can_not_be_measured_is_refused_with_what_to_write_instead(scale, shell, arguments):
    (shell.folder / "full").mkdir()
    (shell.folder / "full" / "notes.txt").write_text("mine")
    before = sorted(shell.folder.rglob("*"))
    code, out, err = scale(*arguments.split())
    assert code == 2 and not out and "Traceback" not in err
    assert err.startswith("paceline: ") and len(err.splitlines()) <= 3
    for word in REFUSED[arguments]:
        assert word in err, f"{word!r} is not in: {err}"
    assert sorted(shell.folder.rglob("*")) == before


def test_help_names_every_option_of_its_own(scale):
    code, out, _ = scale("--help")
    assert code == 0
    for flag in ("--ranks", "--num-workers", "--weak", "--repeats", "--warmup-iters", "--iters"):
        assert flag in out
    for flag in ("--seconds", "--target-return", "--output-dir", "--overwrite"):
        assert flag in out


def test_neither_torch_nor_matplotlib_is_imported_with_it():
    code = "import sys, paceline.tools.bench.scale as s; s.command(['--help']);"
    code += "print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False False"


# What is measured and written.


@pytest.fixture(scope="module")
def small(tmp_path_factory, shell_in):
    """The smallest measurement: no workers against one."""
    shell = shell_in(tmp_path_factory.mktemp("scale"))
    ended = shell("scale", "--num-workers", "0,1", *SHORT, "--output-dir", "out")
    assert ended.code == 0, ended
    return ended, shell.folder / "out"


def test_every_file_is_there_and_nothing_else(small):
    _, folder = small
    names = {path.name for path in folder.iterdir()} - {".lock"}
    tables = {f"{name}.{kind}" for name in ("per_run", "summary") for kind in ("csv", "json")}
    assert names == tables | {"logs", "plots.png", "summary.txt"}
    assert (folder / "plots.png").read_bytes().startswith(PNG)


def test_the_metrics_of_each_run_are_kept_whole(small):
    logs = sorted((small[1] / "logs").iterdir())
    assert [log.name for log in logs] == ["workers-0-repeat-1.jsonl", "workers-1-repeat-1.jsonl"]
    for log in logs:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["iter"] for line in lines] == [1, 2, 3, 4, 5]


def test_each_run_has_a_row_that_follows_from_its_metrics(small):
    _, folder = small
    found = rows(folder / "per_run.csv")
    assert [(row["kind"], row["count"]) for row in found] == [
        ("workers", "0"),
        ("ceiling", "1"),
        ("workers", "1"),
    ]
    text = (folder / "logs" / "workers-1-repeat-1.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()][1:]
    steps, seconds = (sum(line[name] for line in lines) for name in ("steps_global", "t_iter"))
    assert int(found[2]["steps"]) == steps and int(found[2]["iters"]) == 4
    assert float(found[2]["fps"]) == pytest.approx(steps / seconds)
    assert sum(float(found[2][f"share_{phase}"]) for phase in PHASES) == pytest.approx(1)
    assert float(found[2]["share_wait"]) > 0 and float(found[0]["share_wait"]) == 0
    plain = json.loads((folder / "per_run.json").read_text())
    assert [row["fps"] for row in plain] == [float(row["fps"]) for row in found]


def test_the_summary_has_a_row_for_each_count(small):
    _, folder = small
    none, one = rows(folder / "summary.csv")
    runs = {(row["kind"], row["count"]): float(row["fps"]) for row in rows(folder / "per_run.csv")}
    ratio = runs["workers", "1"] / runs["workers", "0"]
    assert (float(none["speedup_mean"]), float(none["efficiency_mean"])) == (1.0, 1.0)
    assert float(one["speedup_mean"]) == pytest.approx(ratio)
    assert float(one["ceiling_mean"]) == 1.0 and float(one["memory_mb"]) > 50
    assert one["fps_std"] == ""  # of one repeat
    plain = json.loads((folder / "summary.json").read_text())
    assert [row["count"] for row in plain["rows"]] == [0, 1]
    assert plain["machine"]["cpu"] and "steps/s" in plain["bottleneck"]


def test_the_summary_is_printed_after_a_line_for_each_run(small):
    ended, folder = small
    text = (folder / "summary.txt").read_text()
    assert text.strip() in ended.out
    assert "PPO on CartPole-v1: strong scaling over workers" in text
    assert json.loads((folder / "summary.json").read_text())["bottleneck"] in text
    first, second = ended.out.splitlines()[:2]
    assert first.startswith("repeat 1/1  no workers") and first.endswith("steps/s")
    assert second.startswith("repeat 1/1  1 worker")


@pytest.mark.slow
def test_overwrite_replaces_the_measurement_and_nothing_else(scale, shell):
    folder = shell.folder / "out"
    (folder / "logs").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "logs" / "old.jsonl").write_text("{}\n")
    (folder / "summary.csv").write_text("old")
    code, _, err = scale("--num-workers", "0", *SHORT, "--output-dir", "out", "--overwrite")
    assert code == 0, err
    assert (folder / "notes.txt").read_text() == "mine"
    assert [path.name for path in (folder / "logs").iterdir()] == ["workers-0-repeat-1.jsonl"]
    assert len(rows(folder / "summary.csv")) == 1


@pytest.mark.slow
def test_weak_scaling_multiplies_the_environments_and_the_ceiling_runs_beside(scale, shell):
    code, out, err = scale("--num-workers", "1,2", "--weak", *SHORT, "--output-dir", "out")
    assert code == 0, err
    found = rows(shell.folder / "out" / "per_run.csv")
    assert {(row["kind"], row["count"]): row["num_envs"] for row in found} == {
        ("ceiling", "1"): "4",
        ("ceiling", "2"): "8",
        ("workers", "1"): "4",
        ("workers", "2"): "8",
    }
    assert "weak scaling" in out and "2 independent" in out
    logs = {path.name for path in (shell.folder / "out" / "logs").iterdir()}
    assert {"ceiling-2-repeat-1-copy-1.jsonl", "ceiling-2-repeat-1-copy-2.jsonl"} <= logs


@pytest.mark.slow
def test_without_iters_a_trial_finds_how_many_take_the_time(scale, shell):
    options = ("--repeats", 1, "--seconds", 1, "--algo", "a2c", "--output-dir", "out")
    code, out, err = scale("--num-workers", "0", *options)
    assert code == 0, err
    iters = int(re.match(r"trial: .* ([\d,]+) iterations per run", out)[1].replace(",", ""))
    (run, _) = rows(shell.folder / "out" / "per_run.csv")
    report = min(100, iters)  # of a2c
    assert int(run["iters"]) == math.ceil(iters / report) * report and iters > 10


@pytest.mark.slow
def test_time_to_score_is_measured_and_one_that_is_not_reached_is_said(scale, shell):
    options = ("--repeats", 1, "--warmup-iters", 1, "--iters", 4, "--output-dir", "out")
    limit = ("--total-steps", "20k", "--overwrite")
    code, out, err = scale("--num-workers", "0", "--target-return", 40, *options, *limit)
    assert code == 0, err
    found = rows(shell.folder / "out" / "per_run.csv")
    seconds = [float(row["time_to_score"]) for row in found if row["kind"] == "workers"]
    lines = (shell.folder / "out" / "logs" / "workers-0-repeat-1.jsonl").read_text().splitlines()
    assert seconds == [json.loads(lines[-1])["time"]] and f"{seconds[0]:.1f} s to score" in out
    code, out, err = scale("--num-workers", "0", "--target-return", 9999, *options, *limit)
    assert code == 0 and "not reached" in out, err
    assert rows(shell.folder / "out" / "summary.csv")[0]["reached"] == "0"


# What goes wrong.

FAILING = """
import gymnasium as gym
import numpy as np

class Failing(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float("nan"), False, False, {}

gym.register("Failing-v0", Failing)
"""


def test_a_run_that_fails_ends_with_its_words_and_its_code(shell):
    (shell.folder / "failing.py").write_text(FAILING)
    options = ("--env-id", "failing:Failing-v0", "--output-dir", "out")
    ended = shell("scale", "--num-workers", "0,1", *SHORT, *options)
    assert ended.code == 3, ended
    assert "a training run exited with 3" in ended.err and "nan" in ended.err
    assert "Traceback" not in ended.err
    assert not list((shell.folder / "out").glob(".run-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_runs_and_keeps_what_was_measured(shell, until, kind):
    """That no process stays is seen to by the fixture that every test here has."""
    folder = shell.folder / "out"
    options = ("--repeats", 3, "--warmup-iters", 1, "--iters", 40, "--output-dir", "out")
    process = shell.start("scale", "--num-workers", "0,1", *options)
    until(lambda: (folder / "per_run.csv").exists() or process.poll() is not None)
    until(lambda: list(folder.glob(".run-*/*/metrics.jsonl")) or process.poll() is not None)
    process.send_signal(kind)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "interrupted" in err and "Traceback" not in err
    assert rows(folder / "per_run.csv")[0]["count"] == "0"
    assert not list(folder.glob(".run-*"))


@pytest.mark.skipif(sys.platform != "linux", reason="ends with its parent on Linux alone")
def test_a_killed_measurement_takes_its_runs_with_it(shell, until):
    options = ("--repeats", 1, "--iters", 100_000, "--output-dir", "out")
    process = shell.start("scale", "--num-workers", "1", *options)
    folder = shell.folder / "out"
    until(lambda: list(folder.glob(".run-*/*/metrics.jsonl")) or process.poll() is not None)
    process.kill()
    process.communicate(timeout=10)
