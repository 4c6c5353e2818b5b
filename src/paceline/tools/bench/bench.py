"""`paceline bench`: algorithms × ways of running, for an equal budget, one run after another."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...cli.console import Console, clock
from ...config.registry import ALGORITHMS
from ...config.schema import ALIASES
from ...config.text import several
from ...errors import BadInput, StoppedEarly
from ...run.directory import CONFIG, EVALUATION, METRICS
from ...storage.files import open_plain, read_plain, replace_file
from ...storage.lock import locked
from .arguments import held
from .bench_plan import MODES, PLAN, Cell, Matrix, matrix_of
from .compare.command import compare
from .compare.history import History, read_run
from .compare.report import Missing, write
from .runs import cause, ended_by_signals, exit_code, flags_of, gist, started

USAGE = """\
paceline bench [--algos ppo,a2c,a3c,impala] [--modes sequential,parallel,ranks]
               [--duration 2m] [--seeds 3] [--OPTION OF TRAIN VALUE ...]

  Trains with every algorithm in every way for an equal budget, one run after another so that
  they do not disturb each other, and compares them: a table, comparison.png, report.html.

  --algos a,b          what is compared [ppo,a2c,a3c,impala]
  --modes a,b          ways of running: in one process, with as many worker processes, or with as
                       many ranks as there are CPUs [sequential,parallel,ranks]
  --num-workers N      workers of the parallel cells, and a3c's learners [as many as CPUs]
  --ranks N            ranks of the cells with ranks [as many as CPUs]
  --duration, --total-steps   the budget of every run [--duration 2m]
  --seeds N            runs of each cell [3]
  --first-seed N       the first of their seeds [0]
  --target-return R    measure the time and the steps to this return
  --output-dir DIR     where to [runs/bench-<env>-<time>]
  --resume DIR         go on where it was interrupted, and try again what has failed
  --overwrite          replace the benchmark that DIR holds

`paceline train --help` documents all other options, which are passed on to the runs.
"""
TICK = 0.25
EVERY = 10.0
"""Seconds between two lines of progress, where nobody watches live."""
STARTING = 4.0
"""Seconds that a run takes beside its budget, before any has told."""


def command(arguments: list[str]) -> int:
    """The exit code."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    return run(matrix_of(arguments))


def run(matrix: Matrix) -> int:
    """Everything that is not done yet, and the comparison of all; the exit code."""
    with locked(matrix.folder), ended_by_signals():
        _claim(matrix)
        try:
            failed = Bench(matrix).run()
        except KeyboardInterrupt:
            raise StoppedEarly(
                f"interrupted; go on with `paceline bench --resume {matrix.folder}`"
            ) from None
        return _conclude(matrix, failed)


def _claim(matrix: Matrix) -> None:
    """The same benchmark goes on; another needs a place of its own."""
    plan = matrix.folder / PLAN
    if not plan.exists():
        if names := held(matrix.folder):
            raise BadInput(
                f"--output-dir {matrix.folder} is not empty ({names[0]}), and holds no benchmark; "
                "choose another"
            )
    elif not matrix.overwrite:
        try:
            known = json.loads(read_plain(plan, 2**20))["arguments"]
        except (OSError, ValueError, KeyError, TypeError):
            known = None
        if known != matrix.arguments:
            raise BadInput(
                f"{matrix.folder} holds another benchmark; go on with it by `paceline bench "
                f"--resume {matrix.folder}`, choose another --output-dir, or give --overwrite"
            )
        return
    else:
        for algo in (*ALGORITHMS, *ALIASES):  # whichever it had; the rest is not ours
            for mode in MODES:
                old = matrix.folder / Cell(algo, mode, {}).folder(0).parent
                shutil.rmtree(old, ignore_errors=True)
    replace_file(plan, json.dumps({"arguments": matrix.arguments}, indent=1).encode())


