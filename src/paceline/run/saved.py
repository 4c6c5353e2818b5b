"""Loading and evaluating what a run has saved."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.registry import name_of
from ..config.schema import OBJECTS
from ..errors import BadInput
from ..policy.agent import OWN, Agent, from_checkpoint, locate
from ..policy.network import Encoder
from ..storage.checkpoint import Checkpoint
from ..storage.files import absolute, replace_file, shown
from . import evaluation
from .directory import CONFIG, EVALUATION, plain_config, read_run, refuse_strange

log = logging.getLogger("paceline")


def load(
    source: str | Path, encoder: Encoder | None = None, memory: Encoder | None = None
) -> Agent:
    """The policy of a run's newest checkpoint, or of one checkpoint's directory.

    `encoder` and `memory` are needed where the policy has its own and the run's config.yaml does
    not say which, or it is an object that can't be imported.
    """
    run = _run_of(Path(source))
    path, found = locate(source)
    given = {"encoder": encoder, "memory": memory}
    said = {name: thing for name, thing in given.items() if thing is not None}
    return from_checkpoint(path, found, _own_of(run, found) | said)


def _run_of(source: Path) -> Path | None:
    """The run that `source` is, or that it is a checkpoint of; with nothing strange in it."""
    run = source if (source / "checkpoints").exists() else Path(absolute(source)).parent.parent
    if not (run / CONFIG).exists():
        return None
    refuse_strange(run)
    return run


def _own_of(run: Path | None, found: Checkpoint) -> dict[str, Encoder]:
    """What the run's configuration names, if there is one, and it was no object without a name."""
    network = found.facts.get("network")
    own = [name for name in OWN if isinstance(network, dict) and network.get(name) is not None]
    if run is None or not own:
        return {}
    made_with, config = _made_with(run), plain_config(run)
    named = {name: getattr(config, name) for name in own if not made_with.get(OBJECTS[name])}
    return {name: name_of(thing) for name, thing in named.items() if thing is not None}


def _made_with(run: Path) -> dict[str, Any]:
    """What is known of how the run was made; nothing, where that can't be read."""
    try:
        return read_run(run)[0]
    except BadInput:
        return {}


def evaluate_saved(
    source: Path, episodes: int, env_id: str | None = None, sample: bool = False
) -> evaluation.EvalResult:
    """Run a saved policy where it was trained, or in `env_id`; a run's eval.json has the result."""
    source = Path(absolute(source))  # the environment may change the working directory
    run = _run_of(source)
    path, found = locate(source)
    if run is None and env_id is None:
        raise BadInput(
            f"{shown(source)} is not inside a run directory; say where to play with --env-id"
        )
    config = plain_config(run) if run else None
    agent = from_checkpoint(path, found, _own_of(run, found))
    if run is not None and env_id is None and _made_with(run).get("env_is_callable"):
        raise BadInput(
            "this run's environment was a Python object; evaluate "
            "it from Python with paceline.evaluate(paceline.load(run), that_object), or say where "
            "to play with --env-id"
        )
    options = dict(vars(config.env)) if config else {}
    if env_id is not None:
        options = options | {"kwargs": {}}  # those were the other environment's
    # Never the checkpoint's word for it, which would be imported.
    name = env_id or (config.env_name if config else "")
    result = evaluation.run(agent, name, options, episodes, sample)
    result = replace(result, checkpoint=shown(path), env_id=name)
    if run is not None:
        try:
            replace_file(run / EVALUATION, json.dumps(result.as_dict(), indent=1).encode())
        except OSError as error:
            log.warning(f"{shown(run / EVALUATION)} can't be written: {error.strerror}")
    return result
