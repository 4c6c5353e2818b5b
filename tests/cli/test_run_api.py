"""The run that paceline.train returns: what a loop can do with it."""

from __future__ import annotations

import csv
import logging
import signal
import sys
from functools import partial

import numpy as np
import pytest
from saved_runs import PLAIN

import paceline
from paceline.errors import BadInput
from paceline.run.checkpointing import copy_weights

slow = partial(pytest.param, marks=pytest.mark.slow)
TINY = PLAIN | {"num_envs": 2, "rollout_steps": 32, "total_iters": 4, "eval_episodes": 2}


@pytest.fixture
def config(tmp_path):
    def make(name="run", **more):
        return paceline.Config(**{**TINY, "output_dir": str(tmp_path / name), **more})

    return make


def test_what_is_logged_joins_the_line_of_the_report_that_the_loop_is_at(shell, config):
    run = paceline.train(config())
    run.log(before=1)
    for report in run:
        run.log({"mine/half": report.iter / 2}, twice=np.float32(2 * report.iter))
    lines = shell.run("run").metrics()
    assert [line["twice"] for line in lines] == [2, 4, 6, 8]
    assert [line["mine/half"] for line in lines] == [0.5, 1, 1.5, 2]
    assert [line.get("before") for line in lines] == [1, None, None, None]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"loss": 1.0}, "log(loss=…): every report has its own loss"),
        ({"steps": 1}, "every report has its own steps"),
        ({"name": "text"}, "log(name=text): str is not a number"),
        ({"vector": np.zeros(3)}, "ndarray is not a number"),
    ],
)
def test_names_of_the_core_and_what_is_no_number_are_refused(config, values, said):
    run = paceline.train(config())
    next(run)
    with pytest.raises(BadInput) as refused:
        run.log(values)
    assert said in str(refused.value)
    assert next(run).iter == 2  # the run goes on
    run.close()


def test_logged_values_are_all_in_tensorboard_however_quick_the_reports(shell, config):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = paceline.train(config(track="tensorboard", total_iters=8))
    for report in run:
        run.log({"mine/number": report.iter})
    events = EventAccumulator(str(run.directory / "events"))
    events.Reload()
    assert [point.value for point in events.Scalars("mine/number")] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_agent_is_the_policy_that_is_being_trained(config):
    run = paceline.train(config())
    agent, obs = run.agent, np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    for _ in run:
        before = agent.weights
        agent.act(obs)
        assert any((before[name] != value).any() for name, value in agent.weights.items())
        assert agent.module is run.agent.module
    saved = paceline.load(run.directory)
    assert np.array_equal(agent.act(obs), saved.act(obs))
    for name, value in saved.weights.items():
        assert (value == agent.weights[name]).all()
        assert (agent.module.state_dict()[name].numpy() == value).all()


def test_evaluating_in_the_loop_is_what_eval_every_does(shell, config):
    run = paceline.train(config())
    for report in run:
        if report.iter == 2:
            result = run.evaluate(3)
    lines = shell.run("run").metrics()
    assert [line["eval_return"] for line in lines][1] == pytest.approx(result.mean, rel=1e-5)
    assert (run.directory / "checkpoints" / "best").is_dir()


@pytest.mark.parametrize("how", ["eval_every", "evaluate", "save, then evaluate"])
def test_the_best_policy_is_kept_if_the_loop_is_left_right_after_its_evaluation(config, how):
    every = 1 if how == "eval_every" else None
    run = paceline.train(config(eval_every=every))
    for report in run:
        if how.startswith("save"):
            run.save()
        if every is None:
            run.evaluate()
        assert report.iter == 1
        break
    best = run.directory / "checkpoints" / "best"
    assert best.resolve().name == "00000001"


