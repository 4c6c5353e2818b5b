"""Starting Python processes that find the same modules and end with the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import IO, TypeAlias

from .hardware import THREAD_VARIABLES
from .lifetime import end_with

Stream: TypeAlias = int | IO[bytes] | None

SINGLE_THREADED = dict.fromkeys(THREAD_VARIABLES, "1")
"""Environment variables of a process whose numerical libraries start no threads."""


def start_python(
    entry: str,
    *arguments: object,
    argv: Sequence[str] | None = None,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    ends_with_parent: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a process that calls `entry`; see `python_command`.

    It has a session of its own: signals of the terminal go to the process that started it.
    """
    return subprocess.Popen(
        python_command(entry, *arguments, argv=argv, ends_with_parent=ends_with_parent),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        env=env,
        start_new_session=True,
    )


def python_command(
    entry: str,
    *arguments: object,
    argv: Sequence[str] | None = None,
    ends_with_parent: bool = True,
) -> list[str]:
    """Command of an interpreter that calls `entry` ("module:function") with these arguments.

    Arguments are written as literals. `argv` is its sys.argv, where that matters. The process ends
    as soon as this one, which must be its parent, has ended: before it imports anything heavy.
    """
    path = [each for each in sys.path if isinstance(each, str)]
    parent = os.getpid() if ends_with_parent else None
    by_kernel = threading.current_thread() is threading.main_thread()
    code = (
        f"import sys; sys.path[:] = {path!r}; from paceline.processes.start import call; "
        f"call({entry!r}, {arguments!r}, {argv and list(argv)!r}, {parent}, {by_kernel})"
    )
    return [sys.executable, "-c", code]


def call(
    entry: str,
    arguments: Sequence[object],
    argv: list[str] | None,
    parent: int | None,
    by_kernel: bool,
) -> None:
    """In the new process: call the entry point."""
    if parent is not None:
        end_with(parent, by_kernel)
    if argv is not None:
        sys.argv = argv
    resolve(entry)(*arguments)


def resolve(entry: str) -> Callable[..., object]:
    """The function that "module:function" names."""
    module, _, name = entry.partition(":")
    found: Callable[..., object] = getattr(import_module(module), name)
    return found
