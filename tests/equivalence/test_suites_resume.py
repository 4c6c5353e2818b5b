"""In every suite, runs that were interrupted or lost a worker end as if they had not.

To the byte, where a suite can be resumed exactly; where it can't, the run says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest
import torch
from learners import iterate
from safetensors.numpy import load, save
from saved_runs import left_after
from suites import missing
from test_workers_equal_serial import assert_same, by_workers, in_blocks, turn

import paceline
from paceline.config.flags import parse_config
from paceline.envs.source import make_columns
from paceline.envs.suites import atari

pytestmark = pytest.mark.timeout(120)

ITERATIONS = 5
COMMON = (
    "--preset none --track none --device cpu --threads 1 --compile off --num-envs 2 "
    f"--rollout-steps 16 --minibatches 2 --epochs 2 --hidden 16 --total-iters {ITERATIONS} "
    "--eval-episodes 1"
)
WORKERS = "--num-workers 2"
IN_WORKERS = ("atari", "procgen")

# Environments whose episodes end within a few rollouts, at different times in different columns:
# package, and flags.
RUNS = {
    "atari": (
        "ale_py",
        "--env-id atari:Breakout --env.time-limit 9 --encoder small --rollout-steps 12 "
        "--clip-reward",
    ),
    "atari, whose actions stick": (
        "ale_py",
        "--env-id atari:Breakout --env.time-limit 40 --encoder mlp --rollout-steps 12 "
        """--env.kwargs '{"repeat_action_probability": 0.25, "episodic_life": true}'""",
    ),
    "procgen": (
        "procgen",
        "--env-id procgen:fruitbot --encoder small --rollout-steps 20 "
        """--env.kwargs '{"num_levels": 3, "distribution_mode": "easy"}'""",
    ),
    "procgen, stacked": (
        "procgen",
        "--env-id procgen:bigfish --env.frame-stack 3 --encoder mlp --rollout-steps 40",
    ),
    "minigrid": (
        "minigrid",
        """--env-id minigrid:DoorKey-5x5 --env.kwargs '{"max_steps": 21}'""",
    ),
    "vectors, stacked": (
        "gymnasium",
        "--env-id CartPole-v1 --env.frame-stack 3 --normalize-obs",
    ),
    "images, stacked": (
        "gymnasium",
        """--env-id toy:identity --env.frame-stack 4 --env.kwargs '{"image": true}' """
        "--encoder small",
    ),
    "envpool CartPole": ("envpool", "--env-id envpool:CartPole-v1"),
    "envpool Pong": ("envpool", "--env-id envpool:Pong-v5 --env.time-limit 25 --encoder mlp"),
}
EXACT = tuple(name for name in RUNS if not name.startswith("envpool"))


def arguments_of(*flags):
    return shlex.split(" ".join([COMMON, *flags]))


def config_of(folder, *flags):
    return parse_config([*arguments_of(*flags), "--output-dir", str(folder)])


def runs(*names, slow=()):
    """Flags of some of the runs, as parameters of a test."""
    return [
        pytest.param(
            RUNS[name][1],
            id=name,
            marks=[missing(RUNS[name][0]), *([pytest.mark.slow] if name in slow else [])],
        )
        for name in names
    ]


in_workers_too = pytest.mark.parametrize(
    "workers", ["", pytest.param(WORKERS, marks=pytest.mark.slow)], ids=["serial", "workers"]
)


def assert_same_end(shell, one, other):
    """Checkpoint, metrics and evaluation are the same to the byte, but for restarted workers."""
    results = [shell.run(name).result() for name in (one, other)]
    for result in results:
        assert result["checkpoint"] == f"{ITERATIONS:08d}"
        for line in result["metrics"]:
            line.pop("restarts", None)
    assert results[0] == results[1]


def check_broken_off(shell, *flags, after=2):
    list(paceline.train(config_of(shell.folder / "whole", *flags)))
    left_after(config_of(shell.folder / "parts", *flags), after)
    assert shell.run("parts").checkpoints()[-1].name == f"{after:08d}"
    shell.resume_here("parts")
    assert_same_end(shell, "whole", "parts")


@in_workers_too
@pytest.mark.parametrize(
    "flags", runs(*EXACT, slow=("atari, whose actions stick", "procgen, stacked"))
)
def test_a_run_that_was_broken_off_ends_as_if_it_had_not_been(shell, caplog, flags, workers):
    check_broken_off(shell, flags, workers)
    assert "not exact" not in caplog.text and "did not replay" not in caplog.text
    assert any(line["episodes"] for line in shell.run("whole").metrics()), "no episode ended"


@pytest.mark.parametrize(
    "after", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4))]
)
@pytest.mark.parametrize("flags", runs("atari"))
def test_so_does_one_between_two_seeds_of_its_games(shell, monkeypatch, flags, after):
    """Every third episode of a column has a seed, and a rollout has two episodes."""
    monkeypatch.setattr(atari, "SEED_EVERY", 3)
    check_broken_off(shell, flags, "--encoder mlp --env.time-limit 5", after=after)


@pytest.mark.slow
@pytest.mark.parametrize("flags", runs("atari", "procgen", "minigrid"))
def test_so_does_one_with_ranks(shell, flags):
    """By the command, which starts them; broken off by its budget."""
    arguments = arguments_of(flags, "--ranks 2")
    shell.train("whole", *arguments)
    shell.train("parts", *arguments, "--total-iters", 2)
    shell.resume("parts", "--total-iters", ITERATIONS)
    assert_same_end(shell, "whole", "parts")


@pytest.mark.parametrize("flags", runs(*IN_WORKERS, slow=("procgen",)))
def test_workers_sample_and_learn_what_blocks_of_serial_do(tmp_path, flags):
    config = config_of(tmp_path / "run", flags)
    with by_workers(config) as ours, in_blocks(config) as theirs:
        for _ in range(3):
            assert turn(ours) == turn(theirs)
        assert_same(ours.learner.state(), theirs.learner.state())
        assert_same(ours.sampler.state(), theirs.sampler.state())


@pytest.mark.parametrize("flags", runs("images, stacked", "vectors, stacked"))
def test_impala_over_workers_sees_no_lag_in_stacks(tmp_path, flags):
    """What it learns from is what the workers saw, in every slot of theirs."""
    more = "--algo impala --minibatches 1 --epochs 1 --num-envs 4"
    with by_workers(config_of(tmp_path / "run", flags, more)) as parts:
        with torch.no_grad():
            parts.learner.module.policy.head.weight.mul_(100)
        parts.sampler.publish(parts.learner.weights, parts.learner.version)
        for _ in range(4):
            _, metrics = iterate(parts)
            assert metrics["rho_mean"] == pytest.approx(1.0, abs=1e-5)


def workers_of_this_process():
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "forkserver" in " ".join(child.cmdline()):
                found += child.children()
    return sorted(worker.pid for worker in found)


def kill(pid, killed):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)


@pytest.mark.slow
@pytest.mark.parametrize("flags", runs(*IN_WORKERS))
def test_a_worker_that_is_killed_changes_nothing(shell, flags):
    """One between two rollouts, another a moment later, wherever it then is."""
    list(paceline.train(config_of(shell.folder / "whole", flags, WORKERS)))
    timers, killed = [], []
    for report in paceline.train(config_of(shell.folder / "hurt", flags, WORKERS)):
        if report.iter == 1:
            kill(workers_of_this_process()[0], killed)
        if report.iter == 3:
            victim = workers_of_this_process()[1]
            timers.append(threading.Timer(0.02, kill, (victim, killed)))
            timers[-1].start()
    for timer in timers:
        timer.join()
    assert_same_end(shell, "whole", "hurt")
    assert len(killed) == 2 and shell.run("hurt").metrics()[-1]["restarts"] >= 1
    assert not workers_of_this_process()


@in_workers_too
@pytest.mark.parametrize("flags", runs("envpool CartPole", "envpool Pong"))
def test_envpool_says_at_the_start_that_it_resumes_with_new_episodes(shell, caplog, flags, workers):
    left_after(config_of(shell.folder / "run", flags, workers, "--rollout-steps 32"), 2)
    assert "can't be saved" in caplog.text and "not exact" in caplog.text
    before = load(shell.run("run").last("state.safetensors"))
    reports = list(paceline.resume(shell.folder / "run"))
    assert [report.iter for report in reports] == [3, 4, 5]
    after = load(shell.run("run").last("state.safetensors"))
    assert after["sampler.0.row"] == ITERATIONS * 32
    assert (after["sampler.0.episode"] > before["sampler.0.episode"]).all()


@missing("envpool")
def test_a_resumed_run_of_envpools_does_not_repeat_its_first_episodes():
    first, state = [], None
    for _ in range(2):
        with make_columns("envpool:CartPole-v1", 2, seed=3) as columns:
            if state is not None:
                columns.restore(state)
            first.append(np.zeros((2, 4), np.float32))
            columns.reset(first[-1])
            state = columns.state()
    assert not (first[0] == first[1]).any()


# Procgen's library ends the process for a state that is damaged or another game's, so all of them
# are tried in a process of its own, which prints how far it came.
DAMAGES = """
import sys
import numpy as np
from safetensors.numpy import load_file
from paceline.envs.source import make_columns

