"""The Makefile's targets: what they are called, and what they pass on."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAIN = [f"train{way}" for way in ("", "-a2c", "-impala", "-a3c", "-parallel", "-ranks")]
TRAIN += ["train-a2c-parallel", "train-impala-parallel"]
TIMED = [f"{name}-timed" for name in TRAIN]
COMMANDS = [*TRAIN, *TIMED, "scale", "bench", "compare", "evaluate", "tensorboard"]
CHECKS = ["test", "test-all", "check", "docs", "bench-peers"]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def make(*arguments):
    """What it prints, and with -n which commands it would run."""
    command = ["make", "-C", ROOT, "--no-print-directory", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_help_has_a_line_for_every_target_and_tells_how_to_pass_flags():
    shown = make("help")
    listed = re.findall(r"^  ([a-z0-9-]+) +\S.*$", shown, re.MULTILINE)
    targets = re.search(r"^\.PHONY:((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    names = targets[1].replace("\\\n", " ").replace("$(TRAIN)", " ".join(TRAIN))
    assert sorted(listed) == sorted(names.replace("$(TIMED)", " ".join(TIMED)).split())
    assert 'ARGS="--seed 3"' in shown


@pytest.mark.parametrize("target", [*COMMANDS, *CHECKS])
def test_every_target_that_runs_something_passes_flags_on(target):
    assert "--flag 'a value'" in make("-n", target, "ARGS=--flag 'a value'")
