"""Verdict: all that was found about an environment, gathered from the processes it was run in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from ...config.text import printable, several
from ...processes.hardware import available_cpus
from ..findings import MB
from .finding import Finding, Level, ordered
from .process import Job, watched
from .request import Request
from .speed import Measured, judged
from .suggest import Suggestion, suggested

HASHING = (1, 2)
"""Seeds of Python's hash, so that sets of text have another order in the second process."""


@dataclass
class Verdict:
    """On one environment; the most important finding comes first."""

    env_id: str
    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    measured: Measured | None = None
    suggestion: Suggestion | None = None

    @property
    def counts(self) -> dict[str, int]:
        levels = [finding.level for finding in self.findings]
        names: dict[str, Level] = {"wrong": "wrong", "risky": "risky", "notes": "note"}
        return {name: levels.count(level) for name, level in names.items()}

    @property
    def faulty(self) -> bool:
        """Whether there is something to fix."""
        return bool(self.counts["wrong"] or self.counts["risky"])


def verdict_on(request: Request, doing: Callable[[str], Any] = lambda _: None) -> Verdict:
    """Examine the environment in one process, and measure it in another."""
    verdict = Verdict(request.env_id)
    examined = watched("examine", request, HASHING[0], doing)
    facts = examined.one("facts") or {}
    measurable, single = facts.pop("measurable", False), facts.pop("single", True)
    verdict.facts = facts
    findings = [*examined.findings(), *_about_output(examined)]
    if not single:
        text = "it comes only as a batch, and was looked at as a run sees it"
        why = "what a single one would tell is not known: of actions at their bounds, info, close()"
        findings.append(Finding("note", "make", text, why))
    if measurable:
        reference = examined.one("reference")
        again = replace(request, replay=reference["moments"] if reference else 0)
        job = watched("measure", again, HASHING[1], doing)
        findings += _about_replay(reference, job.one("reference"))
        told = {finding.gist for finding in findings}
        findings += [finding for finding in job.findings() if finding.gist not in told]
        if found := job.one("measured"):
            verdict.measured = Measured(**found)
            free = psutil.virtual_memory().available / MB
            verdict.suggestion = suggested(verdict.measured, available_cpus(), free)
            findings += judged(verdict.measured)
    verdict.findings = ordered(findings)
    return verdict


def _about_output(job: Job) -> list[Finding]:
    lines = [line for line in job.first.decode(errors="replace").splitlines() if line.strip()]
    if not lines or not job.one("done"):
        return []
    first, wrote = printable(lines[0])[:150], several(max(1, job.lines), "line")
    text = f"it wrote {wrote} to the terminal, first: {first}"
    why = "with many environments a run's own lines are lost among them, and writing takes time"
    fix = "leave out the print, or mend what it warns of; logging can be turned off from outside"
    return [Finding("note", "output", text, why, fix)]


def _about_replay(reference: Any, again: Any) -> list[Finding]:
    if not reference or not again or reference == again:
        return []
    return [
        Finding(
            "wrong",
            "seeding",
            "another process with the same seed and actions saw other episodes: something depends "
            "on the order of a set, on hash() of a text, on a process number or on a file",
            "workers are other processes, and a resumed run replays its episodes in new ones",
            "sort sets before going through them, and draw everything random from self.np_random",
        )
    ]
