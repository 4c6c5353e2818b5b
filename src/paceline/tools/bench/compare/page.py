"""report.html: one file that holds its text, charts and tables, and the code to work with them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from ....config.text import several
from .charts import DASHES, curve_figure, mark_figure, phase_figure, text, tinted
from .comparison import Comparison, GroupRow, ranked, shown_pairs
from .format import ends
from .statistics import Estimate
from .tables import PAIRS, RUNS, Column, group_columns
from .text import STATISTICS

MOST_PAIRS = 10
"""Of more than these, the table is not unfolded on paper."""
MOST_STICKY = 12
"""Groups of which the legend stays in view."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(made: Comparison) -> str:
    """The whole page. It asks for nothing from anywhere, and names in it are never markup."""
    failed = [f"<strong>{text(one.name)}</strong> {text(one.cause)}" for one in made.failed]
    columns, rows = group_columns(made), ranked(made.rows)
    pairs = shown_pairs(made.rows, made.pairs)
    curves = curve_figure(made, "time", "Return over time")
    curves += curve_figure(made, "steps", "Return over steps")
    marks = "".join(mark_figure(column, rows) for column in columns) + phase_figure(rows)
    table = _table("Groups of runs; below each value its 95 % interval", columns, rows, "score")
    body = [
        f'<header><h1>{text(made.title)}</h1><p class="subtitle">{text(made.subtitle)}</p>',
        _list("verdict", map(text, made.verdict)),
        _list("notes", map(text, made.notes)),
        _list("failed", failed),
        "</header>",
        _section("Learning", curves),
        _legend(made.rows),
        _section("Results", marks, table),
    ]
    if pairs:
        title = f"All comparisons: {len(pairs)}"
        marks = "".join(mark_figure(column, pairs) for column in PAIRS)
        kind = 'class="bulky"' if len(pairs) > MOST_PAIRS else ""
        body.append(
            _section("Comparisons", marks, _folded(title, _table(title, PAIRS, pairs), kind))
        )
    body += [
        _section("Runs", "", "".join(map(_runs, made.rows))),
        _section("How this was made", "", _about(made)),
    ]
    content = "\n".join(part for part in body if part)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="Paceline">
<link rel="icon" href="data:,">
<title>{text(made.title)}</title>
<style>
{_file("report.css")}
</style>
</head>
<body>
<main>
{content}
</main>
<script>
{_file("report.js")}
</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return files(__package__).joinpath("html", name).read_text(encoding="utf-8").strip()


def _list(kind: str, items: Iterable[str]) -> str:
    found = "".join(f"<li>{item}</li>" for item in items)
    return f'<ul class="{kind}">{found}</ul>' if found else ""


def _section(title: str, figures: str, more: str = "") -> str:
    grid = f'<div class="grid">{figures}</div>' if figures else ""
    key = title.split()[0].lower()
    return f'<section id="{key}"><h2>{title}</h2>{grid}{more}</section>' if grid or more else ""


def _swatch(row: GroupRow) -> str:
    line = (
        f'<line x1="2" x2="24" y1="5" y2="5" class="line" stroke-dasharray="{DASHES[row.dash]}"/>'
    )
    return f'<svg viewBox="0 0 26 10" aria-hidden="true" {tinted(row, "swatch")}>{line}</svg>'


def _legend(rows: list[GroupRow]) -> str:
    """Buttons that hide groups and bring them back."""
    buttons = [
        f'<button type="button" aria-pressed="true" {tinted(row)}>{_swatch(row)}'
        f"<span>{text(row.name)}</span></button>"
        for row in rows
    ]
    if len(rows) > 1:
        buttons += [
            f'<button type="button" class="plain">{name}</button>' for name in ("all", "none")
        ]
    kind = "long" if len(rows) > MOST_STICKY else ""
    group = 'role="group" aria-label="Groups that are shown"'
    return f'<div id="legend" class="{kind}"><div {group}>{"".join(buttons)}</div></div>'


def _folded(summary: str, content: str, attributes: str) -> str:
    return f"<details {attributes}><summary>{summary}</summary>{content}</details>"


def _runs(row: GroupRow) -> str:
    """The runs of a group, to be unfolded."""
    less = f", {row.count} counted" if row.count < len(row.runs) else ""
    counts = f"<small>{several(len(row.runs), 'run')}{less}</small>"
    columns = [column for column in RUNS if column.known(row.runs)]
    table = _table(f"Runs of {row.name}", columns, row.runs)
    return _folded(f"{_swatch(row)}<span>{text(row.name)}</span>{counts}", table, tinted(row))


def _table(caption: str, columns: list[Column], rows: list[Any], sorted_by: str = "") -> str:
    """A table that can be sorted by any column; by one it is already."""
    order = {sorted_by: 'aria-sort="descending"'}
    heads = "".join(
        f'<th scope="col" class="{_kind(column, rows[0])}" {order.get(column.head, "")}>'
        f'<button type="button">{text(column.head)}</button></th>'
        for column in columns
    )
    lines = "".join(
        f"<tr {_attributes(row)}>{''.join(_cell(column, row) for column in columns)}</tr>"
        for row in rows
    )
    label = f'tabindex="0" role="region" aria-label="{text(caption)}"'
    return (
        f'<div class="scroll" {label}><table><caption>{text(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _attributes(row: Any) -> str:
    if isinstance(row, dict):  # a run
        return "" if row["counted"] else 'class="faint"'
    return tinted(row)


def _kind(column: Column, row: Any) -> str:
    if isinstance(column.value(row), str):
        return "words"
    return "number least" if column.least else "number"


def _cell(column: Column, row: Any) -> str:
    """A value, and below it its interval; `data-value` is what the column is sorted by."""
    found = column.value(row)
    if isinstance(found, str):
        swatch = _swatch(row) if column.head == "group" else ""
        return f"<td>{swatch}{text(found)}</td>"
    one = found if isinstance(found, Estimate) else Estimate(found)
    value = "" if one.value is None else f'data-value="{one.value:.9g}"'
    says = f"{column.form(one.value)}<small>{ends(one, column.form)}</small>"
    return f'<td class="number" {value}>{says}</td>'


def _about(made: Comparison) -> str:
    """What was varied, the machine, how the statistics were made, and the command."""
    varied = {name: ", ".join(values) for name, values in made.varied.items()}
    terms = {"What differs between groups": varied, "Machine": made.machine}
    parts = [f"<h3>{title}</h3>{_terms(own)}" for title, own in terms.items() if own]
    command = text(shlex.join(["paceline", *sys.argv[1:]]))
    return "".join(parts) + (
        f"<h3>Statistics</h3>{_list('small', map(text, STATISTICS))}"
        f'<h3>Command</h3><pre tabindex="0"><code>{command}</code></pre>'
    )


def _terms(terms: dict[str, str]) -> str:
    found = [f"<div><dt>{text(n)}</dt><dd>{text(value)}</dd></div>" for n, value in terms.items()]
    return f"<dl>{''.join(found)}</dl>"
