"""`paceline compare`: which runs are better, by how much, and whether that may be chance."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Iterable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ....config.flags import Parser
from ....config.text import printable, several
from ....config.values import parse_duration, parse_steps, seconds
from ....errors import BadInput
from ..arguments import check_output_dir, number_from
from .comparison import Point, pairs_of, rows_of
from .groups import Group, comparable, grouped, varied
from .history import History, find_runs, read_run
from .notes import notes
from .report import OURS, Comparison, Missing, write
from .statistics import iqm
from .text import verdict

USAGE = """\
paceline compare RUN RUN ... [--by OPTION,OPTION] [--output-dir DIR]

  RUN                  a run directory, or one that has some in it
  --by algo,lr         what makes two runs of different groups (else whatever differs in their
                       configurations, but the seed); --by folder: every RUN as it is named
  --at 10m | 500k      compare at this time or number of steps (else at the end of the budget)
  --target-return R    measure the time and the steps to this return (else what the environment
                       counts as solved, or 90 % of the way to the best)
  --output-dir DIR     comparison.png, comparison_report.txt, comparison.csv,
                       comparison_runs.csv, report.html [runs/compared-<time>]
  --overwrite          replace the comparison that DIR holds
"""


def command(arguments: list[str]) -> int:
    """The exit code."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    parser = Parser()
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--by")
    parser.add_argument("--at", type=_at)
    parser.add_argument("--target-return", type=number_from)
    parser.add_argument("--output-dir")
    parser.add_argument("--overwrite", action="store_true")
    given = parser.parse(arguments, mixed=True)
    if not given["runs"] or "" in given["runs"]:
        raise BadInput("name the runs to compare: paceline compare runs/one runs/other")
    paths = [(Path(path), run) for path in given["runs"] for run in find_runs(Path(path))]
    folder = Path(given["output_dir"] or f"runs/compared-{datetime.now():%Y%m%d-%H%M%S}")
    check_output_dir(folder, given["overwrite"], OURS)
    by = [name for name in given["by"].split(",") if name] if given["by"] else None
    made = compare(_read(paths), by, given["at"], given["target_return"])
    write(made, folder)
    return 0


def _at(text: str) -> tuple[str, float, str]:
    """`10m` → time, 600 s; `500k` → steps, 500,000."""
    try:
        if text[-1:] in ("s", "m", "h"):
            return "time", seconds(parse_duration(text)), _spelled(text)
        steps = parse_steps(text)
        if not isinstance(steps, int) or not 1 <= steps <= 10**15:
            raise ValueError
        return "steps", float(steps), f"{steps:,} steps"
    except (ValueError, TypeError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r} should be a time, such as 10m, or a number of steps, such as 500k"
        ) from None


def _read(paths: Iterable[tuple[Path, Path]]) -> list[tuple[Path, History]]:
    """Every run once, with the path by which it was first named."""
    found: dict[Path, tuple[Path, History]] = {}
    for named, path in paths:
        if path.resolve() not in found:
            found[path.resolve()] = named, read_run(path)
    return list(found.values())


def compare(
    given: list[tuple[Path, History]],
    by: list[str] | None = None,
    at: tuple[str, float, str] | None = None,
    target: float | None = None,
    failed: list[Missing] | None = None,
) -> Comparison:
    """Runs that were named by these paths, grouped and compared."""
    runs = [run for _, run in given]
    comparable(runs, anywhere=at is not None)
    groups = grouped(given, by)
    point = Point(*at, chosen=True) if at else _end_of(runs)
    if not any(point.counts(run) for run in runs):
        raise BadInput(_nothing_counts(runs, point))
    target, source = (target, "as asked") if target is not None else _target(groups, point)
    rows = rows_of(groups, point, target)
    pairs = pairs_of(rows)
    told = notes(groups, rows, point)
    if len(groups) == 1 and len(runs) > 1 and by is None:
        told.append(
            "The runs differ in nothing that matters: there is one group. To compare the paths as "
            "they were named, write --by folder."
        )
    return Comparison(
        title=_title(groups, runs[0]),
        subtitle=_subtitle(runs, point),
        verdict=verdict(rows, pairs, point, target),
        notes=told,
        failed=failed or [],
        point=point,
        target=target,
        target_source=source,
        rows=rows,
        pairs=pairs,
        varied=varied(runs),
        machine=_machine(runs[0].facts),
    )


