"""`paceline doctor`: each check finds what it is there for, and keeps quiet about the rest."""

from __future__ import annotations

import json

import pytest

from paceline.config.text import listed, several
from paceline.tools.doctor import examine, layout, limits, processors, software, storage
from paceline.tools.doctor.cgroups import Allowance, memory_allowance, process_allowance
from paceline.tools.findings import GB, MB, Finding, size

OK = Finding("ok", "cpus", "all is well")
NOTE = Finding("note", "load", "others are at work", "wait")
PROBLEM = Finding("problem", "files", "there are too few", "ulimit -n 1024")


def says(finding, level, *words):
    """The level, and every word in what is said or advised."""
    assert finding.level == level, finding
    for word in words:
        assert word in f"{finding.text} {finding.fix}", finding
    return True


def test_a_machine_that_may_be_used_in_full_is_as_it_should_be():
    assert says(processors.cpus(8, 8, None, 8), "ok", "all 8 CPUs")
    assert says(processors.cpus(8, 8, 16.0, 8), "ok", "all 8 CPUs")
    assert says(processors.cpus(1, 1, None, 1), "ok", "one CPU")


def test_a_process_that_is_bound_to_some_cpus_is_told_so():
    assert says(processors.cpus(64, 4, None, 4), "note", "4 of the machine's 64", "taskset")


def test_a_quota_of_the_control_group_is_explained():
    finding = processors.cpus(64, 64, 1.5, 2)
    assert says(finding, "note", "1.5 CPUs", "64", "halted", "counts on 2 CPUs", "--cpus")


def test_the_narrower_of_affinity_and_quota_is_the_one_that_is_named():
    assert says(processors.cpus(64, 4, 2.0, 2), "note", "control group")
    assert says(processors.cpus(64, 2, 4.0, 2), "note", "bound")


@pytest.mark.parametrize(
    ("average", "total", "usable", "level"),
    [
        (0.2, 2, 2, "ok"),
        (0.8, 2, 2, "note"),
        (1.8, 2, 2, "problem"),
        (30.0, 64, 4, "ok"),  # most of them are free for these four
        (61.0, 64, 4, "note"),
        (80.0, 64, 4, "problem"),
    ],
)
def test_load_by_others_is_found_where_it_takes_usable_cpus(average, total, usable, level):
    finding = processors.load(average, total, usable)
    assert says(finding, level, f"{average:.1f}")
    assert ("noisy" in finding.text) == (level != "ok")


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_a_cpu_with_bf16_is_recognized(flag):
    assert says(processors.bf16(f"model name : X\nflags\t\t: fpu {flag} sse\n"), "ok", flag)
    assert says(processors.bf16("Features\t: fp asimd bf16\n"), "ok", "bf16")


def test_a_cpu_without_bf16_is_told_what_it_lacks():
    cpuinfo = "model name : avx512_bf16\nflags\t\t: fpu avx512f avx512_bf16x\n"
    assert says(processors.bf16(cpuinfo), "note", "bf16 is not available", "fp32")


def test_where_the_system_does_not_tell_a_cpus_abilities_nothing_is_claimed():
    assert processors.bf16("processor : 0\n") is None


def test_a_governor_that_holds_the_frequency_down_is_found():
    assert says(processors.governor("powersave", "acpi-cpufreq"), "note", "lowest", "performance")
    assert processors.governor("schedutil", "acpi-cpufreq") is None
    assert processors.governor("powersave", "intel_pstate") is None  # it is nimble there


@pytest.mark.parametrize(
    "cpuinfo", ["model name : VirtualApple @ 2.50GHz\n", "CPU implementer\t: 0x61\n"]
)
def test_translated_x86_code_is_found(cpuinfo):
    assert says(processors.emulation("x86_64", cpuinfo), "problem", "translated", "arm64")
    assert processors.emulation("aarch64", cpuinfo) is None
    assert processors.emulation("x86_64", "model name : AMD EPYC\nflags : fpu\n") is None


@pytest.fixture
def groups(tmp_path):
    """Control groups made of files: what /proc says, then each file's content by its path."""

    def make(lines, **files):
        proc, root = tmp_path / "cgroup", tmp_path / "sys"
        proc.write_text("".join(f"{line}\n" for line in lines))
        root.mkdir()
        for path, content in files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n")
        return proc, root

    return make


