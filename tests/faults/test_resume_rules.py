"""What a resume may change, what it refuses by name, and what it cleans up."""

from __future__ import annotations

import importlib
import json
import os
import resource
import shlex
import shutil
import sys

import pytest
from saved_runs import assert_refused, iterations, left_after, warnings

import paceline
from paceline import Config
from paceline.config.files import load_file
from paceline.config.flags import parse_config
from paceline.config.schema import option_fields
from paceline.errors import BadInput

FLAGS = shlex.split(
    "--preset none --total-iters 6 --save-every 1 --keep 3 --num-envs 4 --rollout-steps 32 "
    "--hidden 16 --eval-episodes 2"
)


def unchanged(run):
    return {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (("--lr", "0.1"), "lr"),
        (("--env-id", "Acrobot-v1"), "env_id"),
        (("--total-iters", "9", "--ppo.clip", "0.1"), "ppo.clip"),
    ],
)
def test_a_flag_that_affects_learning_is_refused_by_name_and_nothing_is_written(
    command, run, flags, name
):
    before = unchanged(run)
    assert_refused(command("resume", "run", *flags), (f"{name} can't change", "--total-steps"))
    assert unchanged(run) == before


def test_an_option_that_came_later_does_not_stop_a_run_from_going_on(run, monkeypatch):
    """Alone, or within a section."""
    from paceline.run import checkpointing

    known = checkpointing.fixed

    def later(config, **more):
        options = known(config)
        return options | {"env": options["env"] | {"later": False} | more, "later": None}

    monkeypatch.setattr(checkpointing, "fixed", later)
    reports = list(paceline.resume(run.path, total_iters=7))
    assert reports[-1].iter == 7
    monkeypatch.setattr(checkpointing, "fixed", lambda config: later(config, time_limit=9))
    with pytest.raises(BadInput, match=r"env is .*when .* was made; put it back"):
        list(paceline.resume(run.path, total_iters=8))


CHANGEABLE = shlex.split(
    "total_steps total_iters duration stop_at_return schedule_budget eval_every eval_episodes "
    "save_every keep log_every log_info log_jsonl track pin worker_timeout max_restarts "
    "rank_timeout init_method"
)
"""The budget, logging and evaluation."""


@pytest.mark.parametrize(
    "name", [field.name for field in option_fields() if field.name not in CHANGEABLE]
)
def test_every_option_but_budget_logging_and_evaluation_is_refused_by_name(run, name):
    before = unchanged(run)
    with pytest.raises(BadInput, match=f"^{name} can't change"):
        next(paceline.resume(run.path, **{name: getattr(Config(), name)}))
    assert unchanged(run) == before


def test_resuming_a_finished_run_changes_nothing(shell, run, made):
    ended = shell("resume", "run")
    assert ended.code == 0, ended
    assert run.result() == made.result()
    assert run.text("metrics.jsonl") == made.text("metrics.jsonl")


def test_a_run_with_an_extended_budget_equals_one_that_had_it_from_the_start(shell, run):
    extended = shell.resume("run", "--total-iters", "9")
    straight = shell.train_here("straight", *FLAGS, "--total-iters", "9")
    assert extended.result() == straight.result()
    assert load_file(extended.path / "config.yaml")["total_iters"] == 9


def rates(run):
    return [line["lr"] for line in run.metrics()]


LINEAR = (*FLAGS, "--total-iters", "4", "--lr", "0.02", "--lr-schedule", "linear:0.004")


def test_extending_a_scheduled_run_says_where_its_rate_jumps_to(shell, caplog):
    shell.train_here("run", *LINEAR, "--ppo.clip-schedule", "linear")
    caplog.clear()
    run = shell.resume_here("run", total_iters=8)
    (said,) = [text for text in warnings(caplog) if "schedule" in text]
    assert "50% is spent instead of 100%" in said
    assert "lr goes from 0.004 to 0.012 and ppo.clip goes from 0 to 0.1;" in said
    assert "stay at lr 0.004 and ppo.clip 0, write --schedule-budget keep" in said
    assert rates(run)[3:6] == pytest.approx([0.008, 0.012, 0.01])


def test_an_extended_run_can_keep_its_schedule_and_does_so_when_it_is_resumed_again(shell, caplog):
    left_after(parse_config([*LINEAR, "--output-dir", str(shell.folder / "run")]), 2)
    shell.resume_here("run", total_iters=6, schedule_budget="keep")
    kept = shell.resume_here("run", total_iters=7)
    assert rates(kept) == pytest.approx([0.02, 0.016, 0.012, 0.008, 0.004, 0.004, 0.004])
    assert kept.config()["schedule_budget"] == "total_iters=4"
    own = ("--total-iters", "7", "--schedule-budget", "total_iters=4")
    assert kept.result() == shell.train_here("straight", *LINEAR, *own).result()
    assert not any("schedule" in text for text in warnings(caplog))
    *_, last = rates(shell.resume_here("run", total_iters=8, schedule_budget="none"))
    assert last == pytest.approx(0.02 - 0.016 * 7 / 8)


