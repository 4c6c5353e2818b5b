"""The constants of the model: fitted to bursts, written and read, and used to split a burst."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ...config.files import load_file
from ...config.schema import Config
from ...errors import BadInput
from .tune_bursts import Burst, Stepping
from .tune_model import WORST, Constants, Phases, agreeing, crowding, learning, predicted, sampling


def fitted(
    stepping: Stepping,
    base: Burst,
    other: Burst,
    epochs: int,
    cpus: int,
    workers: Burst | None = None,
    ranks: Burst | None = None,
    threads: Burst | None = None,
) -> Constants:
    """The constants with which the model says what these bursts measured.

    `base` and `other` are of one learner and no workers, with different numbers of environments
    and different minibatches; the rest differ from them in what they are named after.
    """
    one, two = base.shape, other.shape
    call, each = _line(
        (one.envs, base.t_rollout / one.steps), (two.envs, other.t_rollout / two.steps)
    )
    step, row = _line(
        (one.batch, base.t_learn / (epochs * one.minibatches)),
        (two.batch, other.t_learn / (epochs * two.minibatches)),
    )
    env = min(each, stepping.of(base.steps, base.episodes) / one.rows)
    known = Constants(
        env=env,
        call=call,
        act=each - env,
        step=step,
        row=row,
        other=base.t_other,
        valid=min(1.0, base.steps / one.rows),
        epochs=epochs,
    )
    if threads is not None:
        known = replace(known, threaded=_threaded(threads, known))
    if ranks is not None:
        known = _with_ranks(known, ranks, cpus)
    return known if workers is None else _with_workers(known, workers, cpus)


def _line(one: tuple[float, float], two: tuple[float, float]) -> tuple[float, float]:
    """Intercept and slope, neither of them negative, through the first point."""
    (x, y), (other, height) = one, two
    steepest = y / x
    slope = steepest if other == x else min(max(0.0, (height - y) / (other - x)), steepest)
    return y - slope * x, slope


def _threaded(burst: Burst, known: Constants) -> float:
    """Share of the learning that threads divide, by how much faster they made it."""
    alone = learning(replace(burst.shape, threads=1), known)
    share = (1.0 - burst.t_learn / alone) / (1.0 - 1.0 / burst.shape.threads)
    return min(1.0, max(0.0, share))


def _with_ranks(known: Constants, burst: Burst, cpus: int) -> Constants:
    """How much slower processes are beside each other, and what it costs them to agree."""
    shape = burst.shape
    known = replace(known, together=_together(burst, known, cpus))
    alone = crowding(shape.learners, cpus, known.together) * learning(shape, known)
    unit = agreeing(shape, replace(known, sync=1.0))
    return replace(known, sync=max(0.0, burst.t_sync + burst.t_learn - alone) / unit)


def _together(burst: Burst, known: Constants, cpus: int) -> float:
    """`Constants.together`, if nothing else made the rollout longer than that of one process."""
    busy = min(1.0, (burst.shape.samplers - 1) / max(1, cpus - 1))
    taken = crowding(burst.shape.samplers, cpus, 1.0) * sum(sampling(burst.shape, known))
    slower = burst.t_rollout / taken - 1.0
    return 1.0 + min(WORST - 1.0, max(0.0, slower) / busy) if busy else 1.0


def _with_workers(known: Constants, burst: Burst, cpus: int) -> Constants:
    """What waking them costs: all that they took longer than the model expects without it."""
    expected = predicted(burst.shape, known, cpus)
    if burst.shape.way == "stream":
        return replace(known, wake=max(0.0, burst.t_iter - expected.seconds))
    spent = burst.t_rollout - expected.env - expected.inference
    return replace(known, wake=max(0.0, spent) / burst.shape.workers)


def phases_of(burst: Burst, known: Constants, stepping: Stepping, cpus: int) -> Phases:
    """Where the time of a measured iteration went: its rollout, split as the model has it."""
    shape = burst.shape
    share = 1.0 if shape.way == "apart" else 1.0 / shape.samplers
    env = share * stepping.of(burst.steps, burst.episodes)
    inference = sampling(shape, known)[1]
    slow = 1.0 if shape.way == "stream" else crowding(shape.samplers, cpus, known.together)
    env, inference, rest = slow * env, slow * inference, 0.0
    if shape.workers and shape.way != "apart":
        rest = max(0.0, burst.t_rollout - env - inference)
    if shape.workers and shape.way == "stream":
        rest = 0.0  # a learner that waits does so for environments and policies
    factor = (burst.t_rollout - rest) / ((env + inference) or 1.0)
    return Phases(
        env=factor * env,
        inference=factor * inference,
        update=burst.t_learn,
        sync=burst.t_sync,
        waiting=rest,
        other=burst.t_other,
    )


def read_constants(path: Path, config: Config) -> tuple[Constants, Mapping[str, Any]]:
    """Constants that --save-constants has written, and where they were measured."""
    facts = load_file(path)
    known = facts.get("constants")
    names = {field.name for field in fields(Constants)}
    if not isinstance(known, dict) or known.keys() != names:
        raise BadInput(f"{path} holds no constants of tune; make them with --save-constants")
    if not all(isinstance(value, (int, float)) and value >= 0 for value in known.values()):
        raise BadInput(f"{path}: every constant should be a number from 0 on")
    expected = {"env_id": config.env_name, "algo": config.algo}
    for name, value in expected.items():
        if facts.get(name) != value:
            raise BadInput(
                f"{path} was measured with {name} {facts.get(name)!r}, and this is {value!r}; "
                f"measure that with --save-constants"
            )
    return Constants(**known), facts


def constants_text(known: Constants, facts: Mapping[str, Any]) -> str:
    """What --save-constants writes."""
    rounded = {name: float(f"{value:.4g}") for name, value in vars(known).items()}
    rounded["epochs"] = known.epochs
    return json.dumps({**facts, "constants": rounded}, indent=1) + "\n"