def test_a_memory_limit_of_version_2_is_read_with_what_is_left_of_it(groups):
    files = {
        "job/memory.max": 2 * GB,
        "job/memory.current": GB,
        "job/memory.stat": f"anon 1\ninactive_file {256 * MB}",
    }
    assert memory_allowance(*groups(["0::/job"], **files)) == Allowance(2 * GB, GB + 256 * MB)


def test_a_memory_limit_of_version_1_is_read_with_what_is_left_of_it(groups):
    files = {
        "memory/job/memory.limit_in_bytes": 2 * GB,
        "memory/job/memory.usage_in_bytes": GB,
        "memory/job/memory.stat": f"inactive_file 5\ntotal_inactive_file {128 * MB}",
    }
    lines = ["4:memory:/job", "3:cpu,cpuacct:/job", "0::/"]
    assert memory_allowance(*groups(lines, **files)) == Allowance(2 * GB, GB + 128 * MB)


def test_a_group_has_no_more_memory_than_the_groups_around_it(groups):
    files = {
        "a/b/memory.max": 8 * GB,
        "a/b/memory.current": GB,
        "a/memory.max": 4 * GB,
        "a/memory.current": 3 * GB,
        "other/memory.max": MB,
    }
    assert memory_allowance(*groups(["0::/a/b"], **files)) == Allowance(4 * GB, GB)


def test_a_container_sees_its_own_group_as_the_root(groups):
    files = {"memory.max": GB, "memory.current": 0}
    assert memory_allowance(*groups(["0::/docker/0123abc"], **files)) == Allowance(GB, GB)


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
    assert memory_allowance(*groups(["4:memory:/", "0::/"], **files)) is None


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert memory_allowance(tmp_path / "nothing", tmp_path) is None
    assert process_allowance(tmp_path / "nothing", tmp_path) is None


def test_a_limit_of_processes_is_read(groups):
    files = {"pids/job/pids.max": 100, "pids/job/pids.current": 30, "pids/pids.max": "max"}
    assert process_allowance(*groups(["8:pids:/job"], **files)) == Allowance(100, 70)


def test_plenty_of_memory_is_as_it_should_be():
    assert says(storage.memory(16 * GB, 8 * GB, None, 8), "ok", "8.0 GB", "16.0 GB")
    wide = Allowance(64 * GB, 64 * GB)
    assert "control group" not in storage.memory(16 * GB, 8 * GB, wide, 8).text


def test_too_little_memory_for_a_learner_is_a_problem():
    assert says(storage.memory(GB, 200 * MB, None, 1), "problem", "200 MB", "killed")


def test_too_little_memory_for_a_worker_on_each_cpu_is_worth_a_note():
    assert says(storage.memory(2 * GB, GB, None, 32), "note", "32 workers", "fewer workers")


def test_a_control_group_that_allows_little_memory_is_named():
    finding = storage.memory(64 * GB, 60 * GB, Allowance(512 * MB, 100 * MB), 2)
    assert says(finding, "problem", "100 MB of the 512 MB", "control group", "--memory")


def test_swap_that_is_much_used_is_found():
    assert says(storage.swap(4 * GB, 16 * GB), "note", "4.0 GB", "slowly")
    assert storage.swap(100 * MB, 16 * GB) is None
    assert storage.swap(0, 0) is None


def test_the_64_mb_of_docker_are_found_and_said_not_to_concern_paceline():
    finding = storage.shared_memory(64 * MB, 64 * MB)
    assert says(finding, "note", "64 MB", "Paceline", "do not use", "bus error", "--shm-size")


def test_shared_memory_that_is_large_but_full_or_not_there_is_found():
    assert says(storage.shared_memory(8 * GB, 10 * MB), "note", "10 MB of 8.0 GB")
    assert says(storage.shared_memory(None, 0), "note", "there is no /dev/shm", "tmpfs")
    assert says(storage.shared_memory(8 * GB, 4 * GB), "ok", "4.0 GB of 8.0 GB")


def test_a_disk_that_is_nearly_full_is_found():
    assert says(storage.run_disk(50 * MB, True), "problem", "50 MB", "--output-dir")
    assert says(storage.run_disk(500 * MB, True), "note", "500 MB")
    assert says(storage.run_disk(50 * GB, True), "ok", "50.0 GB")
    assert says(storage.temporary_disk(50 * MB), "problem", "50 MB", "TMPDIR")
    assert says(storage.temporary_disk(50 * GB), "ok")


