"""A run that was killed or stopped at any moment resumes exactly, to the byte."""

from __future__ import annotations

import functools
import os
import random
import shlex
import signal
import subprocess
import time
from itertools import product
from pathlib import Path

import pytest

from paceline.storage import checkpoint

CASES = {
    "ppo": "--normalize-obs --normalize-return --ppo.target-kl 0.02 --ppo.clip-schedule linear "
    "--lr-schedule warmup:0.1+cosine --total-steps 15000 --save-every 2000 --eval-every 4000 "
    "--eval-episodes 3",
    "a2c": "--algo a2c --total-steps 15000 --save-every 2500 --log-every 10 --eval-episodes 3",
    "impala": "--algo impala --normalize-return --lr-schedule linear --total-steps 15000 "
    "--save-every 2500 --log-every 5 --eval-episodes 3",
    "image": "--env-id toy:identity --num-envs 4 --rollout-steps 32 --total-iters 14 "
    "--save-every 300 --eval-episodes 3 --threads 1",
    "box": "--env-id Pendulum-v1 --num-envs 4 --rollout-steps 64 --total-iters 30 "
    "--save-every 1000 --eval-episodes 3 --normalize-obs",
}


def flags_of(case):
    more = ["--env.kwargs", '{"image": true}'] if case == "image" else []
    return [*CASES[case].split(), *more, "--track", "none"]


@pytest.fixture(scope="module")
def reference(shell_in, tmp_path_factory):
    """The uninterrupted run of a case, made when it is first asked for: (result, its seconds)."""

    @functools.cache
    def made(case):
        shell = shell_in(tmp_path_factory.mktemp(case))
        run = shell.train_here("run", *flags_of(case))
        return run.result(), run.metrics()[-1]["time"]

    return made


def reports(shell):
    """How many lines of metrics the run has written."""
    metrics = shell.folder / "run" / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def moments(number, longest):
    """Random moments, printed so that a failure can be repeated."""
    seed = int.from_bytes(os.urandom(8), "big")
    source = random.Random(seed)
    delays = [source.uniform(0, longest) for _ in range(number)]
    print(f"random.Random({seed}): kill after {', '.join(f'{delay:.3f} s' for delay in delays)}")
    return delays


@pytest.mark.timeout(900)
@pytest.mark.sampled(18)  # two kills of PPO, and of the run with images
@pytest.mark.parametrize(("case", "kills"), list(product(CASES, (2, 4, 4, 4, 4, 4))))
def test_a_killed_run_resumes_to_the_same_result(shell, reference, case, kills):
    expected, seconds = reference(case)
    arguments, hits = ["train", "--output-dir", "run", *flags_of(case)], 0
    for delay in moments(kills, seconds):
        hits += shell.kill(arguments, "run", delay)
        arguments = ["resume", "run"]
    print(f"{hits} of {kills} were still running")
    run = shell.resume("run")
    assert run.result() == expected
    assert not run.leftovers()


def test_a_run_killed_before_its_first_checkpoint_starts_from_the_beginning(shell, until, caplog):
    flags = ["--total-steps", "20000", "--track", "none", "--eval-episodes", "2"]
    process = shell.start("train", "--output-dir", "run", *flags)
    until(lambda: reports(shell) >= 5)
    process.kill()
    process.communicate(timeout=10)
    assert not shell.run("run").checkpoints()
    resumed = shell.resume_here("run")
    assert "from the beginning" in caplog.text
    assert resumed.result() == shell.train_here("other", *flags).result()


