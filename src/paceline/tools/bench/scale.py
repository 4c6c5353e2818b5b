"""`paceline scale`: ranks or workers side by side, against what the machine itself can give."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...processes.hardware import available_cpus, description
from ...storage.files import replace_file
from .metrics import Run, measured, read_lines, side_by_side, time_to_score
from .runs import ended_by_signals, train
from .scale_plan import Plan, plan_of
from .scale_plot import draw
from .scale_summary import bottleneck, named, processes, summarize
from .scale_text import note_of, table, title_of
from .tables import as_csv

USAGE = """\
paceline scale --ranks 1,2 | --num-workers 0,1,2 [--weak] [--OPTION OF TRAIN VALUE ...]

  Measures training at each count, repeat by repeat in turn, against what as many independent
  processes reach on this machine, and says what the bottleneck is.

  --ranks 1,2          data-parallel ranks
  --num-workers 0,1,2  processes that sample (0: the learner samples itself)
  --weak               constant work for each rank or worker, instead of a constant whole
  --repeats N          measurements of each count, each with a seed of its own [3]
  --warmup-iters N     iterations at the beginning that are not counted [5]
  --iters N            iterations that are counted (else as many as --seconds take)
  --seconds S          seconds that the fastest run should take at least [5]
  --target-return R    measure the time until the last 100 episodes' mean return is R, too
  --output-dir DIR     logs/, per_run, summary and plots.png [runs/scale-<env>-<algo>-<time>]
  --overwrite          replace the measurement that DIR holds

`paceline train --help` documents all other options, which are passed on to the runs.
"""
OURS = ("per_run.csv", "per_run.json", "summary.csv", "summary.json", "summary.txt", "plots.png")
TRIAL = "3s"
LATE = 2.0
"""Seconds by which one of several processes may begin after another."""


def command(arguments: list[str]) -> int:
    """The exit code."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    return measure(plan_of(arguments))


def measure(plan: Plan) -> int:
    """Run everything, writing what is known after each run."""
    from ...storage.lock import locked

    with locked(plan.folder), ended_by_signals():
        _clear(plan.folder)
        campaign = Campaign(plan)
        for repeat in range(plan.repeats):
            for kind, count in _jobs(plan, repeat):
                run = campaign.run(kind, count, repeat)
                _write_rows(plan.folder / "per_run", [asdict(run) for run in campaign.runs])
                print(_progress(plan, run), flush=True)
        _conclude(plan, campaign.runs)
    return 0


def _jobs(plan: Plan, repeat: int) -> list[tuple[str, int]]:
    """One process first, then more, independent and together; every second time backwards.

    More independent processes than there are CPUs would reach no more, and might fill the memory.
    """
    counted = [(plan.kind, count) for count in plan.counts]
    sizes = {1, *(min(processes(count), available_cpus()) for count in plan.counts)}
    ceilings = [("ceiling", size) for size in sorted(sizes)]
    if plan.target is None and plan.alone in plan.counts:  # that run says what one does alone
        jobs = [counted[0], *ceilings[1:], *counted[1:]]
    else:
        jobs = [*ceilings, *counted]
    return jobs[::-1] if repeat % 2 else jobs


