"""`paceline doctor`: each check finds what it is there for, and is silent about the rest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from paceline.tools.doctor import examine, machine, software
from paceline.tools.doctor.machine import Allowance, memory_allowance, process_allowance
from paceline.tools.doctor.rules import RULES
from paceline.tools.findings import GB, MB

OK = RULES.found("cpus-ok", total=2)
NOTE = RULES.found("bf16-missing")
PROBLEM = RULES.found("emulation")


def which(*names):
    """Looks commands up where only these exist."""
    return lambda name: f"/bin/{name}" if name in names else None


APPLE, ARM = "model name : VirtualApple @ 2.50GHz\n", "CPU implementer\t: 0x61\n"
NEEDS = ["torch>=2.10", "gymnasium<2,>=1.2", "numpy>=2.0", "mujoco>=9; extra == 'mujoco'"]
GOOD = {"torch": "2.10.0+cpu", "gymnasium": "1.4.0", "numpy": "2.4.6"}
LARGE, SMALL = Allowance(64 * GB, 64 * GB), Allowance(512 * MB, 100 * MB)
TWO_SET = {"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "1"}
UNBOUND = {"OMP_PROC_BIND": "FALSE", "OMP_PLACES": "0"}
SEVENTY, TWENTY = Allowance(100, 70), Allowance(100, 20)
AVX = "flags\t\t: fpu avx512_bf16 s\n"


def versions_with(python="3.11.7", **changed):
    return software.versions(NEEDS, python, ">=3.11", (GOOD | changed).get)


CASES = {
    # Affinity and quota: the narrower one is named.
    machine.cpus: {
        "ok cpus-ok": [(8, 8, None, 8), (8, 8, 16.0, 8)],
        "ok cpus-one": [(1, 1, None, 1)],
        "note cpus-affinity": [(64, 4, None, 4), (64, 2, 4.0, 2)],
        "note cpus-quota": [(64, 64, 1.5, 2), (64, 4, 2.0, 2)],
    },
    # Load by others counts where it takes usable CPUs: 30 of 64 leave enough for these four.
    machine.load: {
        "ok load-ok": [(0.2, 2, 2), (30.0, 64, 4)],
        "note load-high": [(0.8, 2, 2), (61.0, 64, 4)],
        "problem load-high": [(1.8, 2, 2), (80.0, 64, 4)],
    },
    # bf16 is a whole word of the flags; nothing is claimed where there are none.
    machine.bf16: {
        "ok bf16-ok": [(AVX,), ("flags : fpu amx_bf16 sse\n",), ("Features : fp asimd bf16\n",)],
        "note bf16-missing": [("name : avx512_bf16\nflags : avx512_bf16x\n",)],
        "": [("processor : 0\n",)],
    },
    machine.frequency: {
        "note frequency-powersave": [("powersave", "acpi-cpufreq")],
        "": [("schedutil", "acpi-cpufreq"), ("powersave", "intel_pstate")],
    },
    machine.emulation: {
        "problem emulation": [("x86_64", APPLE), ("x86_64", ARM)],
        "": [("aarch64", ARM), ("x86_64", "model name : AMD EPYC\nflags : fpu\n")],
    },
    # Variables: unset, empty and 1 are fine.
    machine.threads: {
        "ok threads-unset": [({"HOME": "/"},), ({"OMP_NUM_THREADS": ""},)],
        "ok threads-one": [({"OMP_NUM_THREADS": "1"},)],
        "note threads-many": [(TWO_SET,)],
    },
    machine.binding: {
        "problem binding": [({name: "true"},) for name in machine.BINDING],
        "note binding-intel": [({"KMP_AFFINITY": "compact"},)],
        "": [({},), (UNBOUND,), ({"KMP_AFFINITY": "disabled"},)],
    },
    # Memory: for a learner, for a worker on each CPU, and within the control group's limit.
    machine.memory: {
        "ok memory-ok": [(16 * GB, 8 * GB, None, 8), (16 * GB, 8 * GB, LARGE, 8)],
        "note memory-workers": [(2 * GB, GB, None, 32)],
        "problem memory-learner": [(GB, 200 * MB, None, 1), (64 * GB, 60 * GB, SMALL, 2)],
    },
    machine.swap: {
        "note swap-used": [(4 * GB, 16 * GB)],
        "": [(100 * MB, 16 * GB), (0, 0)],
    },
    machine.shared_memory: {
        "ok shm-ok": [(8 * GB, 4 * GB)],
        "note shm-little": [(64 * MB, 64 * MB), (8 * GB, 10 * MB)],
    },
    machine.disk: {
        "ok disk-ok": [("disk", 50 * GB)],
        "note disk-little": [("disk", 500 * MB)],
        "problem disk-little": [("disk", 50 * MB)],
        "ok temporary-ok": [("temporary", 50 * GB)],
        "problem temporary-little": [("temporary", 50 * MB)],
    },
    # Limits; negative where there are none. A worker on each CPU needs more of them.
    machine.files: {
        "ok files-ok": [(1024, 4096, 2), (-1, 4096, 500)],
        "note files-few": [(100, 4096, 2), (1023, 4096, 2)],
        "problem files-few": [(60, 4096, 2), (100, 4096, 32), (1024, 4096, 500), (60, -1, 2)],
    },
    machine.processes: {
        "ok processes-ok": [(30_000, None, 2), (-1, None, 2)],
        "note processes-few": [(-1, SEVENTY, 2)],
        "problem processes-few": [
            (30, None, 2),
            (30, SEVENTY, 2),
            (9000, TWENTY, 2),
            (-1, SEVENTY, 32),
        ],
    },
    # The C++ compiler that torch looks for, and no other.
    software.compiler: {
        "": [
            (None, "linux", which("g++")),
            (None, "darwin", which("clang++")),
            ("icpx", "linux", which("icpx")),
        ],
        "note compiler-missing": [(None, "linux", which())],
        "note compiler-other": [(None, "linux", which("clang++"))],
        "note compiler-cxx": [("g++-99", "linux", which("g++"))],
    },
    software.headers: {"ok compiler-ok": [(True,)], "note compiler-headers": [(False,)]},
    # torch's build, NVIDIA's driver, a device.
    software.gpu: {
        "ok gpu-ok": [("cuda", True, True)],
        "ok gpu-none": [("cpu", False, False)],
        "note gpu-torch-for-cpu": [("cpu", True, True)],
        "note gpu-torch-for-cuda": [("cuda", False, False)],
        "note gpu-no-device": [("cuda", True, False)],
        "": [("rocm", False, False)],
    },
    versions_with: {"ok versions-ok": [()]},
}
"""check → level and code of its finding, or nothing → arguments with which that is found"""


@pytest.mark.parametrize(
    ("check", "expected", "arguments"),
    [
        (check, expected, arguments)
        for check, cases in CASES.items()
        for expected, several in cases.items()
        for arguments in several
    ],
)
def test_a_check_finds_what_it_is_there_for(check, expected, arguments):
    finding = check(*arguments)
    if not expected:
        assert finding is None
        return
    assert f"{finding.level} {finding.code}" == expected
    assert (finding.level == "ok") == (not finding.fix)


@pytest.mark.parametrize(
    ("finding", "facts"),
    [
        (machine.cpus(64, 4, None, 4), {"allowed": 4, "total": 64}),
        (machine.cpus(64, 64, 1.5, 2), {"quota": 1.5, "usable": 2}),
        (machine.load(0.8, 2, 2), {"load": 0.8}),
        (machine.bf16(AVX), {"flags": "avx512_bf16"}),
        (machine.threads(TWO_SET), {"variables": "OMP_NUM_THREADS=8 and MKL_NUM_THREADS=1"}),
        (machine.binding({"OMP_PLACES": "0"}), {"names": "OMP_PLACES"}),
        (machine.memory(16 * GB, 8 * GB, LARGE, 8), {"whole": 16 * GB, "free": 8 * GB}),
        (machine.memory(2 * GB, GB, None, 32), {"workers": 32}),
        (machine.memory(64 * GB, 60 * GB, SMALL, 2), {"whole": 512 * MB, "free": 100 * MB}),
        (machine.swap(4 * GB, 16 * GB), {"used": 4 * GB}),
        (machine.shared_memory(8 * GB, 4 * GB), {"free": 4 * GB, "total": 8 * GB}),
        (machine.disk("disk", 50 * MB), {"free": 50 * MB}),
        (machine.files(60, 4096, 2), {"limit": 60, "enough": 1024, "first": ""}),
        (machine.files(60, -1, 2), {"first": ""}),
        (machine.processes(30, None, 2), {"more": "raise ulimit -u"}),
        (machine.processes(-1, SEVENTY, 2), {"left": 70}),
        (machine.processes(30, SEVENTY, 2), {"left": 30}),
        (machine.processes(9000, TWENTY, 2), {"left": 20}),
        (machine.processes(30_000, None, 2), {"left": "30,000"}),
        (machine.processes(-1, None, 2), {"left": "any number of"}),
        (software.compiler(None, "linux", which("clang++")), {"other": "clang++", "wanted": "g++"}),
        (software.compiler("g++-99", "linux", which("g++")), {"install": "export CXX=g++"}),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
def test_a_finding_tells_what_was_seen(finding, facts):
    assert facts.items() <= finding.facts.items()


PLACES = {
    "disk-gone": ("disk", Path, "cwd", FileNotFoundError()),
    "disk-read-only": ("disk", os, "access", False),
    "temporary-none": ("temporary", shutil, "disk_usage", FileNotFoundError()),
    "shm-missing": ("/dev/shm", shutil, "disk_usage", FileNotFoundError()),
}


@pytest.mark.parametrize("code", PLACES)
def test_a_place_that_is_missing_or_not_writable_is_found(code, monkeypatch):
    topic, module, function, result = PLACES[code]
    monkeypatch.setattr(module, function, lambda *_: answer(result))
    assert examine.CHECKS[topic]().code == code


def test_every_rule_is_claimed_somewhere():
    elsewhere = {"cache-ok", "cache-unusable", "failed", "suites", "versions-wrong"}
    claimed = {found.split()[1] for cases in CASES.values() for found in cases if found}
    assert claimed | elsewhere | PLACES.keys() == set(RULES)


def answer(result):
    """Return the result, or raise it."""
    if isinstance(result, Exception):
        raise result
    return result


@pytest.fixture
def groups(tmp_path):
    """Control groups made of files: what /proc says, then each file's content by its path."""

    def make(lines, files):
        proc, root = tmp_path / "cgroup", tmp_path / "sys"
        proc.write_text("".join(f"{line}\n" for line in lines))
        root.mkdir()
        for path, content in files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n")
        return proc, root

    return make