def test_saving_in_the_loop_repeats_no_evaluation_that_was_due_before(shell, config):
    """Each of these iterations has about 64 steps."""
    run = paceline.train(config(eval_every=150, total_iters=8))
    for _ in run:
        run.save()
    lines = shell.run("run").metrics()
    crossed = [line["steps"] // 150 for line in lines]
    due = [now != before for before, now in zip([0, *crossed], crossed, strict=False)]
    assert [line["eval_return"] is not None for line in lines] == due
    assert 2 <= sum(due) < 8


def test_saving_in_the_loop_writes_a_checkpoint_at_once(config):
    run = paceline.train(config(save_every=10**9))
    for report in run:
        if report.iter == 2:
            assert run.save().name == "00000002"
            assert (run.directory / "metrics.jsonl").read_text().count("\n") == 2


def test_finish_trains_to_the_end_and_the_policy_remains(shell, config):
    run = paceline.train(config()).finish()
    assert shell.run("run").metrics()[-1]["iter"] == 4
    assert run.evaluate(2).episodes == 2
    for use in (run.save, lambda: run.log(x=1)):
        with pytest.raises(BadInput, match="has ended, and is saved"):
            use()


def test_a_run_that_nobody_loops_over_says_so(config, caplog):
    run = paceline.train(config())
    assert "not started: loop over it, or call finish()" in repr(run)
    del run
    assert "nothing was trained" in caplog.text


def test_every_episode_is_a_line_of_episodes_csv(shell, config):
    reports = list(paceline.train(config()))
    with (shell.folder / "run" / "episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    finished = [one for report in reports for one in report.finished]
    assert len(rows) == sum(report.episodes for report in reports) == len(finished) > 4
    for row, one in zip(rows, finished, strict=True):
        assert int(row["step"]) == one.steps
        assert int(row["column"]) == one.episode.column
        assert int(row["length"]) == one.episode.length
        assert float(row["return"]) == one.episode.total


def test_a_resumed_run_has_the_episodes_of_an_uninterrupted_one(shell, config):
    def episodes(name):
        with (shell.folder / name / "episodes.csv").open() as file:
            return [list(row.values())[1:] for row in csv.DictReader(file)]

    paceline.train(config("straight", total_iters=8)).finish()
    for report in paceline.train(config("halves", total_iters=8, save_every=1)):
        if report.iter == 5:
            break
    last = shell.run("halves").checkpoints()[-1]
    for file in last.iterdir():  # as if it had been killed before this checkpoint
        file.unlink()
    last.rmdir()
    paceline.resume(shell.folder / "halves").finish()
    assert episodes("halves") == episodes("straight")


def test_no_evaluation_with_eval_episodes_0(shell, config):
    run = paceline.train(config(eval_episodes=0)).finish()
    assert not (run.directory / "eval.json").exists()
    with pytest.raises(BadInput, match="eval_episodes is 0, which turns evaluation off"):
        config(eval_episodes=0, eval_every=100)


def test_a_run_that_misses_stop_at_return_says_so(config, caplog):
    caplog.set_level(logging.INFO)
    paceline.train(config(stop_at_return=400)).finish()
    assert "stop_at_return 400 was not reached: " in caplog.text


def test_a_stop_in_the_last_evaluation_ends_the_run_and_a_resume_evaluates_again(shell, config):
    """`stopping` is the caller's own; what it has is written, marked as cut short."""
    asked = []

    def stopping():
        asked.append(1)
        return len(asked) > 40

    run = paceline.train(config(total_iters=2, eval_episodes=200), stopping).finish()
    assert run.stopped
    assert shell.run("run").checkpoints()[-1].name == "00000002"
    found = shell.run("run").json("eval.json") if (run.directory / "eval.json").exists() else None
    assert found is None or found["cut_short"]
    again = paceline.resume(run.directory, eval_episodes=2).finish()
    assert not again.stopped
    assert shell.run("run").json("eval.json")["episodes"] == 2


SECOND = """
import os, signal, time
import paceline
from paceline.storage import checkpoint

saving = checkpoint.save

def interrupted(*given):
    os.kill(os.getpid(), signal.SIGINT)
    return saving(*given)

checkpoint.save = interrupted
if __name__ == "__main__":
    config = paceline.Config(**{options})
    try:
        for report in paceline.train(config):
            break
        time.sleep(30)
    except KeyboardInterrupt:
        print("interrupted")
    checkpoint.save = saving
    print(len(list(paceline.train(config.replace(output_dir="second", total_iters=3)))))
"""


def test_a_signal_while_a_run_is_saved_comes_after_the_save_and_ends_no_other_run(shell):
    options = TINY | {"output_dir": "run", "total_iters": 1000}
    (shell.folder / "script.py").write_text(SECOND.format(options=options))
    ended = shell.execute(sys.executable, "script.py")
    assert ended.out.split() == ["interrupted", "3"], ended
    assert shell.run("run").checkpoints()[-1].name == "00000001"


def test_the_parts_alone_learn_what_train_learns(config):
    straight = paceline.train(config()).finish()
    with paceline.build(config()) as parts:
        for _ in range(4):
            rollout = parts.sampler.collect()
            metrics = parts.learner.update(rollout)
            parts.sampler.publish(parts.learner.weights, parts.learner.version)
        weights = copy_weights(parts.learner)
    assert np.isfinite(metrics["loss"])
    for name, weight in straight.agent.weights.items():
        assert (weights[name] == weight).all()


def test_the_parts_alone_are_those_of_one_process(config):
    with (
        pytest.raises(BadInput, match=r"the parts of one process.*ranks"),
        paceline.build(config(ranks=2)),
    ):
        pass


RANKS = """
import paceline

if __name__ == "__main__":
    config = paceline.Config(**{options})
    run = paceline.train(config)
    refused = 0
    for report in run:
        run.log(mine=report.iter)
        for use in (lambda: run.agent, run.evaluate, run.save):
            try:
                use()
            except paceline.BadInput as error:
                assert "processes of its own" in str(error), error
                refused += 1
    print(refused, run.directory, run.config.ranks)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "way", [{"ranks": 2}, slow({"algo": "a3c", "num_workers": 2})], ids=["ranks", "a3c"]
)
def test_with_ranks_logged_values_join_a_later_report_and_the_rest_is_refused(shell, way):
    options = TINY | {"output_dir": "run", "total_iters": 40, "log_every": 1} | way
    (shell.folder / "script.py").write_text(RANKS.format(options=options))
    ended = shell.execute(sys.executable, "script.py")
    assert ended.code == 0, ended.err
    logged = [line["mine"] for line in shell.run("run").metrics() if "mine" in line]
    assert logged == sorted(logged)
    assert len(logged) > 0


SIGNALLED = """
import os, signal, sys, time
import paceline

if __name__ == "__main__":
    config = paceline.Config(**{options})
    run = paceline.train(config)
    for report in run:
        if report.iter == 3:
            {what}
"""
IN_BODY = "os.kill(os.getpid(), signal.{kind}); time.sleep(60)"
BETWEEN = "import threading; threading.Timer(0.05, os.kill, (os.getpid(), signal.{kind})).start()"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("way", "where", "kind"),
    [
        ({}, IN_BODY, "SIGINT"),
        ({}, BETWEEN, "SIGINT"),
        ({}, IN_BODY, "SIGTERM"),
        ({}, BETWEEN, "SIGHUP"),
        ({"num_workers": 2}, BETWEEN, "SIGINT"),
        ({"ranks": 2}, BETWEEN, "SIGINT"),
        slow({"ranks": 2}, IN_BODY, "SIGTERM"),
    ],
    ids=[
        "Ctrl-C in the body",
        "Ctrl-C",
        "SIGTERM in the body",
        "SIGHUP",
        "Ctrl-C, workers",
        "Ctrl-C, ranks",
        "SIGTERM in the body, ranks",
    ],
)
def test_a_signal_in_python_saves_the_run_and_then_has_its_effect(shell, way, where, kind):
    options = TINY | {"output_dir": "run", "total_iters": 10**6} | way
    what = where.format(kind=kind)
    (shell.folder / "script.py").write_text(SIGNALLED.format(options=options, what=what))
    ended = shell.execute(sys.executable, "script.py")
    assert ended.code == -getattr(signal, kind), ended.err
    assert ("KeyboardInterrupt" in ended.err) == (kind == "SIGINT")
    run = shell.run("run")
    assert run.checkpoints()[-1].name == f"{run.metrics()[-1]['iter']:08d}"
    assert ("finishing this iteration, then saving" in ended.err) == (where is BETWEEN)