SAVING = shlex.split(
    "--preset none --num-envs 2 --rollout-steps 8 --epochs 1 --minibatches 1 --hidden 256,256 "
    "--save-every 1 --keep 2 --eval-episodes 1 --track none"
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [10, 100])
def test_a_run_killed_while_it_saves_always_has_an_intact_checkpoint(shell, kills):
    """Checkpoints after every iteration, which take most of the time; kill, resume, kill, …"""
    arguments, seen, torn = ["train", "--output-dir", "run", *SAVING], 0, 0
    for number, delay in enumerate(moments(kills, 0.6)):
        budget = ["--total-iters", "1M", *(["--compile", "off"] if number == 0 else [])]
        shell.kill([*arguments, *budget], "run", delay)
        arguments = ["resume", "run"]
        run = shell.run("run")
        torn += bool(run.leftovers())
        if run.checkpoints():
            path, found, problems = checkpoint.load_newest(run.path / "checkpoints")
            assert problems == [], "only whole checkpoints have names"
            assert found.facts["iter"] == int(path.name) >= seen
            reported = [line for line in run.text("metrics.jsonl").splitlines() if line[-1:] == "}"]
            assert int(path.name) >= len(reported) - 1, "at most one interval is lost"
            seen = int(path.name)
        else:
            assert seen == 0
    print(f"{torn} of {kills} were killed while writing; {seen} iterations")
    total = seen + 3
    resumed = shell.resume_here("run", total_iters=total)
    flags = [*SAVING, "--total-iters", total, "--save-every", "1M", "--compile", "off"]
    assert resumed.result() == shell.train_here("straight", *flags).result()
    assert not resumed.leftovers()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_run_with_a_checkpoint_that_resumes_exactly(shell, reference, kind, until):
    process = shell.start("train", "--output-dir", "run", *flags_of("ppo"))
    until(lambda: reports(shell) >= 3)
    sent = time.monotonic()
    process.send_signal(kind)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - sent < 10
    assert process.returncode == 75
    assert kind.name in err
    assert "paceline resume run" in out + err
    assert "Traceback" not in err
    run = shell.run("run")
    assert run.checkpoints()[-1].name == f"{run.metrics()[-1]['iter']:08d}"
    assert not (run.path / "eval.json").exists() or run.metrics()[-1]["steps"] >= 4000
    assert not run.leftovers()
    resume = shell.resume if kind == signal.SIGTERM else shell.resume_here
    assert resume("run").result() == reference("ppo")[0]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_start_up_ends_the_run(shell, kind, until):
    """While torch is imported, which takes seconds."""
    process = shell.start("train", "--output-dir", "run", "--total-iters", "1000")
    maps = Path(f"/proc/{process.pid}/maps")
    until(lambda: "libtorch" in maps.read_text(), what="the import of torch")
    process.send_signal(kind)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "Traceback" not in err


SLOW = """
import time
import gymnasium as gym
from paceline.envs.suites.toy import Constant


class Slow(Constant):
    def step(self, action):
        open("stepped", "w").close()
        time.sleep(0.2)
        return super().step(action)


gym.register("Slow-v0", Slow)
"""


def test_a_second_signal_forces_the_end(shell, until):
    """The first waits for the iteration, which here takes minutes."""
    (shell.folder / "slow.py").write_text(SLOW)
    arguments = ["train", "--output-dir", "run", "--env-id", "slow:Slow-v0", "--total-iters", "2"]
    process = shell.start(*arguments, stdout=subprocess.DEVNULL)
    until(lambda: (shell.folder / "stepped").exists())
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=5)
    assert process.returncode == 75
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_signal_between_two_reports_loses_no_iteration(shell, until):
    """A report may cover many iterations; stopping in between must not break what it sums up."""
    flags = ("--algo", "a2c", "--total-iters", "450", "--log-every", "150", "--eval-episodes", "2")
    process = shell.start("train", "--output-dir", "run", *flags, "--track", "none")
    until(lambda: "preset" in process.stdout.readline())
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 75
    stopped = shell.run("run").metrics()[-1]
    assert stopped["iter"] < 450
    resumed, straight = shell.resume_here("run"), shell.train_here("straight", *flags)
    assert resumed.last() == straight.last()
    assert resumed.last("state.safetensors") == straight.last("state.safetensors")
    lines = resumed.metrics()
    assert sum(line["steps_global"] for line in lines) == straight.metrics()[-1]["steps"]
    assert [line["iter"] for line in lines] == sorted({150, 300, 450, stopped["iter"]})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_preemptions_change_nothing(shell, reference, until):
    """As on a cluster that stops a job every few seconds by SIGTERM."""
    expected, _ = reference("ppo")
    arguments = ["train", "--output-dir", "run", *flags_of("ppo")]
    stops = 0
    for _ in range(20):
        before = reports(shell)
        process = shell.start(*arguments, stdout=subprocess.DEVNULL)
        until(lambda p=process, n=before: reports(shell) > n or p.poll() is not None)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        stops += process.returncode == 75
        arguments = ["resume", "run"]
    print(f"{stops} of 20 found it still training")
    assert stops >= 5
    assert shell.resume("run").result() == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_compiled_run_resumes_to_the_same_result(shell):
    """The choice to compile is kept; compiled and eager steps differ in their last bits."""
    pytest.importorskip("torch")
    from paceline.learning.compiler import compiler_missing

    if missing := compiler_missing():
        pytest.skip(missing)
    flags = [*flags_of("ppo"), "--compile", "on"]
    where = {"env": shell.environment(XDG_CACHE_HOME=str(shell.folder / "cache"))}
    straight = shell.train("straight", *flags, timeout=300, **where)
    seconds = straight.metrics()[-1]["time"]
    for delay in moments(2, seconds):
        again = (shell.folder / "run").exists()
        start = ["resume", "run"] if again else ["train", "--output-dir", "run", *flags]
        shell.kill(start, "run", delay, timeout=300, **where)
    run = shell.resume("run", timeout=300, **where)
    assert run.json("run.json")["choices"]["compiled"] is True
    assert run.result() == straight.result()