class Campaign:
    """The runs so far, and how long an iteration takes."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self.runs = plan, list[Run]()
        self._t_iter: float | None = None
        self._iters = plan.iters or self._iters_by_trial()

    def _iters_by_trial(self) -> int:
        """As many as keep the fastest run that can be hoped for busy for the wanted time."""
        plan = self._plan
        options = plan.options(plan.alone) | plan.lifted | {"duration": TRIAL}
        with _scratch(plan.folder) as scratch:
            (folder,) = train(options | {"stop_at_return": "none"}, 1, scratch)
            lines = read_lines(folder)
        found = measured(lines, 1 if len(lines) > 1 else 0)
        self._t_iter = found["t_iter"]
        speedup = 1 if plan.weak else min(max(1, *plan.counts), available_cpus())
        iters = math.ceil(plan.seconds * speedup / found["t_iter"])
        print(f"a trial makes {found['fps']:,.0f} steps/s; {iters:,} iterations a run", flush=True)
        return iters

    def run(self, kind: str, count: int, repeat: int) -> Run:
        """Measure once more."""
        plan, copies = self._plan, count if kind == "ceiling" else 1
        at = plan.alone if kind == "ceiling" else count
        options = plan.options(at, repeat) | self._budget(kind, copies)
        with _scratch(plan.folder) as scratch:
            folders = train(options, copies, scratch)
            _keep_logs(folders, plan.folder / "logs", f"{kind}-{count}-repeat-{repeat + 1}")
            found = self._found(folders, kind)
        run = Run(
            kind=kind,
            count=count,
            repeat=repeat + 1,
            seed=plan.base.seed + repeat,
            num_envs=plan.num_envs(at) * copies,
            **found,
        )
        self.runs.append(run)
        self._t_iter = self._t_iter or run.seconds / run.iters
        if plan.target is None and (kind, count) == (plan.kind, plan.alone):
            self.runs.append(run.as_ceiling())
        return run

    def _budget(self, kind: str, copies: int) -> dict[str, str]:
        """Whole reports; and copies go on for a while, since they do not begin together."""
        plan, iters = self._plan, self._iters
        if plan.target is not None and kind != "ceiling":
            return plan.limits | {"stop_at_return": str(plan.target)}
        every = min(plan.base.log_every, iters)
        if copies > 1:
            iters += math.ceil(LATE / (self._t_iter or LATE))
        reports = math.ceil(plan.warmup / every) + math.ceil(iters / every)
        budget = {"total_iters": str(reports * every), "log_every": str(every)}
        return plan.lifted | budget | {"stop_at_return": "none"}

    def _found(self, folders: list[Path], kind: str) -> dict[str, Any]:
        plan, lines = self._plan, [read_lines(folder) for folder in folders]
        if kind == "ceiling":
            begun = [(folder / "config.yaml").stat().st_mtime for folder in folders]
            return side_by_side(list(zip(begun, lines, strict=True)), plan.warmup)
        found = measured(lines[0], plan.warmup)
        if plan.target is not None:
            found["time_to_score"] = time_to_score(folders[0], lines[0], plan.target)
        return found


def _keep_logs(folders: list[Path], logs: Path, name: str) -> None:
    for number, folder in enumerate(folders):
        copy = f"-copy-{number + 1}" if len(folders) > 1 else ""
        shutil.copy(folder / "metrics.jsonl", logs / f"{name}{copy}.jsonl")


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """For run directories, of which only the metrics are kept."""
    with tempfile.TemporaryDirectory(prefix=".run-", dir=folder) as path:
        yield Path(path)


def _clear(folder: Path) -> None:
    """Remove an earlier measurement, and nothing else."""
    for name in OURS:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "logs", ignore_errors=True)
    for left in folder.glob(".run-*"):
        shutil.rmtree(left)
    (folder / "logs").mkdir()


def _progress(plan: Plan, run: Run) -> str:
    what = f"{run.count} independent" if run.kind == "ceiling" else named(run.count, run.kind)
    line = f"repeat {run.repeat}/{plan.repeats}  {what:<14} {run.fps:>10,.0f} steps/s"
    if plan.target is None or run.kind == "ceiling":
        return line
    seconds = run.time_to_score
    return f"{line}  {'not reached' if seconds is None else f'{seconds:.1f} s to score'}"


def _conclude(plan: Plan, runs: list[Run]) -> None:
    """Summary, sentences and plots."""
    rows, title, note = summarize(runs), title_of(plan), note_of(plan)
    said = bottleneck(rows, plan.kind, available_cpus())
    text = f"{title}\n{note}\n\n{table(rows, plan.kind)}\n\n{said}\n"
    facts = {"title": title, "machine": description(), "bottleneck": said}
    _write_rows(plan.folder / "summary", [row.flat() for row in rows], facts)
    replace_file(plan.folder / "summary.txt", text.encode())
    draw(rows, plan.kind, title, note, plan.folder / "plots.png")
    print(f"\n{text}\n{plan.folder / 'plots.png'}", flush=True)


def _write_rows(
    stem: Path, rows: list[dict[str, Any]], facts: dict[str, Any] | None = None
) -> None:
    """As .csv and as .json; there with `facts` about all of them."""
    replace_file(stem.with_suffix(".csv"), as_csv(rows))
    content = rows if facts is None else {**facts, "rows": rows}
    replace_file(stem.with_suffix(".json"), (json.dumps(content, indent=1) + "\n").encode())
