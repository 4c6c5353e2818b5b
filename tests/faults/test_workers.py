"""Workers that are killed, crash, hang or raise: the run heals, ends when it must, leaves nothing.

Where a test kills, it kills real processes; where it compares, it compares bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import troubles
from trees import family, forkserver, gone, workers

import paceline
from paceline.config.flags import parse_config
from paceline.errors import EnvironmentFailed
from paceline.processes.forkserver import Spawner
from paceline.storage import checkpoint

pytestmark = pytest.mark.timeout(60)
slow = functools.partial(pytest.param, marks=pytest.mark.slow)

COMMON = (
    "--env-id troubles:Trouble-v0 --preset none --num-envs 4 --num-workers 2 --hidden 16 "
    "--eval-episodes 2 --compile off --track none "
)
CASES = {
    "ppo": "--algo ppo --rollout-steps 32 --total-iters 12 --save-every 200 --normalize-obs",
    "a2c": "--algo a2c --rollout-steps 8 --total-iters 60 --save-every 400 --log-every 5",
    "impala": "--algo impala --rollout-steps 8 --total-iters 150 --save-every 2000 --log-every 10",
    "image": "--env-id toy:identity --env.kwargs '{\"image\": true}' --rollout-steps 16 "
    "--total-iters 8 --save-every 200 --threads 1",
    "vector": "--env-id CartPole-v1 --env.vector --rollout-steps 32 --total-iters 12",
}
ITERS = {"ppo": 12, "a2c": 60, "impala": 150}
SILENT = "showed no sign of life for [345] s.*"
HOW = {
    "kill": "was killed by SIGKILL",
    "segfault": "was killed by SIGSEGV",
    "exit": "exited with 5",
    "sleep": SILENT,
    "burn": SILENT,
    "stop": SILENT,
}
"""What the trainer says of a worker to which `troubles.WHAT` has happened."""


def flags_of(case, *more, **kwargs):
    """Flags of a case; keyword arguments are the environment's."""
    own = ["--env.kwargs", json.dumps(kwargs)] if kwargs else []
    return [*shlex.split(COMMON + CASES[case]), *own, *map(str, more)]


def config_of(case, folder, name, *more, **kwargs):
    return parse_config(["--output-dir", str(folder / name), *flags_of(case, *more, **kwargs)])


def kill(pid, kind=signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, kind)


def same(run):
    """Everything but the counts of restarts: what healed runs share with undisturbed ones."""
    result = run.result()
    counted = ("restarts", "env_restarts")
    result["metrics"] = [
        {name: value for name, value in line.items() if name not in counted}
        for line in result["metrics"]
    ]
    return result


@pytest.fixture(scope="module")
def assert_healed(shell_in, tmp_path_factory):
    """Check a run against one of the same case to which nothing happened.

    In a stream the order of arrival differs, so only its end is the same.
    """
    results = {}

    def check(run, case="ppo"):
        if case == "impala":
            assert last(run, "iter") == 150
            return
        if case not in results:
            shell = shell_in(tmp_path_factory.mktemp(case))
            results[case] = same(shell.train_here("run", *flags_of(case)))
        assert same(run) == results[case]

    return check


@pytest.fixture
def troubled(shell):
    """The shell, with Trouble-v0 where commands find it."""
    (shell.folder / "troubles.py").write_text(Path(troubles.__file__).read_text())
    return shell


def started(troubled, until, *more, reports=3, case="ppo", slow=0.002, **options):
    """A command at work, once it has written so many reports."""
    flags = flags_of(case, *more, slow=slow)
    process = troubled.start("train", "--output-dir", "run", *flags, **options)
    until(lambda: len(reported(troubled)) >= reports)
    return process


def reported(troubled):
    metrics = troubled.folder / "run" / "metrics.jsonl"
    return metrics.read_text().splitlines() if metrics.exists() else []


@pytest.fixture
def session(shell):
    """Train in this process; `during(report)` is called with every report. Returns the run."""

    def train(case, *more, name="run", during=None, **kwargs):
        for report in paceline.train(config_of(case, shell.folder, name, *more, **kwargs)):
            if during is not None:
                during(report)
        assert not family()
        return shell.run(name)

    return train


