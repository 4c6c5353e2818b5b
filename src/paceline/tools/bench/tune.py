"""`paceline tune`: short trainings in many shapes, and the configuration of the fastest."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config.text import several
from ...errors import BadInput
from ...processes.hardware import available_cpus, cpu_name
from ...storage.files import replace_file
from .runs import interrupt_on_signals
from .tables import text_table
from .tune_model import PHASE_NAMES, Constants, Phases, Shape, fps, predict, split_phases
from .tune_plan import TunePlan, parse_tune
from .tune_space import candidates, simplest
from .tune_text import batch_sentence, bound_sentence, config_text, horizon_sentence, spread

if TYPE_CHECKING:
    from .tune_search import Search

USAGE = """\
paceline tune [--env-id ID] [--algo ppo|a2c|impala|a3c] [--OPTION OF TRAIN VALUE ...]

  Trains in short bursts, with many layouts of workers, ranks, environments and rollouts, and writes
  the configuration of the fastest. The number of rows of an update stays the same.

  --time T               time that the search should take [4m]
  --max-batch N          rows that an update may have [as many as now]
  --min-rollout-steps N  steps of a rollout at least [as far as gamma and lambda look ahead]
  --mode MODE            sequential (one process), parallel (several) or any [any]
  --output FILE          the configuration [tuned-<env>-<algo>.yaml]
  --overwrite            replace an existing file
  --for-cpus N           the fastest on a machine with N CPUs, predicted by a model
  --save-constants FILE  write the model's constants, measured here, as JSON
  --constants FILE       with --for-cpus: read them instead of measuring

`paceline train --help` documents all other options: they define the training, and are written too.
"""


def command(arguments: list[str]) -> int:
    """The exit code."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    return run(parse_tune(arguments), arguments)


def run(plan: TunePlan, arguments: list[str]) -> int:
    """Measure what has to be measured; print and write the choice."""
    if plan.constants is not None:
        _propose(plan, *plan.constants, arguments)
        return 0
    from .tune_search import Search  # which imports torch

    with (
        interrupt_on_signals(),
        tempfile.TemporaryDirectory(prefix="paceline-tune-") as scratch,
    ):
        search = Search(plan, Path(scratch))
        known = search.constants(rounds=5 if plan.predicts else 1)
        facts = _save_constants(plan, known, search.compiled)
        if plan.predicts:
            _propose(plan, known, facts, arguments)
        else:
            search.run(known)
            _conclude(plan, search, known, arguments)
    return 0


def _save_constants(plan: TunePlan, known: Constants, compiled: bool) -> dict[str, Any]:
    """How the constants were measured; written with them for --save-constants."""
    facts = {
        "env_id": plan.base.env_name,
        "algo": plan.base.algo,
        "compiled": compiled,
        "cpu": cpu_name(),
        "cpus": available_cpus(),
        "when": f"{datetime.now():%Y-%m-%d}",
    }
    if plan.save_constants is not None:
        rounded = {name: float(f"{value:.4g}") for name, value in vars(known).items()}
        rounded["epochs"] = known.epochs
        content = {**facts, "constants": rounded}
        _write(plan.save_constants, json.dumps(content, indent=1) + "\n")
    return facts


def _propose(
    plan: TunePlan, known: Constants, facts: Mapping[str, Any], arguments: list[str]
) -> None:
    """Write and print the model's choice for another machine."""
    text = proposal(plan, known, facts, arguments)
    _write(plan.output, text)
    print("\n".join(line[2:] for line in text.splitlines() if line.startswith("# ")))
    _say_where(plan)


def proposal(
    plan: TunePlan, known: Constants, facts: Mapping[str, Any], arguments: list[str]
) -> str:
    """The configuration of the shape that the model expects to be the fastest."""
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
    reasons = _reasons(plan, plan.shape, chosen, known, predict(chosen, known, plan.cpus))
    return config_text(plan, chosen, arguments, [expected, *reasons])


def _conclude(plan: TunePlan, search: Search, known: Constants, arguments: list[str]) -> None:
    """Write and print the choice of the search."""
    chosen = search.choice()
    phases = {shape: _phases(search, shape, known) for shape in search.bursts}
    reasons = _reasons(plan, search.base, chosen, known, phases[chosen])
    sentences = [_rate_sentence(search, chosen), *reasons]
    where = f"Measured on {cpu_name()}, {available_cpus()} CPUs, {datetime.now():%Y-%m-%d %H:%M}."
    _write(plan.output, config_text(plan, chosen, arguments, [where, *sentences]))
    print("", table(search, phases), "", f"Choice: {chosen}.", *sentences, sep="\n")
    _say_where(plan)


def _reasons(
    plan: TunePlan, base: Shape, chosen: Shape, known: Constants, phases: Phases
) -> list[str]:
    """Sentences about what takes the time, and what changes in what is learned."""
    batch = batch_sentence(plan, base, chosen, known)
    horizon = horizon_sentence(plan.base, base, chosen)
    return [bound_sentence(phases), batch, *([horizon] if horizon else [])]


def _phases(search: Search, shape: Shape, known: Constants) -> Phases:
    """Of the burst of middle speed."""
    bursts = sorted(search.bursts[shape], key=lambda burst: burst.fps)
    return split_phases(bursts[len(bursts) // 2], known, search.cpus)


def table(search: Search, phases: Mapping[Shape, Phases]) -> str:
    """One line for each shape that was measured, fastest first; then those that failed."""
    lines = [["shape", "steps/s", "× now", *PHASE_NAMES, "memory", "bursts"]]
    ratios = {shape: search.ratio(shape) for shape in phases}
    for shape in sorted(phases, key=lambda shape: -ratios[shape]):
        bursts, ratio = search.bursts[shape], ratios[shape]
        lines.append(
            [
                f"{shape} (now)" if shape == search.base else str(shape),
                spread([burst.fps for burst in bursts]),
                f"{ratio:.2f}" if math.isfinite(ratio) else "–",
                *(f"{share:.0%}" for share in phases[shape].shares.values()),
                f"{max(burst.memory_mb for burst in bursts):,.0f} MB",
                str(len(bursts)),
            ]
        )
    failed = [f"{shape}  failed: {cause}" for shape, cause in search.failed.items()]
    return "\n".join([text_table(lines, left=1), *failed])


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


def _say_where(plan: TunePlan) -> None:
    print(f"\n{plan.output}: go on with\n  paceline train --config {plan.output}")


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise BadInput(f"{path} can't be written: {error.strerror}") from None
