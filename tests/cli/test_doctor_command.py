"""`paceline doctor` as a user calls it: quick, without torch, and right about its surroundings."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys

import pytest
from terminal import shown_on_terminal

from paceline.processes.hardware import THREAD_VARIABLES


@pytest.fixture
def doctor(shell):
    """Findings by their topic, under the variables given; None unsets one."""

    def ask(variables=None, **options):
        environment = shell.environment()
        for name in THREAD_VARIABLES:  # which the tests' own process sets
            environment.pop(name, None)
        for name, value in (variables or {}).items():
            environment.pop(name, None)
            environment |= {} if value is None else {name: value}
        ended = shell("doctor", "--json", env=environment, **options)
        assert ended.code == 0, ended
        assert not ended.err
        return {finding["topic"]: finding for finding in json.loads(ended.out)["findings"]}

    return ask


def test_it_says_what_the_machine_is_and_ends_with_a_summary(shell):
    ended = shell("doctor")
    assert ended.code == 0, ended.err
    assert not ended.err
    lines = ended.out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["cpu", "system", "versions"]
    assert "torch" in lines[2]
    assert lines[-1].startswith("nothing to fix") or "problem" in lines[-1]
    assert "\x1b" not in ended.out


def test_it_never_imports_torch(shell):
    program = (
        "import sys; from paceline.tools.doctor import command; assert command([]) == 0;"
        "print({'torch', 'numpy', 'gymnasium', 'pydantic', 'rich'} & set(sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=shell.folder, capture_output=True, text=True
    )
    assert ended.stdout.splitlines()[-1] == "set()", ended


def test_json_is_one_object_with_every_finding(shell):
    content = json.loads(shell("doctor", "--json").out)
    assert content.keys() == {"machine", "findings", "problems", "notes"}
    for finding in content["findings"]:
        assert finding.keys() == {"level", "topic", "code", "text", "why", "fix", "facts"}
        assert finding["level"] in ("ok", "note", "problem")
        assert finding["code"] != "failed"
    levels = [finding["level"] for finding in content["findings"]]
    assert levels.count("problem") == content["problems"]
    assert levels.count("note") == content["notes"]


@pytest.mark.parametrize(
    ("variables", "topic", "code", "facts"),
    [  # thread variables the command itself has replaced by then
        ({"OMP_NUM_THREADS": "8"}, "threads", "threads-many", {"variables": "OMP_NUM_THREADS=8"}),
        ({}, "threads", "threads-unset", {}),
        ({"GOMP_CPU_AFFINITY": "0-1"}, "binding", "binding", {}),
        ({"GOMP_CPU_AFFINITY": None, "KMP_AFFINITY": None}, "binding", None, {}),
        ({"PATH": "/nowhere", "CXX": None}, "compiler", "compiler-missing", {}),
        (
            {"XDG_CACHE_HOME": "/dev/null", "TORCHINDUCTOR_CACHE_DIR": None},
            "cache",
            "cache-unusable",
            {"place": "/dev/null"},
        ),
    ],
)
def test_variables_are_seen_as_the_user_has_set_them(doctor, variables, topic, code, facts):
    found = doctor(variables).get(topic, {"code": None, "facts": {}})
    assert found["code"] == code
    assert facts.items() <= found["facts"].items()


def test_a_low_limit_of_open_files_is_found(doctor):
    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))

    found = doctor(preexec_fn=lower)["files"]
    assert (found["level"], found["facts"]["limit"]) == ("problem", 60)


def test_an_affinity_of_fewer_cpus_is_found(doctor):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) == 1:
        pytest.skip("there is only one CPU to be had")
    found = doctor(preexec_fn=lambda: os.sched_setaffinity(0, cpus[:1]))["cpus"]
    assert (found["code"], found["facts"]["allowed"]) == ("cpus-affinity", 1)


def test_a_bare_environment_is_no_trouble(shell):
    ended = shell("doctor", env={})
    assert ended.code == 0, ended
    assert "could not be examined" not in ended.out
    assert not ended.err


def test_letters_that_the_output_cannot_show_are_no_trouble(shell):
    variables = {"PYTHONIOENCODING": "ascii", "XDG_CACHE_HOME": str(shell.folder / "schön\udcff")}
    environment = shell.environment(**variables)
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)  # as another test may have left it
    ended = shell("doctor", env=environment)
    assert ended.code == 0, ended
    assert "sch\\xf6n" in "".join(ended.out.split())  # wherever the line was broken


def test_letters_that_the_output_cannot_show_do_not_end_a_run(shell):
    """A run's first line has a middle dot in it."""
    short = ("--total-steps", 600, "--track", "none", "--eval-episodes", 1, "--output-dir", "out")
    ended = shell("train", *short, env=shell.environment(PYTHONIOENCODING="ascii"))
    assert ended.code == 0, ended
    assert "\\xb7 seed 0" in ended.out


def test_a_reader_that_leaves_early_is_no_trouble(shell):
    process = shell.start("doctor")
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


@pytest.mark.parametrize(("term", "colored"), [("xterm", True), ("dumb", False)])
def test_a_terminal_gets_colors_and_columns_unless_it_is_dumb(shell, term, colored):
    shown = shown_on_terminal(shell, "doctor", TERM=term, OMP_NUM_THREADS="8")
    assert (b"\x1b[" in shown) == colored
    bare = re.sub(rb"\x1b\[[\d;]*m", b"", shown)
    assert (max(map(len, bare.splitlines())) <= 60) == colored  # and columns that fit
    assert b"OMP_NUM_THREADS=8" in shown


def test_help_tells_the_options(command):
    for arguments in (("--help",), ("-h",), ("--json", "--help")):
        ended = command("doctor", *arguments)
        assert ended.code == 0
        assert ended.out.startswith("paceline doctor") and "--json" in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--jsn",), ("--jsn", "did you mean --json")),
        (("everything",), ("everything", "no such argument")),
        (("--json", "--all"), ("--all", "no such option")),
    ],
)
def test_an_unknown_argument_is_refused_by_name(command, arguments, words):
    ended = command("doctor", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "Traceback" not in ended.err
    assert all(word in ended.err for word in words)
