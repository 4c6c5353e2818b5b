"""`paceline bench` as a user has it: the matrix, resuming it, its failures."""

from __future__ import annotations

import io
import json

import pytest
from histories import curve, write_run
from measuring import FAILURE, csv_rows, write_failing

from paceline.cli.console import Console
from paceline.config.files import load_file
from paceline.tools.bench import bench
from paceline.tools.bench.bench_plan import parse_bench
from paceline.tools.bench.compare.report import OURS
from paceline.tools.bench.runs import RunFailed

pytestmark = pytest.mark.timeout(115)

SHORT = ("--seeds", 1, "--eval-episodes", 1, "--track", "none", "--hidden", "16", "--num-envs", 4)


ONE = "--algos ppo --modes sequential"


def parse(line):
    return parse_bench(line.split())


def made_by(path):
    """What tells a file from one that was written anew."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# The matrix, killed in the middle and gone on with


@pytest.fixture(scope="module")
def killed(tmp_path_factory, shell_in, until):
    """Two algorithms in two ways; killed while the second run is at work, then resumed."""
    shell = shell_in(tmp_path_factory.mktemp("bench"))
    folder = shell.folder / "out"
    plan = ("--algos", "ppo,a2c", "--modes", "sequential,parallel", "--num-workers", 2, *SHORT)
    budget = ("--total-steps", "12k", "--save-every", 500, "--output-dir", "out")
    first, second = (
        folder / "runs" / f"ppo-{way}" / "seed-0" for way in ("sequential", "parallel")
    )
    process = shell.start("bench", *plan, *budget)
    until(lambda: list(second.glob("checkpoints/0*")) or process.poll() is not None)
    alive = process.poll() is None
    process.kill()
    process.communicate(timeout=10)
    before = {run: {p.name: made_by(p) for p in run.iterdir()} for run in (first, second)}
    seen = lines_of(second)
    ended = shell("bench", "--resume", "out", timeout=100)
    return {"alive": alive, "before": before, "seen": seen, "ended": ended, "folder": folder}


def test_a_benchmark_killed_in_the_middle_goes_on_to_its_end(killed):
    assert killed["alive"], "it had ended before it could be killed"
    assert killed["ended"].code == 0, killed["ended"]
    assert set(OURS) | {"bench.json", "runs"} <= {p.name for p in killed["folder"].iterdir()}


def test_a_run_that_was_done_is_not_run_again(killed):
    first, _ = killed["before"]
    assert "[1/4] PPO · sequential · seed 0: done before" in killed["ended"].out
    for name, known in killed["before"][first].items():
        assert made_by(first / name) == known, f"{name} was written again"


def test_a_run_that_was_interrupted_goes_on_from_its_checkpoint(killed):
    _, second = killed["before"]
    assert made_by(second / "run.json") == killed["before"][second]["run.json"]
    lines = lines_of(second)
    assert [line["iter"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[0] == killed["seen"][0], "it began from the beginning"
    assert lines[-1]["steps"] >= 12_000


def test_every_cell_is_a_run_of_its_own_and_a_row_of_the_report(killed):
    folder = killed["folder"]
    names = [f"{a}-{way}" for a in ("a2c", "ppo") for way in ("parallel", "sequential")]
    assert sorted(p.name for p in (folder / "runs").iterdir() if p.is_dir()) == names
    groups = csv_rows(folder / "comparison.csv")
    assert [(group["name"], group["count"]) for group in groups] == [
        ("PPO · sequential", "1"),
        ("PPO · 2 workers", "1"),
        ("A2C · sequential", "1"),
        ("A2C · 2 workers", "1"),
    ]
    for run in folder.glob("runs/*/seed-0"):
        assert (run / "eval.json").exists() and lines_of(run)[-1]["steps"] >= 12_000


def test_what_is_done_is_done_and_a_second_resume_trains_nothing(killed, monkeypatch, capsys):
    folder = killed["folder"]
    before = {p: made_by(p) for p in folder.rglob("metrics.jsonl")}
    monkeypatch.chdir(folder.parent)
    assert bench.command(["--resume", "out"]) == 0
    assert capsys.readouterr().out.count("done before") == 4
    assert {p: made_by(p) for p in folder.rglob("metrics.jsonl")} == before


def test_another_plan_in_the_same_place_is_refused_and_loses_nothing(killed, command, monkeypatch):
    monkeypatch.chdir(killed["folder"].parent)
    before = {p: made_by(p) for p in killed["folder"].rglob("*") if p.is_file()}
    ended = command("bench", "--algos", "impala", "--output-dir", "out")
    assert ended.code == 2, ended
    for word in ("out holds another benchmark", "--resume out", "--output-dir", "--overwrite"):
        assert word in ended.err
    assert {p: made_by(p) for p in killed["folder"].rglob("*") if p.is_file()} == before


def test_its_folder_can_be_compared_like_any_other(killed, command, shell):
    ended = command("compare", killed["folder"], "--output-dir", "again")
    assert ended.code == 0 and len(csv_rows(shell.folder / "again" / "comparison.csv")) == 4


# Failures


def failing_bench(shell):
    """Two of three cells fail while the file is there, and a fourth has no such form."""
    (shell.folder / "broken").touch()
    failing = write_failing(shell.folder, '"RANK" in os.environ and os.path.exists("broken")')
    plan = ("--algos", "a2c,a3c", "--modes", "ranks,sequential", "--ranks", 2, *SHORT)
    more = ("--max-restarts", 0, "--duration", "1s", "--output-dir", "out")
    return shell("bench", *plan, *failing, *more)


def counts(shell):
    return {row["name"]: row["count"] for row in csv_rows(shell.folder / "out" / "comparison.csv")}


@pytest.mark.slow
def test_a_cell_that_fails_is_shown_with_its_cause_and_the_others_go_on(shell):
    ended = failing_bench(shell)
    assert ended.code not in (0, 1, 2, 75) and "Traceback" not in ended.out, ended
    report = (shell.folder / "out" / "comparison_report.txt").read_text()
    page = (shell.folder / "out" / "report.html").read_text()
    for text in (ended.out, report, page):
        assert FAILURE in text
    assert "A2C · ranks · seed 0" in report and "A3C · sequential · seed 0" in report
    assert "A3C · ranks: a3c has no such form" in report and "a3c has no such form" in page
    found = counts(shell)
    assert found.pop("A2C · sequential") == "1" and set(found.values()) <= {"0"}


@pytest.mark.slow
def test_what_has_failed_is_tried_again_and_what_is_done_is_not(shell):
    failing_bench(shell)
    done = shell.folder / "out" / "runs" / "a2c-sequential" / "seed-0" / "metrics.jsonl"
    before = made_by(done)
    (shell.folder / "broken").unlink()
    ended = shell("bench", "--resume", "out")
    assert ended.code == 0, ended
    assert made_by(done) == before and "A2C · sequential · seed 0: done before" in ended.out
    assert counts(shell) == {"A2C · 2 ranks": "1", "A2C · sequential": "1", "A3C · 1 learner": "1"}
    assert FAILURE not in (shell.folder / "out" / "comparison_report.txt").read_text()


def test_where_every_cell_fails_that_is_said_and_no_report_is_made(shell):
    failing = write_failing(shell.folder)
    plan = ("--algos", "ppo", "--modes", "sequential", *SHORT, "--total-steps", 4000)
    ended = shell("bench", *plan, *failing, "--output-dir", "out")
    assert ended.code not in (0, 1) and FAILURE in ended.err and "Traceback" not in ended.err
    assert not (shell.folder / "out" / "report.html").exists()


# Progress


def test_progress_says_how_far_and_how_long_it_still_takes(command, monkeypatch):
    monkeypatch.setattr(bench, "EVERY", 0.2)
    plan = ("--algos", "a2c", "--modes", "sequential", *SHORT, "--duration", "1s")
    ended = command("bench", *plan, "--output-dir", "out")
    assert ended.code == 0, ended
    said = [line for line in ended.out.splitlines() if "left" in line]
    assert said and all(line.startswith("[1/1] A2C · sequential · seed 0") for line in said)
    assert any("steps" in line and "all runs:" in line for line in said)


@pytest.fixture
def waiting(tmp_path):
    """A benchmark of 3 runs of a minute, as a file says, of which the first is done."""
    (tmp_path / "file.yaml").write_text("duration: 1m\n")
    made = parse(f"{ONE} --output-dir {tmp_path / 'out'} --config {tmp_path / 'file.yaml'}")
    given = {"seconds_each": 2, "duration": "1m", "evaluation": 9.0}
    write_run(made.cells[0].folder, curve(9.0), **given)
    return made, bench.BenchSweep(made)


def test_the_announcement_counts_the_runs_that_are_still_to_come(waiting, tmp_path):
    text = waiting[1].announcement()
    assert text.startswith("3 runs, one after another, in ")
    assert text.endswith(": 2:08")  # with 4 s each to start
    one = bench.BenchSweep(parse(f"{ONE} --seeds 1 --output-dir {tmp_path}"))
    assert one.announcement() == f"1 run in {tmp_path}: 2:04"


def test_only_a_completed_run_says_how_long_others_will_take(waiting, monkeypatch, tmp_path):
    def fail(cell, watch):
        log = tmp_path / "log"
        log.touch()
        raise RunFailed(log, 3)

    made, sweep = waiting
    console = Console(io.StringIO())
    monkeypatch.setattr(bench, "run_cell", fail)
    with pytest.raises(RunFailed):
        sweep.run_one(made.cells[1], "failed", console)
    assert sweep.expected() == 64.0
    monkeypatch.setattr(bench, "run_cell", lambda cell, watch: watch())
    sweep.run_one(made.cells[2], "ended", console)
    assert sweep.expected() < 10


# Damage


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (lambda run: (run / "run.json").unlink(), "can't be read as a run"),
        (lambda run: (run / "config.yaml").write_text("lr: ["), "config.yaml can't be read"),
    ],
    ids=["run.json", "config.yaml"],
)
def test_a_damaged_cell_is_shown_as_missing_and_the_others_are_compared(
    tmp_path, capsys, damage, cause
):
    plan = "--algos ppo,a2c --modes sequential --seeds 1 --total-steps 50k"
    made = parse(f"{plan} --output-dir {tmp_path / 'out'}")
    for cell in made.cells:
        write_run(cell.folder, curve(9.0), algo=cell.options["algo"])
    damage(made.cells[1].folder)
    assert bench._conclude(made, {}) == 0
    report = (made.folder / "comparison_report.txt").read_text()
    assert "A2C · sequential · seed 0: " in report and cause in report
    assert [row["name"] for row in csv_rows(made.folder / "comparison.csv")] == ["PPO · sequential"]
    assert cause in bench._result(made.cells[1].folder)


# The plan


def test_every_algorithm_goes_with_every_way_but_a3c_with_ranks():
    made = parse("--duration 1s --num-workers 2 --ranks 2")
    assert len(made.cells) == len({cell.folder for cell in made.cells}) == 11 * 3
    assert list(made.refused) == ["A3C · ranks"]
    assert "no such form" in made.refused["A3C · ranks"]


def test_seeds_follow_each_other_and_every_second_round_runs_backwards():
    made = parse("--algos ppo,a2c --modes sequential --seeds 3 --first-seed 5")
    order = [f"{cell.options['algo']} {cell.options['seed']}" for cell in made.cells]
    assert order == ["ppo 5", "a2c 5", "a2c 6", "ppo 6", "ppo 7", "a2c 7"]


@pytest.fixture
def planned(tmp_path):
    """The cells of a plan with such a file, by what they are called."""

    def make(file, *arguments):
        path = tmp_path / "file.yaml"
        path.write_text(file)
        made = parse_bench(["--config", str(path), "--seeds", "1", *arguments])
        assert made.refused.keys() <= {"A3C · ranks"}
        return {cell.name.removesuffix(" · seed 0"): cell.options for cell in made.cells}

    return make


def test_ranks_and_workers_of_a_file_are_those_of_their_cells_alone(planned):
    found = planned("ranks: 3\nnum_workers: 4\nnum_envs: 12\n", "--algos", "ppo,a3c")
    shapes = {name: (o.get("num_workers"), o.get("ranks")) for name, o in found.items()}
    assert shapes == {
        "PPO · sequential": ("0", "1"),
        "PPO · parallel": ("4", "1"),
        "PPO · ranks": ("0", "3"),
        "A3C · sequential": ("1", "1"),
        "A3C · parallel": ("4", "1"),
    }
    flags = ("--algos", "ppo", "--num-workers", "2", "--ranks", "2")
    found = planned("ranks: 3\nnum_workers: 4\nnum_envs: 12\n", *flags)
    assert found["PPO · parallel"]["num_workers"] == found["PPO · ranks"]["ranks"] == "2"


@pytest.mark.parametrize("file", ["num_envs_per_worker: 3\nnum_workers: 4\n", "num_envs: 12\n"])
def test_a_learner_has_as_many_environments_in_every_mode(planned, file):
    found = planned(file, "--algos", "ppo", "--ranks", "2", "--num-workers", "4")
    assert [options["num_envs"] for options in found.values()] == ["12"] * 3


def test_a_file_is_remembered_by_a_path_that_holds_anywhere(shell, monkeypatch):
    (shell.folder / "mine.yaml").write_text("lr: 0.01\n")
    monkeypatch.chdir(shell.folder)
    for typed in (["--config", "mine.yaml"], ["--config=mine.yaml"]):
        said = parse_bench(["--algos", "ppo", *typed]).arguments
        assert str(shell.folder / "mine.yaml") in " ".join(said)


def test_the_processes_of_a_parallel_cell_are_chosen_once_and_remembered(shell, monkeypatch):
    plan = ("--algos", "ppo", *SHORT, "--total-steps", 1500, "--output-dir", "out")
    ended = shell("bench", *plan, timeout=100)
    assert ended.code == 0, ended
    assert "PPO · parallel:" in ended.out and "parallel auto: " in ended.out
    content = json.loads((shell.folder / "out" / "bench.json").read_text())
    processes = {name: int(number) for name, number in content["chosen"]["ppo"].items()}
    name = "parallel" if processes["ranks"] > 1 or processes["num_workers"] else "sequential"
    config = load_file(shell.folder / "out" / "runs" / f"ppo-{name}" / "seed-0" / "config.yaml")
    assert {name: config[name] for name in processes} == processes
    monkeypatch.chdir(shell.folder)
    again = parse_bench(["--resume", "out"])
    assert again.chosen == content["chosen"] and not again.open
    ways = {(cell.options["num_workers"], cell.options["ranks"]) for cell in again.cells}
    assert (content["chosen"]["ppo"]["num_workers"], content["chosen"]["ppo"]["ranks"]) in ways


@pytest.mark.parametrize("algo", ["ppo", "a3c", "impala"])
def test_parallel_cells_have_the_workers_that_are_given(algo):
    made = parse(f"--algos {algo} --modes parallel --num-workers 2 --seeds 1")
    assert not made.open and made.cells[0].options["num_workers"] == "2"
    made = parse(f"--algos {algo} --modes parallel --seeds 1")
    if algo == "a3c":  # its learners are its workers
        assert not made.open and int(made.cells[0].options["num_workers"]) >= 2
    else:
        assert list(made.open) == [algo] and made.cells[0].options["parallel"] == "auto"


# Overwriting


@pytest.mark.parametrize(
    ("flag", "replaced"),
    [
        ("--overwrite", True),
        ("--overwrite=true", True),
        ("--overwrite true", True),
        ("--overwrite false", False),
        ("--overwrite=false", False),
        ("--no-overwrite", False),
        ("", False),
    ],
)
def test_overwrite_replaces_a_benchmark_just_where_it_says_so(
    command, shell, monkeypatch, flag, replaced
):
    monkeypatch.setattr(bench.BenchSweep, "run", lambda self: {})  # what comes before is tested
    folder = shell.folder / "out"
    old = folder / "runs" / "ppo-sequential" / "seed-0" / "metrics.jsonl"
    old.parent.mkdir(parents=True)
    old.write_text("{}\n")
    other = folder / "runs" / "impala-ranks" / "seed-0.log"
    other.parent.mkdir()
    other.write_text("of algorithms that are not in the new one")
    (folder / "runs" / "mine").mkdir()
    (folder / "bench.json").write_text(json.dumps({"arguments": ["--seeds", "9"]}))
    (folder / "notes.txt").write_text("mine")
    ended = command("bench", *ONE.split(), "--output-dir", "out", *flag.split())
    assert old.exists() != replaced and other.exists() != replaced, ended
    assert ("holds another benchmark" in ended.err) != replaced
    assert (folder / "notes.txt").read_text() == "mine" and (folder / "runs" / "mine").exists()
