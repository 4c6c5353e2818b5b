"""Ranks that are killed, hang, fail or are told to stop: the run goes on, or ends, and is the same.

Real processes, as `--ranks` starts them; where results are compared, they are compared to the byte.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import ranked
from ranked import PACELINE, Command, commands, left_after
from saved_runs import iterations

import paceline
from paceline.config.flags import parse_config

pytestmark = pytest.mark.timeout(180)

COMMON = (
    "--env-id ranked:Ranked-v0 --preset none --num-envs 2 --rollout-steps 16 --hidden 16 "
    "--compile off --track none --eval-episodes 1 "
)
CASES = {
    "ppo": "--ranks 2 --epochs 2 --minibatches 2 --total-iters 30 --save-every 200 --normalize-obs",
    "workers": "--ranks 2 --num-workers 2 --epochs 1 --total-iters 30 --save-every 400",
    "a3c": "--algo a3c --num-workers 2 --rollout-steps 5 --total-steps 3000 --log-every 20 "
    "--save-every 500",
}
NAMED = r"rank {rank} \(pid {pid}\) has gone; all ranks start again from the last checkpoint"
SLOW = 0.001
"""Seconds of a step, so that there is time to disturb."""


def flags_of(case, *more, **kwargs):
    """Flags of a case; keyword arguments are the environment's."""
    given = json.dumps({"slow": SLOW} | kwargs)
    return [*shlex.split(COMMON + CASES[case]), "--env.kwargs", given, *map(str, more)]


@pytest.fixture
def start(shell):
    """Start a training of a case in `run`."""
    with commands(shell) as begin:
        yield lambda case, *more, **kwargs: begin(
            "train", "--output-dir", "run", *flags_of(case, *more, **kwargs)
        )


@pytest.fixture(scope="module")
def undisturbed(shell_in, tmp_path_factory):
    """What a case comes to when nothing happens, made when it is first asked for."""
    made = {}

    def result(case):
        if case not in made:
            shell = shell_in(tmp_path_factory.mktemp(case))
            with commands(shell):
                made[case] = same(shell.train("run", *flags_of(case)))
        return made[case]

    return result


def same(run):
    """All that a disturbed run must share with one that was not: everything but the counts."""
    result = run.result()
    result["evaluation"].pop("env_id")
    result["metrics"] = [
        {name: value for name, value in line.items() if name != "restarts"}
        for line in result["metrics"]
    ]
    return result


def every_iteration_once(run, last):
    assert iterations(run) == list(range(1, last + 1))


def kill(process, kind=signal.SIGKILL):
    process.send_signal(kind)
    return process.pid


# Killed


LAST = 29
"""Reports after which a rank may have finished before it is killed."""
KILLS = [
    [(0, 0), (1, 8), (0, 18)],  # before there is a checkpoint, after it, and once more
    *([(rank, reports)] for rank in (0, 1) for reports in (1, 12, LAST)),
]


@pytest.mark.sampled(len(KILLS))
@pytest.mark.parametrize("kills", KILLS, ids=str)
def test_a_run_whose_ranks_are_killed_ends_as_if_they_had_not_been(start, undisturbed, kills):
    """A rank is killed when there are so many reports."""
    command, killed = start("ppo"), []
    for rank, reports in kills:
        command.await_reports(reports)
        killed.append((rank, kill(command.await_(command.ranks)[rank])))
    assert command.end() == 0, command.err
    for (rank, pid), (_, reports) in zip(killed, kills, strict=True):
        if reports in range(1, LAST):  # before, a rank may not have said which it is
            assert re.search("warning: " + NAMED.format(rank=rank, pid=pid), command.out)
    assert command.out.count("all ranks start again") == len(kills) or reports == LAST
    assert "Traceback" not in command.out + command.err
    every_iteration_once(command.run, 30)
    assert same(command.run) == undisturbed("ppo")
    assert not command.run.leftovers()


@pytest.mark.slow
def test_a_worker_of_a_rank_is_replaced_without_the_ranks(start):
    """And nothing but the command need be killed for everything to go."""
    command = start("workers", "--total-iters", 100_000)
    command.await_reports(5)
    ranks = command.ranks()
    (server,) = ranked.named(ranks[1].pid, "forkserver")
    victim = server.children()[0].pid
    os.kill(victim, signal.SIGKILL)
    named = rf"warning: rank 1: worker \d \(pid {victim}, columns \d–\d\) was killed by SIGKILL"
    command.await_(lambda: re.search(named, command.out), 20, "a warning")
    command.await_reports(command.count() + 5)
    assert {r: p.pid for r, p in command.ranks().items()} == {r: p.pid for r, p in ranks.items()}
    assert command.run.metrics()[-1]["restarts"] == 1
    family = command.family()
    assert len(family) >= 1 + 2 + 2 + 4, "the agent, two ranks, their servers and their workers"
    command.process.kill()
    command.process.wait()
    assert not left_after(family, 2.0)


