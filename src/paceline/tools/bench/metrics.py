"""What the metrics.jsonl of a run measured: rates and shares of phases, warm-up left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import BadInput
from ...run.budget import RECENT
from ...run.directory import METRICS
from ...storage import checkpoint

PHASES = ("rollout", "wait", "learn", "sync", "other")
"""Parts of an iteration's time; `rollout` here excludes the waiting for workers."""

Lines = list[dict[str, Any]]
"""The reports of a metrics.jsonl, in order."""


def read_metrics(folder: Path) -> Lines:
    """The metrics of a run directory."""
    text = (folder / METRICS).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def measure(lines: Lines, warmup: int) -> dict[str, Any]:
    """Rates and phases over the reports that lie wholly after the first `warmup` iterations."""
    starts = [0, *(line["iter"] for line in lines[:-1])]
    kept = [
        (line, line["iter"] - start)
        for line, start in zip(lines, starts, strict=True)
        if start >= warmup
    ]
    if not kept:
        raise BadInput(
            f"a run ended after {lines[-1]['iter']} iterations, and none of its reports lies after "
            f"the warm-up of {warmup}; write a smaller --warmup-iters, or --iters for more"
        )
    totals = {
        name: sum(line[name] * iters for line, iters in kept)
        for name in ("t_iter", *(f"t_{phase}" for phase in PHASES))
    }
    totals["t_rollout"] -= totals["t_wait"]
    seconds, iters = totals.pop("t_iter"), sum(iters for _, iters in kept)
    phases = sum(totals.values())  # with several a3c learners more than the seconds
    steps = sum(line["steps_global"] for line, _ in kept)
    return {
        "iters": iters,
        "steps": steps,
        "seconds": seconds,
        "fps": steps / seconds,
        "t_iter": seconds / iters,
        "memory_mb": max(line["memory_mb"] or 0.0 for line, _ in kept),
    } | {f"share_{phase}": totals[f"t_{phase}"] / phases for phase in PHASES}


def measure_together(runs: list[tuple[float, Lines]], warmup: int) -> dict[str, Any]:
    """Sum of the rates of runs, each with the time of its start, while all of them trained."""
    begin = max(
        start + next((x["time"] for x in lines if x["iter"] >= warmup), lines[-1]["time"])
        for start, lines in runs
    )
    end = min(start + lines[-1]["time"] for start, lines in runs)
    if end <= begin:
        raise BadInput(
            f"{len(runs)} independent runs did not overlap after their warm-up, so their sum "
            "can't be measured; write a larger --iters or --seconds"
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
    """Seconds of training until the last episodes' mean return reached `target`, or None."""
    newest = checkpoint.paths(folder / "checkpoints")[-1]
    recent = json.loads((newest / "state.json").read_text(encoding="utf-8"))["recent"]
    reached = len(recent) >= RECENT and sum(recent) / len(recent) >= target
    return lines[-1]["time"] if reached else None
