"""What this machine grants a process: affinity, control groups, threads; and what a tree uses."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from saved_runs import PLAIN
from trees import family, workers

import paceline
from paceline.processes import hardware as machine
from paceline.processes.hardware import (
    THREAD_VARIABLES,
    available_cpus,
    bound,
    cgroup_quota,
    oom_kills,
)
from paceline.run.build import build
from paceline.storage.compiler_cache import compiled_cache

pytestmark = pytest.mark.timeout(60)

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def groups(tmp_path):
    """Makes control groups of files: what /proc says, then each file's content by its path."""

    def make(lines, **files):
        proc, root = tmp_path / "cgroup", tmp_path / "sys"
        proc.write_text("".join(f"{line}\n" for line in lines))
        root.mkdir()
        for path, content in files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n")
        return cgroup_quota(proc, root)

    return make


@pytest.mark.parametrize(
    ("lines", "files", "count"),
    [
        (["0::/a/b"], {"a/b/memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 9"}, 3),
        (["0::/a/b"], {"a/memory.events": "oom_kill 2"}, 2),
        (["4:memory:/a"], {"memory/a/memory.oom_control": "under_oom 0\noom_kill 5"}, 5),
        (["4:memory:/a", "0::/"], {"memory/memory.oom_control": "oom_kill 1"}, 1),
        (["0::/a"], {"a/memory.events": "oom 4"}, 7),
        ([], {}, 7),
    ],
)
def test_processes_killed_for_want_of_memory_are_counted(groups, tmp_path, lines, files, count):
    groups(lines, **files)
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("pgfault 12\noom_kill 7\n")
    assert oom_kills(tmp_path / "cgroup", tmp_path / "sys", vmstat) == count


def test_where_nobody_counts_them_none_was_killed(tmp_path):
    nothing = tmp_path / "nothing"
    assert oom_kills(nothing, nothing, nothing) == 0


def version_1(folder, quota, period=100_000):
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}


def nested(inner, middle=None, outer=None):
    """Of a group in a group in the root."""
    paths = ("user.slice/job.scope/cpu.max", "user.slice/cpu.max", "cpu.max")
    return {p: c for p, c in zip(paths, (inner, middle, outer), strict=True) if c is not None}


ROOT, JOB = ["0::/"], ["0::/user.slice/job.scope"]
LINES_1 = ["12:cpuset:/", "5:memory:/job", "4:cpu,cpuacct:/job/step", "1:name=systemd:/job"]
STEP = "cpu/job/step"


@pytest.mark.parametrize(
    ("lines", "files", "quota"),
    [
        # Version 2.
        (ROOT, {"cpu.max": "200000 100000"}, 2.0),
        (ROOT, {"cpu.max": "50000 100000"}, 0.5),
        (ROOT, {"cpu.max": "max 100000"}, None),
        (ROOT, {"cpu.max": "nonsense"}, None),
        (ROOT, {"cpu.max": ""}, None),
        (ROOT, {"cpu.weight": "100"}, None),
        (ROOT, {}, None),
        # A group has no more than the groups around it.
        (JOB, nested("300000 100000", "max 100000"), 3.0),
        (JOB, nested("max 100000", "150000 100000"), 1.5),
        (JOB, nested("800000 100000", "400000 100000", "max 100000"), 4.0),
        (JOB, nested("400000 100000", "800000 100000", "200000 100000"), 2.0),
        (JOB, nested("max 100000", "max 100000", "max 100000"), None),
        (JOB, nested(None, "100000 50000"), 2.0),
        # A group of another branch does not count.
        (JOB, nested("300000 100000") | {"user.slice/other/cpu.max": "100000 100000"}, 3.0),
        # In a container /proc may name the host's path; the root of what is there is meant.
        (["0::/docker/0123abc"], {"cpu.max": "150000 100000"}, 1.5),
        # Version 1: that of its controller.
        (LINES_1, version_1(STEP, 250_000), 2.5),
        (LINES_1, version_1(STEP, -1), None),
        (LINES_1, version_1(STEP, -1) | version_1("cpu/job", 100_000, 50_000), 2.0),
        (LINES_1, version_1(STEP, 400_000) | version_1("cpu", 300_000), 3.0),
        (LINES_1, version_1("memory/job", 100_000), None),
        (LINES_1, {f"{STEP}/cpu.cfs_quota_us": 100_000}, None),
        (LINES_1, {}, None),
        # Both.
        ([*LINES_1, "0::/job"], version_1(STEP, 400_000) | {"job/cpu.max": "300000 100000"}, 3.0),
    ],
    ids=str,
)
def test_the_quota_is_the_smallest_of_the_groups_around_a_process(groups, lines, files, quota):
    assert groups(lines, **files) == quota


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert cgroup_quota(tmp_path / "nothing", tmp_path) is None


