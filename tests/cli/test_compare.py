"""`paceline compare` as a user has it: what it writes, says, refuses, and never loses."""

from __future__ import annotations

import csv
import errno
import fcntl
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from histories import amend, curve, write_run

from paceline.cli import commands as cli
from paceline.tools.bench.compare.report import OURS

pytestmark = pytest.mark.timeout(110)

PNG = b"\x89PNG\r\n\x1a\n"


def rows(path):
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def counts(folder):
    """How many runs of each group are counted."""
    return [(row["name"], int(row["count"])) for row in rows(f"{folder}/comparison.csv")]


def write_five_each(folder):
    """Two groups of five runs that differ in their learning rate."""
    for seed in range(5):
        write_run(folder / f"a{seed}", curve(100.0, seed=seed), seed=seed, lr=0.1)
        write_run(folder / f"b{seed}", curve(150.0, seed=100 + seed), seed=seed, lr=0.2)


def write_one_each(folder, a, b, **options):
    """A run with these returns in each of two groups."""
    write_run(f"{folder}/a", a, lr=0.1, **options)
    write_run(f"{folder}/b", b, lr=0.2, **options)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Runs that are written once, and copied to every test that wants them."""
    folder = tmp_path_factory.mktemp("written")
    write_five_each(folder / "h")
    write_run(folder / "cart", curve(1.0), env_id="Acrobot-v1", total_steps=50_000)
    write_run(folder / "long", curve(1.0), total_steps=60_000)
    write_run(folder / "timed", curve(1.0), duration="1m")
    return folder


@pytest.fixture
def two(shell, written):
    """Five runs of each of two groups, in h."""
    return shutil.copytree(written / "h", shell.folder / "h")


@pytest.fixture
def drawn(command):
    """The command within this process."""

    def run(*arguments, to="out", code=0):
        ended = command("compare", *arguments, "--output-dir", to)
        assert ended.code == code, ended
        assert "Traceback" not in ended.err
        return ended

    return run


@pytest.fixture
def compare(drawn, monkeypatch):
    """The same without its picture, which takes most of the time."""
    monkeypatch.setattr("paceline.tools.bench.compare.report.draw", lambda *_: PNG)
    return drawn


def files_in(folder):
    """Name and content of everything."""
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# What is written


@pytest.fixture(scope="module")
def made(tmp_path_factory, shell_in):
    """The comparison of two groups of five, by the real command."""
    shell = shell_in(tmp_path_factory.mktemp("compare"))
    write_five_each(shell.folder / "h")
    ended = shell("compare", "h", "--output-dir", "out")
    assert ended.code == 0 and not ended.err, ended
    return ended, shell.folder / "out"


def test_all_files_are_written_and_the_report_is_printed_with_its_verdict_first(made):
    ended, folder = made
    assert {path.name for path in folder.iterdir()} == set(OURS)
    text = (folder / "comparison_report.txt").read_text()
    assert text.partition("How it was made")[0].strip() in ended.out
    assert "out/report.html" in ended.out and "Hodges and Lehmann" in text
    title, _, _, verdict, difference, *_ = text.splitlines()
    assert title == "CartPole-v1: lr 0.1 against lr 0.2"
    assert verdict.startswith("lr 0.2 scored best: 1") and "after 50,000 steps" in verdict
    assert re.match(r"lr 0\.2 is better than lr 0\.1 by \d+(\.\d)? \(95 % interval", difference)


def test_each_group_has_a_row_whose_numbers_follow_from_its_runs(made):
    _, folder = made
    groups, runs = rows(folder / "comparison.csv"), rows(folder / "comparison_runs.csv")
    assert [group["name"] for group in groups] == ["lr 0.1", "lr 0.2"]
    assert len(runs) == 10 and {run["state"] for run in runs} == {"done"}
    for group in groups:
        scores = sorted(float(run["score"]) for run in runs if run["group"] == group["name"])
        assert float(group["score"]) == pytest.approx(np.mean(scores[1:-1]))
        assert scores[0] <= float(group["score_low"]) <= float(group["score"])
        assert float(group["score"]) <= float(group["score_high"]) <= scores[-1]
        assert group["count"] == "5" and float(group["fps"]) == 1000.0
        shares = [float(value) for name, value in group.items() if name.startswith("share_")]
        assert sum(shares) == pytest.approx(1)


def test_the_picture_is_a_png_that_shows_something(made):
    import matplotlib.image

    path = made[1] / "comparison.png"
    assert path.read_bytes().startswith(PNG)
    picture = matplotlib.image.imread(path)
    assert picture.shape[0] > 400 and picture.shape[1] > 800
    pixels = np.round(255 * picture[::3, ::3, :3]).astype(int).reshape(-1, 3)
    assert {(0, 114, 178), (213, 94, 0)} <= set(map(tuple, pixels))  # of both groups


def test_a_comparison_is_the_same_every_time_but_for_its_day(compare, two):
    compare("h", to="one")
    compare("h", to="other")
    for name in ("comparison.csv", "comparison_runs.csv", "comparison_report.txt"):
        assert Path("one", name).read_bytes() == Path("other", name).read_bytes()


# How groups are made of what was named


def test_paths_may_be_relative_doubled_or_within_each_other(compare, two):
    paths = ["h/a0", "./h/a0", two / "a0", "h/../h/a0", "h/a0/", "h"]
    Path("link").symlink_to("h")
    compare(*paths, "link")
    assert len(rows("out/comparison_runs.csv")) == 10


def test_options_may_stand_between_the_paths(compare, two):
    compare("h/a0", "--at", "40s", "h/b0")
    assert len(rows("out/comparison_runs.csv")) == 2


def test_one_group_is_described_and_said_to_be_one(compare):
    for seed in range(3):
        write_run(f"h/{seed}", curve(100.0, seed=seed), seed=seed)
    ended = compare("h")
    assert "there is one group" in ended.out and "--by folder" in ended.out
    assert counts("out") == [("PPO · sequential", 3)]
    assert "best" not in ended.out.splitlines()[3]
    assert "scored" in compare("h/0", to="alone").out
    assert counts("alone") == [("PPO · sequential", 1)]


def test_of_one_run_against_one_nothing_is_claimed(compare, two):
    ended = compare("h/a0", "h/b0")
    assert "lr 0.2 and lr 0.1 differ by" in ended.out
    assert "too few to tell that from chance: 4 of each could" in ended.out
    assert "is better than" not in ended.out


def test_twelve_groups_are_all_named_and_told_apart(drawn):
    for k in range(12):
        for seed in range(4):
            returns = curve(50.0 + 10 * k, seed=100 * k + seed, lines=20)
            write_run(f"h/{k}-{seed}", returns, lr=(k + 1) / 100, seed=seed)
    ended = drawn("h")
    groups = counts("out")
    assert len(groups) == 12 and all(name in ended.out for name, _ in groups)
    assert "It is clearly better than" in ended.out


def test_by_names_the_groups_and_pools_the_rest(compare):
    for k, (algo, lr) in enumerate((a, lr) for a in ("ppo", "a2c") for lr in (0.1, 0.2)):
        write_run(f"h/{k}", curve(100.0, seed=k), algo=algo, lr=lr)
    compare("h", "--by", "algo")
    assert counts("out") == [("algo ppo", 2), ("algo a2c", 2)]
    compare("h", "--by", "lr,algo", to="both")
    both = [(f"lr {lr} · algo {algo}", 1) for algo in ("ppo", "a2c") for lr in (0.1, 0.2)]
    assert counts("both") == both


def test_by_folder_compares_the_paths_as_they_were_named(compare):
    for name, level in (("old", 100.0), ("new", 200.0)):
        for seed in range(4):
            write_run(f"{name}/{seed}", curve(level, seed=seed), seed=seed)
    assert "new is better than old by" in compare("old", "new", "--by", "folder").out


# What else differs


SAID = {
    "another machine": (
        {"cpu": "another CPU"},
        ("not made on the same machine (CPU: a CPU, another CPU)", "several machines"),
    ),
    "other versions": (
        {"versions": {"paceline": "0.2.0"}},
        ("not made with the same versions: paceline (0.2.0, 0.1.0).",),
    ),
    "not compiled": (
        {"choices": {"compiled": True}},
        ("Of lr 0.1 some runs were compiled and some not",),
    ),
    "lost lines": ({}, ("h/a0: 1 line",)),
}


@pytest.mark.parametrize("what", SAID)
def test_what_alters_a_comparison_is_said(compare, two, what):
    facts, said = SAID[what]
    amend(two / "a0" / "run.json", **facts)
    if what == "lost lines":
        with (two / "a0" / "metrics.jsonl").open("a") as file:
            file.write('{"iter": 51, "ti')
    out = compare("h").out
    for words in said:
        assert words in out


OTHERWISE = "The groups differ in more than their names say: "


def test_what_the_names_of_groups_do_not_say_is_said(compare):
    """Two ways of running that also learn at other rates."""
    write_run("h/a", curve(100.0), lr=0.001, num_workers=2)
    write_run("h/b", curve(90.0), lr=0.002, gamma=0.9)
    ended = compare("h")
    assert f"{OTHERWISE}lr (0.001, 0.002), gamma (" in ended.out
    assert OTHERWISE in Path("out/report.html").read_text()


def test_what_the_names_say_or_the_way_brings_with_it_is_not_said_again(compare, two):
    assert OTHERWISE not in compare("h").out
    assert f"{OTHERWISE}lr (0.1, 0.2)." in compare("h/a0", "h/b0", "--by", "folder", to="f").out
    options = {"minibatches": 2, "num_envs": 4, "preset": "none"}
    for name, more in (("s", {}), ("w", {"num_workers": 2}), ("r", {"ranks": 2, "num_envs": 2})):
        write_run(f"ways/{name}", curve(100.0), **options | more)
    write_run("ways/a", curve(90.0), algo="a2c", lr=0.5)
    assert OTHERWISE not in compare("ways", to="w").out


# Pairs of seeds


def test_six_shared_seeds_are_paired_and_find_what_is_lost_without(compare):
    random = np.random.default_rng(0)
    for seed in range(8):
        level = random.normal(0, 100)
        for name, lr, more in (("a", 0.1, 0.0), ("b", 0.2, 20.0)):
            returns = np.full(5, level + more + random.normal(0, 1))
            write_run(f"same/{name}{seed}", returns, lr=lr, seed=seed)
            other = seed + (50 if name == "b" else 0)
            write_run(f"other/{name}{seed}", returns, lr=lr, seed=other)
    ended = compare("same")
    assert "lr 0.2 is better than lr 0.1 by" in ended.out
    assert re.search(
        r"^lr 0\.2 .* P\(better\) 0\.\d+ \(.+ to .+\), paired by seed\.$", ended.out, re.M
    )
    ended = compare("other", to="o")
    assert ", unpaired." in ended.out
    assert "can't be told apart" in ended.out and "do not have the same seeds" in ended.out


# Where they are compared


def test_other_budgets_are_compared_where_all_have_come(compare):
    write_one_each("h", [1.0] * 5, [2.0] * 9)
    compare("h", code=2)
    assert "lr 0.2 scored best: 2 after 4,000 steps." in compare("h", "--at", "4k").out


def test_at_a_time_or_a_number_of_steps_the_curves_count_up_to_there(compare):
    write_one_each("h", [1.0] * 5 + [900.0] * 5, [2.0] * 5 + [800.0] * 5)
    assert compare("h").out.splitlines()[3].startswith("lr 0.1 scored best: 900")
    for at, text in (("5s", "5 s"), ("5k", "5,000 steps"), ("0.08m", "4.8 s")):
        said = compare("h", "--at", at, to=f"at-{at}").out.splitlines()[3]
        assert said == f"lr 0.2 scored best: 2 after {text}."


def test_a_point_that_no_run_has_come_to_is_refused_and_not_reported(compare, two):
    """Runs of 50,000 steps have no score after five million."""
    for at in ("5M", "1h"):
        ended = compare("h", "--at", at, to="never", code=2)
        assert "no run has come to" in ended.err
    assert not Path("never").exists()


def test_a_run_that_stopped_at_its_return_counts_also_later(compare):
    options = {"total_steps": 10**6, "stop_at_return": 40.0}
    write_one_each("h", [50.0] * 5, [50.0] * 5, **options)
    for name in ("a", "b"):
        saved = Path(f"h/{name}/checkpoints/00000005")
        saved.mkdir(parents=True)
        (saved / "state.json").write_text(json.dumps({"recent": [50.0] * 100}))
    compare("h")
    assert counts("out") == [("lr 0.1", 1), ("lr 0.2", 1)]


def test_a_target_return_is_timed_and_who_never_came_there_is_shown(compare, two):
    ended = compare("h", "--target-return", 120)
    a, b = rows("out/comparison.csv")
    assert (a["reached"], a["time_to"], b["reached"]) == ("0", "", "5")
    runs = [run for run in rows("out/comparison_runs.csv") if run["time_to"]]
    assert len(runs) == 5
    for run in runs:
        text = Path(run["name"], "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        first = next(line for line in lines if line["episode_return"] >= 120)
        assert float(run["time_to"]) == first["time"] and float(run["steps_to"]) == first["steps"]
    assert "lr 0.2 was the first to a return of 120: in" in ended.out and "0 of 5" in ended.out
    assert "120 is as asked" in ended.out


def test_what_the_environment_counts_as_solved_is_the_target_once_somebody_was_there(compare):
    write_one_each("h", curve(480.0), curve(100.0))
    assert "475 is what the environment counts as solved" in compare("h").out


def test_a_run_that_is_not_counted_does_not_decide_the_target(compare, two):
    """It came far, but not to its end."""
    write_run(two / "short", curve(499.0, lines=30), lr=0.1, seed=7, total_steps=50_000)
    ended = compare("h")
    assert "475 is what the environment counts as solved" not in ended.out
    target = re.search(r"^([\d.]+) is 90 % of the way", ended.out, re.M)
    assert float(target[1]) < 160


def test_all_limits_of_a_run_are_told(compare):
    budgets = {"duration": "50s", "total_steps": 50_000, "stop_at_return": 1e6}
    write_one_each("h", curve(9.0), curve(9.0), **budgets)
    assert "after 50 s or 50,000 steps or a return of 1e+06." in compare("h").out


# What is not whole is named


def test_what_is_counted_before_its_end_is_named(compare, two):
    write_run(two / "short", curve(9.0, lines=30), lr=0.1, seed=7, total_steps=50_000)
    ended = compare("h", "--at", "20k")
    assert "Counted here, though not done: h/short (cut short)." in ended.out
    assert "though not done" not in compare("h/a0", "h/b0", "--at", "20k", to="o").out


def test_a_run_cut_short_before_its_first_report_is_to_be_gone_on_with(compare):
    run = write_run("h", [], total_steps=50_000)
    assert "(h: cut short); go on with `paceline resume h`" in compare("h", code=2).err
    with (run / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "(h: still going); wait for one" in compare("h", code=2).err


@pytest.mark.parametrize("state", ["cut short", "still going"])
def test_a_run_that_is_not_done_is_named_and_not_counted(compare, two, state):
    run = write_run(two / "short", curve(999.0, lines=3), lr=0.1, seed=7, total_steps=50_000)
    with (run / ".lock").open("wb") as lock:
        if state == "still going":
            fcntl.flock(lock, fcntl.LOCK_EX)
        out = compare("h").out
    assert re.search(
        f"h/short (is|was) {state},? after 3,000 steps of 50,000 steps, and is not", out
    )
    found = {row["name"]: row for row in rows("out/comparison_runs.csv")}
    assert found["h/short"]["counted"] == "False" and found["h/short"]["state"] == state
    assert counts("out") == [("lr 0.1", 5), ("lr 0.2", 5)]
    assert "h/short" in Path("out/report.html").read_text()


def test_runs_that_none_of_them_ended_are_refused_with_advice_that_works(compare):
    """--at rounded up would be a time that nobody has come to."""
    returns = curve(9.0, lines=10)
    write_one_each("h", returns, returns, duration="60s", seconds_each=0.97)
    ended = compare("h", code=2)
    assert "cut short" in ended.err and "paceline resume" in ended.err
    assert not Path("out").exists()
    advice = re.search(r"--at (\S+)", ended.err)[1]
    compare("h", "--at", advice)
    assert counts("out") == [("lr 0.1", 1), ("lr 0.2", 1)]


FACTS = {
    "cpu": ([], ["x"], {"a": 1}, 3, None, "x" * 10_000),
    "cpus": ("many", [], {}, None, 10**400),
    "startup": (3, [], {"seconds": "long"}, {"seconds": None}, {"seconds": 10**400}),
    "versions": (None, [1], {"torch": {"a": 1}}),
}


@pytest.mark.parametrize("name", FACTS)
def test_absurd_facts_do_not_stop_a_comparison(compare, two, name):
    for place, value in enumerate(FACTS[name]):
        amend(two / "a0" / "run.json", **{name: value})
        ended = compare("h/a0", "h/b0", to=str(place))
        assert " scored best: " in ended.out and "inf" not in ended.out.split()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "change",
    [
        {"time": None},
        {"steps": None},
        {"episode_return": 1e299},
        {"episodes": 1e299, "episode_return": -1e299},
        {"time": -5, "iter": -7, "episodes": -500},
        {"steps": 1e299, "time": 1e299, "iter": 10**250},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_absurd_numbers_do_not_stop_a_comparison(drawn, two, change):
    path = two / "a0" / "metrics.jsonl"
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join([*lines, json.dumps(json.loads(last) | change)]) + "\n")
    out = drawn("h").out
    assert "nan" not in out.lower().split() and max(map(len, out.splitlines())) < 600


# Names that mean harm


HOSTILE = {
    "markup": "<script>alert(1)</script>",
    "mathematics": "$x_1$",
    "half of it": "$x",
    "broken mathematics": r"$\frac{$",
    "a template": "{{code}}",
    "a newline": "one\ntwo",
    "colors": "\x1b[31mred",
    "an underscore": "_hidden",
    "a comma": 'a,"b"',
    "a formula": "=1+1",
    "right to left": "\u202eabc",
    "far away": "名前 🚀",
    "long": "x" * 200,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.filterwarnings("ignore:Glyph")
def test_a_hostile_name_is_shown_as_it_is_and_does_nothing(drawn, kind):
    name = HOSTILE[kind].replace("/", "∕")
    write_run(name, curve(100.0, lines=10), lr=0.1)
    write_run("plain", curve(50.0, lines=10), lr=0.2)
    ended = drawn(name, "plain", "--by", "folder")
    folder = Path("out")
    escaped = "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)
    assert counts(folder) == [(escaped, 1), ("plain", 1)]
    assert (folder / "comparison.png").read_bytes().startswith(PNG)
    assert "<script>alert" not in (folder / "report.html").read_text()
    assert "\x1b" not in ended.out + (folder / "comparison_report.txt").read_text()
    table = [line for line in ended.out.splitlines() if line.endswith(" 2 s")]
    assert len(table) == 2 and len(ended.out.splitlines()[0]) > 10
    assert ended.out.splitlines()[1].startswith("2 runs · "), "the title is one line"


def test_the_legend_names_every_group_whatever_it_is_called(drawn, monkeypatch):
    """matplotlib leaves out what begins with an underscore."""
    from matplotlib.figure import Figure

    shown, draw = [], Figure.legend

    def legend(self, handles, names, **options):
        shown.extend(names)
        return draw(self, handles, names, **options)

    monkeypatch.setattr(Figure, "legend", legend)
    for name in ("_hidden", "plain"):
        write_run(name, curve(100.0))
    drawn("_hidden", "plain", "--by", "folder")
    assert [name.strip("\u200b ") for name in shown] == ["_hidden", "plain"]


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
@pytest.mark.parametrize("by", [(), ("--by", "folder")])
def test_a_name_that_is_no_text_is_compared_like_any_other(shell, monkeypatch, by):
    monkeypatch.chdir(shell.folder)
    name = os.fsdecode(b"a\xff")
    write_one_each(".", curve(100.0), curve(50.0))
    Path("a").rename(name)
    ended = shell("compare", name, "b", *by, "--output-dir", "out")
    assert ended.code == 0, ended
    assert {path.name for path in Path("out").iterdir()} == set(OURS)
    assert len(rows("out/comparison_runs.csv")) == 2


# What is refused


REFUSED = {
    "": ("name the runs", "paceline compare"),
    "none": ("none", "is no directory"),
    "empty": ("empty", "holds no run"),
    "h/a0/run.json": ("run.json", "is no directory"),
    "h cart": ("env_id", "CartPole-v1", "Acrobot-v1", "one environment"),
    "h long": ("50,000 steps", "60,000 steps", "same budget"),
    "h timed": ("50,000 steps", "60 s", "same budget"),
    "h broken": ("broken", "can't be read as a run"),
    "h --by zork": ("--by zork", "no such option", "--by folder"),
    "h --by ppo": ("--by ppo", "no such option", "--by folder"),
    "h --by folder,lr": ("--by folder", "no such option", "--by folder alone"),
    "h --by lrr": ("--by lrr", "did you mean lr?"),
    "h --by learning_rate": ("--by learning_rate", "--by folder"),
    "h --at soon": ("'soon'", "10m", "500k"),
    "h --at 1..s": ("'1..s'", "10m", "500k"),
    "h --at 0s": ("'0s'", "10m"),
    "h --at 0": ("'0'", "500k"),
    "h --at 0.5": ("'0.5'", "500k"),
    "h --at -3": ("--at",),
    "h --at 1e999": ("1e999", "500k"),
    "h --at 99999999h": ("99999999h", "10m"),
    "h --target-return high": ("--target-return", "'high'"),
    "h --target-return nan": ("--target-return", "'nan'"),
    "h --targetreturn 3": ("--targetreturn", "--target-return"),
    "h --output-dir full": ("full", "not empty", "comparison.csv", "--overwrite"),
    "h --output-dir h/a0/run.json": ("h/a0/run.json", "can't be"),
    "h --output-dir h/a0/run.json/x": ("h/a0/run.json/x", "can't be"),
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_can_not_be_compared_is_refused_with_why(command, written, two, arguments):
    Path("empty").mkdir()
    Path("full").mkdir()
    Path("full/comparison.csv").write_text("mine")
    for name in ("cart", "long", "timed"):
        shutil.copytree(written / name, f"{name}")
    shutil.copytree(two / "a0", "broken")
    Path("broken/run.json").write_text("{")
    before = files_in(Path())
    ended = command("compare", *arguments.split())
    assert ended.code == 2 and not ended.out and "Traceback" not in ended.err
    assert ended.err.startswith("paceline: ") and len(ended.err.splitlines()) <= 3
    for word in REFUSED[arguments]:
        assert word in ended.err, f"{word!r} is not in: {ended.err}"
    assert "_at" not in ended.err
    assert files_in(Path()) == before


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", LONG),
        ("tune", "--output", f"{LONG}.yaml"),
        ("train", "--output-dir", LONG),
        ("resume", LONG),
        ("eval", LONG),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_path_that_no_file_system_takes_is_refused_by_its_name(command, arguments):
    ended = command(*arguments)
    assert ended.code == 2 and LONG in ended.err.splitlines()[0]
    assert "File name too long" in ended.err and "Traceback" not in ended.err


def test_what_may_not_be_read_is_refused_by_its_name(command, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("paceline.tools.bench.compare.command.find_runs", refuse)
    ended = command("compare", "theirs")
    assert (ended.code, ended.err) == (2, "paceline: theirs: Permission denied\n")


def test_an_error_of_the_system_that_names_no_file_is_not_the_users(monkeypatch):
    def broken(arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("paceline.cli.listing.command", broken)
    with pytest.raises(OSError, match="Input/output"):
        cli.run(["list"])


def test_help_names_every_option_and_imports_nothing_heavy(shell):
    code = "import sys, paceline.tools.bench.compare.command as c; c.command(['--help']);"
    code += "print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    out = shell.execute(sys.executable, "-c", code).out
    for flag in ("--by", "--at", "--target-return", "--output-dir", "--overwrite"):
        assert flag in out
    assert out.splitlines()[-1] == "False False"


# What is there already


def test_overwrite_replaces_the_comparison_and_nothing_else(compare, two):
    folder = Path("out")
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    compare("h")  # notes are no comparison
    before = files_in(folder)
    ended = compare("h/a0", "h/b0", code=2)
    assert "--overwrite" in ended.err and files_in(folder) == before
    compare("h/a0", "h/b0", "--overwrite")
    assert len(rows(folder / "comparison_runs.csv")) == 2
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", OURS)
def test_a_link_where_a_file_is_to_be_is_replaced_and_not_followed(compare, two, name):
    Path("precious").write_text("mine")
    Path("out").mkdir()
    Path(f"out/{name}").symlink_to(Path("precious").absolute())
    compare("h/a0", "h/b0", code=2)
    compare("h/a0", "h/b0", "--overwrite")
    assert Path("precious").read_text() == "mine"
    assert not Path(f"out/{name}").is_symlink()


def test_a_comparison_that_can_not_be_written_leaves_the_old_one_whole(compare, two):
    compare("h")
    folder = Path("out")
    (folder / "comparison.png").unlink()
    (folder / "comparison.png").mkdir()
    (folder / "comparison.png" / "x").touch()
    before = files_in(folder)
    ended = compare("h/a0", "h/b0", "--overwrite", code=2)
    assert "can't be written" in ended.err and files_in(folder) == before
    assert not list(folder.glob(".tmp-*"))


def test_runs_are_never_changed_by_being_compared(compare, two):
    before = files_in(two)
    compare("h")
    assert files_in(two) == before


# Real runs


def test_real_runs_and_the_folder_of_a_benchmark(drawn, shell):
    """Two short ones as training writes them, laid out as bench does."""
    for algo in ("ppo", "a2c"):
        options = ("--algo", algo, "--total-steps", 4000, "--eval-episodes", 2)
        shell.train_here(f"bench/runs/{algo}-sequential/seed-0", *options)
    ended = drawn("bench")
    assert counts("out") == [("A2C · sequential", 1), ("PPO · sequential", 1)]
    for group in rows("out/comparison.csv"):
        assert float(group["score"]) > 5 and float(group["evaluation"]) > 5
        assert float(group["fps"]) > 100 and float(group["startup"]) > 0
        assert None not in (*group, *group.values())  # as many values as columns
    assert "A2C · sequential against PPO" in ended.out
