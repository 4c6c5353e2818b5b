"""comparison.png: return over time and over steps, throughput, where the time goes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ..metrics import PHASES
from ..plotting import PHASE_COLORS, PHASE_NAMES, STYLE
from .comparison import Comparison, GroupRow, ranked
from .format import number, short

LINES: tuple[Any, ...] = ("-", "--", ":", "-.")
MOST_BARS = 16
"""Groups that have room for a name."""
LONGEST_NAME = 34


def draw(made: Comparison) -> bytes:
    """Four panels, as a PNG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = made.rows
    bars = [row for row in ranked(rows) if row.fps.value is not None][:MOST_BARS]
    lower = max(2.6, 0.38 * len(bars) + 1.4)
    legend = 0.28 * -(-min(len(rows), MOST_BARS) // 4) + 0.2
    with mpl.rc_context(STYLE):
        size = (12.5, 4.4 + lower + legend + 0.9)
        figure = Figure(figsize=size, dpi=120, layout="constrained")
        figure.suptitle(f"{_plain(made.title)}\n", fontsize=14, fontweight="bold")
        look: Any = {"ha": "center", "fontsize": 9.5, "color": "#555"}
        figure.text(0.5, 1 - 0.55 / size[1], _plain(made.subtitle), **look)
        axes = figure.subplots(2, 2, gridspec_kw={"height_ratios": [4.4, lower]})
        _curves(axes[0][0], rows, "time", made.target)
        _curves(axes[0][1], rows, "steps", made.target)
        _throughput(axes[1][0], bars)
        _phases(axes[1][1], bars)
        names = [_name(row) for row in rows[:MOST_BARS]]
        figure.legend(axes[0][0].lines[: len(names)], names, loc="outside lower center", ncols=4)
        file = io.BytesIO()
        figure.savefig(file, format="png")
    return file.getvalue()


def _plain(text: str) -> str:
    """Without what matplotlib would take for mathematics."""
    return text.replace("$", r"\$")


def _name(row: GroupRow) -> str:
    name = row.name if len(row.name) <= LONGEST_NAME else f"…{row.name[1 - LONGEST_NAME :]}"
    return _plain(name)


def _curves(axes: Any, rows: list[GroupRow], axis: str, target: float | None) -> None:
    for row in rows:
        curve = row.curves[axis]
        look = {"color": row.color, "linestyle": LINES[row.dash], "linewidth": 1.8}
        axes.plot(curve.x, curve.y, **look)
        if np.isfinite(curve.low).any():
            axes.fill_between(curve.x, curve.low, curve.high, color=row.color, alpha=0.14, lw=0)
    if target is not None:
        axes.axhline(target, color="#999999", linewidth=1, linestyle=(0, (2, 2)), zorder=0)
    over = "wall-clock" if axis == "time" else "environment steps"
    label = "seconds since the first step" if axis == "time" else "environment steps"
    axes.set(title=f"Return over {over}", xlabel=label, ylabel="mean return, last 100 episodes")
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.set_xlim(left=0)
    axes.grid()


def _throughput(axes: Any, rows: list[GroupRow]) -> None:
    places = range(len(rows))
    axes.barh(places, [row.fps.value for row in rows], 0.7, color=[row.color for row in rows])
    ends = [row.fps.high or row.fps.value or 0.0 for row in rows]
    top = max(ends, default=0.0)
    for place, row in enumerate(rows):
        if row.fps.low is not None:
            whisker = [row.fps.low, row.fps.high]
            axes.plot(whisker, [place, place], color="#333333", linewidth=1.4)
        axes.text(ends[place] + 0.015 * top, place, number(row.fps.value), va="center", fontsize=9)
    axes.set(title="Throughput", xlabel="steps per second", xlim=(0, 1.16 * top or 1.0))
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    _named(axes, rows)


def _phases(axes: Any, rows: list[GroupRow]) -> None:
    left = [0.0] * len(rows)
    for phase in PHASES:
        widths = [100 * row.phases.get(phase, 0.0) for row in rows]
        if max(widths, default=0.0) < 0.5:
            continue
        look = {"color": PHASE_COLORS[phase], "label": PHASE_NAMES[phase]}
        axes.barh(range(len(rows)), widths, 0.7, left, **look)
        for place, width in enumerate(widths):
            if width >= 7:
                middle = left[place] + width / 2
                axes.text(middle, place, f"{width:.0f} %", ha="center", va="center", fontsize=8.5)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set(xlabel="share of wall-clock, %", xlim=(0, 100))
    axes.set_title("Where the time goes", pad=40)
    _named(axes, rows)
    if rows:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.0)


def _named(axes: Any, rows: list[GroupRow]) -> None:
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x")
