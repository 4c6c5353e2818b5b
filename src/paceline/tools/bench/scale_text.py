"""summary.txt of `paceline scale`: the table, and the sentences that name the bottleneck."""

from __future__ import annotations

import math

from ...config.text import several
from ...processes.hardware import available_cpus, cpu_name
from .scale_plan import ScalePlan
from .scale_summary import Spread, SummaryRow, named, processes
from .tables import text_table

HEAD = (
    *("steps/s", "speed-up (95 %)", "ideal", "ceiling", "efficiency"),
    *("sampling", "waiting", "learning", "sync", "other", "memory"),
)
NEAR = 0.9
"""Share of the ideal, or of the ceiling, from which there is nothing to explain."""
STEADY = 0.15
"""Relative deviation of the ceiling up to which it describes the machine."""
CAUSES = {
    "workers": {
        "rollout": "sampling (waking workers, waiting for the slowest, environments too cheap to "
        "be worth a process)",
        "learn": "learning, which only ranks and a3c's workers share",
        "sync": "the exchange of gradients",
        "other": "logs, checkpoints and evaluation",
    },
    "ranks": {
        "rollout": "sampling (each rank acts on fewer environments at once)",
        "learn": "learning (smaller minibatches cost more per row)",
        "sync": "the exchange of gradients (fewer, larger minibatches need fewer)",
        "other": "logs, checkpoints and evaluation",
    },
}
"""What takes the time of each phase, by what is counted."""


def title(plan: ScalePlan) -> str:
    way = "weak" if plan.weak else "strong"
    algo = plan.training.flags.get("algo", plan.base.algo_section)  # which may be an alias
    return f"{algo.upper()} on {plan.base.env_name}: {way} scaling over {plan.kind}"


def describe_runs(plan: ScalePlan) -> str:
    """What was measured, and where."""
    each = f" for each of the {plan.kind}" if plan.weak else ""
    return (
        f"{plan.base.num_envs} environments{each} × {plan.base.rollout_steps} steps · "
        f"{several(plan.repeats, 'repeat')} · {cpu_name()}, {available_cpus()} CPUs"
    )


def table(rows: list[SummaryRow], kind: str) -> str:
    """One line for each count."""
    lines = [[kind, *HEAD], *(_cells(row) for row in rows)]
    if any(row.reached for row in rows):
        lines[0] += ["time to score", "speed-up"]
        for line, row in zip(lines[1:], rows, strict=True):
            line += _score(row)
    return text_table(lines)


def _cells(row: SummaryRow) -> list[str]:
    return [
        str(row.count),
        _plus_minus(row.fps, ",.0f"),
        _interval(row.speedup),
        f"{row.ideal:g}",
        _mean(row.ceiling, ".2f"),
        _mean(row.efficiency, ".0%"),
        *(f"{share:.0%}" for share in row.shares.values()),
        f"{row.memory_mb:,.0f} MB",
    ]


def _score(row: SummaryRow) -> list[str]:
    if not row.reached:
        return ["not reached", "–"]
    part = "" if row.reached == row.repeats else f" ({row.reached} of {row.repeats})"
    return [f"{_plus_minus(row.time_to_score, '.1f')} s{part}", _interval(row.score_speedup)]


def _mean(spread: Spread, form: str) -> str:
    return "–" if spread.mean is None else f"{spread.mean:{form}}"


def _plus_minus(spread: Spread, form: str) -> str:
    return _mean(spread, form) + (f" ± {spread.std:{form}}" if spread.std is not None else "")


def _interval(spread: Spread) -> str:
    if spread.ci_low is None:
        return _mean(spread, ".2f")
    return f"{spread.mean:.2f} ({spread.ci_low:.2f} to {spread.ci_high:.2f})"


def bottleneck(rows: list[SummaryRow], kind: str, cpus: int) -> str:
    """What keeps the largest count from its ideal, and how sure that is."""
    base, last = rows[0], rows[-1]
    if base is last or not last.speedup.mean:
        return f"Only {named(base.count, kind)} was measured: there is nothing to compare."
    text = (
        f"{named(last.count, kind).capitalize()} made {last.speedup.mean:.2f} times the steps/s of "
        f"{named(base.count, kind)}, where {last.ideal:g} would be ideal"
    )
    if last.ceiling.mean:
        text += f" and {last.ceiling.mean:.2f} is what independent processes reach here"
    text += f". {_cause(base, last, kind, cpus)}"
    best = max(rows, key=lambda row: row.fps.mean or 0.0)
    if best is not last:
        text += f" The fastest is {named(best.count, kind)}."
    low, high = last.speedup.ci_low, last.speedup.ci_high
    if low is not None and high is not None and low < 1 < high:
        text += " This may be noise: the interval of the speed-up includes 1."
    if not _steady(last.ceiling):
        text += (
            " The machine was not quiet: the speed of independent runs varied. Measure again "
            "while nothing else runs, or with more --repeats."
        )
    return text


def _steady(spread: Spread) -> bool:
    return (spread.std or 0.0) <= STEADY * (spread.mean or 0.0)


def _cause(base: SummaryRow, last: SummaryRow, kind: str, cpus: int) -> str:
    speedup = last.speedup.mean or 0.0
    if speedup >= NEAR * last.ideal:
        return "It scales: there is no bottleneck to name."
    crowded = processes(last.count) > cpus
    if _steady(last.ceiling) and speedup >= NEAR * (last.ceiling.mean or math.inf):
        few = f", which has {cpus} CPUs" if crowded else ""
        return f"The bottleneck is the machine itself{few}: as many independent runs gain no more."
    causes = CAUSES[kind]
    lost = {phase: _cost(last, phase) - _cost(base, phase) / last.ideal for phase in causes}
    worst = max(lost, key=lambda phase: lost[phase])
    share = lost[worst] / sum(loss for loss in lost.values() if loss > 0)
    few = f" {named(last.count, kind).capitalize()} share {cpus} CPUs." if crowded else ""
    return (
        f"The bottleneck is {causes[worst]}: {_share(last, worst):.0%} of the time, and "
        f"{share:.0%} of what is lost against the ideal.{few}"
    )


def _share(row: SummaryRow, phase: str) -> float:
    """Of an iteration's time; waiting for workers counts as sampling."""
    return row.shares[phase] + (row.shares["wait"] if phase == "rollout" else 0.0)


def _cost(row: SummaryRow, phase: str) -> float:
    """Seconds of a phase per step."""
    return _share(row, phase) / (row.fps.mean or math.inf)
