"""Progress of a run on the terminal."""

from __future__ import annotations

import io
import math
import os
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from ..run.report import LEARNING, Report

EXTRA_METRICS = 4
"""Metrics of bonuses, memories, teams, environments and users in a plain line."""
SHOWN_METRICS = {
    "KL": "approx_kl",
    "entropy": "entropy",
    "value loss": "value_loss",
    "explained variance": "explained_variance",
}
"""Columns of the live display, by their label, as far as the terminal is wide enough."""
STEPS_WIDTH, NUMBER_WIDTH, GAP = 11, 8, 2
"""Least widths of the columns, so that they stay where they are, and the space between two."""


class Console:
    """Live progress on a terminal; a plain line every few seconds when piped."""

    INTERVAL = 2.0
    """seconds between two plain lines"""
    QUIET = False
    """no progress, in a process whose parent shows it"""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout or _devnull()
        self._live: Any = None
        self._printed = -math.inf
        self._fps = 0.0
        self._shares: dict[str, float] = {}
        self._report: Report | None = None
        self._latest: dict[str, float] = {}
        """of each metric and the episode length, the last value that was reported"""
        self._line = ""
        """shown below the numbers until the next report"""
        self._started_at: float | None = None
        """when start-up began, until something else is shown"""
        self._shown_at: float | None = None
        """when the last report came, until the display is closed"""
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console as Terminal
            from rich.live import Live

            terminal = Terminal(file=self._stream, highlight=False, markup=False)
            self._live = Live(self, console=terminal, refresh_per_second=4)
            self._live.start()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._live is not None:
            self._try(lambda: self._live.console.print(self._wrapped(text), soft_wrap=True))
        else:
            self._try(lambda: print(text, file=self._stream, flush=True))

    def line(self, text: str) -> bool:
        """Print a line that the next one replaces; False if this is no terminal."""
        if self._live is None:
            return False
        self._line, self._started_at = text, None
        return True

    def starting(self, phase: str) -> None:
        """Show on a terminal what is done before the first report, and for how long so far."""
        began = self._started_at or time.monotonic()
        self.line(phase)
        self._started_at = began

    def progress(self, text: str) -> None:
        """A message that the next one replaces; on a pipe one every few seconds."""
        if self._started_at is not None:
            self.starting(text)
        elif not self.QUIET and not self.line(text) and self._due():
            self.say(text)

    def show(self, report: Report) -> None:
        """Update the progress."""
        if self.QUIET:
            return
        self._smooth(report)
        values = {**report.metrics, "episode_length": report.episode_length}
        known = {name: value for name, value in values.items() if value is not None}
        self._latest = {**self._latest, **known}  # a new one, as a thread draws the display
        self._report, self._shown_at, self._line = report, time.monotonic(), ""
        self._started_at = None
        if self._live is None and (self._due() or report.fraction >= 1):
            left = clock(self.time_left(report))
            details = "  ".join([*self._phases(), *self._extra_metrics()[:EXTRA_METRICS]])
            self.say(
                f"{report.fraction:4.0%}  {report.steps:>10,} steps  {self._fps:>9,.0f} steps/s  "
                f"return {_score(report):>8}  {left} left  {details}"
            )

    def time_left(self, report: Report) -> float:
        """Seconds until the run ends, with the evaluation at its end."""
        if report.fraction <= 0:
            return math.inf
        training = report.time * (1 - report.fraction) / report.fraction
        return training + report.evaluation_left

    def close(self) -> None:
        """Leave the numbers of the last report on the terminal."""
        if self._live is not None:
            self._line, self._shown_at = "", None
            self._try(self._live.stop)
            self._live = None

    def _try(self, write: Callable[[], Any]) -> None:
        """A closed pipe or terminal, or a full disk, does not stop training."""
        try:
            write()
        except (OSError, ValueError):  # ValueError: an environment has closed the stream
            with suppress(ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._stream = _devnull()

    def _due(self) -> bool:
        """Whether the last plain line is at least `INTERVAL` seconds ago."""
        now = time.monotonic()
        if now - self._printed < self.INTERVAL:
            return False
        self._printed = now
        return True

    def _smooth(self, report: Report) -> None:
        """Moving averages of the rate and of the phases' shares of the time."""
        weight = 0.1 if self._fps else 1.0
        self._fps += weight * (report.fps - self._fps)
        phases = report.t_rollout + report.t_learn + report.t_sync + report.t_other
        whole = max(report.t_iter, phases, 1e-9)
        shares = {}
        for phase in ("rollout", "wait", "learn", "sync", "other"):
            share = getattr(report, f"t_{phase}") / whole
            old = self._shares.get(phase, share)
            shares[phase] = old + weight * (share - old)
        self._shares = shares

    def _wrapped(self, text: str) -> str:
        """The text in lines of the terminal's width, broken between words."""
        wrapper = textwrap.TextWrapper(
            self._live.console.width,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        return "\n".join(map(wrapper.fill, text.split("\n")))

    def __rich__(self) -> Any:
        """The live display at the terminal's present width; rich asks at every refresh."""
        from rich.table import Table
        from rich.text import Text

        rows = Table.grid(expand=True)
        if self._report is not None:
            self._add_progress(rows, self._report)
        if self._line:
            began = self._started_at
            so_far = "" if began is None else f" … {clock(time.monotonic() - began)}"
            rows.add_row(Text(self._line + so_far))
        return rows

    def _add_progress(self, rows: Any, report: Report) -> None:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(ratio=1)
        bar.add_row(ProgressBar(total=1.0, completed=report.fraction), f"{report.fraction:.0%}")
        rows.add_row(bar)
        width = self._live.console.width
        columns = self._columns(report)
        while len(columns) > 1 and sum(size + GAP for *_, size in columns) - GAP > width:
            columns.pop()
        gap = " " * GAP
        labels = gap.join(f"{label:>{size}}" for label, _, size in columns)
        values = gap.join(f"{value:>{size}}" for _, value, size in columns)
        lines = [(labels, "dim"), (values, ""), (_fit(self._phases(), width), "dim")]
        if extra := _fit(self._extra_metrics(), width):
            lines.append((extra, ""))
        for text, style in lines:
            rows.add_row(Text(text, style, no_wrap=True, overflow="crop"))

    def _columns(self, report: Report) -> list[tuple[str, str, int]]:
        """Label, value and width of each column, the most important one first."""
        elapsed, left = report.time, self.time_left(report)
        if self._shown_at is not None:
            since = time.monotonic() - self._shown_at
            elapsed, left = elapsed + since * (report.fraction < 1), max(0.0, left - since)
        length = self._latest.get("episode_length")
        cells = {
            "steps": f"{report.steps:,}",
            "steps/s": f"{self._fps:,.0f}",
            "return": _score(report),
            "elapsed": clock(elapsed),
            "left": clock(left),
            "episode length": "–" if length is None else f"{length:.1f}",
        }
        for label, name in SHOWN_METRICS.items():
            if name in self._latest:  # not every algorithm has each
                cells[label] = _short(self._latest[name])
        least = {"steps": STEPS_WIDTH}
        return [
            (label, value, max(len(label), len(value), least.get(label, NUMBER_WIDTH)))
            for label, value in cells.items()
        ]

    def _phases(self) -> list[str]:
        """The phases' shares of the time."""
        shown = {name: share for name, share in self._shares.items() if share >= 0.005}
        wait = shown.pop("wait", None)
        parts = [f"{name} {share:.0%}" for name, share in shown.items()]
        if wait is not None:  # a part of rollout
            parts.insert(1, f"(waiting {wait:.0%})")
        return parts

    def _extra_metrics(self) -> list[str]:
        """Metrics that not every run has."""
        usual = {*LEARNING, "episode_length"}
        return [f"{name} {value:.3g}" for name, value in self._latest.items() if name not in usual]


class WarningConsole(Console):
    """For ranks other than 0: prints warnings only, with the rank."""

    def __init__(self, rank: int) -> None:
        super().__init__(io.StringIO())
        self._rank = rank

    def say(self, text: str) -> None:
        if text.startswith("warning: "):
            print(f"rank {self._rank}: {text}", file=sys.stderr, flush=True)

    def show(self, report: Report) -> None:
        pass

    def progress(self, text: str) -> None:
        pass


def _score(report: Report) -> str:
    return "–" if report.recent_return is None else f"{report.recent_return:.1f}"


def _short(value: float) -> str:
    """Three digits, or two where the exponent takes their room."""
    text = f"{value:.3g}"
    return text if len(text) <= NUMBER_WIDTH else f"{value:.2g}"


def _fit(parts: list[str], width: int) -> str:
    """As many of the parts as fit into a line, none of them cut."""
    line = ""
    for part in parts:
        longer = f"{line}{' ' * GAP}{part}" if line else part
        if len(longer) <= width:
            line = longer
    return line


def _devnull() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def clock(seconds: float) -> str:
    """`1:02:03`, `2:03`, or `–` if infinite."""
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
