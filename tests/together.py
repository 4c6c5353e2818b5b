"""Together: one function in several real processes, which meet through a file.

The processes are forked from a server that has imported torch already. It is the head of a session
of its own, so that one signal ends it and all of them, whatever they are doing.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
OURS = re.compile(r"torch|psm_|sem\.mp-|pymp-|__KMP|nccl|paceline")
"""Beginnings of the names that torch, multiprocessing, OpenMP and this package make there."""
PRELOADED = (
    "paceline.run.build",
    "paceline.ring",
    "paceline.distributed.allreduce",
    "paceline.distributed.hogwild",
)


class Together:
    """`together(function, size, *arguments)` is `[function(place, rank, size, *arguments), …]`.

    `place` is the address of a file that does not exist yet, for the ranks of this call to meet.
    """

    def __init__(self):
        self._server = None

    def __call__(self, function, size, *arguments, within=30.0, absent=()):
        """What every rank returned; None for those `absent`, which are killed after the others."""
        if self._server is None:
            self._start()
        with tempfile.TemporaryDirectory(prefix="together-") as folder:
            place = f"file://{folder}/store"
            self._line.send(sys.path)  # before the function, which is found by its module's name
            self._line.send((function, size, (place, arguments), absent))
            if not self._line.poll(within):
                self.close()
                raise AssertionError(f"{function.__name__} took more than {within} s")
            found = self._line.recv()
        said = [f"rank {rank}: {what}" for rank, (ended, what) in enumerate(found) if not ended]
        assert not said, "\n".join(said)
        return [what for _, what in found]

    def _start(self):
        self._line, theirs = Pipe()
        code = f"import sys; sys.path[:] = {sys.path!r}; import together; together.serve({{}})"
        environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._server = subprocess.Popen(
            [sys.executable, "-c", code.format(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | environment | {"TORCH_CPP_LOG_LEVEL": "ERROR"},
        )
        theirs.close()
        assert self._line.poll(60), "the server of processes did not start"
        self._line.recv()

    def pids(self):
        """All processes that the server has forked and that are still there."""
        leader = self._server.pid if self._server is not None else 0
        return [pid for pid in _session(leader) if pid != leader] if leader else []

    def close(self):
        if self._server is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()
        session, self._server = self._server.pid, None
        self._line.close()
        deadline = time.monotonic() + 5
        while _session(session) and time.monotonic() < deadline:
            time.sleep(0.01)


def _session(leader):
    """Living processes of a session."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getsid(pid) == leader and psutil.Process(pid).status() != "zombie":
                found.append(pid)
    return found


@contextmanager
def nothing_left(together):
    """A test leaves no process of its own and no name in shared memory."""
    names = shared_names()
    yield
    deadline = time.monotonic() + 3
    while (left := together.pids()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, f"processes left behind: {left}"
    left_names = shared_names() - names
    assert not left_names, f"left in /dev/shm: {left_names}"


def shared_names():
    """Names in shared memory that a test here may have made: other programs have theirs."""
    found = {path.name for path in SHARED_MEMORY.glob("*") if OURS.match(path.name)}
    return {name for name in found if not _of_another(name)}


def _of_another(name):
    """Whether it holds the number of a process that lives: those of a test have ended with it."""
    held = re.search(r"_(\d+)_", name)
    return held is not None and int(held[1]) != os.getpid() and psutil.pid_exists(int(held[1]))


# In the server.


def serve(fd):
    """Fork what is asked for, until nobody asks any more."""
    for name in PRELOADED:
        __import__(name)
    line = Connection(fd)
    line.send("ready")
    with suppress(EOFError):
        while True:
            sys.path[:] = line.recv()
            line.send(_all(line, *line.recv()))
    os.killpg(0, signal.SIGKILL)


def _all(line, function, size, given, absent):
    """Of every rank, whether it ended well, and what it returned or what befell it."""
    ranks = [_forked(function, rank, size, *given) for rank in range(size)]
    found = dict.fromkeys(absent, (True, None))
    while len(found) < size:
        awaited = {mine: rank for rank, (_, mine) in enumerate(ranks) if rank not in found}
        ready = wait([line, *awaited])
        if line in ready:  # whoever asked has gone
            raise EOFError
        for mine in ready:
            try:
                found[awaited[mine]] = mine.recv()
            except EOFError:
                found[awaited[mine]] = False, "has gone"
    for rank, (pid, mine) in enumerate(ranks):
        if rank in absent:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        mine.close()
    return [found[rank] for rank in range(size)]


def _forked(function, rank, size, place, arguments):
    """A process that runs `function`, and the end of its line."""
    mine, theirs = Pipe(duplex=False)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, mine
    try:
        theirs.send((True, function(place, rank, size, *arguments)))
    except BaseException:
        with suppress(OSError):
            theirs.send((False, traceback.format_exc()))
    os._exit(0)