# The agent killed


@pytest.mark.slow
def test_without_its_agent_a_run_ends_and_can_be_resumed(start, shell, undisturbed):
    command = start("ppo")
    command.await_reports(12)
    family = command.family()
    kill(ranked.agent_of(command.pid))
    assert not left_after(family, 2.0)
    assert command.end(5) == 75
    (sentence,) = command.err.splitlines()
    assert sentence.startswith("paceline: ")
    assert command.run.checkpoints()
    assert same(shell.resume("run")) == undisturbed("ppo")


# Hung


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_the_run_goes_on(start, undisturbed):
    command = start("ppo", "--rank-timeout", "2s")
    command.await_reports(10)
    stopped = kill(command.ranks()[1], signal.SIGSTOP)
    assert command.end() == 0, command.err
    hung = rf"warning: rank 1 \(pid {stopped}\) has shown no sign of life for 2 s \(--rank-timeout"
    assert re.search(hung, command.out), command.out
    assert not psutil.pid_exists(stopped)
    every_iteration_once(command.run, 30)
    assert same(command.run) == undisturbed("ppo")


@pytest.mark.slow
def test_a_long_evaluation_is_not_taken_for_a_hang(start):
    """Rank 1 waits for rank 0 all the while, some seconds more than it may take to hang."""
    more = ("--rank-timeout", "1s", "--eval-every", 200, "--eval-episodes", 20)
    command = start("ppo", *more, "--total-iters", 5, slow=0.01)
    assert command.end() == 0, command.err
    lines = command.run.metrics()
    assert max(line["t_other"] for line in lines) > 2.0, "the evaluation was not long"
    assert "warning" not in command.out
    every_iteration_once(command.run, 5)


# Told to stop


STOPS = {
    "SIGINT": ("ppo", None, signal.SIGINT),
    "SIGTERM": ("ppo", None, signal.SIGTERM),
    "with workers": ("workers", None, signal.SIGINT),
    "SIGTERM to a rank": ("ppo", 1, signal.SIGTERM),  # by a `kill` that picked the wrong process
}


@pytest.mark.sampled(len(STOPS))
@pytest.mark.parametrize(("case", "rank", "kind"), STOPS.values(), ids=STOPS)
def test_a_signal_stops_all_ranks_with_a_checkpoint_that_resumes_exactly(
    start, shell, undisturbed, case, rank, kind
):
    command = start(case)
    command.await_reports(10)
    family = command.family()
    sent = time.monotonic()
    kill(command.process if rank is None else command.ranks()[rank], kind)
    assert command.end(20) == 75
    assert time.monotonic() - sent < 10
    assert not left_after(family, 1.0)
    assert "saved; go on with `paceline resume run`" in command.out
    assert "Traceback" not in command.err
    if rank is None:
        assert command.err == f"paceline: stopped by {kind.name}\n"
    run = command.run
    assert run.checkpoints()[-1].name == f"{iterations(run)[-1]:08d}"
    assert same(shell.resume("run")) == undisturbed(case)


@pytest.mark.slow
def test_a_second_signal_forces_the_end(start):
    """The first waits for the iteration, which here takes half a minute."""
    command = start("ppo", "--rollout-steps", 128, slow=0.1)
    command.await_((command.run.path / "config.yaml").exists)
    time.sleep(1.0)
    family = command.family()
    command.signal(signal.SIGINT)
    time.sleep(1.0)
    assert command.process.poll() is None
    command.signal(signal.SIGTERM)
    assert command.end(2) == 75
    assert not left_after(family, 2.0)
    assert "Traceback" not in command.err


# Killed while ranks still start


ORPHANED = """
import ctypes, os, signal, subprocess, sys, time

import ranked

SUBREAPER = 36
ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)  # orphans come here, and not to the system's first
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append("SIGTERM"))
process = subprocess.Popen([sys.executable, "-m", "paceline", *sys.argv[2:]])
ranks = []
while len(ranks) < 2:
    time.sleep(0.01)
    agent = ranked.agent_of(process.pid)
    ranks = agent and ranked.named(agent.pid, "paceline.ranks.rank") or []
time.sleep(0.2)  # they import torch, which takes seconds
victim = process if sys.argv[1] == "command" else agent
victim.kill()
left = ranked.left_after(ranks, 2.0)
ranked.left_after(left, 20.0)
process.wait()
print("left:", len(left), "signals:", *signals)
"""