def test_keeping_a_schedule_that_ends_at_zero_warns_that_nothing_is_learned(shell, caplog):
    shell.train_here("run", *FLAGS, "--lr-schedule", "cosine")
    run = shell.resume_here("run", total_iters=8, schedule_budget="keep")
    assert any("total_iters=6, where it ends at 0: nothing" in text for text in warnings(caplog))
    assert rates(run)[-1] == 0.0


def test_extending_a_run_without_schedules_is_silent(shell, run, caplog):
    shell.resume_here("run", total_iters=8)
    assert not any("schedule" in text for text in warnings(caplog))


def test_a_budget_of_another_kind_can_be_added(shell, run):
    refilled = shell.resume_here("run", total_iters=1000, total_steps=1500)
    *_, before, last = refilled.metrics()
    assert before["steps"] < 1500 <= last["steps"]


def test_logging_and_evaluation_may_change(shell, run):
    changes = "--total-iters 10 --eval-every 200 --eval-episodes 3 --keep 1 --log-every 2"
    changed = shell.resume("run", *changes.split(), "--log-jsonl", "copy.jsonl")
    assert iterations(changed) == [1, 2, 3, 4, 5, 6, 8, 10]
    copied = (shell.folder / "copy.jsonl").read_text().splitlines()
    assert copied == changed.text("metrics.jsonl").splitlines()[6:]
    assert changed.json("eval.json")["episodes"] == 3
    assert any(line["eval_return"] is not None for line in changed.metrics()[6:])
    assert (changed.path / "checkpoints" / "best").is_dir()


def test_a_compiled_run_resumed_without_a_compiler_warns_that_it_is_not_exact(shell, run):
    facts = run.json("run.json")
    facts["choices"]["compiled"] = True  # as of a run long enough for compiling to be worth it
    (run.path / "run.json").write_text(json.dumps(facts))
    nowhere = {"CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(shell.folder / "cache")}
    ended = shell("resume", "run", "--total-iters", "7", env=shell.environment(**nowhere))
    assert ended.code == 0, ended
    assert "was compiled, and from here on it is not" in ended.out
    assert "not exact" in ended.out
    assert run.json("run.json") == facts | {"choices": facts["choices"] | {"compiled": False}}
    again = shell("resume", "run", "--total-iters", "8", env=shell.environment(**nowhere))
    assert again.code == 0 and "was compiled" not in again.out, again


def test_reward_statistics_inside_an_environment_are_reported_as_not_replayed(shell):
    """NormalizeReward's observations replay, and its rewards do not."""
    wrapped = ("--env.wrappers", "gymnasium.wrappers:NormalizeReward")
    shell.train_here("run", *FLAGS, *wrapped)
    ended = shell("resume", "run", "--total-iters", "7")
    assert ended.code == 0, ended
    assert "columns 0, 1, 2, 3 (reward) did not replay to the same observation and return" in (
        ended.out
    )
    assert "not exact" in ended.out


SPACES = """
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete


class Changing(gym.Env):
    def __init__(self):
        self.observation_space, self.action_space = OBS, ACT

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, bool(self.np_random.random() < 0.1), False, {}


gym.register("Changing-v0", Changing)
"""
BOX, TWO = "Box(-1, 1, (2,))", "Discrete(2)"
OTHER_SPACES = {  # what they were, what they are, and how either is told
    "start": (BOX, TWO, BOX, "Discrete(2, start=1)", "Discrete(2)", "Discrete(2, start=1)"),
    "number": (BOX, TWO, BOX, "Discrete(3)", "Discrete(2)", "Discrete(3)"),
    "kind": (BOX, TWO, BOX, "Box(0, 1)", "Discrete(2)", "Box(0.0, 1.0, (1,), float32)"),
    "bounds": (BOX, "Box(0, 1)", BOX, "Box(0, 2)", "Box(0.0, 1.0, (1,)", "Box(0.0, 2.0, (1,)"),
    "order": (BOX, "MultiDiscrete([2, 3])", BOX, "MultiDiscrete([3, 2])", "[2, 3]", "[3, 2]"),
    "shape": (BOX, TWO, "Box(-1, 1, (3,))", TWO, "Box(2,) and", "Box(3,) and"),
    "first": ("Discrete(5)", TWO, "Discrete(5, start=1)", TWO, "Discrete(5)", "start=1"),
    "dict": (BOX, TWO, f"Dict(a={BOX})", TWO, "Box(2,) and", "Dict('a': Box(2,))"),
    "mask": (
        f"Dict(a={BOX}, b={BOX})",
        TWO,
        f"Dict(a={BOX}, b={BOX}, action_mask=MultiBinary(2))",
        TWO,
        "Dict('a': Box(2,), 'b': Box(2,)) and",
        "Dict('a': Box(2,), 'b': Box(2,)) with an action_mask of 2 and",
    ),
}


@pytest.mark.parametrize("case", OTHER_SPACES)
def test_an_environment_whose_spaces_have_changed_is_refused(shell, command, monkeypatch, case):
    obs, act, new_obs, new_act, was, now = OTHER_SPACES[case]
    monkeypatch.syspath_prepend(shell.folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(obs, act):
        (shell.folder / "changing.py").write_text(SPACES.replace("OBS, ACT", f"{obs}, {act}"))
        sys.modules.pop("changing", None)
        importlib.invalidate_caches()

    written(obs, act)
    run = shell.train_here("run", *FLAGS, "--env-id", "changing:Changing-v0")
    written(new_obs, new_act)
    ended = command("resume", "run", "--total-iters", "7")
    sys.modules.pop("changing", None)
    assert_refused(ended, ("has changed", run.checkpoints()[-1].name))
    before, after = ended.err.split("; changing:Changing-v0 shows")
    assert was in before and now in after, ended.err
    assert len(run.metrics()) == 6


def test_a_run_that_was_moved_resumes_in_its_new_place(shell, run):
    run.path.rename(shell.folder / "moved")
    moved = shell.resume_here("moved", total_iters=7)
    assert iterations(moved) == list(range(1, 8))
    assert not (shell.folder / "run").exists()


def test_leftovers_of_interrupted_writes_are_removed(shell, run):
    left = run.path / "checkpoints" / ".tmp-00000007"
    left.mkdir()
    (left / "weights.safetensors").write_bytes(b"half of it")
    (run.path / ".tmp-config.yaml").write_text("half")
    (run.path / "checkpoints" / ".tmp-best").symlink_to("nowhere")
    assert len(run.leftovers()) == 3
    shell.resume_here("run")
    assert not run.leftovers()


def test_a_torn_last_line_of_the_metrics_is_written_again(shell, run, made):
    shutil.rmtree(run.checkpoints()[-1])
    text = run.text("metrics.jsonl")
    (run.path / "metrics.jsonl").write_text(text[:-40])
    assert shell.resume_here("run").result() == made.result()


def test_a_run_from_a_machine_with_a_gpu_is_refused_without_one(run):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    facts = run.json("run.json")
    facts["choices"]["device"] = "cuda"
    (run.path / "run.json").write_text(json.dumps(facts))
    with pytest.raises(BadInput, match="cuda"):
        next(paceline.resume(run.path, total_iters=7))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("- 16", "- 32"),
        ("num_envs: 4", "num_envs: 8"),
        ("env_id: CartPole-v1", "env_id: Acrobot-v1"),
        ("normalize_obs: false", "normalize_obs: true"),
        ("normalize_return: false", "normalize_return: true"),
    ],
)
def test_a_configuration_edited_so_that_the_checkpoint_no_longer_fits_is_refused(run, old, new):
    text = run.text("config.yaml")
    assert old in text
    (run.path / "config.yaml").write_text(text.replace(old, new))
    with pytest.raises(BadInput):
        next(paceline.resume(run.path, total_iters=7))


