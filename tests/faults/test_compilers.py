"""A compiler that fails: the sentence says why, and a run that can do without it goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from paceline.learning.compiler import compile_failure_reason, compiler_timeout
from paceline.storage.compiler_cache import CACHE


@pytest.fixture
def compiler(shell, monkeypatch):
    """Puts a g++ of one's own before all others."""

    def make(script):
        folder = shell.folder / "bin"
        folder.mkdir()
        (folder / "g++").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "g++").chmod(0o755)
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv(CACHE, str(shell.folder / "cache"))

    return make


FULL = "echo 'x.cpp: fatal error: error writing to x.s: No space left on device' >&2; exit 1"


@pytest.mark.timeout(120)
def test_a_run_without_room_to_compile_says_which_folder_is_full_and_goes_on(shell, compiler):
    """Long enough to be worth compiling; it ends when a hundred episodes are done."""
    compiler(FULL)
    ended = shell("train", "--total-steps", "100M", "--stop-at-return", 1, "--eval-episodes", 1)
    said = " ".join(ended.out.split())
    assert ended.code == 0, ended
    assert "can't be compiled (there is no space left on the disk of" in said
    assert str(shell.folder / "cache") in said.replace(" ", "")
    assert "it runs eagerly" in said


class InvalidCxxCompiler(Exception):
    """As torch's own: it does not say what the compiler has said."""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (FULL, ["no space left", "cache"]),
        ("kill -9 $$", ["killed", "memory"]),
        ("echo 'g++: fatal error: Killed signal ended cc1plus' >&2; exit 1", ["memory"]),
        ("echo 'g++: error: unrecognized option' >&2; exit 1", ["unrecognized option"]),
    ],
)
def test_what_torch_does_not_say_the_compiler_is_asked(compiler, script, words):
    compiler(script)
    error = RuntimeError("InvalidCxxCompiler: none found")
    error.__cause__ = InvalidCxxCompiler("none")
    cause = compile_failure_reason(error)
    assert all(word in cause for word in words), cause


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("C++ compile error\n\nOutput:\nx.h:1: fatal error: a.h: No such", "a.h"),
        ("C++ compile error\n\nOutput:\nx.s: No space left on device", "no space left on the disk"),
        ("OSError: x.so: failed to map segment from shared object", "may not be executed"),
        ("OSError: [Errno 13] Permission denied: '/x/cache'", "/x/cache"),
        ("AttributeError: module 'c0ffee' has no attribute 'call'", "damaged, remove it"),
        ("", "RuntimeError"),
    ],
)
def test_the_cause_is_found_in_what_torch_says(text, word):
    cause = compile_failure_reason(RuntimeError(text))
    assert word in cause
    assert len(cause.splitlines()) == 1


@pytest.mark.timeout(60)
def test_a_compiler_that_hangs_is_ended_with_all_it_has_started_and_nobody_else(compiler):
    compiler("sleep 1000 & sleep 1000")
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        began = time.monotonic()
        with compiler_timeout(0.5) as ended:
            process = subprocess.run(["g++", "--version"], capture_output=True)  # reads to the end
        assert time.monotonic() - began < 50
        assert process.returncode == -9
        assert len(ended) == 1
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_compiler_that_ends_in_time_is_left_alone(compiler):
    compiler("echo fine")
    with compiler_timeout(50) as ended:
        assert subprocess.run(["g++"], capture_output=True).stdout == b"fine\n"
    assert ended == []
