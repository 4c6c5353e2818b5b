"""The process in which the environment lives: it examines or measures, and tells what it finds.

    python -c "from paceline.tools.check.child import main; main(job, telling, memory)"

The request comes as JSON from standard input. Messages go out as lines of JSON, one object with one
key each: `doing`, `finding`, `facts`, `reference`, `measured`, `refused`, `done`.
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
from .finding import Broken, Finding, Notebook
from .request import CallHeartbeat, Request

Tell = Callable[..., None]


def main(job: str, telling: int, memory: int) -> None:
    """One job, whose messages go to the descriptor `telling` and whose heartbeat to `memory`."""
    faulthandler.enable()
    request = Request(**json.load(sys.stdin))
    heartbeat = CallHeartbeat.from_buffer(mmap.mmap(memory, ctypes.sizeof(CallHeartbeat)))
    with os.fdopen(telling, "w", encoding="utf-8") as stream:

        def tell(**message: Any) -> None:
            print(json.dumps(message), file=stream, flush=True)

        try:
            JOBS[job](request, heartbeat, tell)
        except BadInput as error:
            tell(refused=str(error))
        sys.stdout.flush()
        sys.stderr.flush()
        tell(done=True)
    os._exit(0)  # what an environment has registered for the end is none of our business


def _examine(request: Request, heartbeat: CallHeartbeat, tell: Tell) -> None:
    from .examine import Conformance
    from .subject import Subject

    subject = Subject(request, heartbeat)
    notebook = Notebook(lambda finding: tell(finding=asdict(finding)))

    def doing(what: str) -> None:
        tell(doing=what)

    if not subject.single:
        from .batch import examine_batch

        try:
            facts, measurable = examine_batch(subject, notebook, doing), True
        except BadInput:
            raise
        except PacelineError as error:
            notebook.add(_ended(error))
            facts, measurable = {}, False
        tell(facts=facts | {"single": False, "measurable": measurable})
        return
    conformance = Conformance(subject, notebook, doing)
    measurable = conformance.examine()
    tell(facts=conformance.facts | {"single": True, "measurable": measurable})
    if reference := conformance.reference:
        tell(reference={"moments": len(reference.moments), "digest": reference.digest})


def _measure(request: Request, heartbeat: CallHeartbeat, tell: Tell) -> None:
    from .examine import replayed
    from .speed import measured
    from .subject import Subject

    subject = Subject(request, heartbeat)
    try:
        if request.replay:
            tell(doing="playing a seed again in another process")
            tell(reference={"moments": request.replay, "digest": replayed(subject)})
        tell(doing=f"measuring for {request.seconds:g} s")
        tell(measured=asdict(measured(subject, request.seconds)))
    except BadInput:
        raise
    except Broken as broken:
        tell(finding=asdict(broken.finding))
    except PacelineError as error:
        tell(finding=asdict(_ended(error)))


def _ended(error: PacelineError) -> Finding:
    """Columns that could not go on."""
    why, fix = "a run would end with exit code 3", "mend what it names"
    return Finding("wrong", "step", str(error), why, fix)


JOBS: dict[str, Callable[[Request, CallHeartbeat, Tell], None]] = {
    "examine": _examine,
    "measure": _measure,
}
