"""How plots look: colours and names of phases, and matplotlib's style."""

from __future__ import annotations

from typing import Any

PHASE_COLOURS = {
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
