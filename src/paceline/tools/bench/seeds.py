"""`paceline train --seeds N`, and `resume` of its directory: a run for every seed, and a table."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ...cli.console import Console, clock
from ...config.text import several
from ...errors import BadInput, StoppedEarly
from ...processes.hardware import available_cpus
from ...processes.lifetime import exit_reason, wait_readable
from ...processes.stopping import Stop, handle_stop_signals
from ...run.budget import Budget, Progress
from ...run.directory import CONFIG, METRICS, run_facts
from ...run.saved import plain_config
from ...storage.compiler_cache import CACHE, compiled_cache
from ...storage.files import shown
from ...storage.lock import locked
from .compare.history import is_done, last_report
from .runs import ERROR_PREFIX, GRACE, TICK, Cell, calibrate, run_command, started
from .seeds_plan import SeedsPlan, claim, new_plan, plain_options, saved_plan, write_plan
from .seeds_table import mean_of, seed_row, table, write_results

EVERY = 10.0
"""Seconds between two lines of progress of a run where the output is no terminal."""
REFRESH = 0.5
"""Seconds between two updates of the progress on a terminal."""
MAX_LINE = 2**16
"""Bytes after which output without a line's end is shown."""


def train_command(arguments: list[str]) -> int:
    """`paceline train … --seeds N`; the exit code."""
    plan = new_plan(arguments)
    if plan.config.parallel is not None:
        plan = _calibrated(plan)
    with locked(plan.folder):
        claim(plan)
        return _run(plan)


def _calibrated(plan: SeedsPlan) -> SeedsPlan:
    """With processes that are chosen once, for all seeds."""
    config = calibrate(plan.config)
    return replace(plan, config=config, options=plain_options(config))


def resume_command(folder: Path, changes: dict[str, str]) -> int:
    """`paceline resume` of a directory with several seeds; the exit code."""
    plan = saved_plan(folder, changes)
    with locked(plan.folder):
        if changes:
            write_plan(plan)
        return _run(plan)


def _run(plan: SeedsPlan) -> int:
    """Train every seed that is not done, and print the table; the highest exit code of a seed."""
    os.environ.setdefault(CACHE, compiled_cache())
    stop = Stop(insist=False)
    with closing(Console()) as console, handle_stop_signals(stop.handle):
        runs = SeedRuns(plan, console, stop)
        runs.run()
    rows = [seed_row(seed, plan.cell(seed).folder, runs.codes.get(seed)) for seed in plan.seeds]
    if stop() and any(row.state != "done" for row in rows):
        raise StoppedEarly(
            f"stopped by {stop.name}; go on with `paceline resume {shown(plan.folder)}`"
        )
    mean = mean_of(rows)
    write_results(rows, mean, plan)
    print(f"\n{table(rows, mean)}")
    return max(runs.codes.values(), default=0)


