"""Evaluating what a run has saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from . import evaluation
from .agent import from_checkpoint, locate
from .configure import load_file, resolve
from .envs import env_maker
from .errors import BadInput
from .recorder import CONFIG


def evaluate_saved(
    source: Path, episodes: int, env_id: str | None = None, sample: bool = False
) -> evaluation.EvalResult:
    """Run a saved policy in the environment it was trained in, or in another with its spaces."""
    path, found = locate(source)
    agent = from_checkpoint(found)
    run = next((p for p in (path, *path.resolve().parents) if (p / CONFIG).is_file()), None)
    if run is None and env_id is None:
        raise BadInput(f"{source} is not inside a run directory; say where to play with --env-id")
    options = resolve(load_file(run / CONFIG)).env if run and env_id is None else None
    name = env_id or found.facts["env_id"]
    if options is None:
        make = env_maker(name)
    else:
        make = env_maker(
            name, options.kwargs, options.time_limit, options.frame_stack, options.wrappers
        )
    result = evaluation.run(agent, make, episodes, sample)
    return replace(result, checkpoint=str(path), env_id=name)