@pytest.mark.parametrize("victim", ["command", pytest.param("agent", marks=pytest.mark.slow)])
def test_ranks_that_lose_who_started_them_leave_at_once_and_signal_nobody_else(shell, victim):
    """Whoever adopts them, the first process of a container perhaps, is none of theirs."""
    (shell.folder / "orphaned.py").write_text(ORPHANED)
    arguments = ("train", "--output-dir", "run", *flags_of("ppo"))
    with commands(shell):
        ended = shell.execute(sys.executable, "orphaned.py", victim, *arguments, timeout=100)
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == "left: 0 signals:"


# Failing for good


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("raise", ("RuntimeError: the rope broke", r"ranked\.py:\d+", r"column [23]\b")),
        ("nan reward", ("reward nan", r"column [23]\b")),
        ("nan obs", ("observation.*nan", r"column [23]\b")),
    ],
)
def test_an_environment_that_fails_for_good_on_one_rank_ends_the_run(start, what, words):
    command = start("ppo", what=what, rank=1, after=200)
    assert command.end() == 3, command.err
    sentence = command.err[command.err.rindex("paceline: ") :]
    for word in ("rank 1: ", *words):
        assert re.search(word, sentence), f"{word} is not in: {sentence}"
    assert "Traceback" not in sentence
    assert "start again" not in command.out
    assert command.run.checkpoints(), "what was learned before is kept"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "after"),
    [((), 0), (("--total-iters", 500, "--save-every", 10**6), 240)],
    ids=["from the beginning", "iterations that are only made again"],
)
def test_a_run_that_gets_no_further_than_before_ends(start, flags, after):
    """Of every rank 1 that is started, the environment ends the process."""
    command = start("ppo", "--max-restarts", 1, *flags, what="exit", after=after)
    assert command.end() == 3, command.err
    (sentence,) = command.err.splitlines()
    failed = r"paceline: rank 1 \(pid \d+\) has gone; that was failure 2 in a row without getting"
    assert re.match(failed, sentence)
    assert command.out.count("all ranks start again") == 1


@pytest.mark.slow
def test_failures_with_finished_iterations_between_them_never_end_a_run(start):
    command = start("ppo", "--max-restarts", 1, "--total-iters", 25, what="exit", after=240)
    assert command.end() == 0, command.err
    assert command.out.count("all ranks start again") >= 2
    every_iteration_once(command.run, 25)


@pytest.mark.slow
def test_processes_that_an_environment_leaves_behind_do_not_hold_up_the_run(start):
    """They hold copies of all that the killed rank had open: its line, and the run's lock."""
    command = start("ppo", forks="release")
    try:
        command.await_reports(10)
        kill(command.ranks()[0])
        code = command.end(40)
    finally:
        (command.folder / "release").touch()
    assert code == 0, command.err
    every_iteration_once(command.run, 30)


# From Python


def config_of(folder):
    """The case `ppo`."""
    config = parse_config([*flags_of("ppo"), "--output-dir", str(folder / "run")])
    return replace(config, env_id=ranked.Ranked)


@pytest.mark.slow
def test_a_loop_over_reports_sees_all_ranks_and_may_be_left_at_any_time(shell):
    """The ranks of a run in Python are children of this process."""
    for report in paceline.train(config_of(shell.folder)):
        assert report.world_size == 2
        if report.iter == 5:
            break
    assert not psutil.Process().children(recursive=True)
    run = shell.run("run")
    last = iterations(run)[-1]
    assert last >= 5
    assert run.checkpoints()[-1].name == f"{last:08d}"
    every_iteration_once(run, last)


def kill_rank(number):
    ranks = ranked.by_rank(ranked.named(ranked.agent_of(None).pid, "paceline.ranks.rank"))
    ranks[number].kill()


@pytest.mark.slow
def test_a_run_of_a_callable_environment_outlives_its_ranks_too(shell, undisturbed, caplog):
    """What can't be read from the run's files is still known to who started it."""
    for report in paceline.train(config_of(shell.folder)):
        if report.iter == 10:
            kill_rank(1)
    assert "all ranks start again" in caplog.text
    run = shell.run("run")
    every_iteration_once(run, 30)
    assert run.last() == undisturbed("ppo")["weights"]


