"""Jobs in a process of their own, where the environment lives: what it does to that process, such
as a hang or a crash, becomes a finding.

The process sends findings, texts that say what it is doing, and at last the outcome of its job.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import re
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...config.text import printable
from ...errors import BadInput, PacelineError
from ...processes.channel import Channel
from ...processes.heartbeat import TICK, HangDetector
from ...processes.lifetime import exit_reason, kill_group
from ...processes.shared_memory import anonymous_file
from ...processes.start import SINGLE_THREADED, start_python
from ..findings import Finding, FindingLog
from .environment import CALLS, CallFailed, CallHeartbeat, EnvFactory, Request
from .examine import Outcome, examine
from .rules import found
from .seeding import replay
from .speed import measure

START_TIMEOUT = 60.0
"""Seconds allowed for imports, at least."""
KEPT = 20_000
"""Bytes kept of the start and of the end of an environment's output."""
HEARTBEAT_SIZE = ctypes.sizeof(CallHeartbeat)

Send = Callable[[Any], None]


def main(job: str, descriptor: int, memory: int) -> None:
    """In the new process: receive a request, do the job, and send what comes of it."""
    faulthandler.enable()
    channel: Channel[Any, Request] = Channel(descriptor)
    heartbeat = CallHeartbeat.from_buffer(mmap.mmap(memory, HEARTBEAT_SIZE))
    try:
        factory = EnvFactory(channel.receive(), heartbeat)
        last: Outcome | BadInput = JOBS[job](factory, channel.send)
    except BadInput as error:
        last = error
    sys.stdout.flush()
    sys.stderr.flush()
    channel.send(last)
    os._exit(0)  # exit handlers of an environment might hang


def _examine(factory: EnvFactory, send: Send) -> Outcome:
    return examine(factory, FindingLog(send), send)


def _measure(factory: EnvFactory, send: Send) -> Outcome:
    outcome, request = Outcome(), factory.request
    try:
        if request.replay:
            send("playing a seed again in another process")
            outcome.digest = replay(factory)
        send(f"measuring for {request.seconds:g} s")
        outcome.measured = measure(factory, request.seconds)
    except BadInput:
        raise
    except CallFailed as failed:
        send(failed.finding)
    except PacelineError as error:
        send(found("run-fails", error=str(error)))
    return outcome


JOBS: dict[str, Callable[[EnvFactory, Send], Outcome]] = {"examine": _examine, "measure": _measure}


@dataclass
class Job:
    """What a process sent and wrote until it ended."""

    findings: list[Finding] = field(default_factory=list)
    outcome: Outcome | None = None
    """None where it ended without one"""
    output_start: bytes = b""
    output_end: bytes = b""
    lines: int = 0

    def add_message(self, message: Any, progress: Callable[[str], Any]) -> None:
        if isinstance(message, str):
            progress(message)
        elif isinstance(message, Finding):
            self.findings.append(message)
        elif isinstance(message, BadInput):
            raise message
        else:
            self.outcome = message

    def add_output(self, chunk: bytes) -> None:
        self.output_start = (self.output_start + chunk)[:KEPT]
        self.output_end = (self.output_end + chunk)[-KEPT:]
        self.lines += chunk.count(b"\n")


def run_job(name: str, request: Request, hash_seed: int, progress: Callable[[str], Any]) -> Job:
    """Do one of `JOBS` to its end, or to the environment's; a refusal is raised here.

    `hash_seed` decides the order of sets of text.
    """
    memory = anonymous_file()
    os.truncate(memory, HEARTBEAT_SIZE)
    own, other = socket.socketpair()
    channel: Channel[Request, Any] = Channel(own.detach())
    process = start_python(
        "paceline.tools.check.process:main",
        name,
        other.fileno(),
        memory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(other.fileno(), memory),
        env=os.environ | SINGLE_THREADED | {"PYTHONHASHSEED": str(hash_seed)},
    )
    other.close()
    job = Job()
    try:
        channel.send(request)
        with mmap.mmap(memory, HEARTBEAT_SIZE) as heartbeat:
            hung = _follow(process, channel, heartbeat, request.timeout, job, progress)
            call = CALLS[_call_number(heartbeat[:])]
    finally:
        kill_group(process.pid)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        channel.close()
        os.close(memory)
    if hung:
        facts = {"place": _place(call), "call": call, "seconds": request.timeout}
        job.findings.append(found("process-hangs", **facts))
    elif job.outcome is None:
        job.findings.append(_died(call, process.returncode, job.output_end))
    return job


def _follow(
    process: subprocess.Popen[bytes],
    channel: Channel[Request, Any],
    heartbeat: mmap.mmap,
    timeout: float,
    job: Job,
    progress: Callable[[str], Any],
) -> bool:
    """Take all that the process sends and writes until it ends; whether it hangs instead."""
    hangs = HangDetector()
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        for each in (channel, process.stdout):
            selector.register(each, selectors.EVENT_READ)
        while True:
            # Processes that it has started may hold the pipes open after it has ended.
            over = job.outcome is not None or process.poll() is not None
            ready = [key.fileobj for key, _ in selector.select(0 if over else TICK)]
            if over and not ready:
                return False
            for source in ready:
                if source is channel:
                    try:
                        job.add_message(channel.receive(), progress)
                    except (EOFError, OSError):
                        selector.unregister(source)
                    hangs.forget(0)
                elif chunk := os.read(process.stdout.fileno(), 65536):
                    job.add_output(chunk)
                else:
                    selector.unregister(source)
            if hangs.due:
                beat = heartbeat[:]
                allowed = timeout if _call_number(beat) else max(timeout, START_TIMEOUT)
                if hangs.look({0: beat})[0] > allowed:
                    return True


def _call_number(heartbeat: bytes) -> int:
    """Which of `CALLS` is going on; 0 before the first."""
    return CallHeartbeat.from_buffer_copy(heartbeat).call


def _place(call: str) -> str:
    places = {"import": "while it was imported", "measure": "while it was measured"}
    return places.get(call, f"in {call}()")


def _died(call: str, code: int, output: bytes) -> Finding:
    """Where and why, by what faulthandler or the environment wrote last."""
    text = output.decode(errors="replace")
    detail = ""
    if stack := re.search(r'File "([^"\n]+)", line (\d+) in \w+', text):
        detail = f" ({stack[1]}:{stack[2]})"
    elif lines := text.strip().splitlines():
        detail = f"; its last output: {printable(lines[-1])[:200]}"
    facts = {"call": call, "code": code, "reason": exit_reason(code), "detail": detail}
    return found("process-died", place=_place(call), **facts)
