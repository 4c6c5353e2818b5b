"""`paceline compare`: which runs are better, by how much, and whether that may be chance."""

from __future__ import annotations

import csv
import errno
import io
import math
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

from ...config import parse_duration, parse_steps, seconds
from ...console import printable
from ...errors import BadInput
from ...files import replace_file
from ...flags import Parser
from ..scaling.plan import number_from, refuse_to_lose
from .comparison import GroupRow, Pair, Point, pairs_of, rows_of
from .groups import Group, comparable, grouped, varied
from .history import History, find_runs, read_run
from .page import page
from .plot import draw
from .statistics import iqm
from .text import (
    STATISTICS,
    group_values,
    notes,
    number,
    run_values,
    says,
    several,
    shown_pairs,
    table,
    verdict,
)

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
OURS = (
    *("comparison.png", "comparison_report.txt", "comparison.csv", "comparison_runs.csv"),
    "report.html",
)


@dataclass(frozen=True)
class Missing:
    """A group that has no runs, and why."""

    name: str
    cause: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that is written."""

    title: str
    subtitle: str
    verdict: list[str]
    notes: list[str]
    failed: list[Missing] = field(default_factory=list)
    point: Point
    target: float | None
    target_source: str
    rows: list[GroupRow]
    pairs: list[Pair]
    varied: dict[str, list[str]]
    machine: dict[str, str]


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
    if not given["runs"]:
        raise BadInput("name the runs to compare: paceline compare runs/one runs/other")
    paths = [(Path(path), run) for path in given["runs"] for run in find_runs(Path(path))]
    folder = Path(given["output_dir"] or f"runs/compared-{datetime.now():%Y%m%d-%H%M%S}")
    refuse_to_lose(folder, given["overwrite"], OURS)
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
    told = notes(runs, rows, point)
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
    goal = config.stop_at_return
    sooner = "" if goal is None else f" or a return of {goal:g}"
    if config.duration:
        return Point("time", seconds(config.duration), _spelled(config.duration) + sooner)
    if config.total_steps:
        return Point("steps", config.total_steps, f"{config.total_steps:,} steps{sooner}")
    most = max(run.last("steps") for run in runs)
    return Point("steps", most, f"{config.total_iters:,} iterations{sooner}")


def _spelled(duration: str) -> str:
    """`30m` → 30 min"""
    return f"{duration[:-1]} {duration[-1].replace('m', 'min')}"


def _nothing_counts(runs: list[History], point: Point) -> str:
    came = min((run.last(point.axis) for run in runs if run.last(point.axis)), default=None)
    if came is None:
        return f"no run has made a report yet ({runs[0].path}: {runs[0].state}); wait for one"
    at = f"{math.floor(10 * came) / 10:g}s" if point.axis == "time" else f"{came:.0f}"
    finish = "" if point.chosen else "finish them with `paceline resume`, or "
    return (
        f"no run has come to {point.text} ({runs[0].path}: {runs[0].state}); {finish}compare them "
        f"as far as all have come with --at {at}"
    )


def _target(groups: list[Group], point: Point) -> tuple[float | None, str]:
    """What the environment counts as solved, if anyone has come there; else near the best."""
    runs = [run for group in groups for run in group.runs]
    if runs[0].config.stop_at_return is not None:
        return runs[0].config.stop_at_return, "what the runs were to stop at"
    solved = _threshold(runs[0].config.env_name)
    if solved is not None and any(run.reached(solved) is not None for run in runs):
        return solved, "what the environment counts as solved"
    scores = [[run.score(point.axis, point.end) for run in group.runs] for group in groups]
    known = [iqm(own) for own in ([s for s in some if s is not None] for some in scores) if own]
    starts = [run.returns[i] for run in runs for i in _first_known(run)]
    if not known or not starts:
        return None, ""
    target = float(f"{min(starts) + 0.9 * (max(known) - min(starts)):.3g}")
    return target, "90 % of the way from the lowest start to the best group's score"


def _first_known(run: History) -> list[int]:
    known = [i for i, value in enumerate(run.returns) if value == value]
    return known[:1]


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


def write(made: Comparison, folder: Path) -> None:
    """The files, all or none of them, and the report on standard output."""
    said = _report(made)
    files = {
        "comparison.csv": _rows([group_values(row) for row in made.rows]),
        "comparison_runs.csv": _rows(run_values(made.rows)),
        "comparison.png": draw(made.rows, made.target, made.title, made.subtitle),
        "comparison_report.txt": "\n".join([said, "How it was made", *STATISTICS, ""]).encode(),
        "report.html": page(_content(made)).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            if (folder / name).is_dir():
                raise IsADirectoryError(errno.EISDIR, f"{name} is a directory")
        for name, content in files.items():
            replace_file(folder / name, content)
    except OSError as error:
        raise BadInput(f"--output-dir {folder} can't be written: {error.strerror}") from None
    print(f"{said}\n{folder / 'report.html'}\n{folder / 'comparison.png'}")


def _report(made: Comparison) -> str:
    """What is printed."""
    parts = [f"{made.title}\n{made.subtitle}", "\n".join(made.verdict)]
    parts.append(table(made.rows, made.target))
    if made.target is not None:
        parts.append(f"{number(made.target)} is {made.target_source}.")
    if made.failed:
        parts.append("\n".join(f"{each.name}: {each.cause}" for each in made.failed))
    pairs = shown_pairs(made.rows, made.pairs)
    if len(made.pairs) > 1:
        lines = [f"{says(made.rows, p)} P(better) {p.improvement.value:.2f}" for p in pairs]
        parts.append("Pair by pair\n" + "\n".join(lines))
    if made.notes:
        parts.append("To be known\n" + "\n".join(made.notes))
    return "\n\n".join(parts) + "\n"


def _rows(rows: list[dict[str, Any]]) -> bytes:
    """As CSV."""
    text = io.StringIO(newline="")
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _content(made: Comparison) -> dict[str, Any]:
    """What the page is made of."""
    groups = [asdict(row) for row in made.rows]
    for group in groups:
        del group["scores"]
    return {
        "title": made.title,
        "subtitle": made.subtitle,
        "verdict": made.verdict,
        "notes": made.notes,
        "failed": [asdict(each) for each in made.failed],
        "budget": {
            "axis": made.point.axis,
            "value": made.point.value,
            "text": made.point.text,
        },
        "target": None
        if made.target is None
        else {"value": made.target, "source": made.target_source},
        "groups": groups,
        "pairs": [
            {**asdict(pair), "says": says(made.rows, pair)}
            for pair in shown_pairs(made.rows, made.pairs)
        ],
        "varied": made.varied,
        "machine": made.machine,
        "command": shlex.join(["paceline", *sys.argv[1:]]),
        "statistics": list(STATISTICS),
    }
