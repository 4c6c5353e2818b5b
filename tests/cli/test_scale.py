"""`paceline scale` as a user has it: what it measures, and what it writes."""

from __future__ import annotations

import json
import math
import re

import pytest
from measuring import csv_rows

from paceline.tools.bench.metrics import PHASES

pytestmark = pytest.mark.timeout(110)

SHORT = ("--repeats", 1, "--warmup-iters", 1, "--iters", 4, "--num-envs", 4, "--hidden", "16")
PNG = b"\x89PNG\r\n\x1a\n"


# What is measured and written.


@pytest.fixture(scope="module")
def small(tmp_path_factory, shell_in):
    """The smallest measurement: no workers against one."""
    shell = shell_in(tmp_path_factory.mktemp("scale"))
    predict = ("--predict", "2,4")
    ended = shell("scale", "--num-workers", "0,1", *SHORT, *predict, "--output-dir", "out")
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
    found = csv_rows(folder / "per_run.csv")
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
    assert {(row["world_size"], row["global_batch"]) for row in plain} == {(1, 4 * 64)}


def test_the_summary_has_a_row_for_each_count(small):
    _, folder = small
    none, one = csv_rows(folder / "summary.csv")
    runs = {
        (row["kind"], row["count"]): float(row["fps"]) for row in csv_rows(folder / "per_run.csv")
    }
    ratio = runs["workers", "1"] / runs["workers", "0"]
    assert (float(none["speedup_mean"]), float(none["efficiency_mean"])) == (1.0, 1.0)
    assert float(one["speedup_mean"]) == pytest.approx(ratio)
    assert float(one["ceiling_mean"]) == 1.0 and float(one["memory_mb"]) > 50
    assert one["fps_std"] == ""  # of one repeat
    plain = json.loads((folder / "summary.json").read_text())
    assert [row["count"] for row in plain["rows"]] == [0, 1]
    assert plain["machine"]["cpu"] and "steps/s" in plain["bottleneck"]


def test_what_was_not_measured_is_predicted_and_called_so(small):
    ended, folder = small
    predicted = json.loads((folder / "summary.json").read_text())["predicted"]
    assert list(predicted) == ["2", "4"] and all(0 < gain < 5 for gain in predicted.values())
    said = f"not measured: 2 workers × {predicted['2']:.2f}, 4 workers × {predicted['4']:.2f}."
    assert said in ended.out and said in (folder / "summary.txt").read_text()
    assert len(csv_rows(folder / "summary.csv")) == 2


def test_the_summary_is_printed_after_a_line_for_each_run(small):
    ended, folder = small
    text = (folder / "summary.txt").read_text()
    assert text.strip() in ended.out
    assert "PPO on CartPole-v1: strong scaling over workers" in text
    assert json.loads((folder / "summary.json").read_text())["bottleneck"] in text
    first, second = ended.out.splitlines()[:2]
    assert first.startswith("repeat 1/1  no workers") and first.endswith("steps/s")
    assert second.startswith("repeat 1/1  1 worker")


@pytest.fixture
def measured(command, shell):
    """Runs a small measurement in `out`: the rows of per_run.csv, and what was printed."""

    def run(*arguments):
        ended = command("scale", "--repeats", 1, "--output-dir", "out", *arguments)
        assert ended.code == 0, ended
        return csv_rows(shell.folder / "out" / "per_run.csv"), ended.out

    return run


@pytest.mark.slow
def test_overwrite_replaces_the_measurement_and_nothing_else(measured, shell):
    folder = shell.folder / "out"
    (folder / "logs").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "logs" / "old.jsonl").write_text("{}\n")
    (folder / "summary.csv").write_text("old")
    measured("--num-workers", "0", *SHORT, "--overwrite")
    assert (folder / "notes.txt").read_text() == "mine"
    assert [path.name for path in (folder / "logs").iterdir()] == ["workers-0-repeat-1.jsonl"]
    assert len(csv_rows(folder / "summary.csv")) == 1


@pytest.mark.slow
def test_weak_scaling_multiplies_the_environments_and_the_ceiling_runs_beside(measured, shell):
    found, out = measured("--num-workers", "1,2", "--weak", *SHORT)
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
def test_without_iters_a_trial_finds_how_many_take_the_time(measured):
    (run, _), out = measured("--num-workers", "0", "--seconds", 1, "--algo", "a2c")
    iters = int(re.match(r"trial: .* ([\d,]+) iterations per run", out)[1].replace(",", ""))
    report = min(100, iters)  # of a2c
    assert int(run["iters"]) == math.ceil(iters / report) * report and iters > 10


@pytest.mark.slow
def test_time_to_score_is_measured_or_not_reached(measured, shell):
    options = ("--num-workers", "0", "--total-steps", "20k", "--overwrite", *SHORT[2:6])
    found, out = measured("--target-return", 40, *options)
    seconds = [float(row["time_to_score"]) for row in found if row["kind"] == "workers"]
    lines = (shell.folder / "out" / "logs" / "workers-0-repeat-1.jsonl").read_text().splitlines()
    assert seconds == [json.loads(lines[-1])["time"]] and f"{seconds[0]:.1f} s to score" in out
    _, out = measured("--target-return", 9999, *options)
    assert "not reached" in out
    assert csv_rows(shell.folder / "out" / "summary.csv")[0]["reached"] == "0"
