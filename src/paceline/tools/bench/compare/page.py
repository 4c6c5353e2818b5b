"""report.html: one file that holds its text, charts and tables, and the code to work with them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from importlib.resources import files
from operator import attrgetter
from typing import Any

from ....config.text import several
from .charts import DASHES, PERCENT, Mark, curve_figure, mark_figure, phase_figure, text, tinted
from .comparison import Comparison, GroupRow, Pair, ranked, shown_pairs
from .format import duration, ends, number, percent, probability, time_unit
from .statistics import Estimate
from .text import STATISTICS, Column, group_columns, reached, says

MOST_PAIRS = 10
"""Of more than these, the table is not unfolded on paper."""
MOST_STICKY = 12
"""Groups of which the legend stays in view."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
RUNS = [
    Column("run", lambda run: run.name, words=True),
    Column("seed", lambda run: run.seed, str),
    Column("state", lambda run: run.state + ("" if run.counted else ", not counted"), words=True),
    Column("score", lambda run: run.score),
    Column("evaluation", lambda run: run.evaluation),
    Column("steps/s", lambda run: run.fps),
    Column("time", lambda run: run.time, duration),
    Column("steps", lambda run: run.steps),
    Column("time to target", lambda run: run.time_to, duration, least=True),
    Column("steps to target", lambda run: run.steps_to, least=True),
]
PAIRS = [
    Column("better", lambda pair: pair.better.name, words=True),
    Column("worse", lambda pair: pair.worse.name, words=True),
    Column("difference", lambda pair: pair.difference),
    Column("p", lambda pair: pair.p, probability, least=True),
    Column("p, adjusted", lambda pair: pair.p_adjusted, probability, least=True),
    Column("P(better)", lambda pair: pair.improvement, percent),
    Column("pairing", lambda pair: pair.pairing, words=True),
    Column("what that says", says, words=True),
]


