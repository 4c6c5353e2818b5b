"""Watches the process in which the environment lives; whatever becomes of it, it is told."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import selectors
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ...config.text import printable
from ...errors import BadInput
from ...processes.heartbeat import HangDetector
from ...processes.lifetime import exit_reason, kill_group
from ...processes.shared_memory import anonymous_file
from ...processes.start import SINGLE_THREADED, start_python
from .finding import Finding
from .request import CALLS, CallHeartbeat, Request

LOOK = 0.25
"""Seconds between two looks at the heartbeat."""
STARTING = 60.0
"""Seconds that everything has to be imported, at least."""
KEPT = 20_000
"""Bytes kept of the first and of the last that an environment writes."""


@dataclass
class Job:
    """What a process told before it ended."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    first: bytes = b""
    last: bytes = b""
    """what it wrote to its standard output and error"""
    lines: int = 0

    def all(self, key: str) -> list[Any]:
        return [message[key] for message in self.messages if key in message]

    def one(self, key: str) -> Any:
        return next(iter(self.all(key)), None)

    def findings(self) -> list[Finding]:
        return [Finding(**told) for told in self.all("finding")]

    def wrote(self, chunk: bytes) -> None:
        self.first = (self.first + chunk)[:KEPT]
        self.last = (self.last + chunk)[-KEPT:]
        self.lines += chunk.count(b"\n")


def watched(job: str, request: Request, hashing: int, doing: Callable[[str], Any]) -> Job:
    """Run a job of `child` to its end, or to the environment's; a refusal is raised here."""
    memory = anonymous_file()
    os.truncate(memory, ctypes.sizeof(CallHeartbeat))
    told, telling = os.pipe()
    process = _started(job, request, hashing, telling, memory)
    os.close(telling)
    try:
        with mmap.mmap(memory, ctypes.sizeof(CallHeartbeat)) as heartbeat:
            done, hung = _followed(process, told, heartbeat, request.timeout, doing)
            kind = CALLS[_kind(heartbeat[:])]
    finally:
        _end(process)
        os.close(told)
        os.close(memory)
    if refused := done.one("refused"):
        raise BadInput(refused)
    if not done.one("done"):
        ended = _hung(kind, request.timeout) if hung else _gone(kind, process.returncode, done)
        done.messages.append({"finding": vars(ended)})
    return done


def _started(
    job: str, request: Request, hashing: int, telling: int, memory: int
) -> subprocess.Popen[bytes]:
    """An interpreter that finds the same modules; `hashing` decides the order of its sets."""
    process = start_python(
        "paceline.tools.check.child:main",
        *(job, telling, memory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(telling, memory),
        env=os.environ | SINGLE_THREADED | {"PYTHONHASHSEED": str(hashing)},
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(request.as_json().encode())
        process.stdin.close()
    return process


def _followed(
    process: subprocess.Popen[bytes],
    told: int,
    heartbeat: mmap.mmap,
    timeout: float,
    doing: Callable[[str], Any],
) -> tuple[Job, bool]:
    """All it tells until it has nothing more to tell; and whether it was still at it, in vain."""
    job, rest = Job(), b""
    hangs = HangDetector(LOOK)
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        for source in (told, process.stdout.fileno()):
            selector.register(source, selectors.EVENT_READ)
        while True:
            # What it has started may hold everything open after it has gone.
            over = told not in selector.get_map() or process.poll() is not None
            over = over or bool(job.one("done"))
            ready = [key.fd for key, _ in selector.select(0 if over else LOOK)]
            if over and not ready:
                return job, False
            for source in ready:
                chunk = os.read(source, 65536)
                if not chunk:
                    selector.unregister(source)
                elif source == told:
                    *lines, rest = (rest + chunk).split(b"\n")
                    hangs.forget(0)
                    for message in map(json.loads, lines):
                        job.messages.append(message)
                        if "doing" in message:
                            doing(message["doing"])
                else:
                    job.wrote(chunk)
            if hangs.due:
                beat = heartbeat[:]
                silent = hangs.look({0: beat})[0]
                if silent > (timeout if _kind(beat) else max(timeout, STARTING)):
                    return job, True


def _kind(heartbeat: bytes) -> int:
    """Which of `CALLS` is going on; 0 before the first."""
    return CallHeartbeat.from_buffer_copy(heartbeat).call


def _end(process: subprocess.Popen[bytes]) -> None:
    """It and all that it has started."""
    kill_group(process.pid)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _where(kind: str) -> str:
    if kind == "import":
        return "while it was imported"
    return "while it was measured" if kind == "measure" else f"in {kind}()"


def _hung(kind: str, timeout: float) -> Finding:
    return Finding(
        "wrong",
        "process",
        f"it hangs: {timeout:g} s after it had been called, nothing had come back {_where(kind)}",
        "a run replaces a worker that makes no step for worker_timeout, and gives up in the end",
        "mend it; if it is only slow, write a longer --worker-timeout, here and for training",
    )


def _gone(kind: str, code: int, job: Job) -> Finding:
    text = job.last.decode(errors="replace")
    stack = re.search(r'File "([^"\n]+)", line (\d+) in \w+', text)
    place = f" ({stack[1]}:{stack[2]})" if stack else ""
    lines = [] if stack else text.strip().splitlines()[-1:]
    last = f"; it said last: {printable(lines[0])[:200]}" if lines else ""
    return Finding(
        "wrong",
        "process",
        f"its process {exit_reason(code)} {_where(kind)}{place}{last}",
        "it takes the whole process with it: without workers, the run",
        "mend the native code, or the call of os._exit, that ends the process",
    )
