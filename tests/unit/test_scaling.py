"""What `paceline scale` makes of metrics: rates, ratios, intervals and the sentence about them."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from paceline.errors import BadInput
from paceline.tools.bench.metrics import (
    PHASES,
    measure,
    measure_together,
    read_metrics,
    time_to_score,
)
from paceline.tools.bench.runs import Cell, RunFailed, run_cell
from paceline.tools.bench.scale import jobs
from paceline.tools.bench.scale_plan import parse_scale
from paceline.tools.bench.scale_plot import draw
from paceline.tools.bench.scale_summary import Measurement, Spread, summarize
from paceline.tools.bench.scale_text import bottleneck, table


def line(iteration, t_iter=0.1, steps=100, covered=1, **phases):
    """A report in which learning takes what the phases given do not."""
    times = {f"t_{phase}": phases.get(phase, 0.0) for phase in PHASES}
    times["t_learn"] = t_iter - sum(phases.values()) + phases.get("wait", 0.0)
    return {
        "iter": iteration,
        "steps_global": steps * covered,
        "steps": steps * iteration,
        "time": t_iter * iteration,
        "t_iter": t_iter,
        "memory_mb": 100.0 + iteration,
        **times,
    }


def a_run(kind, count, fps, repeat=1, score=None, **shares):
    known = {f"share_{phase}": shares.get(phase, 0.0) for phase in PHASES}
    return Measurement(
        kind=kind,
        count=count,
        repeat=repeat,
        seed=0,
        num_envs=8,
        iters=10,
        steps=1000,
        seconds=1000 / fps,
        fps=fps,
        t_iter=100 / fps,
        memory_mb=200.0 * max(count, 1),
        time_to_score=score,
        **known,
    )


# One run.


def test_rates_leave_the_warm_up_out():
    lines = [line(1, t_iter=5.0), line(2, t_iter=5.0), line(3), line(4)]
    found = measure(lines, warmup=2)
    assert found["iters"] == 2 and found["steps"] == 200
    assert found["fps"] == pytest.approx(1000.0)
    assert found["t_iter"] == pytest.approx(0.1)
    assert measure(lines, warmup=0)["fps"] == pytest.approx(400 / 10.2)


def test_a_report_that_began_in_the_warm_up_is_left_out_whole():
    lines = [line(10, covered=10), line(20, covered=10), line(25, t_iter=0.2, covered=5)]
    found = measure(lines, warmup=5)
    assert found["iters"] == 15
    assert found["seconds"] == pytest.approx(10 * 0.1 + 5 * 0.2)
    assert found["fps"] == pytest.approx(1500 / 2.0)


def test_shares_of_phases_sum_to_one_and_waiting_is_not_counted_twice():
    lines = [line(n, rollout=0.05, wait=0.03, sync=0.01, other=0.02) for n in (1, 2, 3)]
    found = measure(lines, warmup=1)
    shares = {phase: found[f"share_{phase}"] for phase in PHASES}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["rollout"] == pytest.approx(0.2) and shares["wait"] == pytest.approx(0.3)


def test_shares_sum_to_one_also_where_learners_work_at_the_same_time():
    lines = [line(n) | {"t_rollout": 0.08, "t_learn": 0.12} for n in (1, 2)]
    found = measure(lines, warmup=0)
    assert (found["share_rollout"], found["share_learn"]) == pytest.approx((0.4, 0.6))
    assert found["t_iter"] == pytest.approx(0.1)


def test_memory_is_the_most_that_was_seen():
    assert measure([line(1), line(2), line(3)], 1)["memory_mb"] == 103.0


def test_a_run_that_ends_within_the_warm_up_is_refused():
    with pytest.raises(BadInput, match=r"3 iterations.*warm-up of 5.*--warmup-iters"):
        measure([line(1), line(2), line(3)], warmup=5)


def test_metrics_are_read_from_the_run_directory(tmp_path):
    lines = [line(1), line(2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    assert read_metrics(tmp_path) == lines


# Independent runs.


def test_runs_side_by_side_are_measured_while_all_are_at_work():
    slow = [line(n, t_iter=0.2) for n in range(1, 11)]  # from 0 to 2 s, 500 steps/s
    fast = [line(n, t_iter=0.1) for n in range(1, 11)]  # from 0.5 to 1.5 s, 1000 steps/s
    found = measure_together([(100.0, slow), (100.5, fast)], warmup=1)
    assert found["seconds"] == pytest.approx(0.9)
    assert found["fps"] == pytest.approx(1500.0)


def test_one_run_side_by_side_is_that_run():
    lines = [line(n) for n in range(1, 9)]
    assert measure_together([(7.0, lines)], 3)["fps"] == pytest.approx(measure(lines, 3)["fps"])


def test_runs_that_do_not_overlap_say_nothing():
    lines = [line(n) for n in range(1, 5)]
    with pytest.raises(BadInput, match="did not overlap"):
        measure_together([(0.0, lines), (10.0, lines)], warmup=1)


# Time to score.


@pytest.mark.parametrize(
    ("recent", "expected"),
    [([20.0] * 100, 0.3), ([19.0] * 100, None), ([20.0] * 99, None)],
    ids=["reached", "too low", "too few"],
)
def test_time_to_score_counts_if_the_last_hundred_episodes_are_good_enough(
    tmp_path, recent, expected
):
    for iteration, returns in ((2, [0.0]), (3, recent)):
        folder = tmp_path / "checkpoints" / f"{iteration:08d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"recent": returns}))
    lines = [line(1), line(2), line(3)]
    found = time_to_score(tmp_path, lines, target=20.0)
    assert found == (None if expected is None else pytest.approx(expected))


# Repeats together.


def test_the_interval_is_students():
    values = [9.0, 10.0, 11.0]
    spread = Spread.of(values)
    assert (spread.mean, spread.std) == (10.0, statistics.stdev(values))
    assert spread.ci_high - spread.mean == pytest.approx(4.30 * 1.0 / math.sqrt(3))
    assert spread.mean - spread.ci_low == pytest.approx(spread.ci_high - spread.mean)


def test_one_repeat_has_no_interval_and_none_no_mean():
    assert Spread.of([3.0]) == Spread(3.0, None, None, None)
    assert Spread.of([]) == Spread(None)


def test_more_repeats_than_the_table_holds_have_an_interval():
    assert Spread.of([1.0, 2.0] * 20).ci_low < 1.5


def test_speed_up_is_taken_within_a_repeat():
    """The machine was twice as fast in the second one, for everybody."""
    runs = [
        a_run("ranks", 1, 1000.0, repeat=1),
        a_run("ranks", 2, 1500.0, repeat=1),
        a_run("ranks", 1, 2000.0, repeat=2),
        a_run("ranks", 2, 3000.0, repeat=2),
    ]
    one, two = summarize(runs)
    assert (one.speedup.mean, two.speedup.mean) == (1.0, 1.5)
    assert two.speedup.std == 0.0 and two.fps.std > 0
    assert two.efficiency.mean == pytest.approx(0.75)
    assert two.fps.mean == 2250.0


def test_the_smallest_count_is_what_others_are_measured_against():
    rows = summarize([a_run("workers", 4, 3000.0), a_run("workers", 2, 2000.0)])
    assert [row.count for row in rows] == [2, 4]
    assert rows[1].speedup.mean == 1.5 and rows[1].ideal == 2.0
    assert rows[1].efficiency.mean == pytest.approx(0.75)


def test_no_workers_count_as_one_process():
    none, one, two = summarize([a_run("workers", n, 100.0 * (n + 1)) for n in (0, 1, 2)])
    assert (none.ideal, one.ideal, two.ideal) == (1.0, 1.0, 2.0)


def test_the_ceiling_is_what_independent_runs_gain_in_the_same_repeat():
    runs = [
        a_run("workers", 0, 1000.0),
        a_run("workers", 2, 1400.0),
        a_run("ceiling", 1, 1000.0),
        a_run("ceiling", 2, 1750.0),
    ]
    none, two = summarize(runs)
    assert (none.ceiling.mean, two.ceiling.mean) == (1.0, 1.75)
    assert two.of_ceiling.mean == pytest.approx(0.8)


def test_the_ceiling_of_more_processes_than_cpus_is_that_of_the_cpus(monkeypatch):
    runs = [a_run("workers", n, 1000.0) for n in (1, 2, 8)]
    runs += [a_run("ceiling", 1, 1000.0), a_run("ceiling", 2, 1900.0)]
    assert [row.ceiling.mean for row in summarize(runs)] == [1.0, 1.9, 1.9]
    monkeypatch.setattr("paceline.tools.bench.scale.available_cpus", lambda: 2)
    found = jobs(plan("--num-workers", "0,2,8"), 0)
    assert [size for kind, size in found if kind == "ceiling"] == [2]


def test_time_to_score_is_compared_where_both_reached_it():
    runs = [
        a_run("ranks", 1, 1000.0, repeat=1, score=30.0),
        a_run("ranks", 2, 1500.0, repeat=1, score=20.0),
        a_run("ranks", 1, 1000.0, repeat=2, score=None),
        a_run("ranks", 2, 1500.0, repeat=2, score=25.0),
    ]
    one, two = summarize(runs)
    assert (one.reached, two.reached) == (1, 2)
    assert two.score_speedup == Spread(1.5)
    assert two.time_to_score.mean == 22.5


def test_a_summary_row_is_flat_and_has_every_column():
    row = summarize([a_run("ranks", 1, 1000.0, learn=1.0)])[0].flat()
    expected = {"count", "fps_mean", "fps_std", "t_iter_mean", "speedup_mean", "efficiency_mean"}
    expected |= {"fps_ci_low", "fps_ci_high", "speedup_ci_low", "speedup_ci_high", "ceiling_mean"}
    expected |= {"share_sync", "share_learn", "share_wait", "memory_mb", "time_to_score_mean"}
    assert expected <= row.keys()
    assert row["share_learn"] == 1.0 and row["fps_std"] is None
    json.dumps(row)


# The sentence.


def two_rows(kind, fps, ceiling, before, after, base=1):
    return summarize(
        [
            a_run(kind, base, 1000.0, **before),
            a_run(kind, 2, fps, **after),
            a_run("ceiling", 1, 1000.0),
            a_run("ceiling", 2, ceiling),
        ]
    )


HALF = {"rollout": 0.5, "learn": 0.5}


def test_the_bottleneck_is_learning_if_that_is_what_did_not_get_faster():
    rows = two_rows("workers", 1333.0, 1950.0, HALF, {"wait": 0.33, "learn": 0.67}, base=0)
    said = bottleneck(rows, "workers", 2)
    assert "1.33 times" in said and "1.95" in said
    assert "bottleneck is learning" in said and "67%" in said and "ranks" in said


def test_the_bottleneck_is_the_exchange_if_that_is_what_was_added():
    after = {"rollout": 0.33, "learn": 0.33, "sync": 0.34}
    said = bottleneck(two_rows("ranks", 1320.0, 1950.0, HALF, after), "ranks", 2)
    assert "bottleneck is the exchange of gradients" in said and "34%" in said


def test_waiting_for_workers_is_sampling():
    rows = two_rows("workers", 1050.0, 1950.0, HALF, {"wait": 0.7, "learn": 0.3}, base=0)
    assert "bottleneck is sampling" in bottleneck(rows, "workers", 2)


def test_the_bottleneck_is_the_machine_if_independent_runs_gain_no_more():
    said = bottleneck(two_rows("ranks", 1350.0, 1400.0, HALF, HALF), "ranks", 1)
    assert "bottleneck is the machine itself" in said and "1 CPU" in said


def test_what_is_near_the_ideal_has_no_bottleneck():
    said = bottleneck(two_rows("ranks", 1900.0, 1950.0, HALF, HALF), "ranks", 2)
    assert "no bottleneck" in said


def test_a_count_that_loses_is_named_with_the_one_that_is_best():
    said = bottleneck(two_rows("workers", 800.0, 1950.0, HALF, {"wait": 1.0}, 0), "workers", 2)
    assert "0.80 times" in said and "The fastest is no workers." in said


def test_a_difference_within_the_noise_is_called_so():
    pairs = [(1000.0, 1100.0), (1000.0, 900.0), (1000.0, 1050.0)]
    runs = [
        a_run("ranks", count, fps, repeat=n, **HALF)
        for n, pair in enumerate(pairs)
        for count, fps in zip((1, 2), pair, strict=True)
    ]
    assert "includes 1" in bottleneck(summarize(runs), "ranks", 2)


def test_a_ceiling_that_jumps_is_not_taken_for_the_machines():
    runs = [
        run
        for repeat, ceiling in enumerate((1050.0, 2000.0, 1100.0))
        for run in (
            a_run("ranks", 1, 1000.0, repeat, **HALF),
            a_run("ranks", 2, 1400.0, repeat, **HALF),
            a_run("ceiling", 1, 1000.0, repeat),
            a_run("ceiling", 2, ceiling, repeat),
        )
    ]
    said = bottleneck(summarize(runs), "ranks", 2)
    assert "was not quiet" in said and "machine itself" not in said


def test_a_single_count_has_nothing_to_be_compared_with():
    assert "nothing to compare" in bottleneck(summarize([a_run("ranks", 1, 1.0)]), "ranks", 2)


# What is shown.


def test_the_table_has_a_line_for_each_count_and_says_what_was_not_reached():
    runs = [a_run("ranks", 1, 1000.0, score=9.0, **HALF), a_run("ranks", 2, 1500.0, **HALF)]
    head, one, two = table(summarize(runs), "ranks").splitlines()
    assert head.split()[:3] == ["ranks", "steps/s", "speed-up"]
    assert one.split()[0] == "1" and "9.0 s" in one
    assert "1.50" in two and "75%" in two and "not reached" in two
    assert len({len(x) for x in (head, one, two)}) == 1


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("score", [None, 12.0])
def test_plots_can_be_drawn_of_anything_measure(tmp_path, repeats, score):
    runs = [
        a_run(
            kind, count, 900.0 * max(count, 1) + 50 * repeat, repeat, score if at else None, **HALF
        )
        for repeat in range(repeats)
        for kind, count, at in (("workers", 0, True), ("workers", 2, False), ("workers", 4, True))
    ]
    runs += [a_run("ceiling", n, 900.0 * n, repeat) for repeat in range(repeats) for n in (1, 2, 4)]
    draw(summarize(runs), "workers", "Title", "a note", tmp_path / "plots.png")
    assert (tmp_path / "plots.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


# The plan.


def plan(*arguments):
    return parse_scale([str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_strong_scaling_keeps_the_environments_of_all():
    made = plan("--num-workers", "2,1", "--num-envs", 16)
    assert made.counts == [1, 2]
    assert [made.options(n)["num_envs"] for n in (1, 2)] == ["16", "16"]


def test_weak_scaling_keeps_the_environments_of_each():
    made = plan("--num-workers", "0,1,2", "--num-envs", 16, "--weak")
    assert [made.options(n)["num_envs"] for n in (0, 1, 2)] == ["16", "16", "32"]


def test_environments_per_worker_are_those_of_one_or_make_those_of_the_most():
    options = ("--num-workers", "1,2", "--num-envs-per-worker", 8)
    strong, weak = plan(*options), plan(*options, "--weak")
    assert [strong.options(n)["num_envs"] for n in (1, 2)] == ["16", "16"]
    assert [weak.options(n)["num_envs"] for n in (1, 2)] == ["8", "16"]


def test_one_process_is_asked_for_without_what_only_goes_with_more():
    stream = plan("--num-workers", "0,2", "--algo", "impala", "--sampler", "stream")
    assert stream.base.resolved_sampler == "serial" and stream.options(0)["sampler"] == "auto"
    assert stream.options(2)["sampler"] == "stream"
    hogwild = plan("--num-workers", "1,2", "--algo", "a3c")
    assert (hogwild.base.algo, hogwild.base.resolved_sync) == ("a2c", "local")
    assert "sync" not in hogwild.options(2) and hogwild.options(2)["algo"] == "a3c"
    assert plan("--ranks", "1,2", "--algo", "ddppo").base.ranks == 1


def test_the_configurations_that_come_with_it_can_be_measure():
    configs = Path(__file__).parents[2] / "configs"
    for file in sorted(path for path in configs.iterdir() if path.is_file()):
        plan("--num-workers", "0,1,2", "--config", file)
    for name in ("ppo_sequential.yaml", "ppo_parallel.yaml", "impala_parallel.yaml"):
        plan("--ranks", "1,2", "--config", configs / name)


def test_ranks_are_told_their_own_environments():
    strong, weak = (plan("--ranks", "1,2", "--num-envs", 16, *w) for w in ([], ["--weak"]))
    assert [strong.options(n)["num_envs"] for n in (1, 2)] == ["16", "8"]
    assert [weak.options(n)["num_envs"] for n in (1, 2)] == ["16", "16"]
    assert [(strong.num_envs(n), weak.num_envs(n)) for n in (1, 2)] == [(16, 16), (16, 32)]


def test_ranks_keep_the_number_of_minibatches_where_their_size_was_given():
    made = plan("--ranks", "1,2", "--num-envs", 16, "--rollout-steps", 64, "--batch-size", 256)
    options = made.options(2)
    assert options["minibatches"] == "4" and "batch_size" not in options


def test_options_of_train_are_passed_on_and_each_repeat_has_its_seed():
    made = plan("--num-workers", "1", "--algo", "a2c", "--seed", 5, "--no-pin", "--a2c.vf-coef", 1)
    options = made.options(1, repeat=2)
    assert (options["algo"], options["seed"]) == ("a2c", "7")
    assert (options["pin"], options["a2c.vf_coef"]) == ("false", "1")


def test_the_budget_of_a_file_is_lifted(tmp_path):
    (tmp_path / "c.yaml").write_text("total_steps: 1000\nnum_workers: 2\nnum_envs: 4\n")
    made = plan("--num-workers", "0,1", "--config", "c.yaml")
    assert (
        made.training.without_file_budget().keys() == {"total_steps"} and made.base.num_workers == 0
    )
    assert made.options(1)["num_envs"] == "4"


def test_a_budget_may_limit_the_time_to_score():
    made = plan("--num-workers", "0,1", "--target-return", 100, "--total-steps", "50k")
    assert made.limits == {"total_steps": "50k"} and made.target == 100.0


def test_repeats_alternate_and_a_run_alone_is_its_own_ceiling():
    made = plan("--num-workers", "0,2")
    assert jobs(made, 0) == [("workers", 0), ("ceiling", 2), ("workers", 2)]
    assert jobs(made, 1) == jobs(made, 0)[::-1]
    assert jobs(plan("--num-workers", "1,2"), 0)[:2] == [("ceiling", 1), ("ceiling", 2)]


def test_a_run_that_fails_says_what_it_said_last_and_gives_its_code(tmp_path):
    cell = Cell(name="x", options={"env_id": "nope-v0"}, folder=tmp_path / "run")
    with pytest.raises(RunFailed, match="exited with 2") as error:
        run_cell(cell)
    assert error.value.exit_code == 2 and "nope" in error.value.reason
    assert (tmp_path / "run.log").exists()
