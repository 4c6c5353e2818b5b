"""Ranks on the command line: `--ranks`, a3c, torchrun, and ranks started by hand."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import psutil
import pytest
from ranked import PACELINE, commands, left_after
from saved_runs import assert_refused, iterations

import paceline
from paceline.config.files import load_file
from paceline.config.resolve import fit_to_spaces, resolve
from paceline.envs.source import inspect_env
from paceline.ranks.launch import make_job
from paceline.run.topology import topology_of

pytestmark = pytest.mark.timeout(180)

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
SHORT = shlex.split(
    "--preset none --num-envs 2 --rollout-steps 16 --hidden 16 --compile off --track none "
    "--eval-episodes 1 --epochs 2 --minibatches 2 --total-iters 4"
)


@pytest.fixture
def start(shell):
    """Start any command."""
    with commands(shell) as begin:
        yield begin


# What is refused, before anything starts.

REFUSED = {
    "--ranks 0": ("ranks", "0"),
    "--ranks x": ("ranks", "'x'", "whole number", "auto"),
    "--ranks 1.5": ("ranks", "1.5"),
    "--ranks 5000": ("ranks", "5000", "4096"),
    "--sync hogwild --algo ppo": ("hogwild", "a2c", "ppo", "--algo a3c"),
    "--sync hogwild --algo a2c": ("--num-workers 2",),
    "--algo a3c --ranks 2": ("ranks is 2", "--num-workers 2", "--algo a2c"),
    "--algo a3c --num-workers 0": ("--num-workers 2",),
    "--algo a3c --num-workers 3 --num-envs 8 --num-envs-per-worker 4": ("num_envs 8", "only one"),
    "--algo a3c --normalize-obs": ("normalize_obs", "--algo a2c"),
    "--algo a3c --normalize-return": ("normalize_return", "--algo a2c"),
    "--algo a3c --sampler workers": ("'workers'", "leave it out"),
    "--algo a3c --device cuda": ("--device cpu",),
    "--sync local --ranks 2": ("'local'", "ranks is 2"),
    "--sync both": ("sync", "both", "hogwild"),
    "--init-method bogus": ("init_method", "bogus", "env://", "file:///"),
    "--init-method http://here": ("init_method", "http://here", "tcp://"),
    "--init-method tcp://here": ("init_method", "tcp://here", "tcp://host:port"),
    "--init-method file:///x?rank=0&world_size=2": ("file:///x alone", "WORLD_SIZE", "--ranks"),
    "--init-method tcp://a:1?rank=0&world_size=2": ("tcp://a:1 alone", "WORLD_SIZE", "--ranks"),
    "--backend mpi": ("backend", "mpi", "gloo"),
    "--rank-timeout 60": ("rank_timeout", "60", "60s"),
    "--rank-timeout 0s": ("rank_timeout", "0s"),
    "--ranks 2 --num-envs 3 --rollout-steps 16 --batch-size 15": ("batch_size 15", "2 ranks"),
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_an_invalid_combination_is_refused_with_what_to_write_instead(command, arguments):
    assert_refused(command("train", *arguments.split()), REFUSED[arguments])
    assert not psutil.Process().children()
    assert not Path("runs").exists()


def test_ranks_can_not_change_when_a_run_is_resumed(command, shell):
    shell.train_here("run", *SHORT, "--total-iters", 1)
    assert_refused(command("resume", "run", "--ranks", 2), ("ranks can't change",))
    assert not psutil.Process().children()


@pytest.mark.parametrize(
    ("env_id", "algo", "ranks", "rate", "batch", "steps"),
    [
        ("CartPole-v1", "ppo", 2, 2, 2, 64),
        ("CartPole-v1", "ppo", 4, 4, 4, 64),
        ("CartPole-v1", "ppo", 8, 4, 4, 32),
        ("CartPole-v1", "ppo", 64, 4, 16, 16),
        ("LunarLander-v3", "ppo", 2, 2, 2, 256),
        ("LunarLander-v3", "ppo", 16, 4, 4, 64),
        ("CartPole-v1", "a2c", 8, 4, 8, 5),
        ("CartPole-v1", "impala", 2, 2, 2, 20),
    ],
)
def test_batch_and_learning_rate_grow_with_the_ranks(env_id, algo, ranks, rate, batch, steps):
    config = paceline.Config(env_id=env_id, algo=algo, ranks=ranks)
    alone = paceline.Config(env_id=env_id, algo=algo)
    assert (config.num_envs, config.minibatch_count) == (alone.num_envs, alone.minibatch_count)
    rows = config.ranks * config.num_envs * config.rollout_steps
    assert rows == batch * alone.num_envs * alone.rollout_steps
    assert (config.lr, config.rollout_steps) == (rate * alone.lr, steps)
    stored = paceline.Config(**config.as_dict())
    assert stored.as_dict() == config.as_dict()


@pytest.mark.parametrize(
    ("workers", "ranks", "envs", "rate", "steps"),
    [
        (1, 1, 8, 1, 20),
        (2, 1, 16, 2**0.5, 20),
        (8, 1, 32, 2, 20),
        (6, 1, 36, 2, 20),
        (2, 4, 16, 2, 16),
    ],
)
def test_batch_and_learning_rate_grow_with_the_workers_of_a_stream(
    workers, ranks, envs, rate, steps
):
    config = paceline.Config(algo="impala", num_workers=workers, ranks=ranks)
    assert (config.num_envs, config.rollout_steps) == (envs, steps)
    assert config.lr == rate * paceline.Config(algo="impala").lr
    given = paceline.Config(algo="impala", num_workers=workers, ranks=ranks, num_envs=24)
    assert (given.num_envs, given.lr) == (24, paceline.Config(algo="impala").lr)
    assert paceline.Config(algo="ppo", num_workers=2).num_envs == 8  # they share one update


def test_what_is_given_does_not_grow_with_the_ranks():
    alone = paceline.Config(env_id="LunarLander-v3")
    given = {"lr": 0.5, "batch_size": 64, "rollout_steps": 128}
    config = paceline.Config(env_id="LunarLander-v3", ranks=8, **given)
    assert {name: getattr(config, name) for name in given} == given
    for sizes in ({"num_envs": 8}, {"num_workers": 2, "num_envs_per_worker": 4}):
        config = paceline.Config(env_id="LunarLander-v3", ranks=2, **sizes)
        assert (config.num_envs, config.lr, config.batch_size) == (8, alone.lr, alone.batch_size)


def test_num_envs_is_that_of_each_learner_of_a3c_too():
    config = paceline.Config(algo="a3c", num_workers=3)
    assert (config.num_envs, config.lr) == (8, paceline.Config(algo="a2c").lr)
    assert paceline.Config(algo="a3c", num_workers=3, num_envs=5).num_envs == 5
    assert paceline.Config(algo="a3c", num_workers=3, num_envs_per_worker=5).num_envs == 5


def test_batch_size_counts_the_rows_of_all_ranks():
    given = {"preset": "none", "num_envs": 4, "rollout_steps": 32, "batch_size": 64}
    assert paceline.Config(ranks=2, **given).minibatch_count == 4
    assert paceline.Config(ranks=1, **given).minibatch_count == 2
    assert paceline.Config(algo="ddppo").resolved_sync in ("allreduce", "local")


def test_an_alias_keeps_the_options_that_were_given(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("ranks: 2\nnum_workers: 4\nalgo: ppo\n")
    stored = load_file(file)
    assert resolve(stored, {"algo": "ddppo"}).ranks == 2
    assert resolve({"num_workers": 4}, {"algo": "a3c"}).num_workers == 4
    assert resolve({"algo": "a3c", "num_workers": 2}, {"algo": "ppo"}).resolved_sync == "local"


def test_a3c_takes_the_general_preset_without_normalizers():
    config = paceline.Config(algo="a3c", env_id="Pendulum-v1", num_workers=2)
    info = inspect_env("Pendulum-v1")
    fit = fit_to_spaces(config, info.obs_spec, info.act_spec)
    assert (fit.preset, fit.normalize_obs, fit.normalize_return) == ("continuous", False, False)


def test_a_callable_can_be_given_to_ranks_that_are_resumed():
    def make():
        return gym.make("CartPole-v1")

    assert make_job("resume", "run", make, env_id=make).changes == {"env_id": make}


@pytest.mark.slow
def test_a_backend_for_gpus_is_refused_without_one_and_nothing_is_left(command, shell):
    (shell.folder / "mine").mkdir()
    flags = ("--ranks", 2, "--backend", "nccl", "--output-dir", "mine", *SHORT)
    assert_refused(command("train", *flags, "--device", "cpu"), ("--backend auto",))
    assert list((shell.folder / "mine").iterdir()) == []


# With --ranks

INHERITED = {
    "RANK": "7",
    "WORLD_SIZE": "9",
    "LOCAL_RANK": "3",
    "GROUP_RANK": "2",
    "MASTER_ADDR": "nowhere.invalid",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_RESTART_COUNT": "4",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "HTTP_PROXY": "http://nowhere.invalid:1",
    "HTTPS_PROXY": "http://nowhere.invalid:1",
    "ALL_PROXY": "http://nowhere.invalid:1",
    "HOSTNAME": "nowhere.invalid",
    "OMP_NUM_THREADS": "64",
}


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"WORLD_SIZE": "2"}], ids=["whole", "not those of a rank"])
def test_variables_of_another_launcher_change_nothing_and_ones_own_reach_every_rank(start, more):
    """LOCAL_SCRATCH and GROUP_HOME are what clusters call their folders."""
    kwargs = '{"shown": "LOCAL_SCRATCH"}'
    flags = ("train", "--ranks", 2, "--env-id", "ranked:Ranked-v0", "--env.kwargs", kwargs, *SHORT)
    variables = INHERITED | more | {"LOCAL_SCRATCH": "/tmp", "GROUP_HOME": "/tmp"}
    running = start(*flags, "--output-dir", "run", **variables)
    assert running.end() == 0, running.err
    assert "2 learners (shared memory) × 2 envs" in running.out
    assert "100%" in running.out
    assert running.err == ""
    assert iterations(running.run) == [1, 2, 3, 4]
    assert {line["world_size"] for line in running.run.metrics()} == {2}


@pytest.mark.parametrize("more", [{}, {"WORLD_SIZE": "2"}], ids=["whole", "not those of a rank"])
def test_a_refusal_is_printed_whatever_variables_were_inherited(command, monkeypatch, more):
    for name, value in (INHERITED | more).items():
        monkeypatch.setenv(name, value)
    ended = command("train", "--ranks", 2, "--lr", "x")
    assert ended.code == 2
    assert ended.err.startswith("paceline: lr is 'x'")


@pytest.mark.slow
def test_ranks_start_on_a_host_whose_name_does_not_resolve(start):
    """In a separate namespace: the machine keeps its name."""
    unshare = shutil.which("unshare")
    script = 'hostname nowhere.invalid && exec "$@"'
    prefix = (unshare or "unshare", "--uts", "sh", "-c", script, "sh")
    if not unshare or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("this user may not give a process another host name")
    flags = ("train", "--output-dir", "run", "--ranks", 2, *SHORT)
    running = start(*flags, prefix=(*prefix, *PACELINE))
    assert running.end() == 0, running.err
    assert iterations(running.run) == [1, 2, 3, 4]
    assert socket.gethostname() != "nowhere.invalid"


@pytest.mark.slow
def test_all_backends_give_the_same_weights(shell):
    """The sum of two numbers does not depend on their order."""
    found = {}
    for backend, shown in (("shm", "shared memory"), ("gloo", "gloo"), ("auto", "shared memory")):
        flags = ("--ranks", 2, "--backend", backend, *SHORT)
        ended = shell("train", "--output-dir", backend, *flags)
        assert ended.code == 0, ended
        assert f"2 learners ({shown}) × 2 envs" in ended.out
        found[backend] = shell.run(backend).last()
    assert found["shm"] == found["gloo"] == found["auto"]


@pytest.mark.slow
def test_ranks_meet_at_a_file(shell):
    """Twice at the same one."""
    flags = ("--ranks", 2, "--init-method", f"file://{shell.folder}/store", *SHORT)
    runs = [shell.train(name, *flags) for name in ("a", "b")]
    assert iterations(runs[0]) == iterations(runs[1]) == [1, 2, 3, 4]
    assert runs[0].last() == runs[1].last()


# With torchrun


@pytest.fixture
def torchrun(start, shell):
    """Two ranks of a command that torchrun starts; it leaves only the folder of its logs."""
    folder = shell.folder / "torchrun"
    folder.mkdir()

    def begin(*arguments, restarts=0, name="run"):
        prefix = (*TORCHRUN, "--max-restarts", str(restarts), "-m", "paceline")
        return start(*arguments, name=name, prefix=prefix, TMPDIR=str(folder))

    yield begin
    assert all(path.name.startswith("torchelastic_") for path in folder.iterdir())


def test_under_torchrun_ranks_share_one_run(torchrun, shell):
    config = Path(__file__).parents[2] / "configs" / "ppo_ranks.yaml"
    running = torchrun("train", "--config", config, *SHORT)
    assert running.end() == 0, running.err
    (folder,) = (shell.folder / "runs").iterdir()
    run = shell.run(folder)
    assert iterations(run) == [1, 2, 3, 4]
    assert {line["world_size"] for line in run.metrics()} == {2}
    assert run.config()["ranks"] == 2
    assert running.out.count("2 learners (shared memory) × 2 envs") == 1
    assert running.out.count("evaluation: mean") == 1
    assert "Traceback" not in running.err


@pytest.mark.slow
def test_torchrun_and_ranks_give_the_same_run(torchrun, shell):
    ours = shell.train("ours", "--ranks", 2, *SHORT)
    running = torchrun("train", "--output-dir", "run", *SHORT)
    assert running.end() == 0, running.err
    assert running.run.result() == ours.result()


@pytest.mark.slow
def test_another_number_of_ranks_than_torchrun_has_started_is_refused_once(torchrun):
    running = torchrun("train", "--ranks", 3, "--output-dir", "run", *SHORT)
    assert running.end() != 0
    (message,) = re.findall("paceline: .*", running.err)
    assert "ranks is 3" in message and "2 processes" in message
    assert not running.run.path.exists()


LONG = ("--env-id", "ranked:Ranked-v0", "--env.kwargs", '{"slow": 0.001}', "--save-every", 200)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["--output-dir run", ""])
def test_a_run_under_torchrun_resumes_in_its_directory_when_a_rank_is_killed(
    torchrun, shell, given
):
    flags = ("train", *shlex.split(given), *SHORT, *LONG, "--total-iters", 40)
    running = torchrun(*flags, restarts=3)
    place = running.await_(lambda: [p.parent for p in shell.folder.glob("**/metrics.jsonl")])
    running.run = shell.run(place[0])
    running.await_reports(12)
    running.ranks(of=running.process)[1].kill()
    assert running.end(90) == 0, running.err
    assert [p.parent for p in shell.folder.glob("**/metrics.jsonl")] == place
    assert iterations(running.run) == list(range(1, 41))
    straight = shell.train("straight", "--ranks", 2, *SHORT, *LONG, "--total-iters", 40)
    assert running.run.last() == straight.last()


def test_torchrun_does_not_exit_with_0_when_a_rank_is_stopped(torchrun, shell):
    """Exit code 0 would mean a finished run."""
    flags = ("train", "--output-dir", "run", *SHORT, *LONG, "--total-iters", 10**5)
    running = torchrun(*flags)
    running.await_reports(5)
    running.ranks(of=running.process)[1].terminate()
    assert running.end(60) not in (0, None)
    last = running.run.metrics()[-1]["iter"]
    assert last < 10**5 and running.run.checkpoints()[-1].name == f"{last:08d}"


@pytest.mark.slow
def test_ranks_of_torchrun_leave_with_it(torchrun):
    flags = ("train", "--output-dir", "run", *SHORT, *LONG, "--total-iters", 10**6)
    running = torchrun(*flags)
    running.await_reports(5)
    family = running.family()
    assert len(family) >= 2
    running.process.kill()
    running.process.wait()
    assert not left_after(family, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SIGTERM", "SIGINT"])
def test_a_signal_to_torchrun_stops_the_run_with_a_checkpoint_that_resumes_exactly(
    torchrun, shell, kind
):
    flags = (*SHORT, *LONG, "--total-iters", 40)
    running = torchrun("train", "--output-dir", "run", *flags)
    running.await_reports(8)
    running.signal(signal.Signals[kind])
    running.end(45)
    assert "saved; go on with `paceline resume run`" in running.out
    run = running.run
    assert run.checkpoints()[-1].name == f"{iterations(run)[-1]:08d}"
    assert iterations(run)[-1] < 40
    again = torchrun("resume", "run", name="again")
    assert again.end() == 0, again.err
    assert iterations(run) == list(range(1, 41))
    assert run.last() == shell.train("straight", "--ranks", 2, *flags).last()


# By hand

ENV, FILE, TCP = "env://", "file:///tmp/store", "tcp://127.0.0.1:29501"
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
NOWHERE, UNCLEAR = (
    ("nothing says where", "--init-method", "--ranks 1"),
    ("leave ranks out", "unset"),
)
ROLES = [
    (ENV, {}, {None: NOWHERE, 2: "starts 2", 1: "alone"}),
    (ENV, ADDRESS, {None: "rank 1 at tcp://127.0.0.1:29500", 2: "starts 2", 1: "alone"}),
    (FILE, {}, {None: f"rank 1 at {FILE}", 2: UNCLEAR, 1: "alone"}),
    (FILE, ADDRESS, {None: f"rank 1 at {FILE}", 2: UNCLEAR, 1: "alone"}),
    (TCP, {}, {None: f"rank 1 at {TCP}", 2: UNCLEAR, 1: "alone"}),
]
"""init_method, variables beside RANK and WORLD_SIZE, what follows by the given `ranks`."""
CASES = [(place, more, *case) for place, more, found in ROLES for case in found.items()]


def role(**options):
    """What a process does that is given these options."""
    found = topology_of(paceline.Config(**options))
    if found.must_launch:
        return f"starts {found.size}"
    return f"rank {found.rank} at {found.init_method}" if found.size > 1 else "alone"


@pytest.mark.parametrize(("place", "more", "ranks", "expected"), CASES)
def test_what_rank_and_world_size_make_of_a_process(monkeypatch, place, more, ranks, expected):
    """The table of docs/ranks.md."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", **more}.items():
        monkeypatch.setenv(name, value)
    options = {"init_method": place} | ({"ranks": ranks} if ranks else {})
    if isinstance(expected, str):
        assert role(**options) == expected
        return
    with pytest.raises(paceline.BadInput) as refusal:
        role(**options)
    for word in ("RANK='1' WORLD_SIZE='2'", *expected):
        assert word in str(refusal.value)


