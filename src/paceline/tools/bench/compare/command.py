"""`paceline compare`: which runs are better, by how much, and whether that may be chance."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from datetime import date, datetime
from pathlib import Path

import numpy as np

from ....config.flags import Parser
from ....config.text import printable, several
from ....config.values import parse_duration, parse_steps, seconds
from ....errors import BadInput
from ....run.budget import Budget
from ..arguments import check_output_dir, number_from
from .comparison import Comparison, GroupRow, Missing, Point, pairs_of, rows_of
from .format import duration
from .groups import Groups, budget_text, comparable, grouped, varied
from .history import History, find_runs, read_run
from .report import OURS, write
from .statistics import aggregate
from .text import notes, verdict

USAGE = """\
paceline compare RUN RUN ... [--by OPTION,OPTION] [--output-dir DIR]

  RUN                  a run directory, or one that has some in it; the runs of `train --seeds`
                       are one group
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
    parser.add_argument("--at", type=_point)
    parser.add_argument("--target-return", type=number_from)
    parser.add_argument("--output-dir")
    parser.add_argument("--overwrite", action="store_true")
    given = parser.parse(arguments, mixed=True)
    if not given["runs"] or "" in given["runs"]:
        raise BadInput("name the runs to compare: paceline compare runs/one runs/other")
    folder = Path(given["output_dir"] or f"runs/compared-{datetime.now():%Y%m%d-%H%M%S}")
    check_output_dir(folder, given["overwrite"], OURS)
    by = [name for name in (given["by"] or "").split(",") if name] or None
    write(compare(read_named(given["runs"]), by, given["at"], given["target_return"]), folder)
    return 0


def read_named(paths: list[str]) -> list[tuple[Path, History]]:
    """The runs that are these paths or lie in them: every run once, as it was first named."""
    named: dict[Path, tuple[Path, Path]] = {}
    for path in map(Path, paths):
        for run in find_runs(path):
            named.setdefault(run.resolve(), (path, run))
    return [(path, read_run(run)) for path, run in named.values()]


def _point(text: str) -> Point:
    """`10m` → when time had come to 600 s; `500k` → when steps had come to 500,000."""
    try:
        if text[-1:] in ("s", "m", "h"):
            time = seconds(parse_duration(text))
            return Point("time", time, duration(time), chosen=True)
        steps = parse_steps(text)
        if not isinstance(steps, int) or not 1 <= steps <= 10**15:
            raise ValueError
        return Point("steps", float(steps), f"{steps:,} steps", chosen=True)
    except (ValueError, TypeError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r} should be a time, such as 10m, or a number of steps, such as 500k"
        ) from None


def compare(
    given: list[tuple[Path, History]],
    by: list[str] | None = None,
    at: Point | None = None,
    target: float | None = None,
    failed: list[Missing] | None = None,
) -> Comparison:
    """Runs that were named by these paths, grouped and compared."""
    runs = [run for _, run in given]
    comparable(runs, anywhere=at is not None)
    groups = grouped(given, by)
    point = at or _end_of(runs)
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
    facts = runs[0].facts
    machine = {"CPU": facts.get("cpu"), "CPUs": facts.get("cpus"), **runs[0].part("versions")}
    return Comparison(
        title=_title(rows, runs[0]),
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
        machine={name: str(value) for name, value in machine.items() if value is not None},
    )


def _end_of(runs: list[History]) -> Point:
    """The end of the budget that all runs share."""
    budget = Budget.of(runs[0].config)
    if budget.seconds:
        return Point("time", budget.seconds, budget_text(budget))
    most = budget.steps or max(run.last("steps") for run in runs)
    return Point("steps", most, budget_text(budget))


def _nothing_counts(runs: list[History], point: Point) -> str:
    came = min((run.last(point.axis) for run in runs if run.last(point.axis)), default=None)
    if came is None:
        going = [run for run in runs if run.state == "still going"]
        first = (going or runs)[0]
        what = "wait for one" if going else f"go on with `paceline resume {first.path}`"
        return f"no run has made a report yet ({first.path}: {first.state}); {what}"
    at = f"{math.floor(10 * came) / 10:g}s" if point.axis == "time" else f"{came:.0f}"
    finish = "" if point.chosen else "finish them with `paceline resume`, or "
    return (
        f"no run has come to {point.text} ({runs[0].path}: {runs[0].state}); {finish}compare them "
        f"as far as all have come with --at {at}"
    )


def _target(groups: Groups, point: Point) -> tuple[float | None, str]:
    """What the environment counts as solved, if anyone has come there; else near the best."""
    import gymnasium

    counted = [[run for run in runs if point.counts(run)] for runs in groups.values()]
    runs = [run for own in counted for run in own]
    config = runs[0].config
    if config.stop_at_return is not None:
        return config.stop_at_return, "what the runs were to stop at"
    spec = gymnasium.registry.get(config.env_name)
    solved = None if spec is None else spec.reward_threshold
    if solved is not None and any(run.reached(solved) is not None for run in runs):
        return solved, "what the environment counts as solved"
    groups_scores = [
        aggregate([run.score(point.axis, point.end) for run in own]) for own in counted
    ]
    tops = [score.value for score in groups_scores if score.value is not None]
    starts = [known[0] for run in runs if len(known := run.returns[np.isfinite(run.returns)])]
    if not tops or not starts:
        return None, ""
    target = float(f"{min(starts) + 0.9 * (max(tops) - min(starts)):.3g}")
    return target, "90 % of the way from the lowest start to the best group's score"


def _title(rows: list[GroupRow], run: History) -> str:
    env = printable(run.config.env_name)
    algos = {row.algo for row in rows}
    if len(rows) == 1:
        return f"{env}: {rows[0].name}"
    if len(algos) > 1 and len(rows) > len(algos):
        return f"{env}: {len(algos)} algorithms, {len(rows)} ways of running them"
    if len(rows) == 2:
        return f"{env}: {rows[0].name} against {rows[1].name}"
    return f"{env}: {len(rows)} groups of runs"


def _subtitle(runs: list[History], point: Point) -> str:
    seeds = len({run.config.seed for run in runs})
    places = {f"{run.facts.get('cpu')}, {run.facts.get('cpus')} CPUs" for run in runs}
    place = printable(places.pop()) if len(places) == 1 else "several machines"
    counts = " · ".join((several(len(runs), "run"), f"{point.text} each", several(seeds, "seed")))
    return f"{counts} · {place} · {date.today()}"
