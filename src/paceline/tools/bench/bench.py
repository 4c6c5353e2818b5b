"""`paceline bench`: algorithms × modes × seeds, for an equal budget, one run after another."""

from __future__ import annotations

import json
import math
import shutil
import time
from contextlib import closing, suppress
from pathlib import Path

from ...cli.console import Console, clock
from ...config.registry import ALGORITHMS
from ...config.schema import ALIASES
from ...config.text import several
from ...errors import BadInput, StoppedEarly
from ...run.directory import CONFIG, METRICS
from ...storage.files import replace_file
from ...storage.lock import locked
from .arguments import contents
from .bench_plan import (
    MODES,
    PLAN,
    BenchPlan,
    Processes,
    parse_bench,
    remembered,
    variant_folder,
    variant_name,
)
from .compare.command import compare
from .compare.comparison import Missing
from .compare.history import is_done, last_report, read_run
from .compare.report import write
from .runs import Cell, RunFailed, calibrate, interrupt_on_signals, log_of, run_cell

USAGE = """\
paceline bench [RUN ...] [--algos ppo,a2c,a3c,impala] [--modes sequential,parallel,ranks]
               [--duration 2m] [--seeds 3] [--OPTION OF TRAIN VALUE ...]

  Trains with every algorithm in every mode for an equal budget, one run after another so that
  they do not disturb each other, and compares them: a table, comparison.png, report.html.

  RUN                  runs that are there already, such as the directory of `train --seeds`, to be
                       compared with the others; what they have trained is not trained again
  --algos a,b          what is compared [ppo,a2c,a3c,impala]
  --modes a,b          sequential: one process; parallel: the best use of the CPUs, as by
                       `train --parallel auto` (a3c: a learner for each CPU); workers: a worker
                       for each CPU; ranks: a rank for each CPU
                       [sequential,parallel,ranks]
  --num-workers N      workers of the parallel cells, and a3c's learners [as many as CPUs]
  --ranks N            ranks of the cells with ranks [as many as CPUs]
  --duration, --total-steps   the budget of every run [--duration 2m]
  --seeds N            runs of each cell [3]
  --first-seed N       the first of their seeds [0]
  --target-return R    measure the time and the steps to this return
  --output-dir DIR     where to [runs/bench-<env>-<time>]
  --resume DIR         go on where it was interrupted, and repeat what has failed
  --overwrite          replace the benchmark in DIR

`paceline train --help` documents all other options, which are passed on to the runs.
"""
EVERY = 10.0
"""Seconds between two lines of progress where the output is no terminal."""
STARTUP = 4.0
"""Seconds that a run is expected to take beyond its budget, until one has been timed."""