SCRIPT = """
import gymnasium as gym
import paceline
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Mine(CartPoleEnv):
    pass


gym.register("Mine-v0", Mine, max_episode_steps=50)
config = paceline.Config(
    env_id={env_id}, preset="none", ranks=2, num_envs=2, rollout_steps=16, total_iters=3,
    hidden=(16,), compile="off", track="none", eval_episodes=1, output_dir="run",
)
for report in paceline.train(config):
    print("report", report.iter, report.world_size)
"""


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["Mine", "'Mine-v0'"])
def test_an_environment_of_the_users_own_script_is_known_to_ranks(shell, env_id):
    """The script has no guard against being imported: nobody imports it."""
    (shell.folder / "script.py").write_text(SCRIPT.format(env_id=env_id))
    ended = shell.execute(sys.executable, "script.py", timeout=100)
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == ["report 1 2", "report 2 2", "report 3 2"]
    every_iteration_once(shell.run("run"), 3)


# Learners that wait for nobody


def steps_add_up(run, total):
    """Every step is counted in one report, and the budget is kept but for a rollout of each."""
    lines = run.metrics()
    assert iterations(run) == sorted(set(iterations(run)))
    assert sum(line["steps_global"] for line in lines) == lines[-1]["steps"]
    assert total <= lines[-1]["steps"] <= total + 200
    assert {line["world_size"] for line in lines} == {2}


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("kind", "word"), [(signal.SIGKILL, "has gone"), (signal.SIGSTOP, "no sign of life")]
)
def test_a3c_goes_on_when_a_process_of_it_is_killed_or_hangs(start, victim, kind, word):
    """Rank 0 watches; 1 and 2 learn."""
    command = start("a3c", "--rank-timeout", "2s")
    command.await_(lambda: len(command.run.checkpoints()) >= 2)
    pid = kill(command.ranks(3)[victim], kind)
    assert command.end() == 0, command.err
    assert re.search(rf"rank {victim} \(pid {pid}\).* {word}.*; all ranks start", command.out)
    assert "Traceback" not in command.out + command.err
    steps_add_up(command.run, 3000)


@pytest.mark.slow
def test_a3c_that_is_stopped_goes_on_where_it_was(start, shell):
    command = start("a3c")
    command.await_reports(4)
    family = command.family()
    command.signal(signal.SIGINT)
    assert command.end(20) == 75
    assert not left_after(family, 1.0)
    assert "saved; go on with `paceline resume run`" in command.out
    before = command.run.metrics()
    assert before[-1]["steps"] < 3000
    run = shell.resume("run")
    assert run.metrics()[: len(before)] == before
    steps_add_up(run, 3000)


@pytest.mark.slow
def test_a3c_with_long_iterations_stops_when_it_is_told_to(start):
    """Also before any iteration is over; the learners are waited for."""
    command = start("a3c", slow=0.05)
    command.await_(lambda: (command.run.path / "config.yaml").exists())
    family = command.family()
    command.signal(signal.SIGINT)
    assert command.end(30) == 75, command.err
    assert not left_after(family, 1.0)
    assert "Traceback" not in command.out + command.err
    assert "start again" not in command.out


# Out of memory


@pytest.fixture
def small_memory():
    """A control group of 700 MB, which processes join by writing their id to its `cgroup.procs`."""
    own = [line.split(":") for line in Path("/proc/self/cgroup").read_text().splitlines()]
    path = next((path for _, kinds, path in own if "memory" in kinds.split(",")), None)
    if path is None:
        pytest.skip("takes a memory control group of version 1")
    group = Path(f"/sys/fs/cgroup/memory{path}") / f"paceline-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("700M")
    except OSError as error:
        pytest.skip(f"takes a control group: {error.strerror}")
    yield group
    for _ in range(50):
        try:
            return group.rmdir()
        except OSError:
            time.sleep(0.1)


def started_by(line):
    """Prefix of a command before which a shell does this."""
    return ("sh", "-c", f'{line} && exec "$@"', "sh", *PACELINE)


@pytest.mark.slow
def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_told_as_that(shell, small_memory):
    flags = flags_of("ppo", "--max-restarts", 0, what="eat")
    join = started_by(f"echo $$ > {small_memory}/cgroup.procs")
    with commands(shell) as begin:
        command = begin("train", "--output-dir", "run", *flags, prefix=join)
        assert command.end() == 3, command.err
    assert "has gone: the system ran out of memory" in command.err


@pytest.mark.slow
def test_ranks_without_memory_to_share_do_not_wait_for_it(shell):
    """A limit on the size of files is one on memory without a name too."""
    flags = ("--ranks", 2, "--total-iters", 3, "--compile", "off", "--track", "none")
    limited = started_by("ulimit -f 8")
    command = Command(shell, "train", "--output-dir", "run", *flags, prefix=limited)
    assert command.end(60) == 75  # its checkpoint is too large for the limit
    assert "2 learners (gloo)" in command.out
