"""Fixtures of several tests of faults."""

from __future__ import annotations

import shutil
from contextlib import closing

import pytest
from malicious import Forked


@pytest.fixture(scope="module")
def made(request, shell_in, tmp_path_factory):
    """A whole run with the `FLAGS` of the test module."""
    shell = shell_in(tmp_path_factory.mktemp("made"))
    return shell.train_here("run", *request.module.FLAGS)


@pytest.fixture
def run(made, shell):
    """A copy of it, as `run` in the shell's directory."""
    shutil.copytree(made.path, shell.folder / "run", symlinks=True)
    return shell.run("run")


@pytest.fixture(scope="module")
def forked():
    """The command in processes that are forked, which saves the import of torch."""
    with closing(Forked()) as server:
        yield server
