"""`paceline scale`: training with 1, 2, … ranks or workers against as many independent runs."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...config.text import several
from ...processes.hardware import available_cpus, cpu_name, description
from ...run.directory import CONFIG, METRICS
from ...storage.files import replace_file
from ...storage.lock import locked
from .metrics import measure, measure_together, read_metrics, time_to_score
from .runs import Cell, interrupt_on_signals, scratch_runs
from .scale_plan import ScalePlan, parse_scale
from .scale_plot import draw
from .scale_report import Measurement, bottleneck, named, processes, summarize, table
from .tables import as_csv

USAGE = """\
paceline scale --ranks 1,2 | --num-workers 0,1,2 [--weak] [--OPTION OF TRAIN VALUE ...]

  Measures training at each count, repeat by repeat in turn, against what as many independent
  processes reach on this machine, and names the bottleneck.

  --ranks 1,2          data-parallel ranks
  --num-workers 0,1,2  processes that sample (0: the learner samples itself)
  --weak               constant work for each rank or worker, instead of a constant total
  --repeats N          measurements of each count, each with its own seed [3]
  --warmup-iters N     iterations at the beginning that are not counted [5]
  --iters N            iterations that are counted (else as many as --seconds take)
  --seconds S          seconds that the fastest run should take at least [5]
  --target-return R    also measure the time until the last 100 episodes' mean return is R
  --predict 4,8,16     also what the cost model expects of so many, with a CPU for each
  --output-dir DIR     logs/, per_run, summary and plots.png [runs/scale-<env>-<algo>-<time>]
  --overwrite          replace the measurement in DIR

`paceline train --help` documents all other options, which are passed on to the runs.
"""
FILES = ("per_run.csv", "per_run.json", "summary.csv", "summary.json", "summary.txt", "plots.png")
TRIAL = "3s"
LATE = 2.0
"""Seconds by which one of several processes may start after another."""


def command(arguments: list[str]) -> int:
    """The exit code."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    return run(parse_scale(arguments))


def run(plan: ScalePlan) -> int:
    """Measure everything, writing the rows so far after each run."""
    with locked(plan.folder), interrupt_on_signals():
        _clear(plan.folder)
        sweep = Sweep(plan)
        for repeat in range(plan.repeats):
            for kind, count in jobs(plan, repeat):
                row = sweep.measure(kind, count, repeat)
                _write_rows(plan.folder / "per_run", [asdict(row) for row in sweep.rows])
                print(_progress(plan, row), flush=True)
        _conclude(plan, sweep.rows, predict_speedups(plan))
    return 0


def predict_speedups(plan: ScalePlan) -> dict[int, float]:
    """Speed-ups over one process that the cost model expects, with constants measured here."""
    if not plan.predict:
        return {}
    from ...run.parallel import predicted_gains

    configs = [plan.config(count) for count in plan.predict]
    return dict(zip(plan.predict, predicted_gains(plan.config(plan.alone), configs), strict=True))


def jobs(plan: ScalePlan, repeat: int) -> list[tuple[str, int]]:
    """(kind, count) of the runs of one repeat: one process first; every second time backwards.

    Ceilings end at the number of CPUs: more independent runs would gain nothing.
    """
    counted = [(plan.kind, count) for count in plan.counts]
    sizes = {1, *(min(processes(count), available_cpus()) for count in plan.counts)}
    ceilings = [("ceiling", size) for size in sorted(sizes)]
    if plan.target is None and plan.alone in plan.counts:  # that run is the ceiling of one
        order = [counted[0], *ceilings[1:], *counted[1:]]
    else:
        order = [*ceilings, *counted]
    return order[::-1] if repeat % 2 else order


