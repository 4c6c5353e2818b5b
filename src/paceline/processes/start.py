"""Starting Python processes that find the same modules and end with the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, cast

from .hardware import THREAD_VARIABLES
from .lifetime import end_with

SINGLE_THREADED = dict.fromkeys(THREAD_VARIABLES, "1")
"""Environment variables of a process whose numerical libraries start no threads."""


def start_python(
    entry: str, *arguments: object, ends_with_parent: bool = True, **options: Any
) -> subprocess.Popen[bytes]:
    """Start the process of a `python_command`; `options` are those of Popen.

    It has a session of its own: signals of the terminal go to the process that started it.
    """
    command = python_command(entry, *arguments, ends_with_parent=ends_with_parent)
    options = {"stdin": subprocess.DEVNULL, "start_new_session": True} | options
    return cast("subprocess.Popen[bytes]", subprocess.Popen(command, **options))


def python_command(entry: str, *arguments: object, ends_with_parent: bool = True) -> list[str]:
    """Command of an interpreter that calls `entry` ("module:function") with these arguments.

    Arguments are written as literals. The process ends as soon as this one, which must be its
    parent, has ended: before it imports anything heavy.
    """
    path = [each for each in sys.path if isinstance(each, str)]
    parent = os.getpid() if ends_with_parent else None
    by_kernel = threading.current_thread() is threading.main_thread()
    code = (
        f"import sys; sys.path[:] = {path!r}; from paceline.processes.start import call; "
        f"call({entry!r}, {arguments!r}, {parent}, {by_kernel})"
    )
    return [sys.executable, "-c", code]


def call(entry: str, arguments: Sequence[object], parent: int | None, by_kernel: bool) -> None:
    """In the new process: call the entry point."""
    if parent is not None:
        end_with(parent, by_kernel)
    resolve(entry)(*arguments)


def resolve(entry: str) -> Callable[..., object]:
    """The function that "module:function" names."""
    module, _, name = entry.partition(":")
    found: Callable[..., object] = getattr(import_module(module), name)
    return found
