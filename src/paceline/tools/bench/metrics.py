"""From the metrics of training runs to what one of them measured: rates, shares of phases."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import BadInput
from ...run.budget import RECENT
from ...storage import checkpoint

PHASES = ("rollout", "wait", "learn", "sync", "other")
"""What an iteration's time goes to; `rollout` is here without the waiting for workers."""

Lines = list[dict[str, Any]]
"""A metrics.jsonl."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measurement: a row of per_run.csv."""

    kind: str
    """`ranks`, `workers`, or `ceiling` for independent runs side by side"""
    count: int
    repeat: int
    seed: int
    num_envs: int
    """over all ranks, workers or copies"""
    iters: int
    steps: int
    seconds: float
    fps: float
    t_iter: float | None = None
    share_rollout: float | None = None
    share_wait: float | None = None
    share_learn: float | None = None
    share_sync: float | None = None
    share_other: float | None = None
    memory_mb: float | None = None
    time_to_score: float | None = None

    def as_ceiling(self) -> Run:
        """A run of one process says what one process does alone."""
        known = ("repeat", "seed", "num_envs", "iters", "steps", "seconds", "fps")
        return Run(kind="ceiling", count=1, **{name: getattr(self, name) for name in known})


def read_lines(folder: Path) -> Lines:
    """The metrics of a run directory."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def measured(lines: Lines, warmup: int) -> dict[str, Any]:
    """Fields of a `Run`, from the reports that lie wholly after the first `warmup` iterations."""
    begun = [0, *(line["iter"] for line in lines[:-1])]
    kept = [
        (line, line["iter"] - before)
        for line, before in zip(lines, begun, strict=True)
        if before >= warmup
    ]
    if not kept:
        raise BadInput(
            f"a run ended after {lines[-1]['iter']} iterations, and none of its reports lies after "
            f"the warm-up of {warmup}; write a smaller --warmup-iters, or --iters for more"
        )
    totals = {
        name: sum(line[name] * covered for line, covered in kept)
        for name in ("t_iter", *(f"t_{phase}" for phase in PHASES))
    }
    totals["t_rollout"] -= totals["t_wait"]
    seconds, iters = totals.pop("t_iter"), sum(covered for _, covered in kept)
    whole = sum(totals.values())  # of a3c's learners together, more than the seconds
    steps = sum(line["steps_global"] for line, _ in kept)
    return {
        "iters": iters,
        "steps": steps,
        "seconds": seconds,
        "fps": steps / seconds,
        "t_iter": seconds / iters,
        "memory_mb": max(line["memory_mb"] or 0.0 for line, _ in kept),
    } | {f"share_{phase}": totals[f"t_{phase}"] / whole for phase in PHASES}


def side_by_side(runs: list[tuple[float, Lines]], warmup: int) -> dict[str, Any]:
    """Fields of a `Run` for runs that began at these times, while all of them were at work."""
    begin = max(
        start + next((x["time"] for x in lines if x["iter"] >= warmup), lines[-1]["time"])
        for start, lines in runs
    )
    end = min(start + lines[-1]["time"] for start, lines in runs)
    if end <= begin:
        raise BadInput(
            f"{len(runs)} independent runs did not overlap after their warm-up, so that they say "
            "nothing about the machine; write a larger --iters or --seconds"
        )
    steps = 0.0
    for start, lines in runs:
        times = [start, *(start + line["time"] for line in lines)]
        so_far = [0, *(line["steps"] for line in lines)]
        steps += float(np.diff(np.interp([begin, end], times, so_far))[0])
    iters = lines[-1]["iter"] - warmup
    seconds = end - begin
    return {"iters": iters, "steps": round(steps), "seconds": seconds, "fps": steps / seconds}


def time_to_score(folder: Path, lines: Lines, target: float) -> float | None:
    """Seconds of training until the last episodes' mean return reached `target`, if it did."""
    newest = checkpoint.paths(folder / "checkpoints")[-1]
    recent = json.loads((newest / "state.json").read_text(encoding="utf-8"))["recent"]
    reached = len(recent) >= RECENT and sum(recent) / len(recent) >= target
    return lines[-1]["time"] if reached else None
