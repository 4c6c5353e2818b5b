"""Findings of `check` and `doctor`: one model, and one layout for terminals, pipes and programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TextIO

import yaml

from ..config.text import several

Level = Literal["wrong", "problem", "risky", "note", "ok"]
STYLES: dict[Level, str] = {
    "wrong": "1;31",
    "problem": "1;31",
    "risky": "35",
    "note": "33",
    "ok": "32",
}
"""Levels from worst to best, with their colors as a terminal takes them."""
DIM = "2"
COUNTS: dict[Level, str] = {"problem": "problems", "note": "notes"}
"""JSON fields that count a level, where they are not named as the level is."""
MB = 2**20
GB = 2**30


class Bytes(int):
    """A number of bytes, which formats as `64 MB` or `1.5 GB`."""

    def __format__(self, spec: str) -> str:
        if self < GB:
            return f"{self / MB:,.0f} MB"
        return f"{self / GB:,.0f} GB" if self >= 100 * GB else f"{self / GB:.1f} GB"


class Rule(NamedTuple):
    """What is known of a finding before it is made; text, why and fix are format strings."""

    level: Level
    topic: str
    text: str
    """what was seen, with its value"""
    why: str
    """what it does to training; empty where nothing is wrong"""
    fix: str
    """what to do or to write instead; empty where there is nothing to do"""


@dataclass(frozen=True)
class Finding:
    """Result of one check. Programs and tests go by level, topic, code and facts."""

    level: Level
    topic: str
    code: str
    text: str
    why: str = ""
    fix: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    """plain values that the texts were filled in with"""

    @property
    def identity(self) -> tuple[Any, ...]:
        """Findings that share it say the same."""
        return self.code, self.facts.get("error"), self.facts.get("place")

    @property
    def remarks(self) -> list[str]:
        """Lines below what was seen. What could be added where all is well is not called a fix."""
        lines = [f"why: {self.why}"] if self.why else []
        if self.fix:
            lines.append(self.fix if self.level == "ok" else f"fix: {self.fix}")
        return lines


class Rules(dict[str, Rule]):
    """Rules by the code of their findings, and their topics in order."""

    @classmethod
    def read(cls, file: Path) -> Self:
        """From YAML: topic → code → texts, where that of what was seen has the level's name."""
        topics = yaml.safe_load(file.read_text("utf-8"))
        rules = cls()
        for topic, codes in topics.items():
            for code, texts in codes.items():
                (level,) = texts.keys() & STYLES.keys()
                remarks = texts.get("why", ""), texts.get("fix", "")
                rules[code] = Rule(level, topic, texts[level], *remarks)
        return rules

    def found(self, code: str, level: Level | None = None, /, **facts: Any) -> Finding:
        """A finding with these facts; `level` replaces the rule's."""
        rule = self[code]
        text, why, fix = (part.format(**facts) for part in rule[2:])
        return Finding(level or rule.level, rule.topic, code, text, why, fix, facts)

    def ordered(self, findings: Iterable[Finding]) -> list[Finding]:
        """The worst first; of one level by topic."""
        levels, topics = list(STYLES), [rule.topic for rule in self.values()]
        return sorted(findings, key=lambda f: (levels.index(f.level), topics.index(f.topic)))


class FindingLog:
    """Findings as they are made, each once; every new one goes to `report`."""

    def __init__(self, report: Callable[[Finding], Any] = lambda _: None) -> None:
        self.findings: list[Finding] = []
        self._report = report

    def add(self, *findings: Finding) -> None:
        """What is known already is left out, such as the same error at another step."""
        for finding in findings:
            if all(finding.identity != known.identity for known in self.findings):
                self.findings.append(finding)
                self._report(finding)

    def has(self, level: Level, *topics: str) -> bool:
        """Whether there is a finding of this level or worse about one of the topics."""
        levels = list(STYLES)
        bad = levels[: levels.index(level) + 1]
        return any(finding.topic in topics and finding.level in bad for finding in self.findings)


@dataclass(frozen=True)
class Report:
    """Findings, and what is printed with them."""

    heading: dict[str, str]
    """lines above the findings: name → value"""
    findings: list[Finding]
    counted: tuple[Level, ...]
    """levels that the summary counts, from worst to note"""
    content: dict[str, Any]
    """JSON fields beside the findings and their counts"""

    @property
    def counts(self) -> dict[Level, int]:
        levels = [finding.level for finding in self.findings]
        return {level: levels.count(level) for level in self.counted}

    @property
    def failed(self) -> bool:
        """Whether there is anything worse than a note."""
        return any(number for level, number in self.counts.items() if level != "note")

    @property
    def summary(self) -> str:
        parts = [] if self.failed else ["nothing to fix"]
        for level, number in self.counts.items():
            if number:
                parts.append(several(number, level) if level in COUNTS else f"{number} {level}")
        return ", ".join(parts)

    def as_json(self) -> str:
        counts = {COUNTS.get(level, level): number for level, number in self.counts.items()}
        findings = [asdict(finding) for finding in self.findings]
        return json.dumps({**self.content, "findings": findings, **counts}, indent=2)

    def as_text(self, width: int | None = None) -> str:
        """A line for each finding and each of its remarks; for a terminal of this width, colored
        and broken where it ends."""
        names = _width(self.heading)
        levels = _width(finding.level for finding in self.findings)
        topics = _width(finding.topic for finding in self.findings)
        lines: list[str] = []
        for name, value in self.heading.items():
            lines += _beside(f"{name:<{names}}  ", [value], DIM, width)
        lines.append("")
        for finding in self.findings:
            start = f"{finding.level:<{levels}}  {finding.topic:<{topics}}  "
            texts = [finding.text, *finding.remarks]
            lines += _beside(start, texts, STYLES[finding.level], width)
        worst: Level = next((level for level, number in self.counts.items() if number), "ok")
        summary = self.summary if width is None else _colored(self.summary, STYLES[worst])
        return "\n".join([*lines, "", summary])

    def print(self, as_json: bool) -> None:
        width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
        print(self.as_json() if as_json else self.as_text(width))


def _width(words: Iterable[str]) -> int:
    return max(map(len, words), default=0)


def _beside(start: str, texts: list[str], style: str, width: int | None) -> list[str]:
    """Lines with the texts beside `start`, whose first word has the style; later texts are dim."""
    indent = " " * len(start)
    if width is None:
        return [start + texts[0], *(indent + text for text in texts[1:])]
    wrap = partial(textwrap.wrap, width=max(20, width - len(start)), break_on_hyphens=False)
    name, space, rest = start.partition(" ")
    first, *more = wrap(texts[0]) or [""]
    remarks = [_colored(line, DIM) for text in texts[1:] for line in wrap(text)]
    colored = _colored(name, style) + space + rest + first
    return [colored, *(indent + line for line in [*more, *remarks])]


def _colored(text: str, style: str) -> str:
    return text if "NO_COLOR" in os.environ else f"\x1b[{style}m{text}\x1b[0m"


def is_terminal(stream: TextIO | None) -> bool:
    """As the console of a run decides it."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
