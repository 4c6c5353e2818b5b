"""Charts of report.html as markup: curves with bands, and rows of dots, bars or shares.

All in them is at percentages of their width, so that text keeps its size on every screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from ..metrics import PHASES
from ..plotting import PHASE_COLORS, PHASE_NAMES
from .comparison import Comparison, Curve, GroupRow, Pair
from .format import Form, duration, ends, number, percent, short, time_unit
from .statistics import Array, Estimate
from .tables import Column

Domain = tuple[float, float]
DASHES = ("none", "7 4", "1.5 4", "9 4 1.5 4")
MOST_TICKS = 6
MANY, CROWD = 6, 16
"""More lines than these are thin; of more than those, bands are seen only while pointed at."""


def text(value: Any) -> str:
    """Escaped; bytes of a file's name that are no text become question marks."""
    return escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def tinted(row: GroupRow | Pair, kind: str = "") -> str:
    """Attributes of an element of a group, in its color; of a pair, in that of the better one."""
    groups = [row.better, row.worse] if isinstance(row, Pair) else [row]
    keys = " ".join(str(group.key) for group in groups)
    return f'class="tinted {kind}" data-group="{keys}" style="--c:{groups[0].color}"'


def _figure(title: str, note: str, chart: str) -> str:
    caption = f"<figcaption><h3>{text(title)}</h3><p>{text(note)}</p></figcaption>"
    return f"<figure>{caption}{chart}</figure>"


def _share(domain: Domain, value: Any) -> Any:
    """Percentage of the way from one end of the domain to the other."""
    return 100 * (value - domain[0]) / (domain[1] - domain[0])


def _place(domain: Domain, value: float) -> str:
    """A percentage for style sheets, within the chart."""
    return f"{min(100.0, max(0.0, _share(domain, value))):.2f}%"


def _reach(values: Sequence[float], edges: Sequence[float], extra: float) -> Domain:
    """From the least value to the greatest; intervals add to that `extra` times as much at most."""
    low, high = min(values), max(values)
    span = high - low or abs(high) or 1.0
    bottom = max(low - extra * span, min([low, *edges]))
    top = min(high + extra * span, max([high, *edges]))
    margin = 0.04 * (top - bottom or span)
    return bottom - margin, top + margin


def _axis(domain: Domain, form: Form = number, kind: str = "x") -> str:
    """Lines at round numbers, each with its text."""
    from matplotlib.ticker import MaxNLocator

    size = time_unit(domain[1])[0] if form is duration else 1.0
    low, high = domain[0] / size, domain[1] / size
    most = 2 if form is percent else MOST_TICKS  # 0, 50 and 100 %, beside long names too
    found = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)
    side, say = "left" if kind == "x" else "bottom", short if form is number else form
    ticks = "".join(
        f'<span style="{side}:{_place(domain, at * size)}"><b>{say(at * size)}</b></span>'
        for at in found
        if low <= at <= high
    )
    return f'<div class="axis {kind}" aria-hidden="true">{ticks}</div>'


def _reference(domain: Domain, value: float, says: str = "", side: str = "left") -> str:
    """A line with a text, which stays within the chart."""
    place = _place(domain, value)
    look = f"{side}:{place};--at:-{place}"
    return f'<div class="reference {side}" style="{look}"><b>{says}</b></div>'


def curve_figure(made: Comparison, axis: str, title: str) -> str:
    """The curves of all groups over `time` or `steps`; nothing where there is none."""
    curves = [(row, row.curves[axis]) for row in made.rows if len(row.curves[axis].x)]
    if not curves:
        return ""
    end = max(float(curve.x.max()) for _, curve in curves) or 1.0
    size, unit = time_unit(end) if axis == "time" else (1.0, "steps")
    values = np.concatenate([curve.y for _, curve in curves])
    edges = np.concatenate([[*curve.low, *curve.high] for _, curve in curves])
    target = [] if made.target is None else [made.target]
    x, y = (0.0, end), _reach([*values, *target], edges[np.isfinite(edges)].tolist(), 0.25)
    bands = [_band(row, curve, x, y) for row, curve in curves if np.isfinite(curve.low).any()]
    lines = [
        f"<polyline {tinted(row, 'line')} stroke-dasharray='{DASHES[row.dash]}' "
        f'points="{_points(x, y, curve.x, curve.y)}"/>'
        for row, curve in curves
    ]
    crowd = "many crowd" if len(lines) > CROWD else "many" if len(lines) > MANY else ""
    told = "; ".join(f"{text(row.name)} ends at {number(curve.y[-1])}" for row, curve in curves)
    found = "".join(_reference(y, one, f"target {number(one)}", "bottom") for one in target)
    chart = (
        f'<div class="plot curves {crowd}" role="img" aria-label="{title}. {told}" tabindex="0" '
        f'data-x="0 {end / size:.6g}" data-y="{y[0]:.6g} {y[1]:.6g}" data-unit="{unit}">'
        f"{_axis(y, kind='y')}{_axis(x, duration if axis == 'time' else number)}"
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none">{"".join(bands + lines)}</svg>'
        f"{found}</div>"
    )
    note = f"{made.point.text} each. " + ("Bands are 95 % intervals." if bands else "")
    return _figure(title, note, chart)


