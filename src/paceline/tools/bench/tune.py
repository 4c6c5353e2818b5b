"""`paceline tune`: short trainings in many shapes, and the configuration of the fastest."""

from __future__ import annotations

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
from .tune_fit import constants_text, read_constants
from .tune_model import Constants, fps, predict
from .tune_plan import TunePlan, parse_tune
from .tune_space import candidates, simplest
from .tune_text import (
    ShapeRow,
    batch_sentence,
    bound_sentence,
    config_text,
    horizon_sentence,
    spread,
    table,
)

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
        _propose(plan, *read_constants(plan.constants, plan.base), arguments)
        return 0
    from .tune_search import Search  # which imports torch

    with (
        interrupt_on_signals(),
        tempfile.TemporaryDirectory(prefix="paceline-tune-") as scratch,
    ):
        search = Search(plan, Path(scratch))
        known = search.constants(rounds=5 if plan.predicts else 1)
        facts = _save_constants(plan, known, search.runner.compiled)
        if plan.predicts:
            _propose(plan, known, facts, arguments)
        else:
            search.narrow(known)
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
        _write(plan.save_constants, constants_text(known, facts))
    return facts


def _propose(
    plan: TunePlan, known: Constants, facts: Mapping[str, Any], arguments: list[str]
) -> None:
    """Write and print the model's choice for another machine."""
    text = proposal(plan, known, facts, arguments)
    _write(plan.output, text)
    print("\n".join(line[2:] for line in text.splitlines() if line.startswith("# ")))
    print(f"\n{plan.output}: go on with\n  paceline train --config {plan.output}")


def proposal(
    plan: TunePlan, known: Constants, facts: Mapping[str, Any], arguments: list[str]
) -> str:
    """The configuration of the shape that the model expects to be the fastest."""
    shapes = candidates(plan.shape, plan.limits, plan.cpus)
    rates = {shape: fps(shape, known, plan.cpus) for shape in shapes}
    chosen = simplest(rates, plan.shape)
    step = "compiled" if facts.get("compiled") else "eager"
    sentences = [
        f"Predicted for {plan.cpus} CPUs by a model from constants measured on {facts.get('cpu')} "
        f"({facts.get('cpus')} CPUs, {step} steps, {facts.get('when')}); not measured on such a "
        f"machine. It expects {rates[chosen]:,.0f} steps/s of CPUs like that one, where "
        f"{plan.shape} would make {fps(plan.shape, known, plan.cpus):,.0f}.",
        bound_sentence(predict(chosen, known, plan.cpus)),
        batch_sentence(plan, plan.shape, chosen, known),
        horizon_sentence(plan.base, plan.shape, chosen),
    ]
    return config_text(plan, chosen, arguments, sentences)


def _conclude(plan: TunePlan, search: Search, known: Constants, arguments: list[str]) -> None:
    """Write and print the choice of the search."""
    base, chosen, rows = search.base, search.choice(), search.rows(known)
    row = next(row for row in rows if row.shape == chosen)
    assert row.phases is not None
    sentences = [
        _rate_sentence(search, row),
        bound_sentence(row.phases),
        batch_sentence(plan, base, chosen, known),
        horizon_sentence(plan.base, base, chosen),
    ]
    where = f"Measured on {cpu_name()}, {available_cpus()} CPUs, {datetime.now():%Y-%m-%d %H:%M}."
    _write(plan.output, config_text(plan, chosen, arguments, [where, *sentences]))
    print(f"\n{table(rows, base)}\n\nChoice: {chosen}.")
    print("\n".join(sentence for sentence in sentences if sentence))
    print(f"\n{plan.output}: go on with\n  paceline train --config {plan.output}")


def _rate_sentence(search: Search, row: ShapeRow) -> str:
    """How fast the choice is, and against what."""
    base = search.base
    text = f"It made {spread([burst.fps for burst in row.bursts])} steps/s"
    if base not in search.runner.bursts:
        text += f"; the present shape, {base}, failed."
    elif row.shape == base:
        text += ", as now: nothing that was tried is faster by more than noise."
    else:
        text += f", {row.ratio:.2f} times those of the present {base}."
    if search.rounds < 3:
        text += (
            f" There was time for {several(search.rounds, 'round')} only: write a longer --time "
            "for a choice to rely on."
        )
    return text


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise BadInput(f"{path} can't be written: {error.strerror}") from None