class At:
    """Does something after these reports, counted from 1; `pids` are the processes it met."""

    def __init__(self, *reports, do):
        self.reports, self.do, self.seen, self.pids = reports, do, 0, []

    def __call__(self, report):
        self.seen += 1
        if self.seen in self.reports:
            self.pids += self.do()


def kill_workers(kind=signal.SIGKILL, numbers=(0,)):
    found = workers()
    pids = [found[number].pid for number in numbers]
    for pid in pids:
        kill(pid, kind)
    return pids


def last(run, name):
    return run.metrics()[-1][name]


def assert_named(text, pid=r"\d+", how=HOW["kill"]):
    """A warning names the worker, what happened to it and its successor; the step it was at."""
    worker = rf"worker \d \(pid {pid}, columns (?:0–1|2–3)\)"
    found = re.search(rf"{worker} {how} at step ([\d,]+); pid \d+ takes its place", text)
    assert found, text
    return int(found[1].replace(",", ""))


# Killed or stopped from outside

OUTSIDE = {
    "one killed": ((3, 7), signal.SIGKILL, (0,)),
    "all killed": ((2, 5), signal.SIGKILL, (0, 1)),
    "one stopped": ((3,), signal.SIGSTOP, (0,)),
}
"""After which reports, by which signal, which workers."""


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("case", "story"),
    [
        ("ppo", "one killed"),
        ("a2c", "one killed"),
        ("impala", "one killed"),
        slow("image", "one killed"),
        slow("vector", "one killed"),
        ("ppo", "all killed"),
        ("impala", "all killed"),
        ("ppo", "one stopped"),
        slow("impala", "one stopped"),
    ],
)
def test_a_run_whose_workers_are_killed_or_stopped_ends_as_if_they_had_not_been(
    session, assert_healed, caplog, case, story
):
    reports, kind, numbers = OUTSIDE[story]
    stopped = kind == signal.SIGSTOP
    during = At(*reports, do=lambda: kill_workers(kind, numbers))
    run = session(case, *(("--worker-timeout", "3s") if stopped else ()), during=during)
    assert_healed(run, case)
    assert last(run, "restarts") == len(during.pids) == len(reports) * len(numbers)
    for pid in during.pids:
        assert_named(caplog.text, pid, HOW["stop" if stopped else "kill"])
        assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("grows", [True, False])
def test_a_worker_that_the_system_killed_for_want_of_memory_is_told_from_others(
    session, monkeypatch, caplog, grows
):
    counts = itertools.count(step=int(grows))
    monkeypatch.setattr("paceline.samplers.process_pool.oom_kills", lambda: next(counts))
    session("ppo", during=At(3, do=kill_workers))
    assert "was killed by SIGKILL" in caplog.text
    assert (", the system ran out of memory; pid" in caplog.text) is grows


def kill_now_and_then(stop, source, killed, every):
    while not stop.wait(source.uniform(0, every)):
        with contextlib.suppress(psutil.NoSuchProcess):  # a server that ends meanwhile
            if found := workers():
                killed.append(source.choice(found).pid)
                kill(killed[-1])


@contextlib.contextmanager
def killing(every):
    """Random workers of this process at random moments, which are printed with their seed."""
    seed = int.from_bytes(os.urandom(4), "big")
    stop, killed = threading.Event(), []
    arguments = (stop, random.Random(seed), killed, every)
    thread = threading.Thread(target=kill_now_and_then, args=arguments)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()
        print(f"random.Random({seed}), every {every} s: {len(killed)} kills")


OFTEN = [pytest.param(0.1, marks=(pytest.mark.slow, pytest.mark.timeout(900)))] * 5


@pytest.mark.timeout(100)
@pytest.mark.parametrize("case", ["ppo", "a2c", "impala"])
@pytest.mark.parametrize("every", [0.3, *OFTEN])
def test_workers_killed_at_random_moments_change_nothing(session, assert_healed, case, every):
    with killing(every) as killed:
        run = session(case, "--max-restarts", 1000)
    assert killed or every > 0.1
    assert_healed(run, case)