@pytest.mark.parametrize("place", [ENV, FILE])
def test_a_world_of_one_trains_alone(monkeypatch, place):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert role(init_method=place) == "alone"
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(paceline.BadInput, match="RANK='1' WORLD_SIZE='1'"):
        role(init_method=place)


def meeting():
    """Variables of two ranks that meet at a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.fixture
def by_hand(start):
    """Two ranks of a command, each with options of its own, which have to end with `code`."""

    def run(first, second, code=0, address=None):
        given = meeting() if address is None else address
        both = [
            start(*arguments, name=f"rank{rank}", RANK=str(rank), WORLD_SIZE="2", **given)
            for rank, arguments in enumerate((first, second))
        ]
        for each in both:
            assert each.end() == code, each.err
        return both

    return run


def test_ranks_started_with_different_options_are_refused_by_name(by_hand, shell):
    flags = ("train", "--output-dir", "run", *SHORT)
    for each in by_hand(
        (*flags, "--lr", 1e-3), (*flags, "--lr", 2e-3), code=2
    ):  # in a terminal of its own, perhaps
        assert each.err.startswith("paceline: lr is 0.001 on rank 0 and 0.002 on rank 1")
        assert len(each.err.splitlines()) == 1
    assert not (shell.folder / "run").exists()


@pytest.mark.slow
def test_ranks_started_by_hand_train_and_resume(by_hand, shell):
    flags = ("train", "--output-dir", "run", *SHORT)
    by_hand(flags, flags)
    run = shell.run("run")
    assert iterations(run) == [1, 2, 3, 4]
    assert {line["world_size"] for line in run.metrics()} == {2}
    more = ("resume", "run", "--total-iters", 6)
    both = by_hand(more, more)
    assert iterations(run) == [1, 2, 3, 4, 5, 6]
    said = both[0].out + both[1].out
    assert said.count("resuming from") == 1, f"each has started ranks of its own\n{said}"


@pytest.mark.slow
def test_ranks_started_by_hand_meet_at_a_file(by_hand, shell):
    """Twice at the same one, which still holds what the first ranks wrote; then to resume."""
    store = ("--init-method", f"file://{shell.folder}/store")
    for name in ("a", "b"):
        flags = ("train", "--output-dir", name, *store, *SHORT)
        by_hand(flags, flags, address={})
        assert iterations(shell.run(name)) == [1, 2, 3, 4]
    assert shell.run("a").last() == shell.run("b").last()
    more = ("resume", "a", "--total-iters", 6, *store)
    both = by_hand(more, more, address={})
    assert iterations(shell.run("a")) == [1, 2, 3, 4, 5, 6]
    assert (both[0].out + both[1].out).count("resuming from") == 1


@pytest.mark.slow
def test_a_rank_started_by_hand_with_a_bad_option_says_so(start):
    """Rank 0 can't report it: its options are right."""
    running = start("train", *SHORT, "--lr", "x", RANK="1", WORLD_SIZE="2", **meeting())
    assert running.end() == 2
    assert "lr is 'x'" in running.err