def _points(x: Domain, y: Domain, xs: Array, ys: Array) -> str:
    places = zip(_share(x, xs), 100 - _share(y, ys), strict=True)
    return " ".join(f"{right:.1f},{down:.3f}" for right, down in places)


def _band(row: GroupRow, curve: Curve, x: Domain, y: Domain) -> str:
    there, back = _points(x, y, curve.x, curve.high), _points(x, y, curve.x[::-1], curve.low[::-1])
    return f'<polygon {tinted(row, "band")} points="{there} {back}"/>'


def mark_figure(column: Column, rows: Sequence[GroupRow | Pair]) -> str:
    """A row for each estimate, best first; nothing where none is known, or the column not drawn.

    Of pairs, those are pale whose interval does not lie above the reference.
    """
    found = [(row, column.value(row)) for row in rows] if column.note else []
    values = [one.value for _, one in found if one.value is not None]
    if not values:
        return ""
    line = column.reference
    lines = [line[0]] if line else []
    edges = [end for _, one in found for end in (one.low, one.high) if end is not None]
    if column.drawn == "bar":
        domain = 0.0, _reach([0.0, *values], edges, 0.6)[1]
    elif column.form is percent:
        domain = 0.0, 1.0
    else:
        domain = _reach(values + lines, edges, 1.0)
    scale = _axis(domain, column.form) + (_reference(domain, *line) if line else "")
    sign = 1 if column.least else -1
    found.sort(key=lambda one: (one[1].value is None, sign * (one[1].value or 0.0)))
    made = []
    for row, one in found:
        pale = isinstance(row, Pair) and line and (one.low is None or one.low <= line[0])
        value = f"<b>{column.form(one.value)}</b> <small>{ends(one, column.form)}</small>"
        made.append(_row(row, _marked(one, column.drawn, domain), value, " faint" if pale else ""))
    return _figure(column.head, column.note, _rows(scale, made))


def _rows(scale: str, rows: Iterable[str]) -> str:
    return f'<div class="plot rows"><div class="scale">{scale}</div>{"".join(rows)}</div>'


def _row(row: GroupRow | Pair, track: str, value: str = "", kind: str = "") -> str:
    return (
        f'<div {tinted(row, f"row{kind}")}><span class="name">{text(row.name)}</span>'
        f'<span class="track">{track}</span><span class="value">{value}</span></div>'
    )


def _marked(at: Estimate, kind: str, domain: Domain) -> str:
    """A dot or a bar, with its interval as far as the chart goes."""
    if at.value is None:
        return ""
    side = "left" if kind == "dot" else "width"
    found = f'<i class="{kind}" style="{side}:{_place(domain, at.value)}"></i>'
    if at.low is not None and at.high is not None:
        right = _place((domain[1], domain[0]), at.high)
        found += f'<i class="whisker" style="left:{_place(domain, at.low)};right:{right}"></i>'
    return found


def phase_figure(rows: list[GroupRow]) -> str:
    """Shares of the time, in rows; nothing where they are not known."""
    known = [row for row in rows if row.phases]
    used = [name for name in PHASES if any(row.phases[name] >= 0.005 for row in known)]
    if not used:
        return ""
    tracks = [_row(row, "".join(_part(name, row.phases[name]) for name in used)) for row in known]
    key = "".join(f"<li>{_part(name)}{PHASE_NAMES[name]}</li>" for name in used)
    chart = _rows(_axis((0.0, 1.0), percent), tracks) + f'<ul class="key">{key}</ul>'
    return _figure("Where the time goes", "Shares of an iteration.", chart)


def _part(phase: str, share: float = 0.0) -> str:
    says = percent(share) if share >= 0.095 else ""
    look = f"background:{PHASE_COLORS[phase]};width:{100 * share:.2f}%"
    return f'<i class="part" style="{look}">{says}</i>'
