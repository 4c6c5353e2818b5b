"""train, resume, load, evaluate: what users call.

torch is imported where a process trains; one that only starts ranks does without.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from .config.registry import name_of
from .config.schema import OBJECTS, Config
from .envs.source import EnvId
from .errors import BadInput
from .policy.agent import USER_MODULES, Agent, from_checkpoint, locate
from .policy.network import Encoder
from .processes import launcher
from .ranks.launch import launch, make_job
from .run.directory import CONFIG, EVALUATION, new_directory, refuse_to_overwrite, run_facts
from .run.evaluation import EvalResult, evaluate_policy
from .run.report import Report
from .run.saved import open_run, plain_config, refuse_irregular
from .run.topology import topology_of
from .storage.checkpoint import Checkpoint
from .storage.files import absolute, replace_file, shown

log = logging.getLogger("paceline")

_running: WeakSet[Generator[Report, None, None]] = WeakSet()
"""Runs whose reports a script may leave unread; they are saved when it exits."""


@atexit.register
def _end_runs() -> None:
    for reports in list(_running):
        with suppress(ValueError):  # it is being executed: the script exited inside it
            reports.close()


def train(config: Config, stopping: Callable[[], bool] = lambda: False) -> Iterator[Report]:
    """Train, write the run directory, and yield a report after every `log_every` iterations.

    Leaving the loop early ends the run cleanly, with a checkpoint to resume from. Reports may be
    seconds apart; when `stopping()` returns true the next comes after the current iteration. With
    several ranks this process starts them, unless it is one of them, and yields rank 0's reports.
    """
    reports = _train(config, stopping)
    _running.add(reports)
    return reports


def resume(
    run: str | Path, stopping: Callable[[], bool] = lambda: False, **changes: Any
) -> Iterator[Report]:
    """Continue a run from its newest intact checkpoint, as if it had never stopped.

    The budget may be extended, and logging and evaluation changed; nothing that affects learning.
    """
    reports = _resume(Path(absolute(run)), stopping, changes)
    _running.add(reports)
    return reports


def _train(config: Config, stopping: Callable[[], bool]) -> Generator[Report, None, None]:
    requested_at, topology = launcher.requested_at(), topology_of(config)
    if config.output_dir and topology.writes:
        refuse_to_overwrite(Path(config.output_dir), config, topology.launch)
    if topology.must_launch:
        yield from _launch_training(config, topology.size, stopping)
        return
    from .run.training import run_in_process

    yield from run_in_process(config, None, topology, stopping, requested_at)


def _launch_training(
    config: Config, processes: int, stopping: Callable[[], bool]
) -> Iterator[Report]:
    """Start the ranks of a run, in a directory that all of them know."""
    made = None if config.output_dir else new_directory(config)
    request = config.with_output_dir(str(made)) if made else config
    try:
        yield from launch(make_job("train", request, config.env_id), config, processes, stopping)
    finally:
        if made:
            with suppress(OSError):  # not empty: it holds the run
                made.rmdir()


def _resume(
    folder: Path, stopping: Callable[[], bool], changes: dict[str, Any]
) -> Generator[Report, None, None]:
    requested_at, saved = launcher.requested_at(), open_run(folder, changes)
    config, topology = saved.config, topology_of(saved.config)
    if topology.must_launch:
        request = make_job("resume", str(folder), config.env_id, **changes)
        yield from launch(request, config, topology.size, stopping)
        return
    from .run.training import run_in_process

    yield from run_in_process(config, saved, topology, stopping, requested_at)


def load(
    source: str | Path, encoder: Encoder | None = None, memory: Encoder | None = None
) -> Agent:
    """The policy of a run's newest checkpoint, or of one checkpoint's directory.

    `encoder` and `memory` are needed if the policy has its own and the run's config.yaml does not
    name it, or it is an object that can't be imported.
    """
    run = _run_of(Path(source))
    path, found = locate(source)
    given = {"encoder": encoder, "memory": memory}
    given = {name: part for name, part in given.items() if part is not None}
    return from_checkpoint(path, found, _own_parts(run, found) | given)


def evaluate(
    agent: Agent,
    env_id: EnvId,
    episodes: int = 20,
    *,
    sample: bool = False,
    kwargs: dict[str, Any] | None = None,
    time_limit: int | None = None,
    frame_stack: int | None = None,
    wrappers: tuple[str, ...] = (),
) -> EvalResult:
    """Run `episodes` episodes of `env_id` with `agent`, greedily unless `sample`."""
    options = {"time_limit": time_limit, "frame_stack": frame_stack, "wrappers": wrappers}
    return evaluate_policy(agent, env_id, {"kwargs": kwargs or {}, **options}, episodes, sample)


def evaluate_saved(
    source: Path, episodes: int, env_id: str | None = None, sample: bool = False
) -> EvalResult:
    """Evaluate a saved policy where it was trained, or in `env_id`; writes a run's eval.json."""
    source = Path(absolute(source))  # the environment may change the working directory
    run = _run_of(source)
    path, found = locate(source)
    if run is None and env_id is None:
        raise BadInput(
            f"{shown(source)} is not inside a run directory; name the environment with --env-id"
        )
    config = plain_config(run) if run else None
    agent = from_checkpoint(path, found, _own_parts(run, found))
    if run is not None and env_id is None and run_facts(run).get("env_is_callable"):
        raise BadInput(
            "this run's environment was a Python object; evaluate it from Python with "
            "paceline.evaluate(paceline.load(run), that_object), or name one with --env-id"
        )
    options = dict(vars(config.env)) if config else {}
    if env_id is not None:
        options = options | {"kwargs": {}}  # those were the other environment's
    # Never the name in the checkpoint, which would be imported.
    name = env_id or (config.env_name if config else "")
    result = evaluate_policy(agent, name, options, episodes, sample)
    result = replace(result, checkpoint=shown(path), env_id=name)
    if run is not None:
        try:
            replace_file(run / EVALUATION, result.as_json())
        except OSError as error:
            log.warning(f"{shown(run / EVALUATION)} can't be written: {error.strerror}")
    return result


def _run_of(source: Path) -> Path | None:
    """The run that `source` is, or that it is a checkpoint of; None outside of a run."""
    run = source if (source / "checkpoints").exists() else Path(absolute(source)).parent.parent
    if not (run / CONFIG).exists():
        return None
    refuse_irregular(run)
    return run


def _own_parts(run: Path | None, found: Checkpoint) -> dict[str, Encoder]:
    """The user's own encoder and memory, as far as the run's configuration names them."""
    network = found.facts.get("network")
    if run is None or not isinstance(network, dict):
        return {}
    own = [name for name in USER_MODULES if network.get(name) is not None]
    if not own:
        return {}
    facts, config = run_facts(run), plain_config(run)
    named = {name: getattr(config, name) for name in own if not facts.get(OBJECTS[name])}
    return {name: name_of(part) for name, part in named.items() if part is not None}