def test_a_place_that_cannot_be_written_to_is_found():
    assert says(storage.run_disk(50 * GB, False), "note", "can't be written", "--output-dir")
    assert says(storage.run_disk(None, False), "note", "gone")
    assert says(storage.temporary_disk(None), "problem", "temporary", "TMPDIR")


def test_a_cache_that_can_be_made_is_as_it_should_be_and_is_not_made(tmp_path):
    assert says(storage.cache(tmp_path / "a" / "b"), "ok", "kept in")
    assert not (tmp_path / "a").exists()
    assert says(storage.cache(tmp_path / "a" / "b", str(tmp_path)), "ok", "in ~/a/b")


def test_a_cache_that_cannot_be_made_is_found(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    finding = storage.cache(tmp_path / "file" / "compiled")
    assert says(finding, "note", "not a directory", "XDG_CACHE_HOME")
    monkeypatch.setattr(storage.os, "access", lambda *_: False)
    assert says(storage.cache(tmp_path / "a"), "note", "not writable", "not compiled")


@pytest.mark.parametrize(
    ("soft", "cpus", "level"),
    [
        (60, 2, "problem"),
        (100, 2, "note"),
        (100, 32, "problem"),  # a worker on each
        (1023, 2, "note"),
        (1024, 2, "ok"),
        (1024, 500, "problem"),
        (-1, 500, "ok"),
    ],
)
def test_a_low_limit_of_open_files_is_found(soft, cpus, level):
    assert says(limits.files(soft, 4096, cpus), level, "files open")


def test_a_hard_limit_that_is_in_the_way_is_named():
    assert says(limits.files(60, 512, 2), "problem", "ulimit -n 1024", "hard limit of 512")
    assert "hard" not in limits.files(60, -1, 2).fix


def test_a_low_limit_of_processes_is_found_whoever_sets_it():
    assert says(limits.processes(30, None, 2), "problem", "30", "ulimit -u")
    assert says(limits.processes(-1, Allowance(100, 70), 2), "note", "70", "100", "--pids-limit")
    assert says(limits.processes(30, Allowance(100, 70), 2), "problem", "ulimit -u")
    assert says(limits.processes(9000, Allowance(100, 20), 2), "problem", "control group")
    assert says(limits.processes(-1, Allowance(100, 70), 32), "problem", "two for each worker")


def test_limits_of_processes_that_no_run_reaches_are_as_they_should_be():
    assert says(limits.processes(30_000, None, 2), "ok", "30,000")
    assert says(limits.processes(-1, None, 2), "ok", "any number")


def test_thread_variables_that_ask_for_more_than_one_are_named_with_what_they_do():
    finding = limits.threads({"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "1"})
    assert says(finding, "note", "OMP_NUM_THREADS=8", "replaces", "paceline.train", "--threads")


def test_thread_variables_that_are_unset_empty_or_1_are_as_they_should_be():
    assert says(limits.threads({"HOME": "/"}), "ok", "no variable")
    assert says(limits.threads({"OMP_NUM_THREADS": ""}), "ok", "no variable")
    assert says(limits.threads({"OMP_NUM_THREADS": "1"}), "ok", "OMP_NUM_THREADS=1")


@pytest.mark.parametrize("name", ["GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES"])
def test_variables_that_bind_a_whole_run_to_one_cpu_are_a_problem(name):
    assert says(
        limits.binding({name: "0-3"}), "problem", f"{name}=0-3", "first CPU", f"unset {name}"
    )


def test_variables_that_bind_nothing_are_passed_over():
    assert limits.binding({}) is None
    assert limits.binding({"OMP_PROC_BIND": "FALSE", "GOMP_CPU_AFFINITY": "0"}) is None
    assert limits.binding({"KMP_AFFINITY": "disabled"}) is None


def test_a_binding_that_only_intels_openmp_knows_is_worth_a_note():
    assert says(limits.binding({"KMP_AFFINITY": "compact"}), "note", "Intel", "unset KMP_AFFINITY")


def which(*names):
    return lambda name: f"/bin/{name}" if name in names else None


def test_a_compiler_that_torch_finds_is_as_it_should_be():
    assert software.compiler(None, "linux", which("g++")) is None
    assert software.compiler(None, "darwin", which("clang++")) is None
    assert software.compiler("icpx", "linux", which("icpx")) is None
    assert says(software.headers(True), "ok", "can be compiled")


def test_a_missing_compiler_is_found_with_what_is_lost():
    finding = software.compiler(None, "linux", which())
    assert says(finding, "note", "no C++ compiler", "not compiled", "install g++")


def test_a_compiler_that_torch_does_not_look_for_is_named():
    assert says(software.compiler(None, "linux", which("clang++")), "note", "export CXX=clang++")


def test_a_cxx_that_leads_nowhere_is_found_though_there_is_another_compiler():
    finding = software.compiler("g++-99", "linux", which("g++"))
    assert says(finding, "note", "CXX names g++-99", "export CXX=g++")


def test_missing_headers_are_found():
    assert says(software.headers(False), "note", "headers", "python3-dev")


VERSION_FILE = "__version__ = '2.13.0'\ndebug = False\ncuda: Optional[str] = {}\nhip = {}\n"


@pytest.mark.parametrize(
    ("cuda", "hip", "build"),
    [("None", "None", "cpu"), ("'12.8'", "None", "cuda"), ("None", '"6.4"', "rocm")],
)
def test_torchs_build_is_read_from_the_text_of_its_version(cuda, hip, build):
    assert software.torch_build(VERSION_FILE.format(cuda, hip)) == build


def test_a_gpu_that_torch_was_not_built_for_is_found():
    assert says(software.gpu("cpu", True, True), "note", "GPU", "build for CPUs", "CUDA")


def test_a_torch_for_a_gpu_that_is_not_there_is_found():
    assert says(software.gpu("cuda", False, False), "note", "no GPU", "gigabytes", "+cpu")


def test_a_gpu_that_the_container_was_not_given_is_found():
    assert says(software.gpu("cuda", True, False), "note", "driver", "--gpus")


def test_a_torch_that_fits_the_machine_is_as_it_should_be():
    assert says(software.gpu("cuda", True, True), "ok")
    assert says(software.gpu("cpu", False, False), "ok")
    assert software.gpu("rocm", False, False) is None  # not judged


def test_suites_are_listed_with_how_to_install_what_is_missing():
    found = {"box2d": True, "mujoco": False, "atari": False, "minigrid": False}
    finding = software.optional("suites", found, ["box2d", "mujoco", "dev"])
    assert says(finding, "ok", "box2d is installed", "mujoco, atari and minigrid are not")
    assert finding.fix.endswith("pip install 'paceline[mujoco]' ale-py minigrid")


def test_what_an_extra_can_not_install_has_a_command_of_its_own():
    finding = software.optional("suites", {"procgen": False}, ["procgen"])
    assert says(finding, "ok", "none of procgen", "'paceline[procgen]', then pip install --no-deps")


def test_when_all_or_none_are_installed_the_sentence_is_still_one():
    assert software.optional("tools", {"ray": True}, []) == Finding(
        "ok", "tools", "ray is installed"
    )
    assert says(software.optional("tools", {"ray": False}, []), "ok", "none of ray", "install ray")


NEEDS = ["torch>=2.10", "gymnasium<2,>=1.2", "numpy>=2.0", "mujoco>=9; extra == 'mujoco'"]
GOOD = {"torch": "2.10.0+cpu", "gymnasium": "1.4.0", "numpy": "2.4.6"}


def test_versions_that_meet_their_bounds_are_as_they_should_be():
    assert says(software.versions(NEEDS, "3.11.7", ">=3.11", GOOD.get), "ok", "new enough")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"torch": "2.9.1"}, ("torch is 2.9.1", ">=2.10", "pip install 'torch>=2.10'")),
        ({"gymnasium": "2.0.0"}, ("gymnasium is 2.0.0", "<2")),
        ({"gymnasium": "1.1.1"}, ("gymnasium is 1.1.1", ">=1.2")),
        ({"numpy": None}, ("numpy is missing", "pip install 'numpy>=2.0'")),
    ],
)
def test_a_version_outside_its_bounds_is_a_problem(changed, words):
    finding = software.versions(NEEDS, "3.11.7", ">=3.11", (GOOD | changed).get)
    assert says(finding, "problem", *words)