@pytest.mark.parametrize(
    ("line", "limits", "stat", "allowance"),
    [
        (
            "0::/job",
            {"job/memory.max": 2 * GB, "job/memory.current": GB},
            {"job/memory.stat": f"anon 1\ninactive_file {256 * MB}"},
            Allowance(2 * GB, GB + 256 * MB),
        ),
        (
            "4:memory:/job",
            {"memory/job/memory.limit_in_bytes": 2 * GB, "memory/job/memory.usage_in_bytes": GB},
            {"memory/job/memory.stat": f"inactive_file 5\ntotal_inactive_file {128 * MB}"},
            Allowance(2 * GB, GB + 128 * MB),
        ),
        (
            "0::/a/b",
            {"a/b/memory.max": 8 * GB, "a/memory.max": 4 * GB, "other/memory.max": MB},
            {"a/b/memory.current": GB, "a/memory.current": 3 * GB},
            Allowance(4 * GB, GB),
        ),
        ("0::/docker/0123abc", {"memory.max": GB}, {"memory.current": 0}, Allowance(GB, GB)),
    ],
    ids=["version 2", "version 1", "groups around it", "a container's own group is the root"],
)
def test_a_memory_limit_is_read_with_what_is_left_of_it(groups, line, limits, stat, allowance):
    lines = [line, "3:cpu,cpuacct:/job", "0::/"] if line.startswith("4") else [line]
    assert memory_allowance(*groups(lines, limits | stat)) == allowance


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"memory.max": "max"},
        {"memory.max": "nonsense"},
        {"memory/memory.limit_in_bytes": 9223372036854771712},
    ],
    ids=str,
)
def test_without_a_memory_limit_there_is_none(groups, files):
    assert memory_allowance(*groups(["4:memory:/", "0::/"], files)) is None


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert memory_allowance(tmp_path / "nothing", tmp_path) is None
    assert process_allowance(tmp_path / "nothing", tmp_path) is None


