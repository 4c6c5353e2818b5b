"""The model's constants: fitted to bursts, written and read; and a burst split into phases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ...config.files import load_file
from ...config.schema import Config
from ...errors import BadInput
from .tune_bursts import Burst
from .tune_model import (
    Constants,
    Phases,
    predict,
    rollout_time,
    slowdown,
    sync_time,
    update_time,
)

MAX_SLOWDOWN = 4.0
"""Of processes that run at the same time; a larger one is noise."""


def fit(
    env: float,
    base: Burst,
    other: Burst,
    epochs: int,
    cpus: int,
    workers: Burst | None = None,
    ranks: Burst | None = None,
    threads: Burst | None = None,
) -> Constants:
    """The constants with which the model predicts these bursts.

    `env` is the time of one row of an environment that is stepped alone. `base` and `other` have
    one learner, no workers, and different numbers of environments and rows of a minibatch; the
    rest differ from `base` in what they are named after.
    """
    one, two = base.shape, other.shape
    call, each = _line(
        (one.envs, base.t_rollout / one.steps), (two.envs, other.t_rollout / two.steps)
    )
    step, row = _line(
        (one.batch, base.t_learn / (epochs * one.minibatches)),
        (two.batch, other.t_learn / (epochs * two.minibatches)),
    )
    env = min(each, env)
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
        share = 1.0 - threads.t_learn / update_time(replace(threads.shape, threads=1), known)
        share /= 1.0 - 1.0 / threads.shape.threads
        known = replace(known, threaded=min(1.0, max(0.0, share)))
    if ranks is not None:
        known = _fit_ranks(known, ranks, cpus)
    return known if workers is None else _fit_workers(known, workers, cpus)


def _line(one: tuple[float, float], two: tuple[float, float]) -> tuple[float, float]:
    """Intercept and slope of a line through the first point; neither is negative."""
    (x, y), (other, height) = one, two
    steepest = y / x
    slope = steepest if other == x else min(max(0.0, (height - y) / (other - x)), steepest)
    return y - slope * x, slope


def _fit_ranks(known: Constants, burst: Burst, cpus: int) -> Constants:
    """`together` from the rollout, and `sync` from what the update took longer than alone."""
    shape = burst.shape
    busy = min(1.0, (shape.samplers - 1) / max(1, cpus - 1))
    alone = slowdown(shape.samplers, cpus, 1.0) * sum(rollout_time(shape, known))
    slower = max(0.0, burst.t_rollout / alone - 1.0) / busy
    known = replace(known, together=1.0 + min(MAX_SLOWDOWN - 1.0, slower))
    alone = slowdown(shape.learners, cpus, known.together) * update_time(shape, known)
    unit = sync_time(shape, replace(known, sync=1.0))
    return replace(known, sync=max(0.0, burst.t_sync + burst.t_learn - alone) / unit)


def _fit_workers(known: Constants, burst: Burst, cpus: int) -> Constants:
    """`wake`: what the rollout took longer than the model expects without it."""
    expected = predict(burst.shape, known, cpus)
    if burst.shape.schedule == "stream":
        return replace(known, wake=max(0.0, burst.t_iter - expected.seconds))
    spent = burst.t_rollout - expected.env - expected.inference
    return replace(known, wake=max(0.0, spent) / burst.shape.workers)


def split_phases(burst: Burst, known: Constants, cpus: int) -> Phases:
    """The phases of a measured iteration: its rollout is split in the model's proportions.

    What workers took longer than expected is waiting. A learner that waits for a stream waits for
    environments and policies.
    """
    shape, waiting = burst.shape, 0.0
    if shape.schedule == "alternate" and shape.workers:
        expected = predict(shape, known, cpus)
        waiting = max(0.0, burst.t_rollout - expected.env - expected.inference)
    env, inference = rollout_time(shape, known)
    scale = (burst.t_rollout - waiting) / ((env + inference) or 1.0)
    return Phases(
        env=scale * env,
        inference=scale * inference,
        update=burst.t_learn,
        sync=burst.t_sync,
        waiting=waiting,
        other=burst.t_other,
    )


def read_constants(path: Path, config: Config) -> tuple[Constants, Mapping[str, Any]]:
    """Constants of a file of --save-constants, and where they were measured."""
    facts = load_file(path)
    known = facts.get("constants")
    names = {field.name for field in fields(Constants)}
    if not isinstance(known, dict) or known.keys() != names:
        raise BadInput(f"{path} holds no constants of tune; write them with --save-constants")
    if not all(isinstance(value, (int, float)) and value >= 0 for value in known.values()):
        raise BadInput(f"{path}: every constant should be a number from 0 on")
    for name, value in {"env_id": config.env_name, "algo": config.algo}.items():
        if facts.get(name) != value:
            raise BadInput(
                f"{path} was measured with {name} {facts.get(name)!r}, and this is {value!r}; "
                "measure it with --save-constants"
            )
    return Constants(**known), facts


def constants_text(known: Constants, facts: Mapping[str, Any]) -> str:
    """Content of a file of --save-constants."""
    rounded = {name: float(f"{value:.4g}") for name, value in vars(known).items()}
    rounded["epochs"] = known.epochs
    return json.dumps({**facts, "constants": rounded}, indent=1) + "\n"