def test_a_python_that_is_too_old_is_a_problem():
    finding = software.versions(NEEDS, "3.9.2", ">=3.11", GOOD.get)
    assert says(finding, "problem", "python is 3.9.2", "newer Python")


@pytest.mark.parametrize(
    ("version", "bounds", "met"),
    [
        ("2.10", ">=2.9", True),
        ("2.9", ">=2.10", False),
        ("2.10.0", ">=2.10", True),
        ("2.10", ">=2.10.0", True),
        ("2.0.0a1", "<2", False),
        ("1.9", ">=1.2, <2", True),
        ("1.0", "", True),
        ("1.0", "!=1.0", True),  # not judged
    ],
)
def test_releases_are_compared_as_numbers(version, bounds, met):
    assert software.meets(version, bounds) is met


def test_a_folder_of_that_name_is_not_taken_for_a_package(tmp_path, monkeypatch):
    (tmp_path / "a_folder_of_runs").mkdir()
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    found = examine._found({"run": "a_folder_of_runs", "own": "a_package", "no": "not_there"})
    assert found == {"run": False, "own": True, "no": False}


def raising(error):
    def check():
        raise error

    return check


def test_what_a_system_does_not_have_is_left_out(monkeypatch):
    absent = (FileNotFoundError("/proc"), AttributeError("getloadavg"), ImportError("resource"))
    monkeypatch.setattr(examine, "CHECKS", (*map(raising, absent), lambda: None, lambda: OK))
    assert examine.examined() == [OK]