KEY = "sampler.0."
own, other = (
    {name.removeprefix(KEY): a for name, a in load_file(path).items() if name.startswith(KEY)}
    for path in sys.argv[1:3]
)
sizes, packed = own["sizes"], own["bytes"]
first = packed[: sizes[0]]
damages = {
    "cut": {"bytes": packed[:-5]},
    "cut with its sizes": {"bytes": packed[:-5], "sizes": sizes - np.array([0, 5])},
    "halved": {"bytes": first, "sizes": np.array([100, len(first) - 100])},
    "noise": {"bytes": np.random.default_rng(0).integers(256, size=len(packed)).astype(np.uint8)},
    "one bit": {"bytes": np.where(np.arange(len(packed)) == 9, packed ^ 1, packed)},
    "empty": {"bytes": packed[:0], "sizes": sizes * 0},
    "of another game": {name: other[name] for name in ("sizes", "bytes", "check")},
    "boundary moved": {"sizes": sizes + np.array([-5, 5])},
    "swapped": {"sizes": sizes[::-1].copy() + np.array([1, -1])},
    "negative": {"sizes": np.array([-1, len(packed) + 1])},
    "column": {"sizes": sizes[:, None]},
    "floats": {"sizes": sizes.astype(float)},
    "of one": {"sizes": sizes[:1], "bytes": first},
    "a table": {"bytes": packed[:, None]},
    "wide": {"bytes": packed.astype(np.int64)},
    "two sums": {"check": np.zeros(2, np.int64)},
    "no bytes": {"bytes": None},
    "no sizes": {"sizes": None},
}
options = {"kwargs": {"num_levels": 3, "distribution_mode": "easy"}}
for name, damage in {**damages, "whole": {}}.items():
    with make_columns("procgen:fruitbot", 2, **options) as columns:
        state = {key: array for key, array in {**own, **damage}.items() if array is not None}
        try:
            columns.restore(state)
        except ValueError as error:
            print(name, "refused", flush=True)
        else:
            print(name, "accepted", flush=True)
