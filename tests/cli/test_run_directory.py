"""The files of a run directory, and the output of `paceline train`."""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import hashlib
import itertools
import json
import math
import os
import pty
import re
import shlex
import signal
import statistics
import subprocess
import termios
import time

import pytest
from safetensors.numpy import load as from_safetensors
from saved_runs import assert_refused, iterations

import paceline
from paceline import Config
from paceline.config.files import load_file
from paceline.config.resolve import resolve
from paceline.config.schema import option_fields
from paceline.storage import checkpoint

FIELDS = shlex.split(
    "time iter steps steps_global world_size fps t_iter t_rollout t_learn t_sync t_other episodes "
    "episode_return episode_length loss policy_loss value_loss entropy approx_kl clip_frac "
    "explained_variance grad_norm lr memory_mb cpu_percent"
)
CHECKPOINT_FILES = {"weights.safetensors", "state.safetensors", "state.json", "manifest.json"}
ESCAPE = "\x1b"


OPTIONS = {
    "ppo": {
        "total_steps": 4000,
        "eval_every": 1000,
        "eval_episodes": 7,
        "save_every": 500,
        "keep": 2,
        "log_jsonl": "copy.jsonl",
    },
    "a2c": {"algo": "a2c", "total_steps": 9000, "track": "none"},
    "impala": {"algo": "impala", "total_steps": 9000, "track": "none"},
}
"""PPO with everything on; the others report many short iterations at once."""


@pytest.fixture(scope="module")
def trained(shell_in, tmp_path_factory):
    """The run of a name in `OPTIONS`, made when it is first asked for: (run, what was said)."""

    @functools.cache
    def train(name):
        shell = shell_in(tmp_path_factory.mktemp(name))
        flags = [(f"--{option.replace('_', '-')}", v) for option, v in OPTIONS[name].items()]
        ended = shell("train", "--output-dir", "run", *itertools.chain(*flags))
        assert ended.code == 0, ended
        return shell.run("run"), ended

    return train


@pytest.fixture(scope="module", params=OPTIONS)
def any_run(trained, request):
    return trained(request.param)[0]


@pytest.fixture(scope="module")
def run(trained):
    """PPO's."""
    return trained("ppo")[0]


