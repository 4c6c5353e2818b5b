"""What `paceline tune` prints and writes: the sentences and the configuration."""

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
from .tune_model import Constants, Phases, Shape, fps
from .tune_plan import TunePlan, trace_of
from .tune_space import candidates, horizon

WIDTH = 96
LARGER = 4
"""Factor of rows up to which a larger batch is recommended by the model."""
WORTH_SAYING = 1.02
BOUNDS = {
    "env": "stepping the environments",
    "inference": "the policy's choice of actions",
    "update": "the optimizer's steps",
    "sync": "the exchange of gradients",
    "waiting": "waking workers and waiting for the slowest",
}


def spread(values: Sequence[float]) -> str:
    """12,300 (11,900 to 12,800)."""
    middle = f"{statistics.median(values):,.0f}"
    return middle if len(values) < 2 else f"{middle} ({min(values):,.0f} to {max(values):,.0f})"


def bound_sentence(phases: Phases) -> str:
    """What takes the time."""
    shares, bound = phases.shares, phases.bound
    rest = ", ".join(
        f"{name} {share:.0%}"
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if name != bound and share >= 0.005
    )
    return f"Bound: {bound}, {BOUNDS[bound]}, {shares[bound]:.0%} of an iteration ({rest})."


def batch_sentence(plan: TunePlan, base: Shape, chosen: Shape, known: Constants) -> str:
    """How many rows an update has, and what more of them would gain."""
    text = f"Batch: {chosen.rows:,} rows an update, {chosen.batch:,} a minibatch"
    if chosen.rows == base.rows:
        text += ", unchanged."
    else:
        text += (
            f", raised from {base.rows:,} rows within --max-batch {plan.limits.max_rows}; the "
            "same score may take more steps."
        )
    limits = replace(plan.limits, max_rows=max(plan.limits.max_rows, LARGER * base.rows))
    shapes = candidates(base, limits, plan.cpus)
    larger = max(shapes, key=lambda shape: fps(shape, known, plan.cpus))
    gain = fps(larger, known, plan.cpus) / fps(chosen, known, plan.cpus)
    if larger.rows <= max(chosen.rows, plan.limits.max_rows) or gain < WORTH_SAYING:
        return text
    return (
        f"{text} By the model, {larger.rows:,} rows ({larger}) would make {gain:.2f} times the "
        f"steps/s, and take more steps to the same score; --max-batch {larger.rows} allows it."
    )


def horizon_sentence(config: Config, base: Shape, chosen: Shape) -> str:
    """What shorter rollouts change in what is learned; empty if they are not shorter."""
    if chosen.steps >= base.steps:
        return ""
    reach = horizon(config.gamma, trace_of(config))
    compared = "no shorter" if chosen.steps >= reach else "shorter"
    return (
        f"Horizon: rollouts of {chosen.steps} steps instead of {base.steps}, {compared} than the "
        f"{reach:.0f} steps that gamma and lambda look ahead."
    )


def config_text(plan: TunePlan, chosen: Shape, arguments: list[str], sentences: list[str]) -> str:
    """The configuration, headed by a comment that says where it comes from."""
    config = plan.training.config(plan.changes(chosen))
    command = shlex.join(word for word in arguments if word != "--overwrite")
    comment = textwrap.TextWrapper(
        width=WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [
        f"# {config.algo_name.upper()} on {config.env_name}: {chosen}.",
        f"#   paceline train --config {plan.output.name}",
        "# Written by:",
        f"#   paceline tune {command}".rstrip(),
        *(comment.fill(sentence) for sentence in sentences),
    ]
    values = yaml.safe_dump(_values(plan, config, chosen), sort_keys=False, allow_unicode=True)
    return "\n".join(lines) + "\n" + values


def _values(plan: TunePlan, config: Config, chosen: Shape) -> dict[str, Any]:
    """Options that were decided, and those that were given, as the configuration read them."""
    found = {
        "algo": config.algo if ":" in str(config.algo) else config.algo_name,
        "env_id": config.env_name,
    }
    changes = plan.changes(chosen)
    skipped = {"algo", "env_id", "sync", "num_envs_per_worker", "overwrite", *changes}
    for name, value in config.given.items():
        if name not in skipped and value is not None:
            found[name] = _plain(getattr(config, name), value)
    return found | changes


def _plain(value: Any, given: Any) -> Any:
    """Only the options of a section that were given; lists for tuples."""
    if dataclasses.is_dataclass(value) and isinstance(given, Mapping):
        return {name: _plain(getattr(value, name), part) for name, part in given.items()}
    return list(value) if isinstance(value, tuple) else value
