"""`round`: every fault and hostile input once, in an order drawn with --seed."""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import arguments, environments, files, python, resources, signals
from .harness import Kept, Trial, attempt

AREAS = (arguments, files, signals, resources, environments, python)
KINDS = ("survived", "lost", "hung", "wrong words", "broken trial")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    chosen = [trial for area in AREAS for trial in area.trials() if _wanted(trial, options.only)]
    random.Random(options.seed).shuffle(chosen)
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="faults-kept-") as folder,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        kept = Kept(Path(folder))
        for row in pool.map(lambda trial: attempt(trial, kept), chosen):
            rows.append(row)
            if row["outcome"] != "survived":
                known = " (known)" if row["known"] else ""
                said = " | ".join(row["complaints"])[:300]
                print(f"{len(rows)}: {row['area']}: {row['name']}{known}: {said}", flush=True)
    rows.sort(key=lambda row: (row["area"], row["name"]))
    return _summed(rows)


def _wanted(trial: Trial, only: str | None) -> bool:
    return not only or only == trial.area or only in f"{trial.area}: {trial.name}"


def _summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    areas: dict[str, Counter[str]] = {}
    for row in rows:
        areas.setdefault(row["area"], Counter())[row["outcome"]] += 1
    total = sum(areas.values(), Counter())
    print(f"{'area':<14}{'tried':>7}" + "".join(f"{kind:>14}" for kind in KINDS))
    for area, counts in [*areas.items(), ("all", total)]:
        shown = "".join(f"{counts[kind]:>14}" for kind in KINDS)
        print(f"{area:<14}{sum(counts.values()):>7}{shown}")
    failures = [row for row in rows if row["outcome"] != "survived"]
    passed = [
        {key: row[key] for key in ("area", "name", "exit_code", "seconds")}
        for row in rows
        if row["outcome"] == "survived"
    ]
    return {
        "tried": len(rows),
        **{kind.replace(" ", "_"): total[kind] for kind in KINDS},
        "areas": {area: dict(counts) for area, counts in areas.items()},
        "failures": failures,
        "passed": passed,
    }
