"""Where worker processes come from: a small server that forks them, or a fresh interpreter each.

Not `multiprocessing`'s: that one imports the user's `__main__` into every worker, keeps a second
process for tracking, and leaves a directory behind when it is killed.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import subprocess
import time
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn, TypeAlias

from ..errors import EnvironmentFailed
from .hardware import THREAD_VARIABLES, end_with_parent, python_command, ready

GRACE = 5.0
"""Seconds that workers have to close their environments and leave by themselves."""
PATIENCE = 60.0
"""Seconds that the server has to start, and to answer."""
MOST_BYTES = 4096


def starter(preload: list[str]) -> Starter:
    """The fastest there is on this system; `preload` are modules that every worker will need."""
    try:  # the kernel, or its guards, may refuse what Python offers
        os.close(os.pidfd_open(os.getpid()))
        return Forkserver(preload)
    except (AttributeError, OSError):
        return Spawner()


def ignore_signals() -> None:
    """What a terminal or a service manager sends to all is for the trainer alone to obey.

    Not SIG_IGN, which programs that an environment starts would inherit.
    """
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, lambda *_: None)


def _python(code: str, pass_fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """An interpreter in a session of its own: signals from the terminal are for the trainer."""
    return subprocess.Popen(
        python_command(f"from paceline.{code}"),
        stdin=subprocess.DEVNULL,
        pass_fds=pass_fds,
        start_new_session=True,
        env=os.environ | dict.fromkeys(THREAD_VARIABLES, "1"),
    )


class Forkserver:
    """The trainer's side. A server that was killed is replaced when it is next needed."""

    def __init__(self, preload: list[str]) -> None:
        self._preload = preload
        self._workers: dict[int, int] = {}
        """pid → pidfd"""
        self._launch()

    def _launch(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        trainer = os.pidfd_open(os.getpid())
        with theirs:
            given = theirs.fileno(), trainer, os.getpid(), self._preload
            self._process = _python(
                f"processes import forkserver; forkserver.serve(*{given!r})", given[:2]
            )
        os.close(trainer)
        ours.settimeout(PATIENCE)
        self._socket = ours

    def start(self, connection: int, memory: int) -> int:
        """Start a worker with these descriptors; returns its process id."""
        if self._socket.fileno() < 0:
            self._launch()
        pid, fds = self._ask("start", fds=[connection, memory])
        if not fds:
            raise EnvironmentFailed(
                "a worker can't be started: this process may not have more files open; raise the "
                "limit with ulimit -n, or use fewer workers"
            )
        self._workers[pid] = fds[0]
        return int(pid)

    def end(self, pid: int) -> int | None:
        """Make sure that a worker is gone; its exit code, or minus its signal, if that is known."""
        code = None
        with suppress(OSError):
            code, _ = self._ask("end", pid)
        fd = self._workers.pop(pid, None)
        if fd is not None:
            with suppress(ProcessLookupError):  # whose server is gone may still be there
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)
        return code

    def _ask(self, *request: Any, fds: list[int] | None = None) -> tuple[Any, list[int]]:
        """The server's answer; one that does not come in time ends the server."""
        try:
            socket.send_fds(self._socket, [pickle.dumps(request)], fds or [])
            answer, found, _, _ = socket.recv_fds(self._socket, MOST_BYTES, 1)
            if not answer:
                raise ConnectionResetError("the server of workers has gone")
        except OSError:
            self._stop()
            raise
        return pickle.loads(answer), found

    def close(self) -> None:
        """End every worker; those that have been told to leave get a moment for it."""
        self._stop()
        for pid in list(self._workers):
            self.end(pid)

    def _stop(self) -> None:
        """End the server, which ends its workers first, if it can."""
        with suppress(OSError):  # a process that the user forked may hold a copy
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        try:
            self._process.wait(2 * GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(requests: int, trainer: int, trainer_pid: int, preload: list[str]) -> NoReturn:
    """The server: forks on request, knows how its children ended, and goes with its trainer."""
    ignore_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a trainer may have ignored it
    for module in preload:
        import_module(module)
    gc.collect()
    gc.freeze()  # what is shared with the children stays shared
    server = _Server(socket.socket(fileno=requests), trainer, trainer_pid)
    while True:
        server.turn()


class _Server:
    def __init__(self, requests: socket.socket, trainer: int, trainer_pid: int) -> None:
        self._requests, self._trainer, self._trainer_pid = requests, trainer, trainer_pid
        self._children: dict[int, int] = {}
        """pidfd → pid"""
        self._ended: dict[int, int] = {}
        """pid → exit code, of those nobody has asked about"""

    def turn(self) -> None:
        """Wait for something to happen, and see to it."""
        for fd in ready([self._requests.fileno(), self._trainer, *self._children], None):
            if fd in self._children:
                self._bury(fd)
            elif fd == self._trainer:
                self._leave(grace=0.0)
            elif fd == self._requests.fileno():  # not a child that has been buried meanwhile
                try:
                    self._answer()
                except OSError:  # the trainer did not wait for it
                    self._leave(grace=0.0)

    def _answer(self) -> None:
        message, fds, _, _ = socket.recv_fds(self._requests, MOST_BYTES, 2)
        if not message:
            self._leave(GRACE)
        kind, *rest = pickle.loads(message)
        if kind == "start":
            child = self._fork(*fds)
            for fd in fds:
                os.close(fd)
            socket.send_fds(self._requests, [pickle.dumps(self._children[child])], [child])
        else:
            self._requests.send(pickle.dumps(self._end(*rest)))

    def _fork(self, connection: int, memory: int) -> int:
        """Descriptor of a new worker's process."""
        pid = os.fork()
        if pid == 0:
            from ..samplers.worker import main

            end_with_parent()
            self._requests.close()
            for fd in (self._trainer, *self._children):
                os.close(fd)
            main(connection, memory, self._trainer_pid)
        fd = os.pidfd_open(pid)
        self._children[fd] = pid
        return fd

    def _end(self, pid: int) -> int | None:
        for fd in [fd for fd, child in self._children.items() if child == pid]:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            self._bury(fd)
        return self._ended.pop(pid, None)

    def _bury(self, fd: int) -> None:
        """Take note of how a child ended, once it has, and end what it had started."""
        pid = self._children.pop(fd)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # until then the number is not free
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        self._ended[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(fd)

    def _leave(self, grace: float) -> NoReturn:
        deadline = time.monotonic() + grace
        while self._children and (left := deadline - time.monotonic()) > 0:
            for fd in ready([self._trainer, *self._children], left):
                if fd == self._trainer:  # which was killed: nobody is to be waited for
                    deadline = 0.0
                else:
                    self._bury(fd)
        for pid in list(self._children.values()):
            self._end(pid)
        os._exit(0)


class Spawner:
    """A fresh interpreter for every worker, where there is nothing better."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, connection: int, memory: int) -> int:
        given = connection, memory, os.getpid()
        process = _python(f"samplers import worker; worker.main(*{given!r})", given[:2])
        self._processes[process.pid] = process
        return process.pid

    def end(self, pid: int) -> int | None:
        process = self._processes.pop(pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        return process.wait()

    def close(self) -> None:
        deadline = time.monotonic() + GRACE
        for pid, process in list(self._processes.items()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            self.end(pid)


Starter: TypeAlias = Forkserver | Spawner
