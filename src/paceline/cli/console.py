"""Progress of a run on the terminal."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from ..run.report import LEARNING, Report

EXTRA_METRICS = 4
"""Metrics of bonuses, memories, teams and user losses that fit on the line."""


class Console:
    """Live progress on a terminal; a plain line every few seconds when piped."""

    INTERVAL = 2.0
    """seconds between two plain lines"""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout or _devnull()
        self._live: Any = None
        self._printed = -math.inf
        self._fps = 0.0
        self._shares: dict[str, float] = {}
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            from rich.live import Live

            self._live = Live(refresh_per_second=8, transient=False)
            self._live.start()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._live is not None:
            plain = {"highlight": False, "markup": False, "soft_wrap": True}
            self._try(lambda: self._live.console.print(text, **plain))
        else:
            self._try(lambda: print(text, file=self._stream, flush=True))

    def line(self, text: str) -> bool:
        """Print a line that the next one replaces; False if this is no terminal."""
        if self._live is None:
            return False
        from rich.text import Text

        self._try(lambda: self._live.update(Text(text)))
        return True

    def progress(self, text: str) -> None:
        """A message that the next one replaces; on a pipe one every few seconds."""
        if not self.line(text) and time.monotonic() - self._printed >= self.INTERVAL:
            self._printed = time.monotonic()
            self.say(text)

    def _try(self, write: Callable[[], Any]) -> None:
        """A closed pipe or terminal, or a full disk, does not stop training."""
        try:
            write()
        except (OSError, ValueError):  # ValueError: an environment has closed the stream
            with suppress(ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._stream = _devnull()

    def show(self, report: Report) -> None:
        """Update the progress."""
        self._smooth(report)
        spent = report.fraction
        left = clock(report.time * (1 - spent) / spent if spent > 0 else math.inf)
        score = "–" if report.recent_return is None else f"{report.recent_return:.1f}"
        if self._live is not None:
            self._try(lambda: self._live.update(self._panel(report, score, left)))
        elif spent >= 1 or time.monotonic() - self._printed >= self.INTERVAL:
            self._printed = time.monotonic()
            self.say(
                f"{spent:4.0%}  {report.steps:>10,} steps  {self._fps:>9,.0f} steps/s  "
                f"return {score:>8}  {left} left  {self._details(report)}"
            )

    def _smooth(self, report: Report) -> None:
        """Moving averages of the rate and of the phases' shares of the time."""
        weight = 0.1 if self._fps else 1.0
        self._fps += weight * (report.fps - self._fps)
        phases = report.t_rollout + report.t_learn + report.t_sync + report.t_other
        whole = max(report.t_iter, phases, 1e-9)
        for phase in ("rollout", "wait", "learn", "sync", "other"):
            share = getattr(report, f"t_{phase}") / whole
            old = self._shares.get(phase, share)
            self._shares[phase] = old + weight * (share - old)

    def _panel(self, report: Report, score: str, left: str) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        numbers = Table.grid(padding=(0, 2))
        for _ in range(5):
            numbers.add_column(justify="right")
        numbers.add_row("steps", "steps/s", "return (last 100)", "elapsed", "left", style="dim")
        rate = f"{self._fps:,.0f}"
        numbers.add_row(f"{report.steps:,}", rate, score, clock(report.time), left)
        rows = Table.grid()
        rows.add_row(ProgressBar(total=1.0, completed=report.fraction, width=60))
        rows.add_row(numbers)
        rows.add_row(Text(self._details(report), style="dim"))
        return rows

    def _details(self, report: Report) -> str:
        """The phases' shares of the time, and metrics that not every run has."""
        shown = {name: share for name, share in self._shares.items() if share >= 0.005}
        wait = shown.pop("wait", None)
        parts = [f"{name} {share:.0%}" for name, share in shown.items()]
        if wait is not None:  # a part of rollout
            parts.insert(1, f"(waiting {wait:.0%})")
        own = [f"{n} {v:.3g}" for n, v in report.metrics.items() if n not in LEARNING]
        return "  ".join([*parts, *own[:EXTRA_METRICS]])

    def close(self) -> None:
        if self._live is not None:
            self._try(self._live.stop)
            self._live = None


class WarningConsole(Console):
    """For ranks other than 0: prints warnings only, with the rank."""

    def __init__(self, rank: int) -> None:
        self._rank, self._live = rank, None

    def say(self, text: str) -> None:
        if text.startswith("warning: "):
            print(f"rank {self._rank}: {text}", file=sys.stderr, flush=True)

    def show(self, report: Report) -> None:
        pass

    def progress(self, text: str) -> None:
        pass


def _devnull() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def clock(seconds: float) -> str:
    """`1:02:03`, `2:03`, or `–` if infinite."""
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