class Bench:
    """The runs, one after another, and what is known of how long they take."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix, self._jobs = matrix, matrix.jobs()
        self._taken: list[float] = []
        """seconds of each run that came to its end"""
        self._done = [_done(matrix.folder / cell.folder(seed)) for cell, seed in self._jobs]
        self._left = self._done.count(False)
        """runs that are still to come"""
        self._failed: dict[str, tuple[str, int]] = {}

    def run(self) -> dict[str, tuple[str, int]]:
        """Everything that is not done yet; the causes and exit codes of what failed."""
        with _console() as console:
            console.say(self._announcement())
            for number, (cell, seed) in enumerate(self._jobs, 1):
                title = f"[{number:>{len(str(len(self._jobs)))}}/{len(self._jobs)}]"
                name = f"{title} {_name(cell, seed)}"
                if self._done[number - 1]:
                    console.say(f"{name}: done before")
                    continue
                self._left -= 1
                self._one(cell, seed, self._matrix.folder / cell.folder(seed), name, console)
        return self._failed

    def _announcement(self) -> str:
        order = ", one after another," if len(self._jobs) > 1 else ""
        runs = f"{several(len(self._jobs), 'run')}{order} in {self._matrix.folder}"
        each = self._expected(self._jobs[0][0])
        return f"{runs}: {clock(self._left * each)}" if math.isfinite(each) else runs

    def _one(self, cell: Cell, seed: int, folder: Path, name: str, console: Console) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        log, began, said = folder.with_suffix(".log"), time.monotonic(), time.monotonic()
        log.unlink(missing_ok=True)
        with started(self._arguments(cell, seed, folder), log) as process:
            while (code := process.poll()) is None:
                time.sleep(TICK)
                progress = self._progress(folder, cell, time.monotonic() - began)
                live = console.line(f"{name}  {progress}")
                if not live and time.monotonic() - said >= EVERY:
                    said = time.monotonic()
                    console.say(f"{name}  {progress}")
        if code:
            words = cause(log, code)
            self._failed[_name(cell, seed)] = f"{gist(words)} ({log})", exit_code(code)
            console.say(f"{name}: failed; {words}")
        else:
            self._taken.append(time.monotonic() - began)
            console.say(f"{name}: {_told(folder)}")

    def _arguments(self, cell: Cell, seed: int, folder: Path) -> list[str]:
        if (folder / CONFIG).is_file():
            return ["resume", str(folder)]
        flags = flags_of(cell.options | {"seed": str(seed)})
        return ["train", f"--output-dir={folder}", "--overwrite", *flags]

    def _progress(self, folder: Path, cell: Cell, taken: float) -> str:
        """Of this run, and of the whole."""
        last = _last_line(folder / METRICS)
        parts = ["starting"]
        if last is not None:
            parts = [f"{last['time']:.0f} s", f"{last['steps']:,} steps"]
            if last.get("episode_return") is not None:
                parts.append(f"return {last['episode_return']:.1f}")
        each = self._expected(cell)
        if math.isfinite(each):
            left = max(0.0, each - taken) + self._left * each
            share = (len(self._jobs) - left / each) / len(self._jobs)
            parts.append(f"the whole: {share:.0%}, {clock(left)} left")
        return " · ".join(parts)

    def _expected(self, cell: Cell) -> float:
        """Seconds of a run."""
        if self._taken:
            return sum(self._taken) / len(self._taken)
        return math.inf if cell.seconds is None else cell.seconds + STARTING


@contextmanager
def _console() -> Iterator[Console]:
    console = Console()
    try:
        yield console
    finally:
        console.close()


def _name(cell: Cell, seed: int) -> str:
    return f"{cell.name} · seed {seed}"


def _done(folder: Path) -> bool:
    """Trained to the end, and evaluated."""
    try:
        return (folder / EVALUATION).is_file() and read_run(folder).state == "done"
    except BadInput:
        return False


def _told(folder: Path) -> str:
    try:
        run = read_run(folder)
    except BadInput as error:
        return str(error)
    end = run.score("time", math.inf)
    score = "no episode ended" if end is None else f"return {end:.1f}"
    rate = "" if run.fps is None else f", {run.fps:,.0f} steps/s"
    return f"{score}{rate}, {run.last('steps'):,.0f} steps in {run.last('time'):.1f} s"


def _last_line(path: Path) -> dict[str, Any] | None:
    """The newest whole report of a run, if there is one."""
    try:
        with open_plain(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 4096))
            lines = file.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        found = json.loads(whole[-1])
        return found if isinstance(found, dict) else None
    except (OSError, ValueError, IndexError):
        return None


def _conclude(matrix: Matrix, failed: dict[str, tuple[str, int]]) -> int:
    """The comparison of all runs that there are, with what is missing."""
    missing = [Missing(c.name, c.refused) for c in matrix.cells if c.refused is not None]
    missing += [Missing(name, said) for name, (said, _) in failed.items()]
    runs: list[tuple[Path, History]] = []
    for cell, seed in sorted(matrix.jobs(), key=lambda job: matrix.cells.index(job[0])):
        folder = matrix.folder / cell.folder(seed)
        try:
            if (folder / CONFIG).is_file():
                runs.append((folder, read_run(folder)))
        except BadInput as error:
            if _name(cell, seed) not in failed:  # which has said so already
                missing.append(Missing(_name(cell, seed), str(error)))
    code = next((code for _, code in failed.values()), 0)
    if not any(run.state == "done" for _, run in runs):
        causes = "\n".join(f"{each.name}: {each.cause}" for each in missing)
        raise BadInput(f"no run came to its end\n{causes}")
    write(compare(runs, target=matrix.target, failed=missing), matrix.folder)
    return code
