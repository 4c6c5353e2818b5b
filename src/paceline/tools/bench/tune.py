"""`paceline tune`: short trainings in many shapes, and the configuration of the fastest."""

from __future__ import annotations

import json
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import BadInput
from ...processes.hardware import available_cpus, cpu_name
from ...run.cost_model import Constants, Shape
from ...storage.files import replace_file
from .runs import interrupt_on_signals
from .tune_plan import TunePlan, parse_tune
from .tune_text import conclusion, config_text, proposal, table

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
    chosen, sentences = _choose(plan)
    _write(plan.output, config_text(plan, chosen, arguments, sentences))
    print(f"Choice: {chosen}.", *sentences, sep="\n")
    print(f"\n{plan.output}: go on with\n  paceline train --config {plan.output}")
    return 0


def _choose(plan: TunePlan) -> tuple[Shape, list[str]]:
    """The shape, and sentences that say why."""
    if plan.constants is not None:
        return proposal(plan, *plan.constants)
    from .tune_search import Search  # which imports torch

    with (
        interrupt_on_signals(),
        tempfile.TemporaryDirectory(prefix="paceline-tune-") as scratch,
    ):
        search = Search(plan, Path(scratch))
        known = search.constants(rounds=5 if plan.predicts else 1)
        facts = _save_constants(plan, known, search.compiled)
        if plan.predicts:
            return proposal(plan, known, facts)
        search.run(known)
    found = conclusion(plan, search, known)
    print(f"\n{table(search, known)}\n")
    return found


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


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise BadInput(f"{path} can't be written: {error.strerror}") from None
