"""Many short-lived Python processes: forked by a small server, or a fresh interpreter each.

Not `multiprocessing`'s server: that one imports the user's `__main__` into every process, keeps a
second process for tracking, and leaves a directory behind when it is killed.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn, TypeAlias

from .lifetime import end_with, ignore_stop_signals, kill_group, wait_or_kill, wait_readable
from .start import SINGLE_THREADED, resolve, start_python

GRACE = 5.0
"""Seconds that processes have to close their environments and end by themselves."""
ANSWER_TIMEOUT = 60.0
"""Seconds that the server has to start, and to answer."""
START = 0
"""A request is this, with the descriptors of a process to start, or the id of one to end."""
MAX_BYTES, MAX_FDS = 64, 8
"""Size of a request or an answer."""


def process_starter(entry: str, preload: list[str]) -> ProcessStarter:
    """The fastest there is on this system.

    Processes call `entry` ("module:function") with the descriptors they are given; `preload` are
    modules that all of them need.
    """
    try:  # the kernel, or its sandbox, may refuse what Python offers
        os.close(os.pidfd_open(os.getpid()))
        return Forkserver(entry, preload)
    except (AttributeError, OSError):
        return Spawner(entry)


class Forkserver:
    """The parent's side. A server that was killed is replaced when it is next needed; the kernel
    has ended its processes with it."""

    def __init__(self, entry: str, preload: list[str]) -> None:
        self._entry, self._preload = entry, preload
        self._launch()

    def _launch(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_TIMEOUT)
        parent = os.pidfd_open(os.getpid())
        with theirs:
            # The server watches its parent itself: it has to end the groups of its children first,
            # and a process that forks should have no other thread.
            self._process = start_python(
                f"{__name__}:serve",
                theirs.fileno(),
                parent,
                os.getpid(),
                self._entry,
                self._preload,
                pass_fds=(theirs.fileno(), parent),
                env=os.environ | SINGLE_THREADED,
                ends_with_parent=False,
            )
        os.close(parent)

    def start(self, *fds: int) -> int:
        """Start a process with these descriptors; its id."""
        try:
            pid = self._request(START, fds)
        except OSError:  # the server may have been killed
            self._launch()
            pid = self._request(START, fds)
        assert pid is not None
        return pid

    def end(self, pid: int) -> int | None:
        """Make sure that a process is gone; its exit code or minus its signal, None if unknown."""
        try:
            return self._request(pid)
        except OSError:
            return None

    def _request(self, request: int, fds: Sequence[int] = ()) -> int | None:
        """The server's answer; a server that does not answer in time is ended."""
        try:
            socket.send_fds(self._socket, [pickle.dumps(request)], fds)
            answer = self._socket.recv(MAX_BYTES)
            if not answer:
                raise ConnectionResetError("the forkserver is gone")
        except OSError:
            self.close()
            raise
        found: int | None = pickle.loads(answer)
        return found

    def close(self) -> None:
        """End the server, which ends its processes first; those get a moment to end themselves."""
        with suppress(OSError):  # a process that the user forked may hold a copy
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        wait_or_kill(self._process, 2 * GRACE)


def serve(requests: int, parent: int, parent_pid: int, entry: str, preload: list[str]) -> NoReturn:
    """The server: forks on request, keeps exit codes, and ends with its parent (a pidfd)."""
    ignore_stop_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the parent may have ignored it
    for module in preload:
        import_module(module)
    gc.collect()
    gc.freeze()  # keeps pages shared with the children
    server = _Server(socket.socket(fileno=requests), parent, parent_pid, entry)
    while True:
        server.handle_events()


class _Server:
    def __init__(self, requests: socket.socket, parent: int, parent_pid: int, entry: str) -> None:
        self._requests, self._parent, self._parent_pid = requests, parent, parent_pid
        self._entry, self._pid = entry, os.getpid()
        self._children: dict[int, int] = {}
        """pidfd → pid"""
        self._exit_codes: dict[int, int] = {}
        """pid → exit code, of those that were not asked for yet"""

    def handle_events(self) -> None:
        """Wait for a request, the end of a child or of the parent."""
        for fd in wait_readable([self._requests.fileno(), self._parent, *self._children], None):
            if fd in self._children:
                self._reap(fd)
            elif fd == self._parent:
                self._leave(grace=0.0)
            elif fd == self._requests.fileno():  # not a child that has been reaped meanwhile
                try:
                    self._answer()
                except OSError:  # the parent did not wait for it
                    self._leave(grace=0.0)

    def _answer(self) -> None:
        message, fds, _, _ = socket.recv_fds(self._requests, MAX_BYTES, MAX_FDS)
        if not message:
            self._leave(GRACE)
        request = pickle.loads(message)
        answer = self._fork(fds) if request == START else self._end(request)
        self._requests.send(pickle.dumps(answer))

    def _fork(self, fds: list[int]) -> int:
        """The id of a new process, which has these descriptors."""
        pid = os.fork()
        if pid == 0:
            self._run_child(fds)
        self._children[os.pidfd_open(pid)] = pid
        for fd in fds:
            os.close(fd)
        return pid

    def _run_child(self, fds: list[int]) -> NoReturn:
        try:
            # By the kernel with the server; by a thread with the parent, since the server may hang.
            end_with(self._pid, by_kernel=True)
            end_with(self._parent_pid)
            self._requests.close()
            for fd in (self._parent, *self._children):
                os.close(fd)
            resolve(self._entry)(*fds)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)  # an entry point ends the process itself

    def _end(self, pid: int) -> int | None:
        for fd in [fd for fd, child in self._children.items() if child == pid]:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            self._reap(fd)
        return self._exit_codes.pop(pid, None)

    def _reap(self, fd: int) -> None:
        """Wait for the end of a child, keep its exit code, and kill what it had started."""
        pid = self._children.pop(fd)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # the id is not reused before waitpid
        kill_group(pid)
        self._exit_codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(fd)

    def _leave(self, grace: float) -> NoReturn:
        deadline = time.monotonic() + grace
        while self._children and (left := deadline - time.monotonic()) > 0:
            for fd in wait_readable([self._parent, *self._children], left):
                if fd == self._parent:  # it was killed: there is nothing to wait for
                    deadline = 0.0
                else:
                    self._reap(fd)
        for pid in list(self._children.values()):
            self._end(pid)
        os._exit(0)


class Spawner:
    """A fresh interpreter for every process, where fork and pidfd are not available."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *fds: int) -> int:
        env = os.environ | SINGLE_THREADED
        process = start_python(self._entry, *fds, pass_fds=fds, env=env)
        self._processes[process.pid] = process
        return process.pid

    def end(self, pid: int) -> int | None:
        process = self._processes.pop(pid)
        kill_group(pid)
        return process.wait()

    def close(self) -> None:
        deadline = time.monotonic() + GRACE
        for pid, process in list(self._processes.items()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            self.end(pid)


ProcessStarter: TypeAlias = Forkserver | Spawner