def test_a_limit_of_processes_is_read(groups):
    files = {"pids/job/pids.max": 100, "pids/job/pids.current": 30, "pids/pids.max": "max"}
    assert process_allowance(*groups(["8:pids:/job"], files)) == Allowance(100, 70)


def test_a_cache_that_can_be_made_is_ok_and_is_not_made(tmp_path):
    assert machine.cache(tmp_path / "a" / "b").code == "cache-ok"
    assert not (tmp_path / "a").exists()
    assert machine.cache(tmp_path / "a" / "b", str(tmp_path)).facts["folder"] == "~/a/b"


def test_a_cache_that_cannot_be_made_is_found(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    finding = machine.cache(tmp_path / "file" / "compiled")
    assert (finding.code, finding.facts["lacks"]) == ("cache-unusable", "a directory")
    assert Path(finding.facts["place"]) == tmp_path / "file"
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert machine.cache(tmp_path / "a").facts["lacks"] == "writable"


def test_a_hard_limit_that_is_in_the_way_is_named():
    assert "512" in machine.files(60, 512, 2).facts["first"]


VERSION_FILE = "__version__ = '2.13.0'\ndebug = False\ncuda: Optional[str] = {}\nhip = {}\n"


@pytest.mark.parametrize(
    ("cuda", "hip", "build"),
    [("None", "None", "cpu"), ("'12.8'", "None", "cuda"), ("None", '"6.4"', "rocm")],
)
def test_the_build_of_torch_is_read_from_the_text_of_its_version(cuda, hip, build):
    assert software.torch_build(VERSION_FILE.format(cuda, hip)) == build


@pytest.mark.parametrize(
    ("present", "extras", "missing", "install"),
    [
        ({"mujoco": True}, [], [], ""),
        ({"mujoco": False}, [], ["mujoco"], "pip install mujoco"),
        (
            {"box2d": True, "mujoco": False, "atari": False, "minigrid": False},
            ["box2d", "mujoco", "dev"],
            ["mujoco", "atari", "minigrid"],
            "pip install 'paceline[mujoco]' ale-py minigrid",
        ),
        (
            {"procgen": False},
            ["procgen"],
            ["procgen"],
            f"pip install 'paceline[procgen]', then {software.APART['procgen']}",
        ),
    ],
)
def test_suites_are_listed_with_how_to_install_the_missing(present, extras, missing, install):
    finding = software.suites(present, extras)
    assert (finding.level, finding.topic, finding.facts["missing"]) == ("ok", "suites", missing)
    assert finding.fix.endswith(install) and bool(finding.fix) == bool(install)


@pytest.mark.parametrize(
    ("changed", "wrong", "install"),
    [
        ({"torch": "2.9.1"}, "torch is 2.9.1 (needs >=2.10)", "pip install 'torch>=2.10'"),
        ({"gymnasium": "2.0.0"}, "gymnasium is 2.0.0", "pip install"),
        ({"gymnasium": "1.1.1"}, "gymnasium is 1.1.1", "pip install"),
        ({"numpy": None}, "numpy is missing", "pip install 'numpy>=2.0'"),
        ({"python": "3.9.2"}, "python is 3.9.2", "newer Python"),
    ],
)
def test_a_version_outside_its_bounds_is_a_problem(changed, wrong, install):
    finding = versions_with(**changed)
    assert (finding.level, finding.code) == ("problem", "versions-wrong")
    assert wrong in finding.facts["wrong"] and install in finding.facts["install"]


def test_a_folder_of_that_name_is_not_taken_for_a_package(tmp_path, monkeypatch):
    (tmp_path / "a_folder_of_runs").mkdir()
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    found = examine.present({"run": "a_folder_of_runs", "own": "a_package", "no": "not_there"})
    assert found == {"run": False, "own": True, "no": False}


def examined(monkeypatch, *results):
    """Findings of checks with these results, or that raise them."""
    topics = list(dict.fromkeys(rule.topic for rule in RULES.values()))
    checks = {
        topic: lambda result=result: answer(result)
        for topic, result in zip(topics, results, strict=False)
    }
    monkeypatch.setattr(examine, "CHECKS", checks)
    return examine.examine()


def test_what_a_system_does_not_have_is_left_out(monkeypatch):
    absent = (FileNotFoundError("/proc"), AttributeError("getloadavg"), ImportError("resource"))
    assert examined(monkeypatch, *absent, None, OK) == [OK]


def test_a_check_that_fails_says_so_and_stops_no_other(monkeypatch):
    failed, other = examined(monkeypatch, PermissionError("not yours"), OK)
    assert (failed.level, failed.topic, failed.code) == ("note", "versions", "failed")
    assert failed.facts == {"error": "not yours"}
    assert other is OK


def test_the_worst_comes_first(monkeypatch):
    assert examined(monkeypatch, OK, NOTE, PROBLEM, OK) == [PROBLEM, NOTE, OK, OK]