def fingerprint(folder):
    """Every file below `folder`, with content and time."""
    return {
        path.relative_to(folder): (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def strictly(text):
    """JSON as other programs read it: no NaN, no Infinity."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_run_directory_holds_the_documented_files(run):
    for name in ("config.yaml", "run.json", "metrics.jsonl", "eval.json"):
        assert (run.path / name).is_file(), name
    assert list((run.path / "events").glob("events.out.tfevents.*"))
    last = run.checkpoints()[-1]
    assert last.name == f"{run.metrics()[-1]['iter']:08d}"
    assert {path.name for path in last.iterdir()} == CHECKPOINT_FILES
    assert not run.leftovers()


def test_run_json_holds_versions_hardware_choices_and_command(run):
    facts = run.json("run.json")
    assert {"python", "torch", "numpy", "gymnasium", "paceline"} <= set(facts["versions"])
    assert facts["cpu"]
    assert facts["choices"]["threads"] == 1
    assert facts["choices"]["compiled"] is False
    assert "git_commit" in facts
    assert facts["command"][1:4] == ["train", "--output-dir", "run"]
    assert facts["preset"] == "CartPole-v1"


def test_every_line_of_the_metrics_has_every_field_and_is_strict_json(any_run):
    lines = any_run.text("metrics.jsonl").splitlines()
    assert len(lines) > 2
    for line in lines:
        values = strictly(line)
        assert set(FIELDS) <= set(values)
        for field, value in values.items():
            assert value is None or math.isfinite(value), field


def test_ppo_reports_every_iteration_with_every_number(run):
    lines = run.metrics()
    assert [line["iter"] for line in lines] == list(range(1, len(lines) + 1))
    may_be_null = {"episode_return", "episode_length", "cpu_percent", "eval_return", "rho_mean"}
    for line in lines:
        assert {name for name, value in line.items() if value is None} <= may_be_null
        assert (line["episode_return"] is None) == (line["episodes"] == 0)


@pytest.mark.parametrize("name", ["a2c", "impala"])
def test_a_report_covers_several_short_iterations(trained, name):
    run, _ = trained(name)
    lines, every = run.metrics(), load_file(run.path / "config.yaml")["log_every"]
    assert every > 1
    assert [line["iter"] for line in lines[:-1]] == [every * n for n in range(1, len(lines))]
    assert 0 < lines[-1]["iter"] - lines[-2]["iter"] <= every
    for line in lines:
        assert line["approx_kl"] is None and line["clip_frac"] is None  # PPO's alone
        assert (line["rho_mean"] is None) == (name == "a2c")


def test_steps_add_up(any_run):
    config, lines = resolve(load_file(any_run.path / "config.yaml")), any_run.metrics()
    steps = iterations = 0
    for line in lines:
        rows = (line["iter"] - iterations) * config.num_envs * config.rollout_steps
        assert 0 < line["steps_global"] <= rows
        steps, iterations = steps + line["steps_global"], line["iter"]
        assert line["steps"] == steps
        assert line["world_size"] == 1
    finished = sum(round(line["episodes"] * (line["episode_length"] or 0)) for line in lines)
    still_open = from_safetensors(any_run.last("state.safetensors"))["sampler.0.length"]
    assert steps == finished + still_open.sum()


def test_the_times_of_a_report_add_up_to_t_iter(any_run):
    before = iterations = 0
    for line in any_run.metrics():
        parts = line["t_rollout"] + line["t_learn"] + line["t_sync"] + line["t_other"]
        assert parts == pytest.approx(line["t_iter"], rel=0.01, abs=1e-4)
        covered = line["iter"] - iterations
        assert line["fps"] == pytest.approx(
            line["steps_global"] / (covered * line["t_iter"]), rel=0.01
        )
        assert line["time"] > before
        before, iterations = line["time"], line["iter"]


def test_the_copy_of_the_metrics_is_the_same(run):
    assert (run.path.parent / "copy.jsonl").read_bytes() == (
        run.path / "metrics.jsonl"
    ).read_bytes()


@pytest.mark.parametrize("name", OPTIONS)
def test_config_yaml_reloads_to_the_configuration_of_the_run(trained, name):
    run, _ = trained(name)
    given = {"output_dir": "run", **OPTIONS[name]}
    for path in {"output_dir", "log_jsonl"} & set(given):  # found from any directory
        given[path] = str(run.path.parent / given[path])
    reloaded = resolve(load_file(run.path / "config.yaml"))
    assert reloaded == dataclasses.replace(Config(**given), preset="none")


def test_config_yaml_is_complete(run):
    """No value in it depends on a default that a later version may change."""
    written = run.config()
    assert set(written) == {*(field.name for field in option_fields()), *Config().options}
    for section in ("env", "ppo", "a2c", "impala"):
        names = {field.name for field in dataclasses.fields(getattr(Config(), section))}
        assert set(written[section]) == names


@pytest.mark.slow
def test_a_run_from_the_config_of_another_learns_the_same(shell):
    first = shell.train("first", "--total-steps", "1500", "--seed", "5")
    second = shell.train("second", "--config", "first/config.yaml")
    assert first.result() == second.result()
    config = ("--config", first.path / "config.yaml")
    third = shell.train_here("third", *config)  # Python is the command, to the byte
    assert first.result() == third.result()
    assert first.last() != shell.train_here("other", *config, "--seed", "6").last()


def test_eval_json_has_every_field_and_its_statistics_are_right(run):
    result = strictly(run.text("eval.json"))
    names = "episodes mean std median min max length_mean ci_low ci_high returns seeds "
    names += "checkpoint env_id sampled cut_short info elsewhere"
    assert set(shlex.split(names)) == set(result)
    returns = result["returns"]
    assert len(returns) == len(set(result["seeds"])) == result["episodes"] == 7
    assert result["mean"] == pytest.approx(statistics.fmean(returns))
    assert result["std"] == pytest.approx(statistics.pstdev(returns))
    assert result["median"] == statistics.median(returns)
    assert (result["min"], result["max"]) == (min(returns), max(returns))
    assert result["length_mean"] == pytest.approx(result["mean"])  # CartPole: one point a step
    assert min(returns) <= result["ci_low"] <= result["mean"] <= result["ci_high"] <= max(returns)
    assert result["env_id"] == "CartPole-v1"
    assert (run.path / result["checkpoint"]).is_dir()


def test_periodic_evaluation_keeps_the_best_checkpoint(run):
    scores = {line["iter"]: line["eval_return"] for line in run.metrics() if line["eval_return"]}
    assert len(scores) >= 3
    best = run.path / "checkpoints" / "best"
    iteration = checkpoint.load(best).facts["iter"]
    assert iteration == max(scores, key=scores.get)  # the first, among equals
    assert {path.name for path in best.iterdir()} == CHECKPOINT_FILES


def test_the_best_checkpoint_scores_the_same_when_evaluated_again(run):
    best = max(line["eval_return"] or -math.inf for line in run.metrics())
    agent = paceline.load(run.path / "checkpoints" / "best")
    assert paceline.evaluate(agent, "CartPole-v1", 7).mean == pytest.approx(best, rel=1e-5)


def test_only_the_newest_checkpoints_are_kept_beside_the_best(run):
    names = {path.name for path in run.checkpoints()}
    best = (run.path / "checkpoints" / "best").resolve().name
    newest = sorted(names)[-2:]
    assert names == {*newest, best}


def test_tensorboard_reads_the_curves(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "events")).Reload()
    tags = events.Tags()["scalars"]
    assert {"train/loss", "rollout/episode_return", "time/fps", "eval/mean_return"} <= set(tags)
    steps = {line["steps"] for line in run.metrics()}
    assert {event.step for event in events.Scalars("train/loss")} <= steps


@pytest.mark.parametrize(
    ("budgets", "reason"),
    [
        ("--total-iters 3", "iters"),
        ("--total-iters 3 --total-steps 1M --duration 1h", "iters"),
        ("--total-steps 700 --total-iters 1000 --duration 1h", "steps"),
        ("--duration 1.5s --total-steps 100M", "seconds"),
    ],
)
def test_the_first_budget_that_is_reached_ends_the_run(shell, budgets, reason):
    flags = "--preset none --num-envs 4 --rollout-steps 32 --compile off --eval-episodes 1"
    train = shell.train if reason == "seconds" else shell.train_here
    lines = train("run", *budgets.split(), *flags.split()).metrics()
    last, before = lines[-1], lines[-2]
    if reason == "iters":
        assert last["iter"] == 3
    elif reason == "steps":
        assert before["steps"] < 700 <= last["steps"]
    else:
        assert before["time"] < 1.5 <= last["time"]


def test_a_run_of_one_environment_and_one_step_trains(shell):
    """Some of its rollouts hold nothing but a reset."""
    flags = "--num-envs 1 --rollout-steps 1 --minibatches 1 --total-iters 40 --preset none"
    flags += " --ppo.normalize-advantage none"
    run = shell.train_here("run", *flags.split(), "--env-id", "toy:constant")
    lines = run.metrics()
    assert len(lines) == 40
    assert {line["steps_global"] for line in lines} == {0, 1}
    assert all(strictly(line) for line in run.text("metrics.jsonl").splitlines())


def test_a_directory_that_holds_a_run_is_refused_and_left_untouched(run, shell_in):
    before = fingerprint(run.path)
    ended = shell_in(run.path.parent)("train", "--total-iters", "1", "--output-dir", "run")
    assert_refused(ended, ("run already holds a run", "paceline resume run", "--overwrite"))
    assert fingerprint(run.path) == before


def test_overwrite_replaces_the_run_and_nothing_else(shell):
    shell.train_here("run", "--total-iters", "4", "--save-every", "1", "--keep", "10")
    (shell.folder / "run" / "notes.txt").write_text("mine")
    run = shell.train("run", "--total-iters", "2", "--overwrite", "--seed", "9")
    assert iterations(run) == [1, 2]
    assert [path.name for path in run.checkpoints()] == ["00000002"]
    assert load_file(run.path / "config.yaml")["seed"] == 9
    assert run.text("notes.txt") == "mine"


SLOW_TO_MAKE = """
import time
import gymnasium as gym
from paceline.envs.suites.toy import Constant


class Slow(Constant):
    def __init__(self):
        time.sleep(1.5)
        super().__init__()


gym.register("Slow-v0", Slow)
"""


@pytest.mark.slow
def test_two_runs_started_at_once_without_output_dir_get_a_directory_each(shell):
    """Environments that are slow to make lie between choosing a name and using it."""
    (shell.folder / "slow.py").write_text(SLOW_TO_MAKE)
    flags = "train --env-id slow:Slow-v0 --num-envs 1 --total-iters 2 --track none"
    both = [shell.start(*flags.split(), "--eval-episodes", "1") for _ in range(2)]
    ended = [(*process.communicate(timeout=60), process.returncode) for process in both]
    assert [code for *_, code in ended] == [0, 0], ended
    runs = sorted((shell.folder / "runs").iterdir())
    assert len(runs) == 2
    for path in runs:
        assert iterations(shell.run(path)) == [1, 2]


def test_successive_runs_without_output_dir_get_a_directory_each(tmp_path, monkeypatch):
    """Also within one second, by which they are named."""
    monkeypatch.chdir(tmp_path)
    config = Config(env_id="toy:constant", total_iters=1, eval_episodes=1, track="none")
    for _ in range(3):
        list(paceline.train(config))
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_piped_output_is_plain_lines_with_the_preset_among_the_first(trained):
    _, ended = trained("ppo")
    assert ESCAPE not in ended.out
    assert "\r" not in ended.out
    assert not ended.err
    first = "\n".join(ended.out.splitlines()[:5])
    assert "preset" in first
    assert "CartPole-v1" in first
    assert re.search(r"^100% .*steps/s", ended.out, re.MULTILINE)
    assert re.search(r"^evaluation: mean", ended.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ((), "preset: general defaults for discrete actions"),
        (("--preset", "none"), "preset: none"),
    ],
)
def test_the_first_lines_name_the_preset(shell, caplog, flags, shown):
    with caplog.at_level("INFO", "paceline"):
        shell.train_here("run", "--env-id", "toy:chain", "--total-iters", "1", *flags)
    assert shown in "\n".join(caplog.messages[:5])


def on_a_terminal(shell, *arguments, after=None):
    """Run under a pseudo-terminal: (exit code, all that was shown).

    `after(text, process, keyboard)` sees what has been shown so far.
    """
    master, slave = pty.openpty()
    process = shell.start(
        *arguments,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
            if after is not None:
                after(shown.decode(errors="replace"), process, master)
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(master)
    return process.wait(timeout=60), shown.decode()


def test_on_a_terminal_there_is_a_live_display_that_ends_cleanly(shell):
    code, shown = on_a_terminal(
        shell, "train", "--total-steps", "20000", "--output-dir", "run", "--track", "none"
    )
    assert code == 0, shown
    assert f"{ESCAPE}[" in shown
    assert "steps/s" in shown
    assert "preset" in shown
    assert "evaluation: mean" in shown
    assert "Traceback" not in shown
    assert shown.rfind(f"{ESCAPE}[?25h") > shown.rfind(f"{ESCAPE}[?25l")  # the cursor is back
    assert len(shell.run("run").checkpoints()) == 1


def test_control_c_on_a_terminal_stops_the_run_so_that_it_can_be_resumed(shell):
    pressed = []

    def press(shown, process, keyboard):
        if "steps/s" in shown and not pressed:
            pressed.append(os.write(keyboard, b"\x03"))

    flags = ("--total-steps", "10M", "--track", "none", "--compile", "off")
    code, shown = on_a_terminal(shell, "train", "--output-dir", "run", *flags, after=press)
    assert pressed
    assert code == 75, shown
    assert "paceline resume" in shown
    assert "Traceback" not in shown
    assert shown.rfind(f"{ESCAPE}[?25h") > shown.rfind(f"{ESCAPE}[?25l")
    run = shell.run("run")
    assert run.checkpoints()[-1].name == f"{run.metrics()[-1]['iter']:08d}"


@pytest.mark.slow
def test_a_closed_output_pipe_does_not_end_a_run_with_exit_code_0(shell):
    """`paceline train | head -1`: exit code 0 is for runs that have spent their budget."""
    process = shell.start("train", "--total-steps", "20000", "--output-dir", "run")
    process.stdout.readline()
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    run = shell.run("run")
    finished = run.metrics()[-1]["steps"] >= 20000
    assert process.returncode == (0 if finished else 75), err
    assert run.checkpoints()[-1].name == f"{run.metrics()[-1]['iter']:08d}"


def test_a_console_on_a_full_disk_does_not_end_the_training(shell):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = shell("train", "--total-iters", "3", "--output-dir", "run", stdout=full)
    assert "Traceback" not in ended.err, ended.err
    assert shell.run("run").metrics()[-1]["iter"] == 3


def test_an_interrupted_evaluation_ends_without_a_traceback(run, shell_in):
    shell = shell_in(run.path.parent)
    process = shell.start("eval", "run", "--episodes", "100000", stdout=subprocess.DEVNULL)
    time.sleep(3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "Traceback" not in err
