"""`paceline tune`: short trainings in many shapes, and the configuration of the fastest."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BadInput
from ...processes.hardware import available_cpus, cpu_name
from ...storage.files import replace_file
from .runs import interrupt_on_signals
from .tune_constants import constants_text, read_constants
from .tune_model import Constants, Shape, fps, predicted
from .tune_plan import Plan, plan_of
from .tune_space import candidates, simplest
from .tune_text import batch_sentence, bound_sentence, config_text, horizon_sentence, spread, table

if TYPE_CHECKING:
    from .tune_search import Search

USAGE = """\
paceline tune [--env-id ID] [--algo ppo|a2c|impala|a3c] [--OPTION OF TRAIN VALUE ...]

  Trains in short bursts, with workers, ranks, environments and rollouts laid out in many ways, and
  writes the configuration of the fastest. What an update learns from stays what it was.

  --time T               time that the search should take [4m]
  --max-batch N          rows that an update may have [as many as it has now]
  --min-rollout-steps N  steps that a rollout has at least [as far as gamma and lambda look ahead]
  --mode MODE            sequential (one process), parallel (several) or any [any]
  --output FILE          the configuration [tuned-<env>-<algo>.yaml]
  --overwrite            replace it if it is there
  --for-cpus N           what a model expects to be the fastest on a machine with N CPUs
  --save-constants FILE  write the model's constants, measured here, as JSON
  --constants FILE       with --for-cpus: take them from there instead

`paceline train --help` documents all other options: they say what is trained, and are written too.
"""


def command(arguments: list[str]) -> int:
    """The exit code."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    return work(plan_of(arguments), arguments)


def work(plan: Plan, arguments: list[str]) -> int:
    """Measure what has to be measured, say what was found, and write it."""
    if plan.constants is not None:
        known, facts = read_constants(plan.constants, plan.base)
        _propose(plan, known, facts, arguments)
        return 0
    from .tune_search import Search  # which imports torch

    with (
        interrupt_on_signals(),
        tempfile.TemporaryDirectory(prefix="paceline-tune-") as scratch,
    ):
        search = Search(plan, Path(scratch))
        if plan.predicts:
            known = search.constants(rounds=5)
            facts = _save(plan, search, known)
            _propose(plan, known, facts, arguments)
        else:
            _conclude(plan, search, arguments)
    return 0


def _save(plan: Plan, search: Search, known: Constants) -> dict[str, Any]:
    """What is known of where the constants come from; written with them, if that was asked for."""
    facts = {
        "env_id": plan.base.env_name,
        "algo": plan.base.algo,
        "compiled": search.runs.compiled,
        "cpu": cpu_name(),
        "cpus": available_cpus(),
        "when": f"{datetime.now():%Y-%m-%d}",
    }
    if plan.save_constants is not None:
        _write(plan.save_constants, constants_text(known, facts))
    return facts


def _propose(plan: Plan, known: Constants, facts: Any, arguments: list[str]) -> None:
    """The model's choice for a machine that is not here."""
    text = proposal(plan, known, facts, arguments)
    _write(plan.output, text)
    comment = (line[2:] for line in text.splitlines() if line.startswith("# "))
    print("\n".join(comment))
    print(f"\n{plan.output}: go on with\n  paceline train --config {plan.output}")


def proposal(plan: Plan, known: Constants, facts: Any, arguments: list[str]) -> str:
    """A configuration by the model alone, which says so."""
    shapes = candidates(plan.shape, plan.allowed, plan.cpus)
    rates = {shape: fps(shape, known, plan.cpus) for shape in shapes}
    chosen = simplest(rates, plan.shape)
    step = "compiled" if facts.get("compiled") else "eager"
    said = [
        f"Predicted for {plan.cpus} CPUs by a model from constants measured on {facts.get('cpu')} "
        f"({facts.get('cpus')} CPUs, {step} steps, {facts.get('when')}); not measured on such a "
        f"machine. It expects {rates[chosen]:,.0f} steps/s of CPUs like that one, where "
        f"{plan.shape} would make {fps(plan.shape, known, plan.cpus):,.0f}.",
        bound_sentence(predicted(chosen, known, plan.cpus)),
        batch_sentence(plan, plan.shape, chosen, known),
        horizon_sentence(plan.base, plan.shape, chosen),
    ]
    return config_text(plan, chosen, arguments, said)


def _conclude(plan: Plan, search: Search, arguments: list[str]) -> None:
    """Search, then say what was found and write it."""
    known = search.constants()
    _save(plan, search, known)
    search.narrow(known)
    base, chosen = search.base, search.choice()
    rows = {row.shape: row for row in search.rows(known)}
    row = rows[chosen]
    phases = row.phases
    assert phases is not None
    said = [
        _measured(search, chosen, [burst.fps for burst in row.bursts], row.ratio),
        bound_sentence(phases),
        batch_sentence(plan, base, chosen, known),
        horizon_sentence(plan.base, base, chosen),
    ]
    where = f"Measured on {cpu_name()}, {available_cpus()} CPUs, {datetime.now():%Y-%m-%d %H:%M}."
    _write(plan.output, config_text(plan, chosen, arguments, [where, *said]))
    print(f"\n{table(list(rows.values()), base)}\n")
    print(f"Choice: {chosen}.")
    print("\n".join(sentence for sentence in said if sentence))
    print(f"\n{plan.output}: go on with\n  paceline train --config {plan.output}")


def _measured(search: Search, chosen: Shape, rates: list[float], ratio: float) -> str:
    """How fast the choice is, and against what."""
    base = search.base
    text = f"It made {spread(rates)} steps/s"
    if base not in search.runs.bursts:
        text += f"; {base}, as it is now, failed."
    elif chosen == base:
        text += ", as it is now: nothing that was tried is faster by more than noise."
    else:
        text += f", {ratio:.2f} times what {base}, as it is now, made beside it."
    if search.rounds < 3:
        text += f" Measured in {search.rounds} round{'s' if search.rounds > 1 else ''} only, for "
        text += "want of time: write a longer --time for a choice to rely on."
    return text


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise BadInput(f"{path} can't be written: {error.strerror}") from None