@pytest.mark.parametrize(
    ("quota", "cpus"), [(None, len(CPUS)), (1e6, len(CPUS)), (1.0, 1), (0.2, 1), (1.2, 1)]
)
def test_the_cpus_are_those_that_affinity_and_quota_both_grant(monkeypatch, quota, cpus):
    monkeypatch.setattr(machine, "cgroup_quota", lambda: quota)
    assert available_cpus() == cpus


def python(code, cpus=None, **environment):
    """What a fresh interpreter prints that may run on `cpus` alone."""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        env=os.environ | environment,
        preexec_fn=cpus and (lambda: os.sched_setaffinity(0, cpus)),
    )
    return ended.stdout.split()


def test_an_affinity_set_from_outside_is_respected():
    code = "from paceline.processes.hardware import available_cpus; print(available_cpus())"
    assert python(code, CPUS[:1]) == ["1"]
    assert python(code) == [str(available_cpus())]


def test_auto_workers_follow_the_affinity():
    code = (
        "import paceline; config = paceline.Config(num_workers='auto', num_envs=8);"
        "print(config.num_workers, config.as_dict()['num_workers'])"
    )
    assert python(code, CPUS[-1:]) == ["1", "1"]
    expected = str(max(n for n in range(1, available_cpus() + 1) if 8 % n == 0))
    assert python(code) == [expected, expected]


@pytest.mark.parametrize(
    ("cpus", "envs", "workers"), [(4, 8, 4), (3, 8, 2), (64, 8, 8), (6, 9, 3), (5, 7, 1)]
)
def test_auto_is_the_most_workers_that_share_the_environments_equally(
    monkeypatch, cpus, envs, workers
):
    monkeypatch.setattr(machine, "available_cpus", lambda: cpus)
    config = paceline.Config(num_workers="auto", num_envs=envs, preset="none")
    assert (config.num_workers, config.num_envs) == (workers, envs)


def test_auto_with_environments_per_worker_is_one_worker_per_cpu(monkeypatch):
    monkeypatch.setattr(machine, "available_cpus", lambda: 3)
    config = paceline.Config(num_workers="auto", num_envs_per_worker=5)
    assert (config.num_workers, config.num_envs) == (3, 15)


def test_bound_restores_the_affinity():
    before = os.sched_getaffinity(0)
    with bound(CPUS[:1]):
        assert os.sched_getaffinity(0) == {CPUS[0]}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(ZeroDivisionError), bound(CPUS[-1:]):
        1 / 0  # noqa: B018
    assert os.sched_getaffinity(0) == before
    with bound([]):
        assert os.sched_getaffinity(0) == before


def counting_threads():
    """Shows, where it lives, the thread variables, those of BLAS, and of torch if it is there.

    It reaches a worker by value.
    """

    class Counting(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)
        action_space = gym.spaces.Discrete(2)

        def look(self):
            from threadpoolctl import threadpool_info

            said = [int(os.environ[name]) for name in THREAD_VARIABLES]
            pools = [pool["num_threads"] for pool in threadpool_info()]
            torch = sys.modules.get("torch")
            seen = np.zeros(64, np.uint8)
            seen[:3] = max(said), max(pools, default=1), torch.get_num_threads() if torch else 1
            return seen.reshape(8, 8, 1)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.look(), {}

        def step(self, action):
            return self.look(), 0.0, False, False, {}

    return Counting


def two_workers(env_id):
    sizes = {"num_envs": 2, "num_workers": 2, "rollout_steps": 4, "total_iters": 1}
    return build(paceline.Config(env_id=env_id, **PLAIN, **sizes))


def test_a_worker_has_one_thread_whatever_the_users_environment_says(monkeypatch):
    """Also one that acts through torch."""
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "8")
    with two_workers(counting_threads()) as parts:
        seen = parts.sampler.collect().obs.reshape(-1, 64)[:, :3]
        assert (seen == 1).all(), seen.max(0)
        assert len(workers()) == 2
        for worker in workers():
            said = worker.environ()
            assert [said[name] for name in THREAD_VARIABLES] == ["1"] * 3
    assert os.environ["OMP_NUM_THREADS"] == "8"  # the user's own is left as it is


