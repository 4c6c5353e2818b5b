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
TWO_SHOWN = "OMP_NUM_THREADS=8 and MKL_NUM_THREADS=1"


def versions_with(python="3.11.7", **changed):
    return software.versions(NEEDS, python, ">=3.11", (GOOD | changed).get)


CASES = {
    # Affinity and quota: the narrower one is named.
    machine.cpus: [
        ((8, 8, None, 8), "ok", "cpus-ok", {"total": 8}),
        ((8, 8, 16.0, 8), "ok", "cpus-ok", {"total": 8}),
        ((1, 1, None, 1), "ok", "cpus-one", {}),
        ((64, 4, None, 4), "note", "cpus-affinity", {"allowed": 4, "total": 64}),
        ((64, 64, 1.5, 2), "note", "cpus-quota", {"quota": 1.5, "usable": 2}),
        ((64, 4, 2.0, 2), "note", "cpus-quota", {}),
        ((64, 2, 4.0, 2), "note", "cpus-affinity", {}),
    ],
    # Load by others counts where it takes usable CPUs.
    machine.load: [
        ((0.2, 2, 2), "ok", "load-ok", {"load": 0.2}),
        ((0.8, 2, 2), "note", "load-high", {"load": 0.8}),
        ((1.8, 2, 2), "problem", "load-high", {}),
        ((30.0, 64, 4), "ok", "load-ok", {}),  # most of them are free for these four
        ((61.0, 64, 4), "note", "load-high", {}),
        ((80.0, 64, 4), "problem", "load-high", {}),
    ],
    # bf16 is a whole word of the flags; nothing is claimed where there are none.
    machine.bf16: [
        (("flags\t\t: fpu avx512_bf16 s\n",), "ok", "bf16-ok", {"flags": "avx512_bf16"}),
        (("flags\t\t: fpu amx_bf16 sse\n",), "ok", "bf16-ok", {"flags": "amx_bf16"}),
        (("Features\t: fp asimd bf16\n",), "ok", "bf16-ok", {"flags": "bf16"}),
        (("name : avx512_bf16\nflags : avx512_bf16x\n",), "note", "bf16-missing", {}),
        (("processor : 0\n",), None, None, {}),
    ],
    machine.frequency: [
        (("powersave", "acpi-cpufreq"), "note", "frequency-powersave", {}),
        (("schedutil", "acpi-cpufreq"), None, None, {}),
        (("powersave", "intel_pstate"), None, None, {}),
    ],
    machine.emulation: [
        (("x86_64", APPLE), "problem", "emulation", {}),
        (("x86_64", ARM), "problem", "emulation", {}),
        (("aarch64", ARM), None, None, {}),
        (("x86_64", "model name : AMD EPYC\nflags : fpu\n"), None, None, {}),
    ],
    # Variables: unset, empty and 1 are fine.
    machine.threads: [
        (({"HOME": "/"},), "ok", "threads-unset", {}),
        (({"OMP_NUM_THREADS": ""},), "ok", "threads-unset", {}),
        (({"OMP_NUM_THREADS": "1"},), "ok", "threads-one", {}),
        (
            (TWO_SET,),
            "note",
            "threads-many",
            {"variables": "OMP_NUM_THREADS=8 and MKL_NUM_THREADS=1"},
        ),
    ],
    machine.binding: [
        (({"GOMP_CPU_AFFINITY": "0-3"},), "problem", "binding", {}),
        (({"OMP_PROC_BIND": "true"},), "problem", "binding", {}),
        (({"OMP_PLACES": "0"},), "problem", "binding", {"names": "OMP_PLACES"}),
        (({"KMP_AFFINITY": "compact"},), "note", "binding-intel", {}),
        (({},), None, None, {}),
        (({"OMP_PROC_BIND": "FALSE", "OMP_PLACES": "0"},), None, None, {}),
        (({"KMP_AFFINITY": "disabled"},), None, None, {}),
    ],
    # Memory: for a learner, for a worker on each CPU, and within the control group's limit.
    machine.memory: [
        ((16 * GB, 8 * GB, None, 8), "ok", "memory-ok", {"whole": 16 * GB}),
        ((16 * GB, 8 * GB, LARGE, 8), "ok", "memory-ok", {"whole": 16 * GB, "free": 8 * GB}),
        ((GB, 200 * MB, None, 1), "problem", "memory-learner", {"free": 200 * MB}),
        ((2 * GB, GB, None, 32), "note", "memory-workers", {"workers": 32}),
        ((64 * GB, 60 * GB, SMALL, 2), "problem", "memory-learner", {"free": 100 * MB}),
    ],
    machine.swap: [
        ((4 * GB, 16 * GB), "note", "swap-used", {"used": 4 * GB}),
        ((100 * MB, 16 * GB), None, None, {}),
        ((0, 0), None, None, {}),
    ],
    machine.shared_memory: [
        ((64 * MB, 64 * MB), "note", "shm-little", {"total": 64 * MB}),
        ((8 * GB, 10 * MB), "note", "shm-little", {"free": 10 * MB}),
        ((8 * GB, 4 * GB), "ok", "shm-ok", {"free": 4 * GB, "total": 8 * GB}),
    ],
    # Disks that are nearly full.
    machine.disk: [
        (("disk", 50 * MB), "problem", "disk-little", {"free": 50 * MB}),
        (("disk", 500 * MB), "note", "disk-little", {}),
        (("disk", 50 * GB), "ok", "disk-ok", {"free": 50 * GB}),
        (("temporary", 50 * MB), "problem", "temporary-little", {}),
        (("temporary", 50 * GB), "ok", "temporary-ok", {}),
    ],
    # Limits; negative where there are none. A worker on each CPU needs more of them.
    machine.files: [
        ((60, 4096, 2), "problem", "files-few", {"limit": 60, "enough": 1024}),
        ((100, 4096, 2), "note", "files-few", {}),
        ((100, 4096, 32), "problem", "files-few", {}),
        ((1023, 4096, 2), "note", "files-few", {"first": ""}),
        ((1024, 4096, 2), "ok", "files-ok", {}),
        ((1024, 4096, 500), "problem", "files-few", {}),
        ((-1, 4096, 500), "ok", "files-ok", {}),
        ((60, -1, 2), "problem", "files-few", {"first": ""}),
    ],
    machine.processes: [
        ((30, None, 2), "problem", "processes-few", {"more": "raise ulimit -u"}),
        ((-1, Allowance(100, 70), 2), "note", "processes-few", {"left": 70}),
        ((30, Allowance(100, 70), 2), "problem", "processes-few", {"left": 30}),
        ((9000, Allowance(100, 20), 2), "problem", "processes-few", {"left": 20}),
        ((-1, Allowance(100, 70), 32), "problem", "processes-few", {}),
        ((30_000, None, 2), "ok", "processes-ok", {"left": "30,000"}),
        ((-1, None, 2), "ok", "processes-ok", {"left": "any number of"}),
    ],
    # The C++ compiler that torch looks for, and no other.
    software.compiler: [
        ((None, "linux", which("g++")), None, None, {}),
        ((None, "darwin", which("clang++")), None, None, {}),
        (("icpx", "linux", which("icpx")), None, None, {}),
        ((None, "linux", which()), "note", "compiler-missing", {}),
        (
            (None, "linux", which("clang++")),
            "note",
            "compiler-other",
            {"other": "clang++", "wanted": "g++"},
        ),
        (
            ("g++-99", "linux", which("g++")),
            "note",
            "compiler-cxx",
            {"wanted": "g++-99", "install": "export CXX=g++"},
        ),
    ],
    software.headers: [
        ((True,), "ok", "compiler-ok", {}),
        ((False,), "note", "compiler-headers", {}),
    ],
    # torch's build, NVIDIA's driver, a device.
    software.gpu: [
        (("cpu", True, True), "note", "gpu-torch-for-cpu", {}),
        (("cuda", False, False), "note", "gpu-torch-for-cuda", {}),
        (("cuda", True, False), "note", "gpu-no-device", {}),
        (("cuda", True, True), "ok", "gpu-ok", {}),
        (("cpu", False, False), "ok", "gpu-none", {}),
        (("rocm", False, False), None, None, {}),
    ],
    versions_with: [
        ((), "ok", "versions-ok", {}),
    ],
}


@pytest.mark.parametrize(
    ("check", "arguments", "level", "code", "facts"),
    [(check, *case) for check, cases in CASES.items() for case in cases],
)
def test_a_check_finds_what_it_is_there_for(check, arguments, level, code, facts):
    finding = check(*arguments)
    if code is None:
        assert finding is None
        return
    assert (finding.level, finding.code) == (level, code)
    assert facts.items() <= finding.facts.items()
    assert (finding.level == "ok") == (not finding.fix)


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
    elsewhere = {"cache-ok", "cache-unusable", "failed", "suites", "tools", "versions-wrong"}
    claimed = {code for cases in CASES.values() for *_, code, _ in cases if code}
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
        ({"ray": True}, [], [], ""),
        ({"ray": False}, [], ["ray"], "pip install ray"),
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
@pytest.mark.parametrize("topic", ["suites", "tools"])
def test_optional_packages_are_listed_with_how_to_install_the_missing(
    topic, present, extras, missing, install
):
    finding = software.optional(topic, present, extras)
    assert (finding.level, finding.topic, finding.facts["missing"]) == ("ok", topic, missing)
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
