"""What `paceline tune` prints and writes: the table, the sentences, the configuration."""

from __future__ import annotations

import dataclasses
import math
import shlex
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import yaml

from ...config.schema import Config
from ...config.text import several
from ...processes.hardware import available_cpus, cpu_name
from ...run.cost_model import PHASE_NAMES, Constants, Phases, Shape, fps, predict, split_phases
from .tables import text_table
from .tune_plan import TunePlan, trace_of
from .tune_space import candidates, horizon, simplest

if TYPE_CHECKING:
    from .tune_search import Search

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


def proposal(plan: TunePlan, known: Constants, facts: Mapping[str, Any]) -> tuple[Shape, list[str]]:
    """The shape that the model expects to be the fastest, and sentences about it."""
    shapes = candidates(plan.shape, plan.limits, plan.cpus)
    rates = {shape: fps(shape, known, plan.cpus) for shape in shapes}
    chosen = simplest(rates, plan.shape)
    step = "compiled" if facts.get("compiled") else "eager"
    expected = (
        f"Predicted for {plan.cpus} CPUs by a model from constants measured on {facts.get('cpu')} "
        f"({facts.get('cpus')} CPUs, {step} steps, {facts.get('when')}); not measured on such a "
        f"machine. It expects {rates[chosen]:,.0f} steps/s of CPUs like that one, where "
        f"{plan.shape} would make {fps(plan.shape, known, plan.cpus):,.0f}."
    )
    phases = predict(chosen, known, plan.cpus)
    return chosen, [expected, *_reasons(plan, plan.shape, chosen, known, phases)]


def conclusion(plan: TunePlan, search: Search, known: Constants) -> tuple[Shape, list[str]]:
    """The choice of a search, and sentences about it."""
    chosen = search.choice()
    where = f"Measured on {cpu_name()}, {available_cpus()} CPUs, {datetime.now():%Y-%m-%d %H:%M}."
    reasons = _reasons(plan, search.base, chosen, known, _phases(search, chosen, known))
    return chosen, [where, _rate_sentence(search, chosen), *reasons]


def _reasons(
    plan: TunePlan, base: Shape, chosen: Shape, known: Constants, phases: Phases
) -> list[str]:
    """Sentences about what takes the time, and what changes in what is learned."""
    sentences = [bound_sentence(phases), batch_sentence(plan, base, chosen, known)]
    if chosen.steps < base.steps:
        reach = horizon(plan.base.gamma, trace_of(plan.base))
        compared = "no shorter" if chosen.steps >= reach else "shorter"
        sentences.append(
            f"Horizon: rollouts of {chosen.steps} steps instead of {base.steps}, {compared} than "
            f"the {reach:.0f} steps that gamma and lambda look ahead."
        )
    return sentences


def _phases(search: Search, shape: Shape, known: Constants) -> Phases:
    """Of the burst of middle speed."""
    bursts = sorted(search.bursts[shape], key=lambda burst: burst.fps)
    return split_phases(bursts[len(bursts) // 2], known, search.cpus)


def table(search: Search, known: Constants) -> str:
    """One line for each shape that was measured, fastest first; then those that failed."""
    lines = [["shape", "steps/s", "× now", *PHASE_NAMES, "memory", "bursts"]]
    ratios = {shape: search.ratio(shape) for shape in search.bursts}
    for shape, bursts in sorted(search.bursts.items(), key=lambda item: -ratios[item[0]]):
        lines.append(
            [
                f"{shape} (now)" if shape == search.base else str(shape),
                spread([burst.fps for burst in bursts]),
                f"{ratios[shape]:.2f}" if math.isfinite(ratios[shape]) else "–",
                *(f"{share:.0%}" for share in _phases(search, shape, known).shares.values()),
                f"{max(burst.memory_mb for burst in bursts):,.0f} MB",
                str(len(bursts)),
            ]
        )
    failed = [f"{shape}  failed: {cause}" for shape, cause in search.failed.items()]
    return "\n".join([text_table(lines, left=1), *failed])


def spread(values: Sequence[float]) -> str:
    """12,300 (11,900 to 12,800)."""
    middle = f"{statistics.median(values):,.0f}"
    return middle if len(values) < 2 else f"{middle} ({min(values):,.0f} to {max(values):,.0f})"


def _rate_sentence(search: Search, chosen: Shape) -> str:
    """How fast the choice is, and against what."""
    base, rounds = search.base, len(search.rounds)
    text = f"It made {spread([burst.fps for burst in search.bursts[chosen]])} steps/s"
    if base not in search.bursts:
        text += f"; the present shape, {base}, failed."
    elif chosen == base:
        text += ", as now: nothing that was tried is faster by more than noise."
    else:
        text += f", {search.ratio(chosen):.2f} times those of the present {base}."
    if rounds < 3:
        text += (
            f" There was time for {several(rounds, 'round')} only: write a longer --time "
            "for a choice to rely on."
        )
    return text


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
    limits = dataclasses.replace(
        plan.limits, max_rows=max(plan.limits.max_rows, LARGER * base.rows)
    )
    shapes = candidates(base, limits, plan.cpus)
    larger = max(shapes, key=lambda shape: fps(shape, known, plan.cpus))
    gain = fps(larger, known, plan.cpus) / fps(chosen, known, plan.cpus)
    if larger.rows <= max(chosen.rows, plan.limits.max_rows) or gain < WORTH_SAYING:
        return text
    return (
        f"{text} By the model, {larger.rows:,} rows ({larger}) would make {gain:.2f} times the "
        f"steps/s, and take more steps to the same score; --max-batch {larger.rows} allows it."
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
