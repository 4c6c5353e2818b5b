"""Lifetime of processes: ending with another process, ending what was started, exit reasons."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""From Linux' prctl.h."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""


def end_with(pid: int, by_kernel: bool = False) -> None:
    """End this process as soon as process `pid`, an ancestor, has ended.

    `by_kernel` has the kernel kill this process (Linux): for children of the main thread of `pid`
    only, since the kernel acts when the thread ends that started the child. Otherwise a thread
    waits, which native code that never returns can keep from running.
    """
    if by_kernel and _prctl(PR_SET_PDEATHSIG, signal.SIGKILL):
        if os.getppid() != pid:  # it ended before the kernel was asked
            os._exit(1)
        return

    def watch() -> None:
        try:
            wait_readable([os.pidfd_open(pid)], None)
        except ProcessLookupError:
            pass
        except (AttributeError, OSError):  # this system has no pidfd
            parent = os.getppid()
            while os.getppid() == parent and psutil.pid_exists(pid):
                time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def adopt_orphans() -> None:
    """Become the parent of processes whose own parent ends, so that they can be ended (Linux)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> bool:
    """Whether the kernel does it."""
    with suppress(AttributeError, OSError):
        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value) == 0)
    return False


def end_descendants() -> None:
    """End every process that this one, its environments or its libraries have left running."""
    with suppress(psutil.Error):
        left = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                # The resource tracker removes shared memory, and ends by itself.
                if not any("resource_tracker" in word for word in process.cmdline()):
                    process.terminate()  # a compiler removes its files
                    left.append(process)
        for process in psutil.wait_procs(left, timeout=0.5)[1]:
            with suppress(psutil.Error):
                process.kill()


def terminate(process: subprocess.Popen[bytes], grace: float) -> None:
    """Ask a child to end; kill it if it has not after `grace` seconds."""
    if process.poll() is None:
        process.terminate()
        wait_or_kill(process, grace)


def wait_or_kill(process: subprocess.Popen[bytes], grace: float) -> int:
    """Exit code of a child, which is killed if it has not ended after `grace` seconds."""
    try:
        return process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads: it and everything that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def exit_reason(code: int | None) -> str:
    """How a process ended; `code` is its exit code or minus its signal, None if unknown."""
    if code is None:
        return "is gone"
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def exit_now(code: int) -> NoReturn:
    """End this process, whatever threads environments have left running in it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


def ignore_stop_signals() -> None:
    """For children: what a terminal or a service manager sends to all is the trainer's to handle.

    Not SIG_IGN, which programs that an environment starts would inherit.
    """
    for kind in STOP_SIGNALS:
        signal.signal(kind, lambda *_: None)


def wait_readable(fds: Iterable[int], timeout: float | None) -> list[int]:
    """Descriptors that can be read, or pidfds whose process has ended, within `timeout` seconds."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)]


def keep_standard_streams() -> None:
    """Open the null device where standard input, output or error is closed.

    Otherwise the next file or socket that is opened takes its number, and is printed into.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