# Learners that wait for nobody


@pytest.mark.slow
def test_a3c_has_a_run_directory_like_any_other_run(shell):
    flags = "--algo a3c --num-workers 2 --num-envs 2 --total-steps 1500 --save-every 500 "
    more = "--log-every 20 --track none --eval-episodes 2 --compile off --hidden 16"
    ended = shell("train", "--output-dir", "run", *(flags + more).split())
    assert ended.code == 0, ended
    assert "a3c on CartPole-v1 · 2 learners (shared weights, no locks) × 2 envs" in ended.out
    run = shell.run("run")
    lines = run.metrics()
    assert {line["world_size"] for line in lines} == {2}
    assert sum(line["steps_global"] for line in lines) == lines[-1]["steps"]
    assert 1500 <= lines[-1]["steps"] <= 1600
    assert iterations(run) == sorted(set(iterations(run)))
    assert run.checkpoints()[-1].name == f"{lines[-1]['iter']:08d}"
    assert run.json("eval.json")["episodes"] == 2
    expected = {"algo": "a2c", "sync": "hogwild", "num_workers": 2, "ranks": 1}
    assert expected.items() <= run.config().items()
    resumed = shell.resume("run", "--total-steps", 2000)
    assert resumed.metrics()[: len(lines)] == lines
    assert 2000 <= resumed.metrics()[-1]["steps"] <= 2100
    assert os.listdir(shell.folder / "tmp") == []  # noqa: PTH208
