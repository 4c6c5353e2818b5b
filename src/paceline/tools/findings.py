"""Findings of `check` and `doctor`: one model, and one layout for terminals, pipes and programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, TextIO

from ..config.text import several

Level = Literal["wrong", "problem", "risky", "note", "ok"]
STYLES: dict[Level, str] = {
    "wrong": "bold red",
    "problem": "bold red",
    "risky": "magenta",
    "note": "yellow",
    "ok": "green",
}
"""Levels from worst to best, with their colors."""
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
    why: str = ""
    """what it does to training; empty where nothing is wrong"""
    fix: str = ""
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


class Rules(dict[str, Rule]):
    """Rules by the code of their findings."""

    def found(self, code: str, level: Level | None = None, /, **facts: Any) -> Finding:
        """A finding with these facts; `level` replaces the rule's."""
        rule = self[code]
        text, why, fix = (part.format(**facts) for part in rule[2:])
        return Finding(level or rule.level, rule.topic, code, text, why, fix, facts)


class FindingLog:
    """Findings as they are made, each once; every new one goes to `report`."""

    def __init__(self, report: Callable[[Finding], Any] = lambda _: None) -> None:
        self.findings: list[Finding] = []
        self._report = report

    def add(self, *findings: Finding) -> None:
        """What is known already is left out, such as the same error at another step."""
        for finding in findings:
            if identity(finding) not in map(identity, self.findings):
                self.findings.append(finding)
                self._report(finding)

    def has(self, level: Level, *topics: str) -> bool:
        """Whether there is a finding of this level or worse about one of the topics."""
        levels = list(STYLES)
        bad = levels[: levels.index(level) + 1]
        return any(finding.topic in topics and finding.level in bad for finding in self.findings)


def identity(finding: Finding) -> tuple[Any, ...]:
    """Findings that share it say the same."""
    return finding.code, finding.facts.get("error"), finding.facts.get("place")


def ordered(findings: Iterable[Finding], topics: Sequence[str] = ()) -> list[Finding]:
    """The worst first; of one level by `topics`, if given."""
    levels = list(STYLES)

    def rank(finding: Finding) -> tuple[int, int]:
        return levels.index(finding.level), topics.index(finding.topic) if topics else 0

    return sorted(findings, key=rank)


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

    def as_text(self) -> str:
        """A line for each finding, followed by its remarks."""
        lines = [f"{name:<9} {value}" for name, value in self.heading.items()]
        lines.append("")
        level_width = max((len(finding.level) for finding in self.findings), default=0)
        topic_width = max((len(finding.topic) for finding in self.findings), default=0)
        for finding in self.findings:
            columns = f"{finding.level:<{level_width}} {finding.topic:<{topic_width}}  "
            lines.append(columns + finding.text)
            lines += [" " * len(columns) + remark for remark in remarks(finding)]
        return "\n".join([*lines, "", self.summary])

    def print_rich(self) -> None:
        """Colors, and columns that fit the terminal."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        heading, table = Table.grid(padding=(0, 2)), Table.grid(padding=(0, 2))
        for name, value in self.heading.items():
            heading.add_row(Text(name, style="dim"), Text(value))
        for finding in self.findings:
            text = Text(finding.text)
            for remark in remarks(finding):
                text.append(f"\n{remark}", style="dim")
            table.add_row(Text(finding.level, style=STYLES[finding.level]), finding.topic, text)
        worst: Level = next((level for level, number in self.counts.items() if number), "ok")
        summary = Text(self.summary, style=STYLES[worst])
        Console(highlight=False).print(heading, "", table, "", summary, sep="\n")

    def print(self, as_json: bool) -> None:
        if as_json:
            print(self.as_json())
        elif is_terminal(sys.stdout):
            self.print_rich()
        else:
            print(self.as_text())


def remarks(finding: Finding) -> list[str]:
    """Lines below what was seen. What could be added where all is well is not called a fix."""
    lines = [f"why: {finding.why}"] if finding.why else []
    if finding.fix:
        lines.append(finding.fix if finding.level == "ok" else f"fix: {finding.fix}")
    return lines


def is_terminal(stream: TextIO | None) -> bool:
    """As the console of a run decides it."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
