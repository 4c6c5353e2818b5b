"""train, resume, load, evaluate: what users call.

Nothing heavy is imported before it is needed: a process that only starts others needs no torch.
"""

from __future__ import annotations

import atexit
import json
import logging
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec
from weakref import WeakSet

from .config.registry import name_of
from .config.schema import OBJECTS, Config
from .errors import BadInput
from .policy.agent import USER_MODULES, Agent, from_checkpoint, locate
from .policy.network import Encoder
from .processes.launcher import requested_at
from .ranks.launch import launch, make_job
from .run import evaluation
from .run.directory import CONFIG, EVALUATION, begun_by_this_launch, refuse_to_lose
from .run.report import Report
from .run.saved import plain_config, read_run, refuse_strange, resumed_config
from .run.topology import Topology, topology_of
from .storage.checkpoint import Checkpoint
from .storage.files import absolute, replace_file, shown

log = logging.getLogger("paceline")

P = ParamSpec("P")

_running: WeakSet[Generator[Report, None, None]] = WeakSet()
"""Runs that have begun; those that a script has left in the middle are ended, saved, when it is."""


@atexit.register
def _end_runs() -> None:
    for reports in list(_running):
        with suppress(ValueError):  # it is what ends the script
            reports.close()


def _ended_with_script(
    begin: Callable[P, Generator[Report, None, None]],
) -> Callable[P, Iterator[Report]]:
    @wraps(begin)
    def begun(*arguments: P.args, **options: P.kwargs) -> Iterator[Report]:
        reports = begin(*arguments, **options)
        _running.add(reports)
        return reports

    return begun


@_ended_with_script
def train(
    config: Config, stopping: Callable[[], bool] = lambda: False
) -> Generator[Report, None, None]:
    """Train, writing the run directory, and yield a report after every iteration or few.

    Leaving the loop early ends the run cleanly, with a checkpoint to resume from. Reports may be
    seconds apart; when `stopping()` returns true the next comes after the current iteration. With
    several ranks this process starts them, unless it is one of them, and yields rank 0's reports.
    """
    asked, topology = requested_at(), topology_of(config)
    if config.output_dir and topology.writes:
        refuse_to_lose(Path(config.output_dir), config, topology.launch)
    runs = Path(config.working_directory) / "runs"
    if topology.must_launch:
        yield from _launch_training(config, runs, topology.size, stopping)
        return
    from .run.build import make_sync
    from .run.training import go_on, start

    with closing(make_sync(config, topology)) as sync:
        folder = _folder(runs, config, topology) if topology.writes else None
        # Whether the launcher has started its ranks again, after some of them had gone.
        again = folder and begun_by_this_launch(folder, topology.launch)
        going_on = str(folder) if folder and again and (folder / CONFIG).exists() else None
        if begun := sync.gather(going_on)[0]:
            resumed = Path(begun), _own_words(config)
            yield from go_on(*resumed, *resumed_config(*resumed), sync, topology, stopping, asked)
        else:
            new_folder = partial(_new_folder, runs)
            yield from start(config, folder, new_folder, sync, topology, stopping, asked)


def _launch_training(
    config: Config, runs: Path, processes: int, stopping: Callable[[], bool]
) -> Iterator[Report]:
    """Start the ranks of a run, in a folder that they all know."""
    made = None if config.output_dir else _new_folder(runs, config)
    moved = config.with_output_dir(str(made)) if made else config
    try:
        yield from launch(make_job("train", moved, config.env_id), config, processes, stopping)
    finally:
        if made:
            with suppress(OSError):  # it is not empty once there is a run in it
                made.rmdir()


@_ended_with_script
def resume(
    run: str | Path, stopping: Callable[[], bool] = lambda: False, **changes: Any
) -> Generator[Report, None, None]:
    """Go on with a run from its newest whole checkpoint, as if it had never stopped.

    The budget may be extended, and logging and evaluation changed; nothing that alters learning.
    """
    asked, folder = requested_at(), Path(absolute(run))
    config, choices = resumed_config(folder, changes)
    topology = topology_of(config)
    if topology.must_launch:
        again = make_job("resume", str(folder), config.env_id, **changes)
        yield from launch(again, config, topology.size, stopping)
        return
    from .run.build import make_sync
    from .run.training import go_on

    with closing(make_sync(config, topology)) as sync:
        yield from go_on(folder, changes, config, choices, sync, topology, stopping, asked)


def _own_words(config: Config) -> dict[str, Any]:
    """Of its user's configuration, what a run directory is not trusted with."""
    objects = [name for name in OBJECTS if callable(getattr(config, name))]
    outward = [n for n in ("log_jsonl", "init_method", "init_from") if getattr(config, n)]
    return {name: getattr(config, name) for name in (*objects, *outward)}


def _folder(runs: Path, config: Config, topology: Topology) -> Path | None:
    """Where the run is to be; known before it begins only where somebody has said so."""
    if config.output_dir:
        return Path(config.output_dir)
    if topology.launch is None:
        return None
    return runs / f"{_stem(config)}-{zlib.crc32(topology.launch.encode()):08x}"


def _stem(config: Config) -> str:
    name = config.env_name.replace(":", "-").replace("/", "-")
    return f"{name}-{config.algo_name}"


def _new_folder(runs: Path, config: Config) -> Path:
    """A directory of its own under runs/, also for two runs of the same second."""
    stem, number = f"{_stem(config)}-{datetime.now():%Y%m%d-%H%M%S}", 1
    while True:
        folder = runs / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise BadInput(f"{shown(folder)} can't be made: {error.strerror}") from None


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
    """The run that `source` is, or that it is a checkpoint of; without irregular files."""
    run = source if (source / "checkpoints").exists() else Path(absolute(source)).parent.parent
    if not (run / CONFIG).exists():
        return None
    refuse_strange(run)
    return run


def _own_of(run: Path | None, found: Checkpoint) -> dict[str, Encoder]:
    """What the run's configuration names, if there is one, and it was no object without a name."""
    network = found.facts.get("network")
    own = [
        name for name in USER_MODULES if isinstance(network, dict) and network.get(name) is not None
    ]
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
