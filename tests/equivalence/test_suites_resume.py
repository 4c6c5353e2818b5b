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
from safetensors.numpy import load, save
from saved_runs import PLAIN
from suites import missing
from test_workers_equal_serial import assert_same, by_workers, in_blocks, turn

import paceline
from paceline.envs.source import make_columns
from paceline.envs.suites import atari

pytestmark = pytest.mark.timeout(120)

WORKERS = 2
ITERATIONS, BROKEN_OFF = 5, 2
STICKY_LIVES = {"repeat_action_probability": 0.25, "episodic_life": True}
EASY = {"num_levels": 3, "distribution_mode": "easy"}


def run_of(package, env_id, env=None, encoder=None, **options):
    encoders = {} if encoder is None else {"encoder": encoder}
    return package, {"env_id": env_id, "env": env or {}, **encoders, **options}


# Environments whose episodes end within a few rollouts, at different times in different columns.
RUNS = {
    "atari": run_of(
        *("ale_py", "atari:Breakout", {"time_limit": 9}, "small"),
        rollout_steps=12,
        clip_reward=True,
    ),
    "atari, whose actions stick": run_of(
        *("ale_py", "atari:Breakout", {"time_limit": 40, "kwargs": STICKY_LIVES}, "mlp"),
        rollout_steps=12,
    ),
    "procgen": run_of("procgen", "procgen:fruitbot", {"kwargs": EASY}, "small", rollout_steps=20),
    "procgen, stacked": run_of(
        "procgen", "procgen:bigfish", {"frame_stack": 3}, "mlp", rollout_steps=40
    ),
    "minigrid": run_of("minigrid", "minigrid:DoorKey-5x5", {"kwargs": {"max_steps": 21}}),
    "vectors, stacked": run_of("gymnasium", "CartPole-v1", {"frame_stack": 3}, normalize_obs=True),
    "images, stacked": run_of(
        "gymnasium", "toy:identity", {"frame_stack": 4, "kwargs": {"image": True}}, "small"
    ),
}
IN_WORKERS = ("atari", "procgen")
SLOW_IN_WORKERS = tuple(name for name in RUNS if name != "atari")


def config_of(folder, options, **more):
    defaults = {
        **PLAIN,
        "num_envs": 2,
        "rollout_steps": 16,
        "minibatches": 2,
        "epochs": 2,
        "hidden": (16,),
        "total_iters": ITERATIONS,
        "eval_episodes": 1,
    }
    return paceline.Config(output_dir=str(folder), **(defaults | options | more))


def runs(*names, slow=()):
    return [
        pytest.param(
            RUNS[name][1],
            id=name,
            marks=[missing(RUNS[name][0]), *([pytest.mark.slow] if name in slow else [])],
        )
        for name in names or RUNS
    ]


def assert_same_end(shell, one, other):
    """Checkpoint, metrics and evaluation are the same to the byte, but for restarted workers."""
    results = [shell.run(name).result() for name in (one, other)]
    for result in results:
        assert result["checkpoint"] == f"{ITERATIONS:08d}"
        for line in result["metrics"]:
            line.pop("restarts", None)
    assert results[0] == results[1]


def left_after(config, iteration):
    for report in paceline.train(config):
        if report.iter == iteration:
            return


def check_broken_off(shell, options, **more):
    list(paceline.train(config_of(shell.folder / "whole", options, **more)))
    left_after(config_of(shell.folder / "parts", options, **more), BROKEN_OFF)
    assert shell.run("parts").checkpoints()[-1].name == f"{BROKEN_OFF:08d}"
    shell.resume_here("parts")
    assert_same_end(shell, "whole", "parts")


@pytest.mark.parametrize("options", runs(slow=("atari, whose actions stick", "procgen, stacked")))
def test_a_run_that_was_broken_off_ends_as_if_it_had_not_been(shell, caplog, options):
    check_broken_off(shell, options)
    assert "not exact" not in caplog.text and "did not replay" not in caplog.text
    assert any(line["episodes"] for line in shell.run("whole").metrics()), "no episode ended"


@pytest.mark.slow
@pytest.mark.parametrize("options", runs(slow=SLOW_IN_WORKERS))
def test_so_does_one_with_workers(shell, caplog, options):
    check_broken_off(shell, options, num_workers=WORKERS)
    assert "not exact" not in caplog.text and "did not replay" not in caplog.text


@pytest.mark.parametrize(
    "broken_off", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4))]
)
@pytest.mark.parametrize("options", runs("atari"))
def test_so_does_one_between_two_seeds_of_its_games(shell, monkeypatch, options, broken_off):
    """Every third episode of a column has a seed, and a rollout has two episodes."""
    monkeypatch.setattr(atari, "SEED_EVERY", 3)
    monkeypatch.setattr(sys.modules[__name__], "BROKEN_OFF", broken_off)
    check_broken_off(shell, options | {"encoder": "mlp"}, env={"time_limit": 5})