@pytest.mark.slow
def test_the_command_names_the_worker_that_was_killed(troubled, assert_healed, until):
    process = started(troubled, until)
    victim = workers(process.pid)[1].pid
    kill(victim)
    out, err = process.communicate(timeout=40)
    assert process.returncode == 0, out + err
    assert f"warning: worker 1 (pid {victim}" in out
    assert_named(out, victim)
    assert "Traceback" not in out + err
    run = troubled.run("run")
    assert last(run, "restarts") == 1
    assert_healed(run)


# Killed, and resumed


@pytest.mark.parametrize("case", ["ppo", "a2c", "impala"])
def test_an_interrupted_run_with_killed_workers_resumes_with_every_episode_where_it_stood(
    shell, assert_healed, case, caplog
):
    """A kill before the checkpoint, one after it, and one in the session that resumes."""
    for seen, report in enumerate(paceline.train(config_of(case, shell.folder, "run")), 1):
        if seen in (2, 5):
            kill_workers()
        if seen == 6:
            assert report.restarts == 2
            break
    for seen, _ in enumerate(paceline.resume(shell.folder / "run"), 1):
        if seen == 2:
            kill_workers(numbers=[1])
    run = shell.run("run")
    assert last(run, "restarts") == 1
    assert "did not replay" not in caplog.text
    assert_healed(run, case)


def test_a_worker_killed_while_it_replays_for_a_resume_is_replaced(shell, assert_healed, caplog):
    marker = shell.folder / "marker"
    given = {"what": "kill", "if_there": str(marker)}
    for report in paceline.train(config_of("ppo", shell.folder, "run", **given)):
        if report.iter == 5:
            break
    marker.touch()
    caplog.clear()
    run = shell.resume_here("run")
    assert not marker.exists()
    assert_named(caplog.text)
    assert last(run, "restarts") == 1
    assert "did not replay" not in caplog.text
    assert_healed(run)


def test_a_replaced_worker_whose_rewards_do_not_replay_is_told_with_its_columns(session, caplog):
    """NormalizeReward's statistics die with the worker, and no observation shows it."""
    wrapped = ("--env.wrappers", "gymnasium.wrappers:NormalizeReward")
    session("ppo", *wrapped, during=At(6, do=kill_workers))
    said = r"columns (0, 1|2, 3) \(reward\) did not replay to the same observation and return"
    assert re.search(said, caplog.text)


def test_environments_that_raise_in_a_run_whose_worker_is_killed_are_counted_and_change_nothing(
    session,
):
    """What raised is not replayed, and what follows it is."""
    given = {"what": "raise", "chance": 0.004}
    straight = session("a2c", name="straight", **given)
    counts, killing_three = [], At(4, 8, 11, do=kill_workers)

    def during(report):
        counts.append(report.env_restarts)
        killing_three(report)

    run = session("a2c", during=during, **given)
    assert same(run) == same(straight)
    assert counts == sorted(counts) and counts[-1] >= 1
    assert last(run, "restarts") == 3


# The server that forks them


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", ["ppo", "impala"])
@pytest.mark.parametrize("kind", [None, signal.SIGKILL, signal.SIGSTOP])
def test_workers_without_their_server_go_on_or_are_replaced(session, assert_healed, case, kind):
    """Those that are killed or hang after it was killed, too."""
    victims = []

    def kill_server():
        victims.append(workers()[0])
        server = forkserver()
        server.kill()
        if kind is not None:
            psutil.wait_procs([server], timeout=1)
            kill(victims[0].pid, kind)
        return []

    timeout = ("--worker-timeout", "1s") if kind == signal.SIGSTOP else ()
    run = session(case, *timeout, during=At(3, do=kill_server))
    assert last(run, "restarts") >= (kind is not None)
    assert_healed(run, case)
    if kind is not None:
        assert gone(victims, within=2)


