"""The report on one environment, from the processes that examined and measured it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import psutil

from ...config.text import printable
from ...processes.hardware import available_cpus
from ..findings import MB, Finding, FindingLog, Report
from .environment import Request
from .examine import Outcome
from .process import Job, run_job
from .rules import RULES, found
from .speed import Measured, Suggestion, about_speed, suggest

HASH_SEEDS = (1, 2)
"""So that sets of text have another order in the second process."""


def check(request: Request, progress: Callable[[str], Any] = lambda _: None) -> Report:
    """Examine the environment in one process, and measure it in another."""
    job = run_job("examine", request, HASH_SEEDS[0], progress)
    examined = job.outcome or Outcome()
    log = FindingLog()
    log.add(*job.findings, *_about_output(job))
    measured = suggestion = None
    if examined.measurable:
        request = replace(request, replay=examined.results)
        job = run_job("measure", request, HASH_SEEDS[1], progress)
        log.add(*job.findings)
        again = job.outcome or Outcome()
        if again.digest not in ("", examined.digest):
            log.add(found("seeding-process"))
        if measured := again.measured:
            free = psutil.virtual_memory().available / MB
            suggestion = suggest(measured, available_cpus(), free)
            log.add(*about_speed(measured))
    content = {
        "env": {"id": request.env_id, **examined.facts},
        "measured": measured and asdict(measured),
        "suggested": suggestion and asdict(suggestion),
    }
    lines = dict(heading(request.env_id, examined.facts, measured, suggestion))
    return Report(lines, RULES.ordered(log.findings), ("wrong", "risky", "note"), content)


def heading(
    env_id: str, facts: dict[str, Any], measured: Measured | None, suggestion: Suggestion | None
) -> Iterator[tuple[str, str]]:
    """What stands above the findings."""
    limit = facts.get("time_limit")
    yield "env", f"{env_id}, time limit {limit:,}" if limit else env_id
    if "action" in facts:
        yield "spaces", f"{facts['observation']} → {facts['action']}"
    if "steps" in facts:
        yield "played", f"{facts['steps']:,} random steps, {facts['episodes']:,} episodes ended"
    if measured is None:
        yield "speed", "not measured: fix the environment first"
    else:
        reset = f", a reset {_duration(1e3 * measured.reset_ms)}" if measured.reset_ms else ""
        rate = f"{measured.steps_per_second:,.0f} steps/s on one core, resets included"
        yield "speed", f"{rate}; a step takes {_duration(measured.step_us)}{reset}"
        small = measured.memory_mb < 0.1
        memory = "less than 0.1 MB" if small else f"{measured.memory_mb:,.1f} MB"
        yield "memory", f"{memory} for each environment"
    if suggestion is not None:
        yield "suggested", f"{suggestion.flags}: {suggestion.reason}"


def _duration(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.3g} µs"


def _about_output(job: Job) -> Iterator[Finding]:
    """Only of a process that ended well: else its output is in the finding about that."""
    text = job.output_start.decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and job.outcome:
        yield found("output", lines=max(1, job.lines), first=printable(lines[0])[:150])