@pytest.mark.slow
@pytest.mark.parametrize("options", runs("atari", "procgen", "minigrid"))
def test_so_does_one_with_ranks(shell, options):
    """By the command, which starts them; broken off by its budget."""
    env = options.get("env", {})
    flags = ["--env-id", options["env_id"], "--env.kwargs", json.dumps(env.get("kwargs", {}))]
    if "time_limit" in env:
        flags += ["--env.time-limit", env["time_limit"]]
    if "encoder" in options:
        flags += ["--encoder", options["encoder"]]
    flags += shlex.split(
        "--preset none --num-envs 2 --rollout-steps 12 --minibatches 2 --hidden 16 --threads 1 "
        "--compile off --eval-episodes 1 --ranks 2"
    )
    shell.train("whole", *flags, "--total-iters", ITERATIONS)
    shell.train("parts", *flags, "--total-iters", BROKEN_OFF)
    shell.resume("parts", "--total-iters", ITERATIONS)
    assert_same_end(shell, "whole", "parts")


@pytest.mark.parametrize("options", runs(*IN_WORKERS, slow=("procgen",)))
def test_workers_sample_and_learn_what_blocks_of_serial_do(tmp_path, options):
    config = config_of(tmp_path / "run", options)
    with by_workers(config) as ours, in_blocks(config) as theirs:
        for _ in range(3):
            assert turn(ours) == turn(theirs)
        assert_same(ours.learner.state(), theirs.learner.state())
        assert_same(ours.sampler.state(), theirs.sampler.state())


@pytest.mark.parametrize("options", runs("images, stacked", "vectors, stacked"))
def test_impala_over_workers_sees_no_lag_in_stacks(tmp_path, options):
    """What it learns from is what the workers saw, in every slot of theirs."""
    more = {"algo": "impala", "minibatches": 1, "epochs": 1, "num_envs": 4}
    with by_workers(config_of(tmp_path / "run", options, **more)) as parts:
        with torch.no_grad():
            parts.learner.module.policy.head.weight.mul_(100)
        for _ in range(4):
            parts.sampler.publish(parts.learner.weights, parts.learner.version)
            rollout = parts.sampler.collect()
            metrics = parts.learner.update(rollout, 1.0)
            assert metrics["rho_mean"] == pytest.approx(1.0, abs=1e-5)


def workers_of_this_process():
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "forkserver" in " ".join(child.cmdline()):
                found += child.children()
    return sorted(worker.pid for worker in found)


@pytest.mark.slow
@pytest.mark.parametrize("options", runs(*IN_WORKERS, slow=("procgen",)))
def test_a_worker_that_is_killed_changes_nothing(shell, options):
    """One between two rollouts, another a moment later, wherever it then is."""
    list(paceline.train(config_of(shell.folder / "whole", options, num_workers=WORKERS)))
    timers, killed = [], []
    for report in paceline.train(config_of(shell.folder / "hurt", options, num_workers=WORKERS)):
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


def kill(pid, killed):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)


POOL = {
    "CartPole": {"env_id": "envpool:CartPole-v1"},
    "Pong": {"env_id": "envpool:Pong-v5", "env": {"time_limit": 25}, "encoder": "mlp"},
}


@missing("envpool")
@pytest.mark.parametrize("name", POOL)
@pytest.mark.parametrize("workers", [0, pytest.param(WORKERS, marks=pytest.mark.slow)])
def test_envpool_says_at_the_start_that_it_resumes_with_new_episodes(shell, caplog, name, workers):
    config = config_of(shell.folder / "run", POOL[name], num_workers=workers, rollout_steps=32)
    left_after(config, BROKEN_OFF)
    assert "can't be saved" in caplog.text and "not exact" in caplog.text
    before = load(shell.run("run").last("state.safetensors"))
    reports = list(paceline.resume(shell.folder / "run"))
    assert [report.iter for report in reports] == list(range(BROKEN_OFF + 1, ITERATIONS + 1))
    after = load(shell.run("run").last("state.safetensors"))
    assert after["sampler.0.row"] == ITERATIONS * 32
    assert (after["sampler.0.episode"] > before["sampler.0.episode"]).all()


@missing("envpool")
def test_a_resumed_run_of_envpools_does_not_repeat_its_first_episodes(tmp_path):
    with make_columns("envpool:CartPole-v1", 2, seed=3) as one:
        obs = np.zeros((2, 4), np.float32)
        one.reset(obs)
        state = one.state()
    with make_columns("envpool:CartPole-v1", 2, seed=3) as other:
        again = np.zeros((2, 4), np.float32)
        other.restore(state)
        other.reset(again)
    assert not (obs == again).any()


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
    for game in ("fruitbot", "bigfish"):
        options = RUNS["procgen"][1] | {"env_id": f"procgen:{game}"}
        left_after(config_of(shell.folder / game, options), 1)
    paths = [
        shell.run(game).checkpoints()[-1] / "state.safetensors" for game in ("fruitbot", "bigfish")
    ]
    ended = subprocess.run(
        [sys.executable, "-c", DAMAGES, *paths], capture_output=True, text=True, timeout=90
    )
    *damaged, whole = ended.stdout.splitlines()
    assert ended.returncode == 0 and len(damaged) == 18, (whole, ended.stderr[-500:])
    assert whole == "whole accepted"
    assert [line for line in damaged if not line.endswith("refused")] == []


@missing("procgen")
@pytest.mark.parametrize("workers", [0, pytest.param(WORKERS, marks=pytest.mark.slow)])
def test_a_run_whose_saved_environments_do_not_fit_is_refused_with_a_sentence(shell, workers):
    """Bytes cut short, with a manifest that agrees; the file is left as it is."""
    left_after(config_of(shell.folder / "run", RUNS["procgen"][1], num_workers=workers), 1)
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
