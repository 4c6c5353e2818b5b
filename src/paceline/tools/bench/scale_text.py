"""summary.txt: the table and the sentences that a user reads first."""

from __future__ import annotations

from ...processes.hardware import available_cpus, cpu_name
from .scale_plan import Plan
from .scale_summary import Row, Spread

HEAD = (
    *("steps/s", "speed-up (95 %)", "ideal", "ceiling", "efficiency"),
    *("sampling", "waiting", "learning", "sync", "other", "memory"),
)


def title_of(plan: Plan) -> str:
    way = "weak" if plan.weak else "strong"
    algo = plan.given.get("algo", plan.base.algo_section)  # which may be an alias
    return f"{algo.upper()} on {plan.base.env_name}: {way} scaling over {plan.kind}"


def note_of(plan: Plan) -> str:
    """What was measured, and where."""
    each = f" for each of the {plan.kind}" if plan.weak else ""
    times = f"{plan.repeats} repeat{'s' if plan.repeats > 1 else ''}"
    return (
        f"{plan.base.num_envs} environments{each} × {plan.base.rollout_steps} steps · {times} · "
        f"{cpu_name()}, {available_cpus()} CPUs"
    )


def table(rows: list[Row], kind: str) -> str:
    """One line for each count."""
    lines: list[tuple[str, ...]] = [(kind, *HEAD), *(_cells(row) for row in rows)]
    if any(row.reached for row in rows):
        lines[0] += ("time to score", "speed-up")
        lines[1:] = [(*line, *_score(row)) for line, row in zip(lines[1:], rows, strict=True)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    shares = (f"{share:.0%}" for share in row.shares.values())
    return (
        str(row.count),
        _plus_minus(row.fps, ",.0f"),
        _interval(row.speedup),
        f"{row.ideal:g}",
        _mean(row.ceiling, ".2f"),
        _mean(row.efficiency, ".0%"),
        *shares,
        f"{row.memory_mb:,.0f} MB",
    )


def _score(row: Row) -> tuple[str, str]:
    if not row.reached:
        return "not reached", "–"
    part = "" if row.reached == row.repeats else f" ({row.reached} of {row.repeats})"
    return f"{_plus_minus(row.time_to_score, '.1f')} s{part}", _interval(row.score_speedup)


def _mean(spread: Spread, form: str) -> str:
    return "–" if spread.mean is None else f"{spread.mean:{form}}"


def _plus_minus(spread: Spread, form: str) -> str:
    return _mean(spread, form) + (f" ± {spread.std:{form}}" if spread.std is not None else "")


def _interval(spread: Spread) -> str:
    if spread.ci_low is None:
        return _mean(spread, ".2f")
    return f"{spread.mean:.2f} ({spread.ci_low:.2f} to {spread.ci_high:.2f})"
