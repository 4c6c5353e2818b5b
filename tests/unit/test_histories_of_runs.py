"""Run directories as a comparison reads them: whole, damaged, absurd; and which belong together."""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
from collections import deque
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from histories import amend, curve, write_run

from paceline.errors import BadInput
from paceline.tools.bench.compare.groups import comparable, grouped
from paceline.tools.bench.compare.history import find_runs, read_run


def rewrite(run, change):
    """Every report of the run, changed."""
    path = run / "metrics.jsonl"
    lines = [change(k, json.loads(line)) for k, line in enumerate(path.read_text().splitlines())]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@contextmanager
def at_most(seconds):
    """A read that waits for somebody would wait for ever."""

    def late(*_):
        pytest.fail(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", curve(100.0, lines=20), evaluation=101.5)


# A whole run


def test_a_whole_run_is_done_and_says_what_its_files_say(run):
    found = read_run(run)
    assert (found.state, found.lost, found.evaluation) == ("done", 0, 101.5)
    assert found.last("time") == 20.0 and found.last("steps") == 20_000 and found.fps == 1000.0
    assert found.startup == 2.0
    shares = {"rollout": 0.3, "wait": 0.1, "learn": 0.5, "sync": 0.0, "other": 0.1}
    assert found.shares == pytest.approx(shares)


@pytest.mark.parametrize(
    "other",
    [
        {"checkpoint": "checkpoints/00000019"},
        {"checkpoint": None},
        {"checkpoint": 7},
        {"sampled": True},
        {"cut_short": True},
        {"env_id": "Acrobot-v1"},
    ],
    ids=str,
)
def test_an_evaluation_of_another_moment_or_made_otherwise_is_not_that_of_the_run(run, other):
    amend(run / "eval.json", **other)
    assert read_run(run).evaluation is None


def test_an_empty_configuration_is_one_of_defaults(run):
    (run / "config.yaml").write_text("")
    assert read_run(run).config.seed == 0


# Damaged and absurd files


@pytest.mark.parametrize(
    "garbage",
    [
        bytes(range(256)) * 4,
        b"\x00" * 1000,
        b"[" * 50_000,
        b'{"iter": ' * 10_000,
        b'null\n[]\n3\n"text"\n{}\n',
        b'{"iter": null}\n{"iter": "7"}\n{"iter": NaN}\n{"iter": [1]}\n',
        '{"iter": 1, "steps": \u2028}'.encode(),
    ],
    ids=["binary", "zeros", "brackets", "nested", "no reports", "no iteration", "separator"],
)
def test_garbage_among_the_lines_or_a_torn_last_one_is_counted_and_passed_over(run, garbage):
    whole = read_run(run)
    text = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    middle = [*text[:5], garbage.rstrip(b"\n") + b"\n", *text[5:]]
    torn = [*text, text[-1][:57]]
    for lines in (middle, torn):
        (run / "metrics.jsonl").write_bytes(b"".join(lines))
        found = read_run(run)
        assert found.lost > 0 and found.state == "done"
        np.testing.assert_array_equal(found.returns, whole.returns)
    assert found.lost == 1


@pytest.mark.parametrize("content", [None, b"", b"\n\n", bytes(range(256))])
def test_a_run_without_a_report_is_cut_short_and_has_no_score(run, content):
    (run / "metrics.jsonl").unlink()
    if content is not None:
        (run / "metrics.jsonl").write_bytes(content)
    found = read_run(run)
    assert found.state == "cut short"
    assert found.score("steps", math.inf) is None and found.reached(1.0) is None
    assert found.fps is None and found.shares is None and len(found.returns) == 0
    assert np.isnan(found.on("time", np.array([1.0, 2.0]))).all()


NUMBERS = ("time", "steps", "episodes", "episode_return", "memory_mb", "cpu_percent", "t_learn")
ABSURD = (None, "many", [], {}, True, math.nan, math.inf, -math.inf)
ABSURD += (-5, 0, 1e299, -1e299, 10**300, 10**400, 1e-320)


@pytest.mark.parametrize("where", ["last", "every"])
@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.filterwarnings("error")
def test_an_absurd_number_or_none_at_all_never_stops_the_reading(run, name, where):
    original = (run / "metrics.jsonl").read_text()
    for value in (*ABSURD, "missing"):
        (run / "metrics.jsonl").write_text(original)

        def change(k, line, value=value):
            if where == "last" and k < 19:
                return line
            left = {key: old for key, old in line.items() if key != name}
            return left if value == "missing" else left | {name: value}

        rewrite(run, change)
        found = read_run(run)
        assert found.state in ("done", "cut short"), value
        assert len(found.returns) == 20, value
        found.score("steps", math.inf), found.reached(50.0), found.fps, found.shares
        found.on("time", np.linspace(0, 20, 7))


@pytest.mark.parametrize("budget", [{"duration": "20s"}, {"total_steps": 20_000}])
def test_a_run_whose_last_report_lacks_what_its_budget_counts_is_not_done(tmp_path, budget):
    run = write_run(tmp_path / "run", curve(100.0, lines=10), **budget)
    assert read_run(run).state == "cut short"
    lost = "time" if "duration" in budget else "steps"
    rewrite(run, lambda k, line: line if k < 9 else line | {lost: None})
    assert read_run(run).state == "cut short"


def test_episodes_of_unknown_return_do_not_count_as_returns_of_zero(tmp_path):
    """With returns of −200, a zero would be a triumph."""
    run = write_run(tmp_path / "run", [-200.0] * 10, episodes_each=60)
    rewrite(run, lambda k, line: line if k != 9 else line | {"episode_return": None})
    assert read_run(run).score("steps", math.inf) == pytest.approx(-200.0)


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{", '{"mean": 1' + "0" * 400 + ', "checkpoint": "00000020"}', "\x00"]
)
def test_an_unreadable_evaluation_is_none(run, text):
    (run / "eval.json").write_text(text)
    assert read_run(run).evaluation is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", None),
        ("run.json", ""),
        ("run.json", "[]"),
        ("run.json", "[" * 100_000),
        ("run.json", "\x00\x01"),
        ("config.yaml", "algo: sarsa"),
        ("config.yaml", "- a\n- b"),
        ("config.yaml", "!!python/object/apply:os.system ['touch owned']"),
        ("config.yaml", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"),
    ],
)
def test_what_is_no_run_is_refused_by_its_name(run, name, text):
    (run / name).unlink()
    if text is not None:
        (run / name).write_text(text)
    with pytest.raises(BadInput) as refused:
        read_run(run)
    assert str(run) in str(refused.value) and len(str(refused.value)) < 1000


