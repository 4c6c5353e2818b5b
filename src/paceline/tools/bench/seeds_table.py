"""What the runs of several seeds came to: a line for each, and their mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ...config.text import several
from ...errors import BadInput, StoppedEarly
from ...run.directory import CONFIG, writing
from ...storage.files import replace_file, shown
from .compare.format import duration, ends, number
from .compare.history import is_done, read_run
from .compare.statistics import Estimate, mean_interval
from .seeds_plan import TABLE, SeedsPlan, write_plan
from .tables import as_csv, text_table


@dataclass(frozen=True)
class SeedRow:
    """How one seed's run has ended; None where it has nothing to show."""

    seed: int
    state: str
    """`done`, `failed`, `cut short` or `not begun`"""
    steps: float | None = None
    time: float | None = None
    """seconds of training"""
    fps: float | None = None
    evaluation: float | None = None
    """mean return of the evaluation at the end"""
    episode_return: float | None = None
    """mean return of the last 100 episodes of training"""
    evaluates: bool = True
    """whether its runs are evaluated at the end"""

    def score(self, evaluates: bool) -> float | None:
        return self.evaluation if evaluates else self.episode_return


def seed_row(seed: int, folder: Path, code: int | None) -> SeedRow:
    """From its run directory; `code` is its exit code, if it was run just now."""
    failed = code not in (None, 0, StoppedEarly.exit_code)
    if not (folder / CONFIG).is_file():
        return SeedRow(seed, "failed" if failed else "not begun")
    try:
        run = read_run(folder)
    except BadInput:
        return SeedRow(seed, "failed")
    return SeedRow(
        seed,
        "failed" if failed else "done" if code == 0 or is_done(folder) else "cut short",
        run.last("steps"),
        run.last("time"),
        run.fps,
        run.evaluation,
        run.score("time", math.inf),
        bool(run.config.eval_episodes),
    )


def mean_of(rows: list[SeedRow]) -> Estimate:
    """Over the seeds that are done."""
    return mean_interval([row.score(_evaluates(rows)) for row in rows if row.state == "done"])


def _evaluates(rows: list[SeedRow]) -> bool:
    return all(row.evaluates for row in rows)


def write_results(rows: list[SeedRow], mean: Estimate, plan: SeedsPlan) -> None:
    """A row for each seed in seeds.csv, and the mean in seeds.json."""
    values = [{n: v for n, v in vars(row).items() if n != "evaluates"} for row in rows]
    column = "evaluation" if _evaluates(rows) else "episode_return"
    result = {"of": column, "mean": mean.value, "ci_low": mean.low, "ci_high": mean.high}
    with writing(f"output_dir {shown(plan.folder)}"):
        replace_file(plan.folder / TABLE, as_csv(values))
        write_plan(plan, result=result)


def table(rows: list[SeedRow], mean: Estimate) -> str:
    """A line for each seed, and the mean."""
    score = "evaluation" if _evaluates(rows) else "return (last 100)"
    head = ["seed", "steps", "training time", "steps/s", score, ""]
    lines = [_line(row, _evaluates(rows)) for row in rows]
    return "\n".join([text_table([head, *lines]), *_summary(rows, mean)])


def _line(row: SeedRow, evaluates: bool) -> list[str]:
    shown = [number(row.steps), duration(row.time), number(row.fps), number(row.score(evaluates))]
    return [str(row.seed), *shown, "" if row.state == "done" else row.state]


def _summary(rows: list[SeedRow], mean: Estimate) -> list[str]:
    """The mean over seeds, with its interval if there are two or more."""
    done = sum(row.state == "done" for row in rows)
    counted = several(done, "seed") if done == len(rows) else f"{done} of {len(rows)} seeds"
    if mean.value is None:
        return []
    interval = f", 95% interval {ends(mean)}" if mean.low is not None else ""
    return [f"mean {number(mean.value)} over {counted}{interval}"]
