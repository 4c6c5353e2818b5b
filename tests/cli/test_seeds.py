"""`paceline train --seeds N` as a user has it: its runs, its table, resuming and stopping it."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path

import pytest
from histories import curve, write_run
from measuring import FAILURE, csv_rows, write_failing
from saved_runs import TINY_FLAGS, assert_refused
from terminal import shown_on_terminal

from paceline.tools.bench.bench_plan import parse_bench
from paceline.tools.bench.seeds_plan import saved_plan, write_plan

pytestmark = pytest.mark.timeout(115)

ENDLESS = (*TINY_FLAGS, "--total-iters", "100_000_000")


def seeds_folder(path, **options):
    """The directory of `train --seeds 3`, without training."""
    for seed in range(3):
        write_run(path / f"seed-{seed}", curve(100 + seed, seed=seed), seed=seed, **options)
    (path / "seeds.json").write_text(json.dumps({"seeds": [0, 1, 2]}))
    return str(path)


# Its runs and its table


@pytest.fixture(scope="module")
def trained(tmp_path_factory, shell_in):
    shell = shell_in(tmp_path_factory.mktemp("seeds"))
    (shell.folder / "some.yaml").write_text("env: {kwargs: {sutton_barto_reward: false}}\n")
    given = ("--config", "some.yaml", "--seeds", 3, "--seed", 1, "--output-dir", "out")
    return shell, shell("train", *TINY_FLAGS, *given)


def test_every_seed_is_the_run_that_it_would_be_alone(trained, shell):
    out, ended = trained
    assert ended.code == 0, ended
    assert sorted(p.name for p in (out.folder / "out").glob("seed-*")) == [
        "seed-1",
        "seed-2",
        "seed-3",
    ]
    for seed in (1, 3):
        ours = out.run(f"out/seed-{seed}")
        alone = shell.train_here(f"alone-{seed}", *TINY_FLAGS, "--seed", seed)
        assert ours.result() == alone.result()
        assert "seeds" not in ours.config() and ours.config()["seed"] == seed


def test_a_table_of_all_seeds_ends_in_their_mean_with_its_interval(trained):
    out, ended = trained
    rows = csv_rows(out.folder / "out" / "seeds.csv")
    assert [row["seed"] for row in rows] == ["1", "2", "3"]
    means = [out.run(f"out/seed-{seed}").json("eval.json")["mean"] for seed in (1, 2, 3)]
    assert [float(row["evaluation"]) for row in rows] == means
    result = json.loads((out.folder / "out" / "seeds.json").read_text())["result"]
    assert result["mean"] == pytest.approx(sum(means) / 3) and result["of"] == "evaluation"
    assert result["ci_low"] < result["mean"] < result["ci_high"]
    *_, head, _, _, _, last = ended.out.splitlines()
    assert head.split() == ["seed", "steps", "training", "time", "steps/s", "evaluation"]
    assert last.startswith("mean ") and "over 3 seeds, 95% interval" in last


def test_what_a_run_says_is_shown_with_its_seed(trained):
    _, ended = trained
    for seed in (1, 2, 3):
        assert f"seed {seed}: ppo on CartPole-v1" in ended.out
        assert f"seed {seed}: evaluation: mean" in ended.out


@pytest.mark.slow
def test_runs_of_several_processes_come_one_after_another(shell):
    ended = shell("train", *TINY_FLAGS, "--num-workers", 1, "--seeds", 2, "--output-dir", "out")
    assert ended.code == 0, ended
    seeds = [line.split(":")[0] for line in ended.out.splitlines() if line.startswith("seed ")]
    first, *_ = [k for k, seed in enumerate(seeds) if seed == "seed 1"]
    assert "seed 0" not in seeds[first:]


def test_a_seed_that_fails_is_marked_and_the_others_go_on(shell):
    failing = write_failing(shell.folder, '"--seed=0" in __import__("sys").argv')
    ended = shell("train", *TINY_FLAGS, *failing, "--seeds", 2, "--output-dir", "out")
    assert ended.code == 3, ended
    assert re.search(f"seed 0: env 0, step [0-9]+: reward nan .*{FAILURE}", ended.out)
    rows = csv_rows(shell.folder / "out" / "seeds.csv")
    assert [row["state"] for row in rows] == ["failed", "done"]
    assert "mean" in ended.out and "over 1 of 2 seeds" in ended.out


# Interrupted and resumed


@pytest.mark.slow
def test_killed_with_its_runs_and_resumed_it_comes_to_the_end_of_all(shell, until):
    process = shell.start("train", *TINY_FLAGS, "--seeds", 3, "--output-dir", "out")
    until(lambda: (shell.folder / "out" / "seed-0" / "config.yaml").exists())
    process.kill()  # what is left of it is noticed after the test
    process.communicate(timeout=10)
    ended = shell("resume", "out", "--total-iters", 6)
    assert ended.code == 0, ended
    for seed in range(3):
        run = shell.run(f"out/seed-{seed}")
        assert [line["iter"] for line in run.metrics()] == list(range(1, 7))
    before = [shell.run(f"out/seed-{seed}").path / "metrics.jsonl" for seed in range(3)]
    times = [path.stat().st_mtime_ns for path in before]
    again = shell("resume", "out")
    assert again.code == 0 and "3 of them done before" in again.out, again
    assert [path.stat().st_mtime_ns for path in before] == times


def test_the_first_signal_saves_all_runs_and_says_how_to_go_on(shell, until):
    process = shell.start("train", *ENDLESS, "--seeds", 3, "--output-dir", "out")
    until(lambda: (shell.folder / "out" / "seed-0" / "metrics.jsonl").exists())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, (out, err)
    assert "SIGINT: every running seed finishes its iteration and is saved" in out
    assert err == "paceline: stopped by SIGINT; go on with `paceline resume out`\n"
    run = shell.run("out/seed-0")
    assert int(run.checkpoints()[-1].name) == run.metrics()[-1]["iter"]


# What is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--seeds 0", ["--seeds", "'0'", "from 1 to 1,000"]),
        ("--seeds x", ["--seeds", "'x'", "from 1 to 1,000"]),
        ("--seeds 1001", ["--seeds", "'1001'", "from 1 to 1,000"]),
        ("--seeds", ["--seeds", "expected one argument"]),
        ("--seeds 2 --log-jsonl m.jsonl", ["--log-jsonl", "in its directory"]),
        ("--seeds 2 --seed 2147483647", ["seed is '2147483648'"]),
        ("--seeds 2 --env-id CartPole", ["env_id 'CartPole'", "CartPole-v1"]),
        ("--config seeds.yaml", ["seeds: there is no such option", "--seeds 5"]),
        ("--config own.py --seeds 2", ["env_id is a Python object", "module:Class"]),
    ],
)
def test_what_can_not_be_is_refused_before_anything_is_trained(command, shell, arguments, words):
    (shell.folder / "seeds.yaml").write_text("seeds: 5\n")
    own = "import paceline\nconfig = paceline.Config(env_id=lambda: None)\n"
    (shell.folder / "own.py").write_text(own)
    assert_refused(command("train", *shlex.split(arguments)), words)
    assert not (shell.folder / "runs").exists()


def test_a_rank_of_a_launcher_is_refused(command, monkeypatch):
    launched = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    assert_refused(command("train", "--seeds", 2), ["--seeds", "RANK", "torchrun"])


def test_a_directory_that_holds_runs_is_kept_unless_it_is_to_be_overwritten(command, shell):
    folder = seeds_folder(shell.folder / "out")
    kept = shell.folder / "out" / "seed-2" / "metrics.jsonl"
    for more in (["--seeds", 2], [], ["--overwrite"]):
        assert_refused(command("train", "--output-dir", folder, *more), ["out", "--output-dir"])
    assert kept.exists()
    replaced = ("--seeds", 1, "--output-dir", folder, "--overwrite")
    shown = shown_on_terminal(shell, "train", *TINY_FLAGS, *replaced)
    assert not kept.exists() and len(shell.run("out/seed-0").metrics()) == 4
    assert b"\x1b[2Kseed 0: " in shown and b"over 1 seed\r\n" in shown


@pytest.mark.parametrize("found", ["", "{}", '{"seeds": ["../x"]}', '{"seeds": [1, 1]}', "[[]]"])
def test_a_damaged_list_of_seeds_is_refused(command, shell, found):
    folder = seeds_folder(shell.folder / "out")
    (shell.folder / "out" / "seeds.json").write_text(found)
    assert_refused(command("resume", folder), ["seeds.json can't be read", "resumed alone"])


@pytest.mark.parametrize("name", ["seed-1", "options.yaml"])
def test_a_link_that_leads_out_of_the_directory_is_not_followed(command, shell, name):
    folder = seeds_folder(shell.folder / "out")
    path, place = shell.folder / "out" / name, shell.folder / "elsewhere"
    if path.exists():
        path.rename(place)
    path.symlink_to(place)
    assert_refused(command("resume", folder), [name, "is a symbolic link"])


@pytest.mark.parametrize(
    "options", ["log_jsonl: PLACE", "init_from: PLACE", "init_method: file://PLACE"]
)
def test_options_of_a_stranger_that_lead_out_are_not_followed(command, shell, options):
    folder = seeds_folder(shell.folder / "out")
    (shell.folder / "out" / "seeds.json").write_text('{"seeds": [0, 1, 2, 3]}')  # 3 is to begin
    place = shell.folder / "thesis.txt"
    place.write_text("mine")
    path = shell.folder / "out" / "options.yaml"
    path.write_text(options.replace("PLACE", str(place)) + "\n")
    assert_refused(command("resume", folder), ["options.yaml", "thesis"])
    assert place.read_text() == "mine"


def test_a_changed_budget_is_remembered_until_all_seeds_have_followed_it(shell):
    folder = Path(seeds_folder(shell.folder / "out"))
    (folder / "options.yaml").write_text("env_id: CartPole-v1\ntotal_steps: 1000\n")
    write_plan(saved_plan(folder, {"total_steps": "2000", "keep": "1"}))
    assert saved_plan(folder, {}).changes == {"total_steps": "2000"}
    write_plan(saved_plan(folder, {}), result={})
    assert saved_plan(folder, {}).changes == {}


def test_help_documents_it_as_an_option_of_the_command(command):
    for arguments in ("train --help", "train --seeds 3 --help"):
        ended = command(*arguments.split())
        assert ended.code == 0 and "--seeds N" in ended.out


# Compared, and beside a benchmark


def test_each_directory_of_seeds_is_a_group_whatever_else_is_compared(command, shell):
    one, other = (seeds_folder(shell.folder / name) for name in ("one", "other"))
    alone = write_run(shell.folder / "alone", curve(90))
    ended = command("compare", one, other, alone, "--output-dir", "compared")
    assert ended.code == 0, ended
    rows = csv_rows(shell.folder / "compared" / "comparison.csv")
    assert {row["name"]: row["count"] for row in rows} == {
        f"PPO · sequential · {one}": "3",
        f"PPO · sequential · {other}": "3",
        "PPO · sequential": "1",
    }


def test_groups_of_seeds_that_differ_are_named_by_that(command, shell):
    folders = [seeds_folder(shell.folder / name, lr=lr) for name, lr in (("a", 1e-3), ("b", 2e-3))]
    ended = command("compare", *folders, "--output-dir", "compared")
    assert ended.code == 0, ended
    names = [row["name"] for row in csv_rows(shell.folder / "compared" / "comparison.csv")]
    assert names == ["lr 0.001", "lr 0.002"]


def test_a_benchmark_takes_runs_that_are_there_and_does_not_repeat_them(shell, monkeypatch):
    monkeypatch.chdir(shell.folder)
    seeds_folder(shell.folder / "mine", num_envs=4)
    flags = "--algos ppo,a2c --modes sequential --num-envs 4 --total-steps 50000 --seeds 2"
    plan = parse_bench(["mine", *flags.split()])
    assert {cell.options["algo"] for cell in plan.cells} == {"a2c"} and len(plan.runs) == 3
    assert list(plan.refused) == ["PPO · sequential"]
    again = parse_bench(plan.arguments)
    assert again.cells and len(again.runs) == 3


def test_a_benchmark_refuses_runs_that_had_another_budget(command, shell):
    folder = seeds_folder(shell.folder / "mine")
    flags = "--algos a2c --modes sequential --total-steps 1000"
    assert_refused(command("bench", folder, *flags.split()), ["1,000 steps", "50,000 steps"])
