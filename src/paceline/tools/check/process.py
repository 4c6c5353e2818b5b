"""Runs a job in a child process, and turns a hang or a crash of that process into a finding."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import selectors
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...config.text import printable
from ...errors import BadInput
from ...processes.heartbeat import TICK, HangDetector
from ...processes.lifetime import exit_reason, kill_group
from ...processes.shared_memory import anonymous_file
from ...processes.start import SINGLE_THREADED, start_python
from ..findings import Finding
from .request import CALLS, CallHeartbeat, Request
from .rules import RULES

START_TIMEOUT = 60.0
"""Seconds allowed for imports, at least."""
KEPT = 20_000
"""Bytes kept of the start and of the end of an environment's output."""


@dataclass
class JobResult:
    """What a child sent and wrote until it ended."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    output_start: bytes = b""
    output_end: bytes = b""
    lines: int = 0

    def all(self, key: str) -> list[Any]:
        return [message[key] for message in self.messages if key in message]

    def get(self, key: str) -> Any:
        """The value of the first message with this key, or None."""
        return next(iter(self.all(key)), None)

    def findings(self) -> list[Finding]:
        return [Finding(**fields) for fields in self.all("finding")]

    def add_output(self, chunk: bytes) -> None:
        self.output_start = (self.output_start + chunk)[:KEPT]
        self.output_end = (self.output_end + chunk)[-KEPT:]
        self.lines += chunk.count(b"\n")


def run_job(
    job: str, request: Request, hash_seed: int, progress: Callable[[str], Any]
) -> JobResult:
    """Run a job of `child` to its end, or to the environment's; a refusal is raised here.

    `hash_seed` decides the order of sets of text.
    """
    size = ctypes.sizeof(CallHeartbeat)
    memory = anonymous_file()
    os.truncate(memory, size)
    receiving, sending = os.pipe()
    process = start_python(
        "paceline.tools.check.child:main",
        *(job, request.as_json(), sending, memory),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(sending, memory),
        env=os.environ | SINGLE_THREADED | {"PYTHONHASHSEED": str(hash_seed)},
    )
    os.close(sending)
    try:
        with mmap.mmap(memory, size) as heartbeat:
            result, hung = _follow(process, receiving, heartbeat, request.timeout, progress)
            call = CALLS[_call_number(heartbeat[:])]
    finally:
        kill_group(process.pid)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        os.close(receiving)
        os.close(memory)
    if refused := result.get("refused"):
        raise BadInput(refused)
    if hung:
        facts = {"call": call, "seconds": request.timeout}
        finding = RULES.found("process-hangs", place=_place(call), **facts)
        result.messages.append({"finding": vars(finding)})
    elif not result.get("done"):
        result.messages.append({"finding": vars(_died(call, process.returncode, result))})
    return result


def _follow(
    process: subprocess.Popen[bytes],
    receiving: int,
    heartbeat: mmap.mmap,
    timeout: float,
    progress: Callable[[str], Any],
) -> tuple[JobResult, bool]:
    """All that the child sends and writes until it ends, and whether it hangs instead."""
    result, rest = JobResult(), b""
    hangs = HangDetector()
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        for source in (receiving, process.stdout.fileno()):
            selector.register(source, selectors.EVENT_READ)
        while True:
            # Processes that it has started may hold the pipes open after it has ended.
            over = receiving not in selector.get_map() or process.poll() is not None
            over = over or bool(result.get("done"))
            ready = [key.fd for key, _ in selector.select(0 if over else TICK)]
            if over and not ready:
                return result, False
            for source in ready:
                chunk = os.read(source, 65536)
                if not chunk:
                    selector.unregister(source)
                elif source == receiving:
                    *lines, rest = (rest + chunk).split(b"\n")
                    hangs.forget(0)
                    for message in map(json.loads, lines):
                        result.messages.append(message)
                        if "progress" in message:
                            progress(message["progress"])
                else:
                    result.add_output(chunk)
            if hangs.due:
                beat = heartbeat[:]
                allowed = timeout if _call_number(beat) else max(timeout, START_TIMEOUT)
                if hangs.look({0: beat})[0] > allowed:
                    return result, True


def _call_number(heartbeat: bytes) -> int:
    """Which of `CALLS` is going on; 0 before the first."""
    return CallHeartbeat.from_buffer_copy(heartbeat).call


def _place(call: str) -> str:
    places = {"import": "while it was imported", "measure": "while it was measured"}
    return places.get(call, f"in {call}()")


def _died(call: str, code: int, result: JobResult) -> Finding:
    """Where and why, by what faulthandler or the environment wrote last."""
    text = result.output_end.decode(errors="replace")
    detail = ""
    if stack := re.search(r'File "([^"\n]+)", line (\d+) in \w+', text):
        detail = f" ({stack[1]}:{stack[2]})"
    elif lines := text.strip().splitlines():
        detail = f"; its last output: {printable(lines[-1])[:200]}"
    facts = {"call": call, "code": code, "reason": exit_reason(code), "detail": detail}
    return RULES.found("process-died", place=_place(call), **facts)