def test_a_second_process_on_the_same_run_is_refused(shell, run, until):
    """Both would write the same metrics and checkpoints."""
    metrics = run.path / "metrics.jsonl"
    first = shell.start("resume", "run", "--total-iters", "1M")
    until(lambda: metrics.read_bytes().count(b"\n") > 8)
    with pytest.raises(BadInput, match="run"):
        shell.resume_here("run", total_iters=10**6, duration="1s")
    alive = first.poll() is None
    first.terminate()
    first.communicate(timeout=30)
    assert alive
    assert iterations(run) == sorted(set(iterations(run)))


@pytest.mark.parametrize("name", ["resume", "compare"])
def test_metrics_with_an_endless_line_are_refused_by_name(command, run, name):
    metrics, text = run.path / "metrics.jsonl", run.text("config.yaml")
    os.truncate(metrics, 40 * 2**30)  # sparse
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, hard))
    try:
        assert_refused(command(name, run.path), (str(run.path), "it has"))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert metrics.stat().st_size == 40 * 2**30
    assert run.text("config.yaml") == text
    assert not run.leftovers()


def test_a_run_with_far_too_many_threads_resumes_with_fewer(shell):
    """From a larger machine, or from an edited run.json."""
    run = shell.train_here("run", "--total-iters", 1, "--compile", "off", "--eval-episodes", 1)
    text = run.text("run.json").replace('"threads": 1', '"threads": 4000')
    (run.path / "run.json").write_text(text)
    ended = shell("resume", "run", "--total-iters", 2, timeout=60)
    assert ended.code == 0, ended
    assert "learned with 4000 threads" in ended.out


@pytest.mark.parametrize("name", ["config.yaml", "run.json", ".lock", "checkpoints/log"])
def test_metrics_are_not_written_over_the_runs_own_files(command, name):
    flags = ("--output-dir", "run", "--total-iters", 1, "--log-jsonl", f"run/{name}")
    ended = command("train", *flags)
    assert ended.code == 2 and "is the run's own file" in ended.err
