"""Evaluating what a run has saved."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

from . import evaluation
from .agent import from_checkpoint, locate
from .checkpoint import replace_file
from .configure import load_file, resolve
from .envs import env_maker
from .errors import BadInput
from .rundir import CONFIG, EVALUATION

log = logging.getLogger("paceline")


def evaluate_saved(
    source: Path, episodes: int, env_id: str | None = None, sample: bool = False
) -> evaluation.EvalResult:
    """Run a saved policy in the environment it was trained in, or in another with its spaces.

    A run's eval.json then holds the result.
    """
    path, found = locate(source)
    agent = from_checkpoint(found)
    run = path.resolve().parent.parent
    inside = (run / CONFIG).is_file()
    if not inside and env_id is None:
        raise BadInput(f"{source} is not inside a run directory; say where to play with --env-id")
    options = vars(resolve(load_file(run / CONFIG)).env) if inside else {}
    if env_id is not None:
        options = options | {"kwargs": {}}  # those were the other environment's
    name = env_id or found.facts["env_id"]
    result = evaluation.run(agent, env_maker(name, **options), episodes, sample)
    result = replace(result, checkpoint=str(path), env_id=name)
    if inside:
        try:
            replace_file(run / EVALUATION, json.dumps(result.as_dict(), indent=1).encode())
        except OSError as error:
            log.warning("%s can't be written: %s", run / EVALUATION, error.strerror)
    return result
