"""Loading and evaluating what a run has saved."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

from . import evaluation
from .agent import Agent, from_checkpoint, locate
from .checkpoint import replace_file
from .configure import load_file, resolve
from .envs import env_maker
from .errors import BadInput
from .policy.network import Encoder
from .rundir import CONFIG, EVALUATION

log = logging.getLogger("paceline")


def load(source: str | Path, encoder: Encoder | None = None) -> Agent:
    """The policy of a run's newest checkpoint, or of one checkpoint's directory.

    `encoder` is needed where the policy has its own and the run's config.yaml does not say which,
    or it is an object that can't be imported.
    """
    path, found = locate(source)
    return from_checkpoint(found, encoder or _encoder_of(_run_of(path)))


def _run_of(path: Path) -> Path | None:
    """The run that a checkpoint lies in, if it does."""
    run = path.resolve().parent.parent
    return run if (run / CONFIG).is_file() else None


def _encoder_of(run: Path | None) -> Encoder | None:
    return resolve(load_file(run / CONFIG)).encoder if run else None


def evaluate_saved(
    source: Path, episodes: int, env_id: str | None = None, sample: bool = False
) -> evaluation.EvalResult:
    """Run a saved policy in the environment it was trained in, or in another with its spaces.

    A run's eval.json then holds the result.
    """
    path, found = locate(source)
    run = _run_of(path)
    if run is None and env_id is None:
        raise BadInput(f"{source} is not inside a run directory; say where to play with --env-id")
    agent = from_checkpoint(found, _encoder_of(run))
    options = vars(resolve(load_file(run / CONFIG)).env) if run else {}
    options = options | {"vector": False}  # episodes with seeds of their own need single ones
    if env_id is not None:
        options = options | {"kwargs": {}}  # those were the other environment's
    name = env_id or found.facts["env_id"]
    result = evaluation.run(agent, env_maker(name, **options), episodes, sample)
    result = replace(result, checkpoint=str(path), env_id=name)
    if run is not None:
        try:
            replace_file(run / EVALUATION, json.dumps(result.as_dict(), indent=1).encode())
        except OSError as error:
            log.warning("%s can't be written: %s", run / EVALUATION, error.strerror)
    return result
