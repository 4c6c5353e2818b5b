"""How plots look: colors of phases and of groups of runs, and matplotlib's style."""

from __future__ import annotations

from typing import Any

PHASE_COLORS = {
    "rollout": "#56B4E9",
    "wait": "#C6E2F5",
    "learn": "#009E73",
    "sync": "#CC79A7",
    "other": "#BBBBBB",
}
PHASE_NAMES = {
    "rollout": "sampling",
    "wait": "waiting for workers",
    "learn": "learning",
    "sync": "exchange between ranks",
    "other": "everything else",
}
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.12,
}
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A63A6", "#7F7F7F")
"""Of groups of runs; told apart by most eyes."""
DASHES = 4


def looks(groups: list[tuple[str, str]]) -> list[tuple[str, int]]:
    """A color and a dash for each: by algorithm and way of running, if that tells all apart."""
    algos = list(dict.fromkeys(algo for algo, _ in groups))
    found = [(COLORS[algos.index(algo) % len(COLORS)], _dash(way)) for algo, way in groups]
    if len(algos) > 1 and len(set(found)) == len(groups):
        return found
    return [(COLORS[k % len(COLORS)], k // len(COLORS) % DASHES) for k in range(len(groups))]


def _dash(way: str) -> int:
    ranks, workers = "rank" in way, "worker" in way or "learners" in way
    return 2 * ranks + workers
