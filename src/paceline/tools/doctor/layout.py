"""How findings are shown: laid out for a terminal, plain lines for a pipe, JSON for a program."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TextIO

from ...config.text import several
from ..findings import Finding

STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def is_terminal(stream: TextIO | None) -> bool:
    """As the console of a run decides it."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def counted(findings: list[Finding]) -> dict[str, int]:
    levels = [finding.level for finding in findings]
    return {"problems": levels.count("problem"), "notes": levels.count("note")}


def summary(findings: list[Finding]) -> str:
    counts = counted(findings)
    if not any(counts.values()):
        return "nothing is wrong"
    return ", ".join(several(counts[thing], thing[:-1]) for thing in counts)


def as_json(machine: dict[str, str], findings: list[Finding]) -> str:
    content = {
        "machine": machine,
        "findings": [asdict(finding) for finding in findings],
        **counted(findings),
    }
    return json.dumps(content, indent=2)


def plain(machine: dict[str, str], findings: list[Finding]) -> str:
    """A line for each thing, and one more for its mending."""
    lines = [f"{name:<9} {value}" for name, value in machine.items()]
    lines.append("")
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        lines.append(f"{finding.level:<8} {finding.topic:<{width}}  {finding.text}")
        if finding.fix:
            lines.append(f"{'':<8} {'':<{width}}  {mending(finding)}")
    return "\n".join([*lines, "", summary(findings)])


def mending(finding: Finding) -> str:
    """Where nothing is wrong, it is only an offer."""
    return finding.fix if finding.level == "ok" else f"fix: {finding.fix}"


def show(machine: dict[str, str], findings: list[Finding]) -> None:
    """In columns that fit the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    about = Table.grid(padding=(0, 2))
    for name, value in machine.items():
        about.add_row(Text(name, style="dim"), Text(value))
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        said = Text(finding.text)
        if finding.fix:
            said.append(f"\n{mending(finding)}", style="dim")
        table.add_row(Text(finding.level, style=STYLES[finding.level]), finding.topic, said)
    counts = counted(findings)
    worst = "problem" if counts["problems"] else "note" if counts["notes"] else "ok"
    console = Console(highlight=False)
    console.print(about, "", table, "", Text(summary(findings), style=STYLES[worst]), sep="\n")