def test_a_check_that_fails_says_so_and_stops_no_other(monkeypatch):
    monkeypatch.setattr(examine, "CHECKS", (raising(PermissionError("not yours")), lambda: OK))
    failed, other = examine.examined()
    assert says(failed, "note", "could not be examined", "not yours")
    assert other is OK


def test_the_worst_comes_first(monkeypatch):
    checks = tuple((lambda finding=finding: finding) for finding in (OK, NOTE, PROBLEM, OK))
    monkeypatch.setattr(examine, "CHECKS", checks)
    assert examine.examined() == [PROBLEM, NOTE, OK, OK]


@pytest.mark.parametrize(
    ("findings", "line"),
    [
        ([OK, OK], "nothing is wrong"),
        ([OK, NOTE], "no problems, 1 note"),
        ([PROBLEM], "1 problem, no notes"),
        ([PROBLEM, PROBLEM, NOTE, NOTE, NOTE], "2 problems, 3 notes"),
    ],
)
def test_the_last_line_counts(findings, line):
    assert layout.plain({"cpu": "X"}, findings).splitlines()[-1] == line


def test_plain_text_has_a_line_for_each_finding_and_one_for_its_mending():
    lines = layout.plain({"cpu": "X"}, [PROBLEM, OK]).splitlines()
    assert lines[0].split() == ["cpu", "X"]
    assert lines[2].split(maxsplit=2) == ["problem", "files", PROBLEM.text]
    assert lines[3].strip() == "fix: ulimit -n 1024"
    assert lines[4].split(maxsplit=2) == ["ok", "cpus", OK.text]


def test_json_holds_what_the_text_does():
    content = json.loads(layout.as_json({"cpu": "X"}, [PROBLEM, NOTE]))
    assert content["machine"] == {"cpu": "X"}
    assert content["findings"][1] == vars(NOTE)
    assert (content["problems"], content["notes"]) == (1, 1)


def test_a_terminal_gets_every_sentence_whole_however_narrow_it_is(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    odd = Finding("note", "cache", "kept in /a/[bold]odd[/bold]/place", "do [this]")
    layout.show({"cpu": "X"}, [PROBLEM, odd])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 40
    words = " ".join(shown.split())
    for text in (PROBLEM.text, "[bold]odd[/bold]", "do [this]", "1 problem, 1 note"):
        assert text in words


def test_numbers_are_written_for_readers():
    assert [size(n) for n in (64 * MB, 1.5 * GB, 250 * GB)] == ["64 MB", "1.5 GB", "250 GB"]
    assert [several(n, "note") for n in (0, 1, 2)] == ["no notes", "1 note", "2 notes"]
    assert [listed(list(names)) for names in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
