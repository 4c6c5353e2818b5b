"""How the verdict is shown: laid out for a terminal, plain lines for a pipe, JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ...config.text import several
from .finding import Finding
from .report import Verdict

STYLES = {"wrong": "bold red", "risky": "magenta", "note": "yellow", "ok": "green"}


def as_json(verdict: Verdict) -> str:
    suggestion = verdict.suggestion
    content = {
        "env": {"id": verdict.env_id, **verdict.facts},
        "findings": [asdict(finding) for finding in verdict.findings],
        "measured": verdict.measured and asdict(verdict.measured),
        "suggested": suggestion and asdict(suggestion),
        **verdict.counts,
    }
    return json.dumps(content, indent=2)


def facts(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """What stands above the findings."""
    known, found, suggestion = verdict.facts, verdict.measured, verdict.suggestion
    limit = known.get("time_limit")
    yield "env", f"{verdict.env_id}, time limit {limit:,}" if limit else verdict.env_id
    if "action" in known:
        yield "spaces", f"{known['observation']} → {known['action']}"
    if "steps" in known:
        yield "looked at", f"{known['steps']:,} random steps, {known['episodes']:,} episodes ended"
    if found is None:
        yield "speed", "not measured: it has to be mended first"
    else:
        reset = f", a reset {duration(1e3 * found.reset_ms)}" if found.reset_ms else ""
        rate = f"{found.steps_per_second:,.0f} steps/s on one core, resets included"
        yield "speed", f"{rate}; a step takes {duration(found.step_us)}{reset}"
        yield "memory", f"{megabytes(found.memory_mb)} for each environment"
    if suggestion is not None:
        yield "suggested", f"{suggestion.flags}: {suggestion.reason}"


def duration(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.3g} µs"


def megabytes(count: float) -> str:
    return "less than 0.1 MB" if count < 0.1 else f"{count:,.1f} MB"


def summary(verdict: Verdict) -> str:
    counts = verdict.counts
    said = [f"{counts[level]} {level}" for level in ("wrong", "risky") if counts[level]]
    if counts["notes"]:
        said.append(several(counts["notes"], "note"))
    if not verdict.faulty:
        return ", ".join(["nothing to fix", *said])
    return ", ".join(said)


def remarks(finding: Finding) -> list[str]:
    """The lines below what was seen."""
    return [
        f"{name}: {text}" for name, text in (("why", finding.why), ("fix", finding.fix)) if text
    ]


def plain(verdict: Verdict) -> str:
    """A line for each thing, one more for why it matters, and one for its mending."""
    lines = [f"{name:<9} {value}" for name, value in facts(verdict)]
    lines.append("")
    width = max((len(finding.topic) for finding in verdict.findings), default=0)
    for finding in verdict.findings:
        lines.append(f"{finding.level:<6} {finding.topic:<{width}}  {finding.text}")
        lines += [f"{'':<6} {'':<{width}}  {remark}" for remark in remarks(finding)]
    return "\n".join([*lines, "", summary(verdict)])


def show(verdict: Verdict) -> None:
    """In columns that fit the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    about = Table.grid(padding=(0, 2))
    for name, value in facts(verdict):
        about.add_row(Text(name, style="dim"), Text(value))
    table = Table.grid(padding=(0, 2))
    for finding in verdict.findings:
        said = Text(finding.text)
        for remark in remarks(finding):
            said.append(f"\n{remark}", style="dim")
        table.add_row(Text(finding.level, style=STYLES[finding.level]), finding.topic, said)
    worst: Any = verdict.findings[0].level if verdict.findings else "ok"
    console = Console(highlight=False)
    console.print(about, "", table, "", Text(summary(verdict), style=STYLES[worst]), sep="\n")