@pytest.mark.parametrize("how", ["fork", slow("shell")])
def test_a_killed_worker_is_noticed_though_its_environment_has_processes_of_its_own(
    shell, how, caplog
):
    """They hold copies of all that the worker had open; so its silence would tell, far later."""
    release = shell.folder / "release"
    make = functools.partial(troubles.WithHelper, how=how, until=str(release))
    config = config_of("ppo", shell.folder, "run", "--worker-timeout", "4s", "--total-iters", 5)
    killed = []
    try:
        for report in paceline.train(dataclasses.replace(config, env_id=make)):
            if report.iter == 3:
                killed += kill_workers()
    finally:
        release.touch()
    assert_named(caplog.text, killed[0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_workers_heal_also_where_each_is_an_interpreter_of_its_own(
    session, assert_healed, monkeypatch, kind
):
    """As on systems without process descriptors."""
    starter = "paceline.samplers.process_pool.process_starter"
    monkeypatch.setattr(starter, lambda entry, preload: Spawner(entry))

    def disturb():
        victim = family()[0].pid
        kill(victim, kind)
        return [victim]

    during = At(3, do=disturb)
    run = session("ppo", "--worker-timeout", "3s", during=during)
    assert last(run, "restarts") == 1
    assert not psutil.pid_exists(during.pids[0])
    assert_healed(run)


# Broken by an environment


@pytest.mark.parametrize(
    ("case", "what", "where"),
    [
        ("ppo", "kill", "step"),
        ("a2c", "kill", "step"),
        ("ppo", "segfault", "step"),
        slow("ppo", "exit", "step"),
        ("ppo", "sleep", "step"),
        slow("ppo", "burn", "step"),
        slow("ppo", "stop", "step"),
        ("ppo", "kill", "init"),
        ("ppo", "exit", "reset"),
    ],
)
def test_a_run_whose_environment_breaks_its_worker_once_ends_as_if_it_had_not(
    session, assert_healed, shell, caplog, case, what, where
):
    """In the middle of a rollout, or while it starts."""
    timeout = ("--worker-timeout", "3s") if HOW[what] == SILENT else ()
    after = 70 if where == "step" else 0
    once = str(shell.folder / "once")
    run = session(case, *timeout, what=what, where=where, after=after, once=once)
    step = assert_named(caplog.text, how=HOW[what])
    if where == "step":
        assert 60 <= step <= 120  # the seventieth step of an environment, and resets between
    assert last(run, "restarts") == 1
    assert_healed(run, case)


@pytest.mark.parametrize(
    ("more", "step", "pause"),
    [
        (("--worker-timeout", "3s"), 0.12, 0.0),
        slow(("--rollout-steps", 2, "--total-iters", 2, "--worker-timeout", "1s"), 0.8, 1.5),
        slow(("--rollout-steps", 2, "--num-envs", 10, "--worker-timeout", "1s"), 0.3, 0.0),
    ],
    ids=["a rollout", "a loop body", "a row"],
)
def test_a_slow_environment_or_loop_body_is_not_taken_for_a_worker_that_hangs(
    session, more, step, pause
):
    """The timeout is for one step: a rollout, a row and a loop body may take longer."""
    few = ("--num-envs", 2, "--total-iters", 1)
    run = session("ppo", *few, *more, slow=step, during=lambda report: time.sleep(pause))
    assert last(run, "restarts") == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ppo", "impala"])
def test_a_trainer_that_was_stopped_for_a_while_replaces_no_worker(troubled, case, until):
    """Ctrl-Z, and fg three seconds later."""
    more = ("--worker-timeout", "1s", "--total-iters", {"ppo": 8, "impala": 150}[case])
    process = started(troubled, until, *more, reports=2, case=case, slow=0.004)
    process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    before = len(reported(troubled))
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=40)
    assert process.returncode == 0, out + err
    run = troubled.run("run")
    assert len(run.metrics()) > before
    assert last(run, "restarts") == 0, out


# For good


def test_a_worker_that_always_crashes_ends_the_run_with_its_cause_and_a_checkpoint(
    troubled, assert_healed
):
    """Episodes get longer; the first to reach its fortieth step crashes, and does so again."""
    broken = troubled.folder / "broken"
    given = {"what": "segfault", "at": 40, "only_with": str(broken)}
    broken.touch()
    flags = flags_of("ppo", "--max-restarts", 2, **given)
    ended = troubled("train", "--output-dir", "run", *flags)
    assert ended.code == 3, ended
    said = ended.err[ended.err.index("paceline: ") :]
    cause = r"worker \d \(pid \d+, columns \d–\d\) was killed by SIGSEGV at step [\d,]+"
    assert re.search(cause, said)
    assert "failure 3 in a row" in said
    assert len(re.findall("takes its place", ended.out)) == 2
    run = troubled.run("run")
    path, found, problems = checkpoint.load_newest(run.path / "checkpoints")
    assert not problems
    assert found.facts["iter"] == int(path.name) >= 1
    assert path.name in said
    broken.unlink()
    assert_healed(troubled.resume_here("run"))


ROPE = "RuntimeError: the rope broke"


@pytest.mark.parametrize(
    ("case", "max_restarts", "given", "words"),
    [
        ("ppo", 1, {"what": "exit"}, ("exited with 5", "failure 2 in a row")),
        ("impala", 1, {"what": "segfault"}, ("SIGSEGV", "failure 2 in a row")),
        ("ppo", 2, {"what": "kill", "where": "init"}, ("SIGKILL", "failure 3 in a row")),
        ("ppo", 5, {"what": "raise", "where": "init"}, (ROPE, r"troubles\.py:\d+")),
        ("ppo", 5, {"what": "raise", "at": 3}, (ROPE, r"env \d")),
    ],
)
def test_an_environment_that_always_breaks_or_raises_ends_the_run_with_its_cause(
    session, case, max_restarts, given, words
):
    with pytest.raises(EnvironmentFailed) as caught:
        session(case, "--max-restarts", max_restarts, **given)
    assert caught.value.exit_code == 3
    assert "Traceback" not in str(caught.value)
    for word in words:
        assert re.search(word, str(caught.value))
    assert not family()


def test_failures_with_a_finished_rollout_between_them_never_end_a_run(session):
    """Each process dies after some 150 steps of an environment, replayed ones among them."""
    run = session("a2c", "--max-restarts", 1, "--total-iters", 120, what="kill", after=150)
    assert last(run, "iter") == 120
    assert last(run, "restarts") >= 6


def test_an_environment_that_can_not_be_made_again_ends_the_run_with_a_checkpoint(session, shell):
    """The worker is killed, and its successor fails for good."""
    marker = shell.folder / "marker"

    def break_it():
        marker.touch()
        return kill_workers()

    given = {"what": "raise", "where": "init", "only_with": str(marker)}
    with pytest.raises(EnvironmentFailed, match=ROPE) as caught:
        session("ppo", during=At(4, do=break_it), **given)
    assert not family()
    newest = shell.run("run").checkpoints()[-1].name
    assert newest == "00000004"
    assert newest in str(caught.value)


# Raising


@pytest.mark.parametrize(("where", "rebuilt"), [("init", 0), ("reset", 1)])
def test_an_environment_that_raises_once_while_it_starts_is_made_again(
    session, shell, where, rebuilt
):
    run = session("ppo", what="raise", where=where, once=str(shell.folder / "once"))
    assert last(run, "iter") == ITERS["ppo"]
    assert last(run, "env_restarts") == rebuilt


@pytest.mark.parametrize(
    ("case", "chance", "rebuilt"),
    [("ppo", 0.004, 2), ("impala", 0.0015, 2), ("ppo", 0.01, 10)],
    ids=["ppo", "impala", "one to three in every rollout"],
)
def test_environments_that_raise_now_and_then_are_rebuilt_and_counted(
    session, case, chance, rebuilt, caplog
):
    """The traceback is shown once, for all workers together."""
    run = session(case, what="raise", chance=chance)
    assert last(run, "iter") == ITERS[case]
    assert last(run, "env_restarts") >= rebuilt
    assert last(run, "restarts") == 0
    assert caplog.text.count("Traceback (most recent call last)") == 1
    assert 'raise RuntimeError("the rope broke")' in caplog.text


# The trainer's end


BUSY = [slow("sleep"), "burn"]


@pytest.fixture
def busy(troubled, until):
    """A run whose workers are deep within one endless step: (process, all of its family)."""

    def start(what, case="ppo", **options):
        given = {"what": what, "after": 40, "slow": 0.001}
        arguments = ("train", "--output-dir", "run", *flags_of(case, **given))
        process = troubled.start(*arguments, **options)
        until(lambda: reported(troubled) and len(workers(process.pid)) == 2)
        time.sleep(1.0)  # until they are stuck
        return process, family(process.pid)

    return start


@pytest.mark.parametrize("what", BUSY)
@pytest.mark.parametrize("server", [True, slow(False)])
def test_a_killed_trainer_takes_its_workers_along_also_out_of_an_endless_step(busy, what, server):
    """Also where the server that would have seen to it was killed before."""
    process, others = busy(what)
    assert len(others) == 3
    if not server:
        forkserver(process.pid).kill()
        time.sleep(0.2)
    process.kill()
    process.wait(5)
    try:
        assert gone(others, within=2)
    finally:
        for other in others:
            kill(other.pid)
        process.communicate(timeout=5)


@pytest.mark.slow
@pytest.mark.parametrize("what", BUSY)
def test_a_second_signal_ends_everything_also_out_of_an_endless_step(busy, what):
    process, others = busy(what)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 75
    assert gone(others, within=2)
    _, err = process.communicate(timeout=5)
    assert "Traceback" not in err


def signal_group(process, kind):
    """As Ctrl-C does."""
    os.killpg(process.pid, kind)


def signal_all(process, kind):
    """As systemd and Slurm stop a job."""
    for pid in [process.pid, *(other.pid for other in family(process.pid))]:
        kill(pid, kind)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "send"),
    [
        (signal.SIGTERM, subprocess.Popen.send_signal),
        slow(signal.SIGINT, subprocess.Popen.send_signal),
        (signal.SIGINT, signal_group),
        slow(signal.SIGTERM, signal_all),
    ],
)
def test_a_signal_stops_the_run_and_its_workers_and_resumes_exactly(
    troubled, assert_healed, until, kind, send
):
    process = started(troubled, until, start_new_session=True)
    others = family(process.pid)
    send(process, kind)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 75, out + err
    assert "Traceback" not in out + err
    assert gone(others, within=2 if send is signal_all else 0.1)
    run = troubled.run("run")
    assert last(run, "restarts") == 0
    assert not run.leftovers()
    if send is not subprocess.Popen.send_signal:
        assert_healed(troubled.resume_here("run"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_trainer_killed_at_any_moment_leaves_nothing(troubled):
    """Also while it starts. What is left is looked for by the fixture, and here after 2 s."""
    seed = int.from_bytes(os.urandom(4), "big")
    source = random.Random(seed)
    for number in range(20):
        delay = source.uniform(0, 6)
        flags = ("--output-dir", f"run{number}", *flags_of("impala", "--total-iters", "1M"))
        silent = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        process = troubled.start("train", *flags, **silent)
        time.sleep(delay)
        others = family(process.pid)
        process.kill()
        process.wait(5)
        assert gone(others, within=2), f"random.Random({seed}), run {number}, {delay:.3f} s"


# In Python


@pytest.mark.parametrize("case", ["ppo", "impala"])
def test_leaving_the_loop_ends_every_process_at_once(shell, case):
    for report in paceline.train(config_of(case, shell.folder, "run")):
        others = family()
        assert len(others) == 3
        assert report.iter
        break
    assert not family()
    assert shell.run("run").checkpoints()


@pytest.mark.slow
@pytest.mark.parametrize("what", BUSY)
def test_leaving_the_loop_ends_workers_that_are_in_the_middle_of_an_endless_step(shell, what):
    """In a stream workers are at work while the loop's body runs."""
    marker = shell.folder / "marker"
    given = {"what": what, "only_with": str(marker), "slow": 0.02}
    for _ in paceline.train(config_of("impala", shell.folder, "run", "--log-every", 1, **given)):
        marker.touch()
        time.sleep(0.2)
        assert len(family()) == 3
        began = time.monotonic()
        break
    assert not family()
    assert time.monotonic() - began < 8


def test_an_error_in_the_loops_body_ends_every_process(shell):
    def body():
        for _ in paceline.train(config_of("ppo", shell.folder, "run")):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    assert not family()
    assert [path.name for path in shell.run("run").checkpoints()] == ["00000001"]


def test_two_runs_in_one_process_one_after_the_other_and_side_by_side(shell, assert_healed):
    first, second = (config_of("ppo", shell.folder, name) for name in ("first", "second"))
    for _ in zip(paceline.train(first), paceline.train(second), strict=True):
        assert len(family()) == 6
    assert not family()
    third = shell.train_here("third", *flags_of("ppo"))
    assert same(shell.run("first")) == same(shell.run("second")) == same(third)
    assert_healed(third)


def test_a_run_may_live_in_a_thread(session, assert_healed):
    made = []
    train = functools.partial(session, "ppo", during=At(4, do=kill_workers))
    thread = threading.Thread(target=lambda: made.append(train()))
    thread.start()
    thread.join(50)
    assert made, "it failed in its thread"
    assert_healed(made[0])
    assert last(made[0], "restarts") == 1


SCRIPT = """
import os
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np

import paceline

with Path("imported").open("a") as file:
    file.write(f"{os.getpid()}\\n")

SIZE = 3


class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (SIZE,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=5):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.uniform(-1, 1, SIZE).astype(np.float32), {}

    def step(self, action):
        self.time += 1
        obs = self.np_random.uniform(-1, 1, SIZE).astype(np.float32)
        return obs, float(action), False, self.time >= self.length, {}


gym.register("Mine-v0", Mine, max_episode_steps=4)


def main():
    env_id, kwargs = {
        "class": (Mine, {"length": 6}), "lambda": (lambda: Mine(), {}), "id": ("Mine-v0", {}),
    }[sys.argv[1]]
    config = paceline.Config(
        env_id=env_id, env={"kwargs": kwargs}, preset="none", num_envs=4, num_workers=2,
        rollout_steps=16, total_iters=3, eval_episodes=1, hidden=[8], track="none",
        output_dir="run", overwrite=True,
    )
    for report in paceline.train(config):
        print(report.iter, report.restarts, report.episode_length, flush=True)


"""
GUARDED = 'if __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("kind", "call", "length"),
    [slow("class", GUARDED, "6.0"), ("lambda", "main()\n", "5.0"), ("id", "main()\n", "4.0")],
    ids=["class-guarded", "lambda-unguarded", "id-unguarded"],
)
def test_a_script_is_run_once_and_its_own_environment_reaches_the_workers(
    shell, kind, call, length
):
    """With or without `if __name__ == "__main__"`: no worker imports `__main__`."""
    (shell.folder / "script.py").write_text(SCRIPT + call)
    ended = shell.execute(sys.executable, "script.py", kind, timeout=50)
    assert ended.code == 0, ended.err
    assert ended.out.split() == ["1", "0", length, "2", "0", length, "3", "0", length]
    assert len((shell.folder / "imported").read_text().split()) == 1


@pytest.mark.slow
def test_ctrl_c_in_a_script_ends_every_process(shell, until):
    """No checkpoint is promised here: it may come in the middle of an update."""
    text = SCRIPT.replace("total_iters=3", "total_iters=100_000, compile='off'") + GUARDED
    (shell.folder / "script.py").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "script.py", "class"],
        cwd=shell.folder,
        env=shell.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(lambda: process.stdout.readline())
    others = family(process.pid)
    assert len(others) == 3
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in err
    assert gone(others, within=2)


# What must not grow


def open_files(process):
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def zombies(processes):
    return [child for child in processes if child.status() == psutil.STATUS_ZOMBIE]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("case", "iters"), [("ppo", 12), ("impala", 150), slow("ppo", 110)])
def test_restarts_leave_no_open_file_no_thread_and_no_zombie(session, case, iters):
    us, counts = psutil.Process(), []

    def during(report):
        if not zombies(family()) and len(workers()) == 2:
            counts.append((open_files(us), open_files(forkserver()), threading.active_count()))
        for worker in workers():
            kill(worker.pid)

    run = session(case, "--total-iters", iters, "--max-restarts", 100, during=during)
    assert last(run, "restarts") >= (200 if iters == 110 else 20)
    assert len(counts) >= 5
    assert len(set(counts)) == 1, counts
    assert not zombies(us.children(recursive=True))
