"""plots.png: throughput, speed-up under the machine's ceiling, efficiency, phases."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .metrics import PHASES
from .plotting import PHASE_COLORS, PHASE_NAMES, STYLE
from .scale_report import Spread, SummaryRow

WIDTH = 0.7
OURS, CEILING, IDEAL = "#0072B2", "#D55E00", "#7F7F7F"


def draw(rows: list[SummaryRow], kind: str, title: str, note: str, path: Path) -> None:
    """Four panels; with a time to score, two more."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels: list[Callable[[Any, list[SummaryRow]], None]]
    panels = [_throughput, _speedup, _efficiency, _phases]
    if any(row.reached for row in rows):
        panels = [_throughput, _speedup, _time_to_score, _efficiency, _phases, _memory]
    with mpl.rc_context(STYLE):
        across = len(panels) // 2
        figure = Figure(figsize=(5.2 * across, 8.4), dpi=130, layout="constrained")
        figure.suptitle(f"{title}\n", fontsize=14, fontweight="bold")
        figure.text(0.5, 0.945, note, ha="center", fontsize=9.5, color="#555555")
        for axes, panel in zip(figure.subplots(2, across).flat, panels, strict=True):
            panel(axes, rows)
            axes.grid(axis="y")
            axes.set_xticks(range(len(rows)), [str(row.count or "none") for row in rows])
            axes.set_xlim(-0.6, len(rows) - 0.4)
            axes.set_xlabel(kind)
        figure.savefig(path)


def _throughput(axes: Any, rows: list[SummaryRow]) -> None:
    _bars(axes, [row.fps.times(1e-3) for row in rows], "{:.1f} k")
    axes.set(title="Throughput", ylabel="thousand steps/s")


def _time_to_score(axes: Any, rows: list[SummaryRow]) -> None:
    _bars(axes, [row.time_to_score for row in rows], "{:.1f} s")
    axes.set(title="Time to score", ylabel="seconds of training")


def _memory(axes: Any, rows: list[SummaryRow]) -> None:
    _bars(axes, [Spread(row.memory_mb) for row in rows], "{:,.0f}")
    axes.set(title="Memory", ylabel="MB, all processes")


def _efficiency(axes: Any, rows: list[SummaryRow]) -> None:
    axes.axhline(100, linestyle="--", color=IDEAL, linewidth=1.2, label="ideal")
    _bars(axes, [row.efficiency.times(100) for row in rows], "{:.0f} %")
    tops = [100 * (row.ceiling.mean or math.nan) / row.ideal for row in rows]
    places = range(len(rows))
    axes.scatter(places, tops, s=420, marker="_", color=CEILING, linewidth=2.5, label="ceiling")
    axes.set(title="Efficiency", ylabel="speed-up over ideal, %")
    axes.set_ylim(0, max(125, axes.get_ylim()[1]))
    axes.legend(loc="upper right", ncols=2)


def _speedup(axes: Any, rows: list[SummaryRow]) -> None:
    places, ceilings = range(len(rows)), [row.ceiling for row in rows]
    axes.plot(places, [row.ideal for row in rows], "--", color=IDEAL, label="ideal")
    axes.fill_between(places, *_ends(ceilings), color=CEILING, alpha=0.15, linewidth=0)
    _line(axes, ceilings, "the machine's ceiling: independent runs", CEILING, "s-", (-8, 6))
    _line(axes, [row.speedup for row in rows], "measured", OURS, "o-", (8, -14))
    _whiskers(axes, [row.speedup for row in rows], OURS)
    axes.set(title="Speed-up", ylabel="× the smallest count's steps/s")
    axes.set_ylim(0, 1.35 * max(x for row in rows for x in (row.ideal, row.speedup.mean or 0)))
    axes.legend(loc="upper left")


def _phases(axes: Any, rows: list[SummaryRow]) -> None:
    bottom = np.zeros(len(rows))
    for phase in PHASES:
        heights = np.array([100 * row.shares[phase] for row in rows])
        if max(heights) < 0.5:
            continue
        color, label = PHASE_COLORS[phase], PHASE_NAMES[phase]
        bars = axes.bar(range(len(rows)), heights, WIDTH, bottom, color=color, label=label)
        texts = [f"{height:.0f} %" if height >= 5 else "" for height in heights]
        axes.bar_label(bars, texts, label_type="center", fontsize=9)
        bottom += heights
    axes.set(title="Where an iteration's time goes", ylabel="share, %", ylim=(0, 128))
    axes.set_yticks(range(0, 101, 20))
    axes.legend(loc="upper center", ncols=2, columnspacing=1.2, handlelength=1.2)


def _bars(axes: Any, spreads: list[Spread], form: str) -> None:
    """Means with their 95 % intervals, each with its number in it."""
    means = [spread.mean or 0.0 for spread in spreads]
    axes.bar(range(len(means)), means, WIDTH, color=OURS)
    _whiskers(axes, spreads, "#333333")
    top = min(1.1 * np.nanmax(_ends(spreads)), 1.6 * max(means))
    axes.set_ylim(0, top)
    for place, mean in enumerate(means):
        text, color = (form.format(mean), "white") if mean else ("not reached", "#333333")
        look = {"color": color, "fontweight": "bold", "size": 9, "zorder": 4}
        axes.text(place, 0.03 * top, text, ha="center", **look)


def _line(
    axes: Any, spreads: list[Spread], label: str, color: str, form: str, beside: tuple[int, int]
) -> None:
    """Means, with their numbers beside them where there is room."""
    means = [spread.mean or math.nan for spread in spreads]
    axes.plot(range(len(means)), means, form, color=color, linewidth=2, label=label)
    look = {"ha": "left" if beside[0] > 0 else "right", "color": color, "fontweight": "bold"}
    for place in range(1, len(means)) if len(means) <= 4 else [len(means) - 1]:
        at = place, means[place]
        axes.annotate(f"{at[1]:.2f}", at, beside, textcoords="offset points", **look)


def _whiskers(axes: Any, spreads: list[Spread], color: str) -> None:
    low, high = _ends(spreads)
    half = np.where(high > low, (high - low) / 2, math.nan)
    look = {"capsize": 4, "elinewidth": 1.4, "zorder": 3}
    axes.errorbar(range(len(half)), (low + high) / 2, half, fmt="none", ecolor=color, **look)


def _ends(spreads: list[Spread]) -> Any:
    """Low and high ends of the intervals, [2, rows]; the mean where there is no interval."""
    found = np.array([(s.ci_low, s.ci_high, s.mean) for s in spreads], float)
    return np.where(np.isnan(found[:, :2]), found[:, 2:], found[:, :2]).T