@pytest.mark.parametrize("name", ["config.yaml", "run.json", "metrics.jsonl"])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_a_file_that_leads_elsewhere_is_refused(run, tmp_path, name, kind):
    kept = tmp_path / "elsewhere"
    (run / name).rename(kept)
    if kind == "link":
        (run / name).symlink_to(kept)
    elif kind == "dangling":
        (run / name).symlink_to(tmp_path / "nowhere")
    elif kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).mkdir()
    with at_most(5), pytest.raises(BadInput) as refused:
        read_run(run)
    assert str(run) in str(refused.value)


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "folder"])
def test_a_strange_lock_is_refused_and_keeps_nobody_waiting(tmp_path, kind):
    run = write_run(tmp_path / "run", curve(9.0, lines=3), total_steps=10_000)
    if kind == "folder":
        (run / ".lock").mkdir()
    else:
        place = run / ".lock" if kind == "pipe" else tmp_path / "pipe"
        os.mkfifo(place)
        if kind != "pipe":
            (run / ".lock").symlink_to(place)
    with at_most(5), pytest.raises(BadInput, match="lock"):
        read_run(run)


# How far a run has come


def test_a_run_that_somebody_writes_is_still_going_and_one_that_nobody_does_was_cut_short(tmp_path):
    run = write_run(tmp_path / "run", curve(9.0, lines=3), total_steps=10_000)
    assert read_run(run).state == "cut short"
    with (run / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_run(run).state == "still going"
    assert read_run(run).state == "cut short"
    with (run / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # reading does not keep it


def test_a_timed_run_is_done_when_its_time_is_spent(tmp_path):
    assert read_run(write_run(tmp_path / "a", curve(9.0, lines=5), duration="5s")).state == "done"
    short = write_run(tmp_path / "b", curve(9.0, lines=5), duration="5.1s")
    assert read_run(short).state == "cut short"


def test_a_run_that_stopped_at_its_return_is_done(tmp_path):
    run = write_run(tmp_path / "run", [50.0] * 5, total_steps=10**6, stop_at_return=40.0)
    assert read_run(run).state == "cut short"
    saved = run / "checkpoints" / "00000005"
    saved.mkdir(parents=True)
    (saved / "state.json").write_text(json.dumps({"recent": [50.0] * 100}))
    assert read_run(run).state == "done"
    (saved / "state.json").write_text(json.dumps({"recent": [10**400]}))
    assert read_run(run).state == "cut short"


# Curves


@pytest.mark.parametrize("seed", range(5))
def test_the_return_is_the_mean_of_the_last_hundred_episodes(tmp_path, seed):
    """To nine digits, as a naive loop over episodes has it, each with its report's mean return."""
    random = np.random.default_rng(seed)
    returns, counts = random.normal(0, 50, 40), random.integers(0, (3, 30, 150, 400, 60)[seed], 40)
    run = write_run(tmp_path / "run", returns)
    rewrite(run, lambda k, line: line | {"episodes": int(counts[k])})
    found, recent = read_run(run).returns, deque(maxlen=100)
    for k in range(40):
        recent.extend([returns[k]] * counts[k])
        expected = np.mean(recent) if recent else math.nan
        assert found[k] == pytest.approx(expected, rel=1e-9, nan_ok=True)


def test_the_score_at_a_point_is_that_of_the_last_report_up_to_there(tmp_path):
    run = read_run(write_run(tmp_path / "run", [1.0, 2.0, 3.0, 4.0]))
    assert run.score("time", 0.5) is None
    assert run.score("time", 1.0) == 1.0 and run.score("time", 2.9) == 2.0
    assert run.score("steps", 3000) == 3.0 and run.score("steps", 2999) == 2.0
    assert run.score("time", math.inf) == run.score("steps", 10**9) == 4.0


def test_a_target_is_reached_by_a_hundred_episodes_and_not_by_fewer(tmp_path):
    lucky = write_run(tmp_path / "lucky", [500.0] * 3 + [500.0], episodes_each=30)
    assert read_run(lucky).reached(475.0) == 3  # 120 episodes, the first time that 100 are there
    few = write_run(tmp_path / "few", [500.0] * 3, episodes_each=33)
    assert read_run(few).reached(475.0) is None
    rising = write_run(tmp_path / "rising", [0.0, 500.0, 500.0], episodes_each=50)
    assert read_run(rising).reached(475.0) == 2  # the first 50 have to be gone
    assert read_run(rising).reached(250.0) == 1


def test_a_curve_is_unknown_before_the_first_episode_and_after_the_end(tmp_path):
    run = write_run(tmp_path / "run", [0.0, 10.0, 20.0, 30.0])
    rewrite(run, lambda k, line: line if k else line | {"episodes": 0, "episode_return": None})
    found = read_run(run).on("time", np.array([0.5, 1.0, 2.0, 2.5, 4.0, 4.1]))
    np.testing.assert_allclose(found, [math.nan, math.nan, 10.0, 15.0, 30.0, math.nan])


# Where runs are


def test_runs_are_found_wherever_they_lie_and_nothing_else_is(tmp_path):
    for place in ("a", "deep/er/b", "deep/c"):
        write_run(tmp_path / place, [1.0])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("a: 1")  # of something else
    assert find_runs(tmp_path) == [tmp_path / p for p in ("a", "deep/c", "deep/er/b")]
    assert find_runs(tmp_path / "deep" / "c") == [tmp_path / "deep" / "c"]
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none", tmp_path / "empty", tmp_path / "a" / "run.json"):
        with pytest.raises(BadInput, match=path.name):
            find_runs(path)


def test_a_loop_of_links_does_not_hold_the_search_up(tmp_path):
    write_run(tmp_path / "a", [1.0])
    (tmp_path / "loop").symlink_to(tmp_path)
    with at_most(5):
        assert find_runs(tmp_path) == [tmp_path / "a"]


# Which belong together


def made(folder, *runs):
    """Names of groups, and how many runs each has."""
    given = []
    for k, options in enumerate(runs):
        path = write_run(Path(folder) / f"run-{k}", [1.0, 2.0], **options)
        given.append((path, read_run(path)))
    comparable([run for _, run in given], anywhere=False)
    return {name: len(runs) for name, runs in grouped(given, None).items()}


BOTH = ("ppo", "a2c")
WAYS = {
    "sequential": {},
    "2 workers": {"num_workers": 2},
    "2 ranks": {"ranks": 2},
    "2 ranks × 2 workers": {"ranks": 2, "num_workers": 2},
}
NAMED = {
    "seeds alone make no groups": (
        [{"seed": seed} for seed in range(4)],
        {"PPO · sequential": 4},
    ),
    "algorithms and ways make groups": (
        [{"algo": algo, "seed": k, **way} for algo in BOTH for way in WAYS.values() for k in (0, 1)]
        + [
            {"algo": "a3c", "num_workers": 2},
            {"algo": "impala"},
            {"algo": "a2c", "num_workers": 1},
        ],
        {f"{algo.upper()} · {name}": 2 for algo in BOTH for name in WAYS}
        | {"A3C · 2 learners": 1, "IMPALA · sequential": 1, "A2C · 1 worker": 1},
    ),
    "a sweep is named by what was swept": (
        [{"lr": lr, "seed": seed} for lr in (0.1, 0.01, 0.0003) for seed in (0, 1)],
        {"lr 0.1": 2, "lr 0.01": 2, "lr 0.0003": 2},
    ),
    "a sweep of two algorithms is named by both": (
        [{"algo": algo, "lr": lr} for algo in BOTH for lr in (0.1, 0.01)],
        {f"{algo.upper()} · sequential · lr {lr}": 1 for algo in BOTH for lr in (0.1, 0.01)},
    ),
    "options of a section are named": (
        [{"ppo": {"clip": 0.1}}, {"ppo": {"clip": 0.3}}],
        {"ppo.clip 0.1": 1, "ppo.clip 0.3": 1},
    ),
    "layers are told apart": (
        [{"hidden": (64, 64)}, {"hidden": (32,)}],
        {"hidden 64,64": 1, "hidden 32": 1},
    ),
    "values that look alike when shortened are told apart": (
        [{"lr": 0.001}, {"lr": 0.0010000001}],
        {"lr 0.001": 1, "lr 0.0010000001": 1},
    ),
    "what alters no learning makes no groups": (
        [{"track": "none"}, {"keep": 9}, {"log_every": 2}, {"save_every": 100}],
        {"PPO · sequential": 4},
    ),
    "the same budget said otherwise is the same": (
        [{"duration": "60s"}, {"duration": "1m"}],
        {"PPO · sequential": 2},
    ),
    "an environment stepped otherwise is the same, and a group of its own": (
        [{}, {"env": {"vector": True}}],
        {"env.vector false": 1, "env.vector true": 1},
    ),
}


@pytest.mark.parametrize("claim", NAMED)
def test_groups_are_named_by_what_differs_and_no_more(tmp_path, claim):
    runs, expected = NAMED[claim]
    assert made(tmp_path, *runs) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ({}, {"env_id": "Acrobot-v1"}, ("CartPole-v1", "Acrobot-v1")),
        ({}, {"env": {"time_limit": 50}}, ("time_limit", "50")),
        ({}, {"env": {"kwargs": {"sutton_barto_reward": True}}}, ("kwargs", "sutton")),
        ({"total_steps": 2000}, {"total_steps": 2001}, ("2,000 steps", "2,001 steps")),
        ({"total_steps": 2000}, {"duration": "2s"}, ("2,000 steps", "2 s")),
        ({"duration": "2s"}, {"duration": "1m"}, ("2 s", "60 s")),
        ({}, {"stop_at_return": 100.0}, ("return of 100",)),
    ],
)
def test_other_environments_and_other_budgets_are_refused_and_named(tmp_path, ours, theirs, words):
    with pytest.raises(BadInput) as refused:
        made(tmp_path, ours, theirs)
    for word in (*words, "run-0", "run-1"):
        assert word in str(refused.value)