def _machine(facts: dict[str, Any]) -> dict[str, str]:
    """Where and with what the runs were made."""
    versions = facts.get("versions")
    told = {"CPU": facts.get("cpu"), "CPUs": facts.get("cpus")}
    told |= versions if isinstance(versions, dict) else {}
    return {name: str(value) for name, value in told.items() if value is not None}


def _end_of(runs: list[History]) -> Point:
    """The end of the budget that all runs share."""
    config = runs[0].config
    said = [_spelled(config.duration)] if config.duration else []
    said += [f"{config.total_steps:,} steps"] if config.total_steps else []
    said += [f"{config.total_iters:,} iterations"] if config.total_iters else []
    said += [] if config.stop_at_return is None else [f"a return of {config.stop_at_return:g}"]
    text = " or ".join(said)
    if config.duration:
        return Point("time", seconds(config.duration), text)
    most = config.total_steps or max(run.last("steps") for run in runs)
    return Point("steps", most, text)


def _spelled(duration: str) -> str:
    """`30m` → 30 min"""
    return f"{duration[:-1]} {duration[-1].replace('m', 'min')}"


def _nothing_counts(runs: list[History], point: Point) -> str:
    came = min((run.last(point.axis) for run in runs if run.last(point.axis)), default=None)
    if came is None:
        going = [run for run in runs if run.state == "still going"]
        first, what = (going or runs)[0], "wait for one"
        if not going:
            what = f"go on with `paceline resume {first.path}`"
        return f"no run has made a report yet ({first.path}: {first.state}); {what}"
    at = f"{math.floor(10 * came) / 10:g}s" if point.axis == "time" else f"{came:.0f}"
    finish = "" if point.chosen else "finish them with `paceline resume`, or "
    return (
        f"no run has come to {point.text} ({runs[0].path}: {runs[0].state}); {finish}compare them "
        f"as far as all have come with --at {at}"
    )


def _target(groups: list[Group], point: Point) -> tuple[float | None, str]:
    """What the environment counts as solved, if anyone has come there; else near the best."""
    counted = [[run for run in group.runs if point.counts(run)] for group in groups]
    runs = [run for some in counted for run in some]
    if runs[0].config.stop_at_return is not None:
        return runs[0].config.stop_at_return, "what the runs were to stop at"
    solved = _threshold(runs[0].config.env_name)
    if solved is not None and any(run.reached(solved) is not None for run in runs):
        return solved, "what the environment counts as solved"
    scores = [[run.score(point.axis, point.end) for run in some] for some in counted]
    tops = [iqm(own) for own in ([s for s in some if s is not None] for some in scores) if own]
    starts = [known[0] for run in runs if len(known := run.returns[np.isfinite(run.returns)])]
    if not tops or not starts:
        return None, ""
    target = float(f"{min(starts) + 0.9 * (max(tops) - min(starts)):.3g}")
    return target, "90 % of the way from the lowest start to the best group's score"


def _threshold(env_id: str) -> float | None:
    import gymnasium

    spec = gymnasium.registry.get(env_id)
    return None if spec is None else spec.reward_threshold


def _title(groups: list[Group], run: History) -> str:
    env = printable(run.config.env_name)
    algos = {group.algo for group in groups}
    if len(groups) == 1:
        return f"{env}: {groups[0].name}"
    if len(algos) > 1 and len(groups) > len(algos):
        return f"{env}: {len(algos)} algorithms, {len(groups)} ways of running them"
    if len(groups) == 2:
        return f"{env}: {groups[0].name} against {groups[1].name}"
    return f"{env}: {len(groups)} groups of runs"


def _subtitle(runs: list[History], point: Point) -> str:
    seeds = len({run.seed for run in runs})
    places = {f"{run.facts.get('cpu')}, {run.facts.get('cpus')} CPUs" for run in runs}
    place = printable(places.pop()) if len(places) == 1 else "several machines"
    counts = " · ".join((several(len(runs), "run"), f"{point.text} each", several(seeds, "seed")))
    return f"{counts} · {place} · {date.today()}"