def page(made: Comparison) -> str:
    """The whole page. It asks for nothing from anywhere, and names in it are never markup."""
    failed = [f"<strong>{text(one.name)}</strong> {text(one.cause)}" for one in made.failed]
    curves = [
        curve_figure(made, "time", "Return over time"),
        curve_figure(made, "steps", "Return over steps"),
    ]
    by_speed = _sorted(made.rows, "fps")
    throughput = "Environment steps per second."
    speed = [
        mark_figure("Throughput", throughput, _marks(by_speed, "fps"), kind="bar"),
        phase_figure(by_speed),
    ]
    columns = group_columns(made)
    results = _table(
        "Groups of runs; below each value its 95 % interval",
        columns,
        ranked(made.rows),
        lambda row: tinted(row),
        sorted_by="score",
    )
    body = [
        f'<header><h1>{text(made.title)}</h1><p class="subtitle">{text(made.subtitle)}</p>',
        _list("verdict", map(text, made.verdict)),
        _list("notes", map(text, made.notes)),
        _list("failed", failed),
        "</header>",
        _section("Learning", curves),
        _legend(made.rows),
        _section("Outcome", _outcome(made)),
        _section("Speed", speed),
        _comparisons(shown_pairs(made.rows, made.pairs)),
        _section("Results", [], results),
        _section("Runs", [], "".join(map(_runs, made.rows))),
        _section("How this was made", [], _about(made)),
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


def _section(title: str, figures: list[str], more: str = "") -> str:
    found = "".join(figures)
    grid = f'<div class="grid">{found}</div>' if found else ""
    key = title.split()[0].lower()
    return f'<section id="{key}"><h2>{title}</h2>{grid}{more}</section>' if grid or more else ""


def _swatch(row: GroupRow) -> str:
    line = (
        f'<line x1="2" x2="24" y1="5" y2="5" class="line" stroke-dasharray="{DASHES[row.dash]}"/>'
    )
    return f'<svg viewBox="0 0 26 10" aria-hidden="true" {tinted(row, kind="swatch")}>{line}</svg>'


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


def _sorted(rows: list[GroupRow], name: str) -> list[GroupRow]:
    """The greatest first; what is not known last."""
    value = attrgetter(f"{name}.value")
    return sorted(rows, key=lambda row: (value(row) is None, -(value(row) or 0.0)))


def _marks(rows: list[GroupRow], name: str) -> list[Mark]:
    return [Mark(row.name, (row,), getattr(row, name)) for row in rows]


def _outcome(made: Comparison) -> list[str]:
    rows, target = made.rows, made.target
    scores = "Mean return of the last 100 episodes: interquartile mean with its 95 % interval."
    evaluations = "The same, of the evaluation at the end."
    found = [
        mark_figure("Score", scores, _marks(ranked(rows), "score"), target=target),
        mark_figure(
            "Evaluation",
            evaluations,
            _marks(_sorted(rows, "evaluation"), "evaluation"),
            target=target,
        ),
    ]
    note = f"Until a return of {number(target)}, {made.target_source}; and how many runs got there."
    size, unit = time_unit(max(row.time_to.value or 0.0 for row in rows))
    for what, form, axis in (("time", duration, (size, f" {unit}")), ("steps", number, (1.0, ""))):
        value = attrgetter(f"{what}_to.value")
        order = sorted(rows, key=lambda row: (-row.reached / (row.count or 1), value(row) or 0.0))
        marks = [Mark(row.name, (row,), getattr(row, f"{what}_to"), reached(row)) for row in order]
        title = f"{what.capitalize()} to the target"
        found.append(mark_figure(title, note, marks, form, kind="bar", unit=axis))
    return found


def _comparisons(pairs: list[Pair]) -> str:
    """Every pair as marks, and in a table that can be unfolded."""

    def marks(name: str) -> list[Mark]:
        return [
            Mark(f"{pair.better.name} over {pair.worse.name}", groups_of(pair), getattr(pair, name))
            for pair in pairs
        ]

    def groups_of(pair: Pair) -> tuple[GroupRow, GroupRow]:
        return pair.better, pair.worse

    if not pairs:
        return ""
    gap = "Score of the better group less that of the other; pale unless surely above 0."
    chance = "That a run of it scores more than one of the other; pale unless surely above 50 %."
    figures = [
        mark_figure("Difference of scores", gap, marks("difference"), middle=0.0),
        mark_figure(
            "Probability of improvement",
            chance,
            marks("improvement"),
            percent,
            unit=PERCENT,
            domain=(0.0, 1.0),
            middle=0.5,
        ),
    ]
    title = f"All comparisons: {len(pairs)}"
    table = _table(title, PAIRS, pairs, lambda pair: tinted(pair.better, pair.worse))
    kind = "bulky" if len(pairs) > MOST_PAIRS else ""
    folded = f'<details class="{kind}"><summary>{title}</summary>{table}</details>'
    return _section("Comparisons", figures, folded)


def _runs(row: GroupRow) -> str:
    """The runs of a group, to be unfolded."""
    less = f", {row.count} counted" if row.count < len(row.runs) else ""
    says = f"{several(len(row.runs), 'run')}{less}"
    name = f"{_swatch(row)}<span>{text(row.name)}</span><small>{says}</small>"
    columns = [column for column in RUNS if column.known(row.runs)]
    table = _table(
        f"Runs of {row.name}",
        columns,
        row.runs,
        lambda run: "" if run.counted else 'class="faint"',
    )
    return f"<details {tinted(row)}><summary>{name}</summary>{table}</details>"


def _table(
    caption: str,
    columns: list[Column],
    rows: list[Any],
    attributes: Callable[[Any], str],
    sorted_by: str = "",
) -> str:
    """A table that can be sorted by any column."""
    order = {sorted_by: 'aria-sort="descending"'}
    heads = "".join(
        f'<th scope="col" class="{_kind(column)}" {order.get(column.head, "")}>'
        f'<button type="button">{text(column.head)}</button></th>'
        for column in columns
    )
    lines = [
        f"<tr {attributes(row)}>{''.join(_cell(column, row) for column in columns)}</tr>"
        for row in rows
    ]
    label = f'tabindex="0" role="region" aria-label="{text(caption)}"'
    return (
        f'<div class="scroll" {label}><table><caption>{text(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _kind(column: Column) -> str:
    return "words" if column.words else "number least" if column.least else "number"


def _cell(column: Column, row: Any) -> str:
    """A value, and below it its interval; `data-value` is what the column is sorted by."""
    found = column.value(row)
    if isinstance(found, str):
        swatch = _swatch(row) if column.head == "group" else ""
        return f'<td class="{_kind(column)}">{swatch}{text(found)}</td>'
    one = found if isinstance(found, Estimate) else Estimate(found)
    value = "" if one.value is None else f' data-value="{one.value:.9g}"'
    says = f"{column.form(one.value)}<small>{ends(one, column.form)}</small>"
    return f'<td class="{_kind(column)}"{value}>{says}</td>'


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
