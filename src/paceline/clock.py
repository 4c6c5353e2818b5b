"""Clock: what a run's time goes to beside the ring."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from .budget import Progress
from .metrics import Report


class Clock:
    """Times a run's start, its evaluations and its checkpoints."""

    def __init__(self, asked: float, progress: Progress) -> None:
        self._asked, self._progress = asked, progress
        self._begun, self._iter = progress.time, progress.iter
        self.resumed = progress.iter > 0
        self.startup: float | None = None
        """seconds from when the run was asked for to its first step"""
        self._spent = {"eval": 0.0, "save": 0.0}
        """since the last report"""
        self._total = {"eval": 0.0, "save": 0.0}

    def start(self, report: Report) -> float:
        """At the first report: how long it took until the first step."""
        self.startup = max(0.0, time.monotonic() - self._asked - (report.time - self._begun))
        return self.startup

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is done within counts as this part of the time."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._spent[name] += time.monotonic() - began

    def apart(self, report: Report) -> Report:
        """The report, with what was spent between it and the one before, for each iteration."""
        iters, self._iter = max(1, report.iter - self._iter), report.iter
        spent = self._spent
        for name, seconds in spent.items():
            self._total[name] += seconds
        self._spent = dict.fromkeys(spent, 0.0)
        return replace(report, t_eval=spent["eval"] / iters, t_save=spent["save"] / iters)

    def summary(self) -> str:
        """Where the time of this session went."""
        taken = self._progress.time - self._begun
        before = f" after {self._begun:.1f} s before" if self.resumed else ""
        return (
            f"trained for {taken:.1f} s{before}, in which evaluations took "
            f"{self._total['eval']:.1f} s and checkpoints {self._total['save']:.1f} s; what "
            "follows is not counted"
        )
