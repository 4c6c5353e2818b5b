"""`round`: every fault and hostile input once, in an order drawn with --seed."""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from . import (
    arguments,
    configs,
    environments,
    injected,
    other_commands,
    python,
    resources,
    run_directories,
    signals,
    terminals,
    together,
)
from .harness import Kept, Trial, attempt

AREAS = (
    *(arguments, configs, run_directories, together, signals, resources, injected, terminals),
    *(other_commands, environments, python),
)
KINDS = ("survived", "lost", "hung", "wrong words", "broken trial")


def measure(options: argparse.Namespace, known: dict[str, Any]) -> dict[str, Any]:
    """`known` is what was found before: trials that are not chosen now keep their outcome."""
    declared = [trial for area in AREAS for trial in area.trials()]
    names = {(trial.area, trial.name) for trial in declared}
    rows = {_key(row): row for row in known.get("rows", []) if _key(row) in names}
    chosen = [trial for trial in declared if _wanted(trial, options, rows)]
    random.Random(options.seed).shuffle(chosen)
    chosen = chosen[: options.most]
    code = _revision()
    with (
        tempfile.TemporaryDirectory(prefix="faults-kept-") as folder,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        kept = Kept(Path(folder))
        waiting = [pool.submit(attempt, trial, kept) for trial in chosen]
        for number, future in enumerate(as_completed(waiting), 1):
            row = future.result() | {"code": code}
            rows[_key(row)] = row
            if row["outcome"] != "survived":
                told = " (known)" if row["known"] else ""
                said = " | ".join(row["complaints"])[:300]
                print(f"{number}: {row['area']}: {row['name']}{told}: {said}", flush=True)
            options.keep(_summed([*rows.values()]))
            if number % 25 == 0:
                print(f"{number} of {len(chosen)}", flush=True)
    found = _summed([*rows.values()])
    _show(found["areas"])
    return found


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["area"], row["name"]


def _wanted(trial: Trial, options: argparse.Namespace, rows: dict[Any, Any]) -> bool:
    outcome = rows.get((trial.area, trial.name), {}).get("outcome")
    if options.failed and outcome in (None, "survived"):
        return False
    if options.missing and outcome is not None:
        return False
    only = options.only
    return not only or only == trial.area or only in f"{trial.area}: {trial.name}"


def _revision() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    rows = sorted(rows, key=_key)
    areas: dict[str, Counter[str]] = {}
    for row in rows:
        areas.setdefault(row["area"], Counter())[row["outcome"]] += 1
    total = sum(areas.values(), Counter())
    areas["all"] = total
    return {
        "tried": len(rows),
        **{kind.replace(" ", "_"): total[kind] for kind in KINDS},
        "areas": {area: dict(counts) for area, counts in areas.items()},
        "rows": [_short(row) for row in rows],
    }


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """Of what survived, no more than that it did."""
    kept = ("area", "name", "exit_code", "outcome", "known", "seconds", "code")
    return {k: row[k] for k in kept} if row["outcome"] == "survived" else row


def _show(areas: dict[str, dict[str, int]]) -> None:
    print(f"{'area':<14}{'tried':>7}" + "".join(f"{kind:>14}" for kind in KINDS))
    for area, counts in areas.items():
        shown = "".join(f"{counts.get(kind, 0):>14}" for kind in KINDS)
        print(f"{area:<14}{sum(counts.values()):>7}{shown}")
