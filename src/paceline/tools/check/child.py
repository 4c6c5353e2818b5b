"""The process in which the environment lives: it examines or measures, and reports as it goes.

Messages go out as lines of JSON, one object with one key each: `progress`, `finding`, `facts`,
`reference`, `measured`, `refused`, `done`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ...errors import BadInput, PacelineError
from ..findings import FindingLog
from .request import CallHeartbeat, Request
from .rules import RULES

Send = Callable[..., None]


def main(job: str, request_json: str, messages: int, memory: int) -> None:
    """Do one job; messages go to the descriptor `messages`, the heartbeat to `memory`."""
    faulthandler.enable()
    request = Request(**json.loads(request_json))
    heartbeat = CallHeartbeat.from_buffer(mmap.mmap(memory, ctypes.sizeof(CallHeartbeat)))
    with os.fdopen(messages, "w", encoding="utf-8") as stream:

        def send(**message: Any) -> None:
            print(json.dumps(message), file=stream, flush=True)

        try:
            JOBS[job](request, heartbeat, send)
        except BadInput as error:
            send(refused=str(error))
        sys.stdout.flush()
        sys.stderr.flush()
        send(done=True)
    os._exit(0)  # exit handlers of an environment might hang


def _examine(request: Request, heartbeat: CallHeartbeat, send: Send) -> None:
    from .batch import examine_batch
    from .compare import digest
    from .environment import EnvFactory
    from .examine import Examination

    factory = EnvFactory(request, heartbeat)
    log = FindingLog(lambda finding: send(finding=asdict(finding)))

    def progress(text: str) -> None:
        send(progress=text)

    if factory.single:
        examination = Examination(factory, log, progress)
        measurable = examination.run()
        facts = examination.facts
        if reference := examination.reference:
            records = reference.records
            send(reference={"results": len(records), "digest": digest(records)})
    else:
        try:
            facts, measurable = examine_batch(factory, log, progress), True
        except BadInput:
            raise
        except PacelineError as error:
            log.add(RULES.found("run-fails", error=str(error)))
            facts, measurable = {}, False
    send(facts=facts | {"single": factory.single, "measurable": measurable})


def _measure(request: Request, heartbeat: CallHeartbeat, send: Send) -> None:
    from .environment import CallFailed, EnvFactory
    from .examine import replay
    from .speed import measure

    factory = EnvFactory(request, heartbeat)
    try:
        if request.replay:
            send(progress="playing a seed again in another process")
            send(reference={"results": request.replay, "digest": replay(factory)})
        send(progress=f"measuring for {request.seconds:g} s")
        send(measured=asdict(measure(factory, request.seconds)))
    except BadInput:
        raise
    except CallFailed as failed:
        send(finding=asdict(failed.finding))
    except PacelineError as error:
        send(finding=asdict(RULES.found("run-fails", error=str(error))))


JOBS: dict[str, Callable[[Request, CallHeartbeat, Send], None]] = {
    "examine": _examine,
    "measure": _measure,
}