"""


@missing("procgen")
def test_a_damaged_state_of_procgens_is_refused_and_ends_no_process(shell):
    paths = []
    for game in ("fruitbot", "bigfish"):
        flags = RUNS["procgen"][1], f"--env-id procgen:{game}"
        left_after(config_of(shell.folder / game, *flags), 1)
        paths.append(shell.run(game).checkpoints()[-1] / "state.safetensors")
    ended = subprocess.run(
        [sys.executable, "-c", DAMAGES, *paths], capture_output=True, text=True, timeout=90
    )
    *damaged, whole = ended.stdout.splitlines()
    assert ended.returncode == 0 and len(damaged) == 18, (whole, ended.stderr[-500:])
    assert whole == "whole accepted"
    assert [line for line in damaged if not line.endswith("refused")] == []


@missing("procgen")
@in_workers_too
def test_a_run_whose_saved_environments_do_not_fit_is_refused_with_a_sentence(shell, workers):
    """Bytes cut short, with a manifest that agrees; the file is left as it is."""
    left_after(config_of(shell.folder / "run", RUNS["procgen"][1], workers), 1)
    newest = shell.run("run").checkpoints()[-1]
    arrays = load(shell.run("run").last("state.safetensors"))
    arrays["sampler.0.bytes"] = arrays["sampler.0.bytes"][:-7]
    content = save(arrays)
    (newest / "state.safetensors").write_bytes(content)
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest["state.safetensors"] = {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    (newest / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(paceline.errors.BadInput) as caught:
        list(paceline.resume(shell.folder / "run"))
    assert "state" in str(caught.value) and "\n" not in str(caught.value)
    assert not workers_of_this_process()
    assert (newest / "state.safetensors").read_bytes() == content