@dataclass
class Running:
    """The run of a seed, while its process runs."""

    cell: Cell
    process: subprocess.Popen[bytes]
    budget: Budget | None = None
    """known once the run has begun"""
    unread: bytes = b""
    """the beginning of a line"""
    closed: bool = False
    """whether nothing more will be printed"""

    @property
    def output(self) -> int:
        """Descriptor of what it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def lines(self, ended: bool) -> list[str]:
        """What the process has printed since the last call, in whole lines; all, if it `ended`."""
        part = self._read()
        while part and ended:
            self.unread, part = self.unread + part, self._read()
        *whole, self.unread = (self.unread + part).split(b"\n")
        if ended or len(self.unread) > MAX_LINE:
            whole, self.unread = [*whole, self.unread], b""
        texts = [line.decode(sys.stdout.encoding or "utf-8", "replace").rstrip() for line in whole]
        return [text for text in texts if text]

    def _read(self) -> bytes:
        try:
            part = os.read(self.output, MAX_LINE)
        except BlockingIOError:  # another process that it has started may keep it open
            return b""
        self.closed = not part
        return part

    def progress(self) -> str:
        """How far it is, in one line."""
        last = last_report(self.cell.folder / METRICS)
        if last is None:
            return "starting"
        if self.budget is None:
            self.budget = Budget.of(plain_config(self.cell.folder))
        steps, seconds, score = last["steps"], last["time"], last["episode_return"]
        spent = self.budget.fraction(Progress(last["iter"], steps, seconds))
        left = clock(seconds * (1 - spent) / spent if spent else math.inf)
        rate = steps / seconds if seconds else 0.0
        return (
            f"{spent:4.0%}  {steps:>10,} steps  {rate:>9,.0f} steps/s  "
            f"return {'–' if score is None else f'{score:.1f}':>8}  {left} left"
        )


class SeedRuns:
    """Runs the seeds, as many at once as there are CPUs for."""

    def __init__(self, plan: SeedsPlan, console: Console, stop: Stop) -> None:
        self._plan, self._console, self._stop = plan, console, stop
        done = [] if plan.changes else [s for s in plan.seeds if is_done(plan.cell(s).folder)]
        self._waiting = [seed for seed in plan.seeds if seed not in done]
        self._first = self._waiting[0] if self._waiting else None
        self._running: dict[int, Running] = {}
        self._processes = ExitStack()
        self.codes: dict[int, int] = {}
        """exit codes of the runs that have ended here, by seed"""
        self._kill_at = math.inf
        """when runs that were told to stop are killed"""
        self._shown = self._printed = -math.inf

    def run(self) -> None:
        """Until every seed has ended, or the running ones have been stopped by a signal."""
        console, plan = self._console, self._plan
        before = len(plan.seeds) - len(self._waiting)
        already = f", {before} of them done before" if before else ""
        console.say(f"{several(len(plan.seeds), 'seed')} in {shown(plan.folder)}{already}")
        with self._processes:
            while self._running or self._waiting:
                if self._stop() and math.isinf(self._kill_at):
                    self._tell_to_stop()
                while self._waiting and len(self._running) < self._at_once():
                    self._start(self._waiting.pop(0))
                self._wait()
                for seed in list(self._running):
                    self._follow(seed)
                self._show()
        console.line("")

    def _at_once(self) -> int:
        """How many runs may be running now: one if each is several processes.

        A run writes its run.json when it has compiled its step, which the others then find in the
        cache, and has chosen how many threads it learns with, as they will.
        """
        if not self._plan.one_process or self._plan.config.pin or self._first is None:
            return 1
        choices = run_facts(self._plan.cell(self._first).folder).get("choices")
        threads = choices.get("threads") if isinstance(choices, dict) else None
        return max(1, available_cpus() // threads) if isinstance(threads, int) and threads else 1

    def _start(self, seed: int) -> None:
        cell, entry = self._plan.cell(seed), f"{__name__}:run_seed"
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = self._processes.enter_context(started(cell, cell.folder, entry, **streams))
        run = self._running[seed] = Running(cell, process)
        os.set_blocking(run.output, False)

    def _wait(self) -> None:
        """Until a run prints something, or for a tick."""
        wait_readable([run.output for run in self._running.values() if not run.closed], TICK)

    def _follow(self, seed: int) -> None:
        """Show what a run has printed, and note its end."""
        run = self._running[seed]
        code = run.process.poll()
        for line in run.lines(ended=code is not None):
            self._console.say(f"seed {seed}: {line.removeprefix(ERROR_PREFIX)}")
        if code is None:
            if time.monotonic() > self._kill_at:
                run.process.kill()
            return
        assert run.process.stdout is not None
        run.process.stdout.close()
        del self._running[seed]
        self.codes[seed] = code if code >= 0 else StoppedEarly.exit_code
        if code < 0 and not self._stop():
            self._console.say(f"seed {seed}: its process {exit_reason(code)}")
        if code == BadInput.exit_code and not (run.cell.folder / CONFIG).exists():
            self._waiting.clear()  # what is wrong with its options is wrong with all

    def _tell_to_stop(self) -> None:
        self._waiting.clear()
        self._kill_at = time.monotonic() + GRACE
        self._console.say(
            f"{self._stop.name}: every running seed finishes its iteration and is saved; "
            "again to quit now"
        )
        for run in self._running.values():
            run.process.terminate()

    def _show(self) -> None:
        """One line for each running seed: live, or printed now and then."""
        now = time.monotonic()
        if now - self._shown < REFRESH:
            return
        self._shown = now
        rows = []
        for seed, run in self._running.items():
            with suppress(
                BadInput, KeyError, TypeError, ValueError
            ):  # a damaged run, which says so
                rows.append(f"seed {seed}: {run.progress()}")
        if not self._console.line("\n".join(rows)) and now - self._printed >= EVERY:
            self._printed = now
            for row in rows:
                self._console.say(row)


def run_seed(arguments: list[str]) -> None:
    """In a process of its own: `paceline` with these arguments, without lines of progress."""
    Console.QUIET = True
    run_command(arguments)