class Sweep:
    """The measurements so far, and the iterations that each run makes."""

    def __init__(self, plan: ScalePlan) -> None:
        self._plan, self.rows = plan, list[Measurement]()
        self._t_iter: float | None = None
        self._iters = plan.iters or self._iters_by_trial()

    def _iters_by_trial(self) -> int:
        """As many as keep the fastest run that can be hoped for busy for `plan.seconds`."""
        plan = self._plan
        options = plan.options(plan.alone) | plan.unlimited | {"duration": TRIAL}
        cell = Cell(name="trial", options=options, folder=plan.folder / "trial")
        with scratch_runs(cell) as (folder,):
            lines = read_metrics(folder)
        found = measure(lines, 1 if len(lines) > 1 else 0)
        self._t_iter = found["t_iter"]
        speedup = 1 if plan.weak else min(max(1, *plan.counts), available_cpus())
        iters = math.ceil(plan.seconds * speedup / found["t_iter"])
        print(f"trial: {found['fps']:,.0f} steps/s; {iters:,} iterations per run", flush=True)
        return iters

    def measure(self, kind: str, count: int, repeat: int) -> Measurement:
        """One more run, or for a ceiling `count` copies of one process at the same time."""
        plan, copies = self._plan, count if kind == "ceiling" else 1
        at = plan.alone if kind == "ceiling" else count
        name = f"{kind}-{count}-repeat-{repeat + 1}"
        options = plan.options(at, repeat) | self._budget(kind, copies)
        cell = Cell(name=name, options=options, folder=plan.folder / name, copies=copies)
        with scratch_runs(cell) as folders:
            for folder in folders:
                shutil.copy(folder / METRICS, plan.folder / "logs" / f"{folder.name}.jsonl")
            found = self._read(folders, kind)
        row = Measurement(
            kind=kind,
            count=count,
            repeat=repeat + 1,
            seed=plan.base.seed + repeat,
            num_envs=plan.num_envs(at) * copies,
            global_batch=plan.global_batch(at),
            **found,
        )
        self.rows.append(row)
        self._t_iter = self._t_iter or row.seconds / row.iters
        if plan.target is None and (kind, count) == (plan.kind, plan.alone):
            self.rows.append(replace(row, kind="ceiling", count=1))
        return row

    def _budget(self, kind: str, copies: int) -> dict[str, str]:
        """Whole reports; copies get more iterations, since they do not start together."""
        plan, iters = self._plan, self._iters
        if plan.target is not None and kind != "ceiling":
            return plan.limits | {"stop_at_return": str(plan.target)}
        every = min(plan.base.log_every, iters)
        if copies > 1:
            iters += math.ceil(LATE / (self._t_iter or LATE))
        reports = math.ceil(plan.warmup / every) + math.ceil(iters / every)
        return plan.unlimited | {"total_iters": str(reports * every), "log_every": str(every)}

    def _read(self, folders: list[Path], kind: str) -> dict[str, Any]:
        plan, lines = self._plan, [read_metrics(folder) for folder in folders]
        world = {"world_size": lines[0][-1]["world_size"]}
        if kind == "ceiling":
            starts = [(folder / CONFIG).stat().st_mtime for folder in folders]
            together = list(zip(starts, lines, strict=True))
            return measure_together(together, plan.warmup) | world
        found = measure(lines[0], plan.warmup) | world
        if plan.target is not None:
            found["time_to_score"] = time_to_score(folders[0], lines[0], plan.target)
        return found


def _clear(folder: Path) -> None:
    """Remove an earlier measurement, and nothing else."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    for old in (folder / "logs", *folder.glob(".run-*")):
        shutil.rmtree(old, ignore_errors=True)
    (folder / "logs").mkdir()


def _progress(plan: ScalePlan, row: Measurement) -> str:
    what = f"{row.count} independent" if row.kind == "ceiling" else named(row.count, row.kind)
    line = f"repeat {row.repeat}/{plan.repeats}  {what:<14} {row.fps:>10,.0f} steps/s"
    if plan.target is None or row.kind == "ceiling":
        return line
    seconds = row.time_to_score
    return f"{line}  {'not reached' if seconds is None else f'{seconds:.1f} s to score'}"


def _conclude(plan: ScalePlan, runs: list[Measurement], predicted: dict[int, float]) -> None:
    """Write the summary and the plots, and print the summary."""
    rows = summarize(runs)
    sentence = bottleneck(rows, plan.kind, available_cpus())
    facts: dict[str, Any] = {"machine": description(), "bottleneck": sentence}
    if predicted:
        facts["predicted"] = predicted
        gains = ", ".join(f"{named(n, plan.kind)} × {gain:.2f}" for n, gain in predicted.items())
        sentence += (
            f"\nPredicted over one process, not measured: {gains}. The model takes every CPU for "
            "one like these, and knows nothing of sockets, caches or memory bandwidth."
        )
    algo = plan.training.flags.get("algo", plan.base.algo_section)  # which may be an alias
    way = "weak" if plan.weak else "strong"
    title = f"{algo.upper()} on {plan.base.env_name}: {way} scaling over {plan.kind}"
    each = f" for each of the {plan.kind}" if plan.weak else ""
    note = (
        f"{plan.base.num_envs} environments{each} × {plan.base.rollout_steps} steps · "
        f"{several(plan.repeats, 'repeat')} · {cpu_name()}, {available_cpus()} CPUs"
    )
    text = f"{title}\n{note}\n\n{table(rows, plan.kind)}\n\n{sentence}\n"
    _write_rows(plan.folder / "summary", [row.flat() for row in rows], {"title": title} | facts)
    replace_file(plan.folder / "summary.txt", text.encode())
    draw(rows, plan.kind, title, note, plan.folder / "plots.png")
    print(f"\n{text}\n{plan.folder / 'plots.png'}", flush=True)


def _write_rows(
    stem: Path, rows: list[dict[str, Any]], facts: dict[str, Any] | None = None
) -> None:
    """As .csv and .json; there together with `facts`."""
    replace_file(stem.with_suffix(".csv"), as_csv(rows))
    content = rows if facts is None else {**facts, "rows": rows}
    replace_file(stem.with_suffix(".json"), (json.dumps(content, indent=1) + "\n").encode())
