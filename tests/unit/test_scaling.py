"""What `paceline scale` makes of metrics: rates, ratios, intervals and the sentence about them."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
from measuring import report

from paceline.errors import BadInput
from paceline.tools.bench.metrics import PHASES, measure, measure_together, time_to_score
from paceline.tools.bench.runs import Cell, RunFailed, run_cell
from paceline.tools.bench.scale import jobs
from paceline.tools.bench.scale_plan import parse_scale
from paceline.tools.bench.scale_plot import draw
from paceline.tools.bench.scale_report import Measurement, Spread, bottleneck, summarize, table


def a_run(kind, count, fps, repeat=1, score=None, **shares):
    """A measurement with these shares of an iteration; of ranks or workers, and of a ceiling."""
    return Measurement(
        kind=kind,
        count=count,
        repeat=repeat,
        seed=0,
        num_envs=8,
        world_size=count if kind == "ranks" else 1,
        global_batch=512,
        iters=10,
        steps=1000,
        seconds=1000 / fps,
        fps=fps,
        t_iter=100 / fps,
        memory_mb=200.0 * max(count, 1),
        time_to_score=score,
        **{f"share_{phase}": shares.get(phase, 0.0) for phase in PHASES},
    )


def summary(*runs, ceilings=(1000.0,)):
    """Rows of these runs; in each repeat, 1, 2, … independent runs made so many steps/s."""
    beside = [
        a_run("ceiling", count, fps, repeat)
        for repeat in {run.repeat for run in runs}
        for count, fps in enumerate(ceilings, 1)
    ]
    return summarize([*runs, *beside])


# One run.


def test_rates_leave_the_warm_up_out():
    lines = [report(1, t_iter=5.0), report(2, t_iter=5.0), report(3), report(4)]
    found = measure(lines, warmup=2)
    assert (found["iters"], found["steps"], found["memory_mb"]) == (2, 200, 104.0)
    assert found["fps"] == pytest.approx(1000.0)
    assert found["t_iter"] == pytest.approx(0.1)
    assert measure(lines, warmup=0)["fps"] == pytest.approx(400 / 10.2)


def test_a_report_that_began_in_the_warm_up_is_left_out_whole():
    lines = [report(10, covered=10), report(20, covered=10), report(25, t_iter=0.2, covered=5)]
    found = measure(lines, warmup=5)
    assert found["iters"] == 15
    assert found["seconds"] == pytest.approx(10 * 0.1 + 5 * 0.2)
    assert found["fps"] == pytest.approx(1500 / 2.0)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"rollout": 0.05, "wait": 0.03, "sync": 0.01, "learn": 0.02, "other": 0.02}, (0.2, 0.3)),
        ({"rollout": 0.08, "learn": 0.12}, (0.4, 0.0)),
    ],
    ids=["waiting is not counted twice", "learners that work at the same time"],
)
def test_shares_of_phases_sum_to_one(times, expected):
    lines = [report(n) | {f"t_{phase}": t for phase, t in times.items()} for n in (1, 2, 3)]
    found = measure(lines, warmup=1)
    shares = {phase: found[f"share_{phase}"] for phase in PHASES}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert (shares["rollout"], shares["wait"]) == pytest.approx(expected)
    assert found["t_iter"] == pytest.approx(0.1)


def test_a_run_that_ends_within_the_warm_up_is_refused():
    with pytest.raises(BadInput, match=r"3 iterations.*warm-up of 5.*--warmup-iters"):
        measure([report(1), report(2), report(3)], warmup=5)


# Independent runs.


def test_runs_side_by_side_are_measured_while_all_are_at_work():
    slow = [report(n, t_iter=0.2) for n in range(1, 11)]  # from 0 to 2 s, 500 steps/s
    fast = [report(n, t_iter=0.1) for n in range(1, 11)]  # from 0.5 to 1.5 s, 1000 steps/s
    found = measure_together([(100.0, slow), (100.5, fast)], warmup=1)
    assert found["seconds"] == pytest.approx(0.9)
    assert found["fps"] == pytest.approx(1500.0)


def test_one_run_side_by_side_is_that_run():
    lines = [report(n) for n in range(1, 9)]
    assert measure_together([(7.0, lines)], 3)["fps"] == pytest.approx(measure(lines, 3)["fps"])


def test_runs_that_do_not_overlap_say_nothing():
    lines = [report(n) for n in range(1, 5)]
    with pytest.raises(BadInput, match="did not overlap"):
        measure_together([(0.0, lines), (10.0, lines)], warmup=1)


# Time to score.


@pytest.mark.parametrize(
    ("recent", "reached"),
    [([20.0] * 100, True), ([19.0] * 100, False), ([20.0] * 99, False)],
    ids=["reached", "too low", "too few"],
)
def test_time_to_score_counts_if_the_last_hundred_episodes_are_good_enough(
    tmp_path, recent, reached
):
    for iteration, returns in ((2, [0.0]), (3, recent)):
        folder = tmp_path / "checkpoints" / f"{iteration:08d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"recent": returns}))
    found = time_to_score(tmp_path, [report(1), report(2), report(3)], target=20.0)
    assert found == (pytest.approx(0.3) if reached else None)


# Repeats together.


def test_the_interval_is_students():
    values = [9.0, 10.0, 11.0]
    spread = Spread.of(values)
    assert (spread.mean, spread.std) == (10.0, statistics.stdev(values))
    assert spread.ci_high - spread.mean == pytest.approx(4.30 * 1.0 / math.sqrt(3))
    assert spread.mean - spread.ci_low == pytest.approx(spread.ci_high - spread.mean)


def test_one_repeat_has_no_interval_none_no_mean_and_very_many_have_both():
    assert Spread.of([3.0]) == Spread(3.0, None, None, None)
    assert Spread.of([]) == Spread(None)
    assert Spread.of([1.0, 2.0] * 20).ci_low < 1.5


def test_speed_up_is_taken_within_a_repeat():
    """The machine was twice as fast in the second one, for everybody."""
    rates = {(1, 1): 1000.0, (2, 1): 1500.0, (1, 2): 2000.0, (2, 2): 3000.0}
    one, two = summary(*(a_run("ranks", n, fps, repeat) for (n, repeat), fps in rates.items()))
    assert (one.speedup.mean, two.speedup.mean) == (1.0, 1.5)
    assert two.speedup.std == 0.0 and two.fps.std > 0
    assert (two.efficiency.mean, two.fps.mean) == pytest.approx((0.75, 2250.0))


def test_the_smallest_count_is_what_others_are_measured_against():
    rows = summary(a_run("workers", 4, 3000.0), a_run("workers", 2, 2000.0))
    assert [row.count for row in rows] == [2, 4]
    assert (rows[1].speedup.mean, rows[1].ideal) == (1.5, 2.0)
    assert rows[1].efficiency.mean == pytest.approx(0.75)


def test_no_workers_count_as_one_process():
    rows = summary(*(a_run("workers", n, 100.0 * (n + 1)) for n in (0, 1, 2)))
    assert [row.ideal for row in rows] == [1.0, 1.0, 2.0]


def test_the_ceiling_is_what_independent_runs_gain_in_the_same_repeat():
    runs = a_run("workers", 0, 1000.0), a_run("workers", 2, 1400.0)
    none, two = summary(*runs, ceilings=(1000.0, 1750.0))
    assert (none.ceiling.mean, two.ceiling.mean) == (1.0, 1.75)
    assert two.of_ceiling.mean == pytest.approx(0.8)


def test_the_ceiling_of_more_processes_than_cpus_is_that_of_the_cpus(monkeypatch):
    runs = [a_run("workers", n, 1000.0) for n in (1, 2, 8)]
    rows = summary(*runs, ceilings=(1000.0, 1900.0))
    assert [row.ceiling.mean for row in rows] == [1.0, 1.9, 1.9]
    monkeypatch.setattr("paceline.tools.bench.scale.available_cpus", lambda: 2)
    found = jobs(plan("--num-workers 0,2,8"), 0)
    assert [size for kind, size in found if kind == "ceiling"] == [2]


def test_time_to_score_is_compared_where_both_reached_it():
    scores = {(1, 1): 30.0, (2, 1): 20.0, (1, 2): None, (2, 2): 25.0}
    one, two = summary(
        *(a_run("ranks", n, 500.0 * n, repeat, score) for (n, repeat), score in scores.items())
    )
    assert (one.reached, two.reached) == (1, 2)
    assert two.score_speedup == Spread(1.5)
    assert two.time_to_score.mean == 22.5


def test_a_summary_row_is_flat_and_has_every_column():
    row = summary(a_run("ranks", 1, 1000.0, learn=1.0))[0].flat()
    spreads = ("fps", "t_iter", "speedup", "efficiency", "ceiling", "of_ceiling")
    spreads += ("time_to_score", "score_speedup")
    parts = {f"{n}_{part}" for n in spreads for part in ("mean", "std", "ci_low", "ci_high")}
    plain = {"count", "num_envs", "world_size", "global_batch", "repeats", "ideal"}
    plain |= {"memory_mb", "reached"}
    assert row.keys() == parts | plain | {f"share_{phase}" for phase in PHASES}
    assert row["share_learn"] == 1.0 and row["fps_std"] is None
    json.dumps(row)


# The sentence.

HALF = {"rollout": 0.5, "learn": 0.5}


@pytest.mark.parametrize(
    ("kind", "fps", "ceiling", "after", "words"),
    [
        (
            "workers",
            1333.0,
            1950.0,
            {"wait": 0.33, "learn": 0.67},
            ("1.33 times", "1.95", "bottleneck is learning", "67%", "ranks"),
        ),
        (
            "ranks",
            1320.0,
            1950.0,
            {"rollout": 0.33, "learn": 0.33, "sync": 0.34},
            ("bottleneck is the exchange of gradients", "34%", "2 ranks share 1 CPU"),
        ),
        ("workers", 1050.0, 1950.0, {"wait": 0.7, "learn": 0.3}, ("bottleneck is sampling",)),
        ("ranks", 1350.0, 1400.0, HALF, ("bottleneck is the machine itself", "1 CPU")),
        ("ranks", 1900.0, 1950.0, HALF, ("no bottleneck",)),
        ("workers", 800.0, 1950.0, {"wait": 1.0}, ("0.80 times", "The fastest is no workers.")),
    ],
    ids=["learning", "exchange", "waiting is sampling", "machine", "none", "slower"],
)
def test_the_bottleneck_is_what_lost_most_against_the_ideal(kind, fps, ceiling, after, words):
    runs = a_run(kind, int(kind == "ranks"), 1000.0, **HALF), a_run(kind, 2, fps, **after)
    said = bottleneck(summary(*runs, ceilings=(1000.0, ceiling)), kind, cpus=1)
    assert all(word in said for word in words), said


def test_a_difference_within_the_noise_is_called_so():
    rates = {(1, n): 1000.0 for n in range(3)} | {(2, 0): 1100.0, (2, 1): 900.0, (2, 2): 1050.0}
    rows = summary(*(a_run("ranks", n, fps, repeat, **HALF) for (n, repeat), fps in rates.items()))
    assert "includes 1" in bottleneck(rows, "ranks", 2)


def test_a_ceiling_that_jumps_is_not_taken_for_the_machines():
    runs = [
        a_run(kind, count, fps, repeat, **HALF)
        for repeat, ceiling in enumerate((1050.0, 2000.0, 1100.0))
        for kind, rates in (("ranks", (1000.0, 1400.0)), ("ceiling", (1000.0, ceiling)))
        for count, fps in enumerate(rates, 1)
    ]
    said = bottleneck(summarize(runs), "ranks", 2)
    assert "was not quiet" in said and "machine itself" not in said


def test_a_single_count_has_nothing_to_be_compared_with():
    assert "nothing to compare" in bottleneck(summary(a_run("ranks", 1, 1.0)), "ranks", 2)


# What is shown.


def test_the_table_has_a_line_for_each_count_and_says_what_was_not_reached():
    runs = a_run("ranks", 1, 1000.0, score=9.0, **HALF), a_run("ranks", 2, 1500.0, **HALF)
    head, one, two = table(summary(*runs), "ranks").splitlines()
    assert head.split()[:3] == ["ranks", "steps/s", "speed-up"]
    assert one.split()[0] == "1" and "9.0 s" in one
    assert "1.50" in two and "75%" in two and "not reached" in two
    assert len({len(x) for x in (head, one, two)}) == 1


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("score", [None, 12.0])
def test_plots_can_be_drawn_of_anything_measured(tmp_path, repeats, score):
    runs = [
        a_run("workers", count, 900.0 * max(count, 1) + 50 * repeat, repeat, reached, **HALF)
        for repeat in range(repeats)
        for count, reached in ((0, score), (2, None), (4, score))
    ]
    rows = summary(*runs, ceilings=(900.0, 1800.0, 2700.0))
    draw(rows, "workers", "Title", "a note", tmp_path / "plots.png")
    assert (tmp_path / "plots.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


# The plan.


def plan(line):
    return parse_scale(line.split())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "count", "rows"),
    [
        ("--ranks 1,2", 2, 8 * 16),
        ("--ranks 1,2 --weak", 2, 2 * 8 * 16),
        ("--num-workers 0,2", 2, 8 * 16),
        ("--num-workers 1,2 --algo a3c", 2, 4 * 16),  # each learner updates by itself
    ],
)
def test_the_global_batch_is_the_rows_of_one_update_over_all_ranks(line, count, rows):
    assert plan(f"{line} --num-envs 8 --rollout-steps 16").global_batch(count) == rows


@pytest.mark.parametrize(
    ("arguments", "each", "whole"),
    [
        ("--num-workers 0,1,2 --num-envs 16", [16, 16, 16], [16, 16, 16]),
        ("--num-workers 0,1,2 --num-envs 16 --weak", [16, 16, 32], [16, 16, 32]),
        ("--num-workers 1,2 --num-envs-per-worker 8", [16, 16], [16, 16]),
        ("--num-workers 1,2 --num-envs-per-worker 8 --weak", [8, 16], [8, 16]),
        ("--ranks 2,1 --num-envs 16", [16, 8], [16, 16]),
        ("--ranks 2,1 --num-envs 16 --weak", [16, 16], [16, 32]),
    ],
)
def test_strong_scaling_keeps_the_environments_of_all_and_weak_those_of_each(
    arguments, each, whole
):
    """A rank is told its own environments, a learner with workers those of all."""
    made = plan(arguments)
    assert [int(made.options(n)["num_envs"]) for n in made.counts] == each
    assert [made.num_envs(n) for n in made.counts] == whole


def test_one_process_is_asked_for_without_what_only_goes_with_more():
    stream = plan("--num-workers 0,2 --algo impala --sampler stream")
    assert stream.base.resolved_sampler == "serial" and stream.options(0)["sampler"] == "auto"
    assert stream.options(2)["sampler"] == "stream"
    hogwild = plan("--num-workers 1,2 --algo a3c")
    assert (hogwild.base.algo, hogwild.base.resolved_sync) == ("a2c", "local")
    assert "sync" not in hogwild.options(2) and hogwild.options(2)["algo"] == "a3c"
    assert plan("--ranks 1,2 --algo ddppo").base.ranks == 1


def test_the_configurations_that_come_with_it_can_be_measured():
    configs = Path(__file__).parents[2] / "configs"
    for file in sorted(path for path in configs.iterdir() if path.is_file()):
        plan(f"--num-workers 0,1,2 --config {file}")
    for name in ("ppo_sequential.yaml", "ppo_parallel.yaml", "impala_parallel.yaml"):
        plan(f"--ranks 1,2 --config {configs / name}")


def test_ranks_keep_the_number_of_minibatches_where_their_size_was_given():
    options = plan("--ranks 1,2 --num-envs 16 --rollout-steps 64 --batch-size 256").options(2)
    assert options["minibatches"] == "4" and "batch_size" not in options


def test_options_of_train_are_passed_on_and_each_repeat_has_its_seed():
    made = plan("--num-workers 1 --algo a2c --seed 5 --no-pin --a2c.vf-coef 1")
    options = made.options(1, repeat=2)
    assert (options["algo"], options["seed"]) == ("a2c", "7")
    assert (options["pin"], options["a2c.vf_coef"]) == ("false", "1")


def test_the_budget_of_a_file_is_lifted(tmp_path):
    (tmp_path / "c.yaml").write_text("total_steps: 1000\nnum_workers: 2\nnum_envs: 4\n")
    made = plan("--num-workers 0,1 --config c.yaml")
    assert made.unlimited.keys() == {"total_steps", "stop_at_return"}
    assert made.base.num_workers == 0 and made.options(1)["num_envs"] == "4"


def test_a_budget_may_limit_the_time_to_score():
    made = plan("--num-workers 0,1 --target-return 100 --total-steps 50k")
    assert made.limits == {"total_steps": "50k"} and made.target == 100.0


def test_repeats_alternate_and_a_run_alone_is_its_own_ceiling():
    made = plan("--num-workers 0,2")
    assert jobs(made, 0) == [("workers", 0), ("ceiling", 2), ("workers", 2)]
    assert jobs(made, 1) == jobs(made, 0)[::-1]
    assert jobs(plan("--num-workers 1,2"), 0)[:2] == [("ceiling", 1), ("ceiling", 2)]


def test_a_run_that_fails_says_what_it_said_last_and_gives_its_code(tmp_path):
    cell = Cell(name="x", options={"env_id": "nope-v0"}, folder=tmp_path / "run")
    with pytest.raises(RunFailed, match="exited with 2") as error:
        run_cell(cell)
    assert error.value.exit_code == 2 and "nope" in error.value.reason
    assert (tmp_path / "run.log").exists()