def command(arguments: list[str]) -> int:
    """The exit code."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    return run(parse_bench(arguments))


def run(plan: BenchPlan) -> int:
    """Run every cell that is not done yet and compare all of them; the exit code."""
    with locked(plan.folder), interrupt_on_signals():
        _claim(plan)
        if plan.open:
            plan = _choose(plan)
        try:
            failed = BenchSweep(plan).run()
        except KeyboardInterrupt:
            raise StoppedEarly(
                f"interrupted; go on with `paceline bench --resume {plan.folder}`"
            ) from None
        return _conclude(plan, failed)


def _claim(plan: BenchPlan) -> None:
    """Write bench.json; a directory that holds anything but this benchmark is refused."""
    file = plan.folder / PLAN
    if not file.exists():
        if names := contents(plan.folder):
            raise BadInput(
                f"--output-dir {plan.folder} is not empty ({names[0]}), and holds no benchmark; "
                "choose another"
            )
    elif plan.overwrite:
        for algo in (*ALGORITHMS, *ALIASES):  # whichever it had; other directories are not ours
            for mode in MODES:
                shutil.rmtree(variant_folder(plan.folder, algo, mode), ignore_errors=True)
    else:
        with suppress(BadInput):
            if remembered(plan.folder) == plan.arguments:
                return
        raise BadInput(
            f"{plan.folder} holds another benchmark; go on with it by `paceline bench --resume "
            f"{plan.folder}`, choose another --output-dir, or give --overwrite"
        )
    _remember(plan, plan.chosen)


def _choose(plan: BenchPlan) -> BenchPlan:
    """The plan with processes for its parallel cells, which bench.json remembers."""
    chosen = dict(plan.chosen)
    for algo, training in plan.open.items():
        config = calibrate(training.config(), variant_name(algo, "parallel"))
        names = ("num_workers", "ranks", "threads")
        chosen[algo] = {name: str(getattr(config, name)) for name in names}
    _remember(plan, chosen)
    return parse_bench(["--resume", str(plan.folder)])


def _remember(plan: BenchPlan, chosen: Processes) -> None:
    content = {"arguments": plan.arguments, "chosen": chosen}
    replace_file(plan.folder / PLAN, json.dumps(content, indent=1).encode())


class BenchSweep:
    """Runs the cells one after another, and estimates how long that will take."""

    def __init__(self, plan: BenchPlan) -> None:
        self._plan, self._cells = plan, plan.cells
        self._durations: list[float] = []
        """seconds of each run that was completed here"""
        self._done = {cell.name for cell in plan.cells if is_done(cell.folder)}
        self._left = len(plan.cells) - len(self._done)
        """runs that are not yet started"""

    def run(self) -> dict[str, RunFailed]:
        """Run every cell that is not done; the errors of those that failed, by name."""
        failed: dict[str, RunFailed] = {}
        total = len(self._cells)
        with closing(Console()) as console:
            console.say(self.announcement())
            for number, cell in enumerate(self._cells, 1):
                label, outcome = f"[{number:>{len(str(total))}}/{total}] {cell.name}", "done before"
                if cell.name not in self._done:
                    try:
                        self.run_one(cell, label, console)
                        outcome = _result(cell.folder)
                    except RunFailed as error:
                        failed[cell.name], outcome = error, f"failed; {error}"
                console.say(f"{label}: {outcome}")
        return failed

    def announcement(self) -> str:
        order = ", one after another," if len(self._cells) > 1 else ""
        runs = f"{several(len(self._cells), 'run')}{order} in {self._plan.folder}"
        each = self.expected()
        return f"{runs}: {clock(self._left * each)}" if math.isfinite(each) else runs

    def run_one(self, cell: Cell, label: str, console: Console) -> None:
        """Train, showing the progress of this run and of all."""
        self._left -= 1
        began = printed = time.monotonic()

        def watch() -> None:
            nonlocal printed
            now = time.monotonic()
            text = f"{label}  {self._progress(cell.folder, now - began)}"
            if not console.line(text) and now - printed >= EVERY:
                printed = now
                console.say(text)

        run_cell(cell, watch)
        self._durations.append(time.monotonic() - began)

    def _progress(self, folder: Path, elapsed: float) -> str:
        parts, last = ["starting"], last_report(folder / METRICS)
        if last is not None:
            parts = [f"{last['time']:.0f} s", f"{last['steps']:,} steps"]
            if last["episode_return"] is not None:
                parts.append(f"return {last['episode_return']:.1f}")
        each = self.expected()
        if math.isfinite(each):
            left = max(0.0, each - elapsed) + self._left * each
            share = 1 - left / each / len(self._cells)
            parts.append(f"all runs: {share:.0%}, {clock(left)} left")
        return " · ".join(parts)

    def expected(self) -> float:
        """Seconds of a run: those of the runs so far, or its budget."""
        if self._durations:
            return sum(self._durations) / len(self._durations)
        return math.inf if self._plan.seconds is None else self._plan.seconds + STARTUP


def _result(folder: Path) -> str:
    try:
        run = read_run(folder)
    except BadInput as error:
        return str(error)
    end = run.score("time", math.inf)
    score = "no episode ended" if end is None else f"return {end:.1f}"
    rate = "" if run.fps is None else f", {run.fps:,.0f} steps/s"
    return f"{score}{rate}, {run.last('steps'):,.0f} steps in {run.last('time'):.1f} s"


def _conclude(plan: BenchPlan, failed: dict[str, RunFailed]) -> int:
    """Compare all runs that there are, and list those that are missing; the exit code."""
    missing = [Missing(name, reason) for name, reason in plan.refused.items()]
    missing += [
        Missing(cell.name, f"{failed[cell.name].reason} ({log_of(cell.folder)})")
        for cell in plan.cells
        if cell.name in failed
    ]
    runs = list(plan.runs)
    variants = list(dict.fromkeys(cell.folder.parent for cell in plan.cells))
    for cell in sorted(plan.cells, key=lambda cell: variants.index(cell.folder.parent)):
        try:
            if (cell.folder / CONFIG).is_file():
                runs.append((cell.folder, read_run(cell.folder)))
        except BadInput as error:
            if cell.name not in failed:
                missing.append(Missing(cell.name, str(error)))
    if not any(run.state == "done" for _, run in runs):
        causes = "\n".join(f"{each.name}: {each.cause}" for each in missing)
        raise BadInput(f"no run came to its end\n{causes}")
    write(compare(runs, target=plan.target, failed=missing), plan.folder)
    return next((error.exit_code for error in failed.values()), 0)