BUSY = """
import time
held = bytearray(200 * 2**20)
for at in range(0, len(held), 4096):
    held[at] = 1
print("ready", flush=True)
end = time.monotonic() + 30
while time.monotonic() < end:
    pass
"""
GRANDPARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
MEASURE = """
import subprocess, sys, time
import psutil
from paceline.processes.hardware import Usage

usage = Usage(interval=1.5)
alone, nothing = usage.read()
assert nothing is None
child = subprocess.Popen([sys.executable, "-c", {code!r}], stdout=subprocess.PIPE)
family = [psutil.Process(child.pid)]
try:
    assert child.stdout.readline() == b"ready\\n"
    family += family[0].children()
    readings = {{}}
    while len(readings) < 2:
        time.sleep(0.1)
        readings[usage.read()] = True
finally:
    for member in family:
        member.kill()
print(alone, *list(readings)[-1])
"""


@pytest.mark.parametrize("code", [BUSY, GRANDPARENT], ids=["child", "grandchild"])
def test_usage_counts_the_whole_tree_of_processes(code):
    """A child that holds 200 MB and works, while its parent rests."""
    alone, memory, cpu = map(float, python(MEASURE.format(code=code)))
    assert 5 < alone < 100
    assert memory > alone + 190
    assert cpu > 20  # of one CPU, which others may want too


def test_memory_that_processes_share_is_counted_once():
    """Workers are forked from one server: what they have in common is not theirs alone."""
    with two_workers("CartPole-v1") as parts:
        parts.sampler.collect()
        tree = family()
        apart = sum(process.memory_info().rss for process in tree) / 2**20
        together = sum(machine.memory_mb(process) for process in tree)
    assert len(tree) == 3
    assert together < 0.75 * apart


def test_a_reading_that_comes_too_soon_is_made_up_for_at_once(monkeypatch):
    """A short run is over before the next would come."""
    clock, used = [100.0], [7.0]
    monkeypatch.setattr(machine.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(machine.Usage, "_cpu", lambda self: used[0])
    usage = machine.Usage()
    clock[0], used[0] = 100.05, 7.05
    assert usage.read()[1] is None
    clock[0], used[0] = 100.5, 7.25
    assert usage.read()[1] == 50.0  # since the beginning
    clock[0], used[0] = 101.5, 9.0
    assert usage.read()[1] == 50.0  # that was just now
    clock[0] = 104.5
    assert usage.read()[1] == pytest.approx(43.8)


RANK = """
import psutil
from paceline.processes.launcher import launchers
from paceline.processes.hardware import Usage

usage = Usage(launchers=launchers())
above = psutil.Process().parents()
print(",".join(str(above.index(each)) for each in usage._above) or "none")
"""
AGENT = (
    f"import subprocess, sys; subprocess.run([sys.executable, '-c', {RANK!r}])  # paceline.ranks"
)


@pytest.mark.parametrize(
    ("rank", "line", "counted"),
    [(0, True, "0,1"), (0, False, "0"), (1, True, "none"), (None, True, "none")],
    ids=["--ranks", "torchrun", "another rank", "no rank"],
)
def test_the_first_rank_counts_the_processes_that_started_it(rank, line, counted):
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}
    if rank is not None:
        told |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    if line:
        told["PACELINE_CHANNEL"] = "x"
    assert python(AGENT, **told) == [counted]


# A user without a home


@pytest.fixture
def homeless(monkeypatch, tmp_path):
    """Neither HOME nor an entry in passwd, as in some containers; tmp_path for temporary files."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"paceline-{os.getuid()}"


def test_without_a_home_compiled_steps_are_kept_where_nobody_else_writes(homeless):
    first = compiled_cache()
    assert homeless in Path(first).parents
    assert homeless.stat().st_mode & 0o777 == 0o700
    assert compiled_cache() == first


@pytest.mark.parametrize("planted", ["open directory", "link", "file"])
def test_what_somebody_else_may_have_put_there_is_not_used(homeless, tmp_path, planted):
    if planted == "open directory":
        homeless.mkdir()
        homeless.chmod(0o777)
    elif planted == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        homeless.symlink_to(tmp_path / "theirs")
    else:
        homeless.touch(0o600)
    found = Path(compiled_cache()).parent.parent
    assert found not in (homeless, tmp_path / "theirs")
    assert found.parent == tmp_path and found.stat().st_mode & 0o777 == 0o700


def test_without_a_temporary_folder_either_it_says_what_to_set(homeless, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(paceline.BadInput, match="set HOME or XDG_CACHE_HOME"):
        compiled_cache()
