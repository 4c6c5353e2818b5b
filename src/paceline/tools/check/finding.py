"""A finding: how bad it is, what was seen, why that matters for learning, and what mends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["wrong", "risky", "note", "ok"]
LEVELS: tuple[Level, ...] = ("wrong", "risky", "note", "ok")
TOPICS = (
    *("make", "process", "reset", "step", "spaces", "observation", "reward", "flags", "mask"),
    *("ends", "copies", "actions", "seeding", "close", "memory", "info", "speed", "output"),
)
"""Of two findings that are as bad, whichever comes first here is to be mended first: what learning
goes wrong with, then what a run can't be repeated with."""

AT_STEP = " at step "


@dataclass(frozen=True)
class Finding:
    """What one check has to say."""

    level: Level
    topic: str
    text: str
    """what was seen, with its value"""
    why: str = ""
    """what it does to learning; empty where nothing is wrong"""
    fix: str = ""
    """what to write instead"""

    @property
    def gist(self) -> tuple[str, str, str]:
        """What it is about: an error is the same at whatever step it comes."""
        return self.level, self.topic, self.text.partition(AT_STEP)[0]


def ordered(findings: list[Finding]) -> list[Finding]:
    """The most important first."""
    return sorted(findings, key=lambda f: (LEVELS.index(f.level), TOPICS.index(f.topic)))


class Notebook:
    """Findings as they are made; what has been said once is not said again."""

    def __init__(self, tell: Callable[[Finding], Any] | None = None) -> None:
        self.findings: list[Finding] = []
        self._tell = tell

    def add(self, *findings: Finding) -> None:
        for finding in findings:
            if finding.gist not in {known.gist for known in self.findings}:
                self.findings.append(finding)
                if self._tell is not None:
                    self._tell(finding)

    def quiet(self, *topics: str) -> bool:
        """Whether nothing was wrong or risky about any of these."""
        bad = {f.topic for f in self.findings if f.level in ("wrong", "risky")}
        return not bad & set(topics)


class Broken(Exception):
    """An environment that raised, or answered in a way that nothing can be made of."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding
