"""What `paceline tune` says: the table, the sentences, and the configuration that it writes."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from ...config.schema import Config
from .tune_bursts import Burst
from .tune_model import BOUNDS, Constants, Phases, Shape, fps
from .tune_plan import Plan, trace_of
from .tune_space import candidates, horizon

WIDTH = 96
LARGER = 4
"""Times the rows of an update up to which it is said what a larger batch would gain."""
WORTH_SAYING = 1.02
WHY = {
    "env": "stepping the environments",
    "inference": "the policy's choice of actions",
    "update": "the optimiser's steps",
    "sync": "learners that agree on every step",
    "waiting": "waking workers and waiting for the slowest",
}


def spread(values: Sequence[float]) -> str:
    """12,300 (11,900 to 12,800)."""
    middle = f"{statistics.median(values):,.0f}"
    return middle if len(values) < 2 else f"{middle} ({min(values):,.0f} to {max(values):,.0f})"


@dataclasses.dataclass(frozen=True)
class Row:
    """One measured shape, or one that failed."""

    shape: Shape
    bursts: list[Burst]
    ratio: float = 0.0
    """to the training as it is"""
    phases: Phases | None = None
    failed: str = ""
    eager: bool = False
    """whether it was never compiled, though the training is"""


def table(rows: list[Row], base: Shape) -> str:
    """One line for each shape, fastest first."""
    lines: list[tuple[str, ...]] = [("shape", "steps/s", "× now", *BOUNDS, "memory", "bursts")]
    for row in sorted(rows, key=lambda row: -row.ratio):
        if row.phases is None:
            continue
        shares = (f"{share:.0%}" for share in row.phases.shares.values())
        memory = max(burst.memory_mb for burst in row.bursts)
        name = str(row.shape) + (" (as it is now)" if row.shape == base else "")
        rate = "~" * row.eager + spread([burst.fps for burst in row.bursts])
        cells = (name, rate, f"{row.ratio:.2f}", *shares, f"{memory:,.0f} MB")
        lines.append((*cells, str(len(row.bursts))))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    failures = [row for row in rows if row.failed]
    text += [f"{row.shape}  failed: {row.failed}" for row in failures]
    if any(row.eager for row in rows):
        text.append("~ measured with eager steps, and the learning put in as compiled")
    return "\n".join(text)


def bound_sentence(phases: Phases) -> str:
    """What takes the time."""
    shares, bound = phases.shares, phases.bound
    rest = ", ".join(
        f"{name} {share:.0%}"
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if name != bound and share >= 0.005
    )
    return f"Bound: {bound}, {WHY[bound]}, {shares[bound]:.0%} of an iteration ({rest})."


def batch_sentence(plan: Plan, base: Shape, chosen: Shape, known: Constants) -> str:
    """How many rows an update has and why, and what more of them would gain."""
    sizes = f"{chosen.rows:,} rows an update, {chosen.batch:,} a minibatch"
    if chosen.rows == base.rows:
        allowed = plan.allowed.max_rows > base.rows
        why = "since more gained nothing that counts" if allowed else "since learning depends on it"
        text = f"Batch: {sizes}, kept as it was, {why}."
    else:
        text = (
            f"Batch: {sizes}, raised from {base.rows:,} rows within --max-batch "
            f"{plan.allowed.max_rows}, since that is faster; the same score may take more steps."
        )
    if plan.allowed.max_rows >= LARGER * base.rows:
        return text
    more = replace(plan.allowed, max_rows=LARGER * base.rows)
    larger = max(candidates(base, more, plan.cpus), key=lambda shape: fps(shape, known, plan.cpus))
    gain = fps(larger, known, plan.cpus) / fps(chosen, known, plan.cpus)
    if larger.rows <= chosen.rows or gain < WORTH_SAYING:
        return f"{text} By the model, up to {LARGER} times as many rows would gain nothing."
    return (
        f"{text} By the model, {larger.rows:,} rows ({larger}) would make {gain:.2f} "
        f"times the steps/s, and take more steps to the same score; --max-batch {larger.rows} "
        "allows it."
    )


def horizon_sentence(config: Config, base: Shape, chosen: Shape) -> str:
    """What shorter rollouts change in what is learnt; empty if they are as long as they were."""
    if chosen.steps >= base.steps:
        return ""
    reach = horizon(config.gamma, trace_of(config))
    compared = "no shorter than" if chosen.steps >= reach else "shorter than"
    return (
        f"Horizon: rollouts of {chosen.steps} steps instead of {base.steps} let advantages rest on "
        f"a value after at most {chosen.steps} steps, which is {compared} the {reach:.0f} steps "
        "that gamma and lambda look ahead."
    )


def config_text(plan: Plan, chosen: Shape, arguments: list[str], said: list[str]) -> str:
    """The configuration, with what is known about it as a comment."""
    config = plan.config(chosen)
    wide = {"width": WIDTH, "initial_indent": "# ", "subsequent_indent": "# "}
    wide |= {"break_long_words": False, "break_on_hyphens": False}
    command = shlex.join(word for word in arguments if word != "--overwrite")
    lines = [
        f"# {config.algo_name.upper()} on {config.env_name}: {chosen}.",
        f"#   paceline train --config {plan.output.name}",
        "# This was made by:",
        f"#   paceline tune {command}".rstrip(),
        *(textwrap.fill(sentence, **wide) for sentence in said if sentence),  # type: ignore[arg-type]
    ]
    values = yaml.safe_dump(_values(plan, config, chosen), sort_keys=False, allow_unicode=True)
    return "\n".join(lines) + "\n" + values


def _values(plan: Plan, config: Config, chosen: Shape) -> dict[str, Any]:
    """What was decided, and what was asked for, as the configuration understood it."""
    found = {
        "algo": config.algo if ":" in str(config.algo) else config.algo_name,
        "env_id": config.env_name,
    }
    decided = plan.decided(chosen)
    asked = {name: value for name, value in config.given.items() if name not in decided}
    for name, value in asked.items():
        if name in ("algo", "env_id", "sync", "num_envs_per_worker", "overwrite") or value is None:
            continue
        found[name] = _understood(getattr(config, name), value)
    return found | decided


def _understood(value: Any, asked: Any) -> Any:
    """Of a section only what was asked for; lists for tuples."""
    if dataclasses.is_dataclass(value) and isinstance(asked, Mapping):
        return {name: _understood(getattr(value, name), part) for name, part in asked.items()}
    return list(value) if isinstance(value, tuple) else value
