"""A run in this process: the ring, plus what a run leaves behind in its directory."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from ..config.resolve import fit_to_spaces
from ..config.schema import BUDGETS, Config
from ..config.text import printable, several
from ..distributed import Sync
from ..envs.columns import ReplayMismatch
from ..envs.source import EnvInfo
from ..envs.spaces import specs_mismatch
from ..errors import BadInput, Diverged, EnvironmentFailed, StoppedEarly
from ..policy.agent import from_checkpoint, locate, network_facts, saved_network
from ..processes import hardware as machine
from ..processes.hardware import Choices
from ..processes.stopping import StopNow, interruptible
from ..ring import ring
from ..samplers.block import format_differences
from ..samplers.serial import Serial
from ..storage import checkpoint
from ..storage.arrays import check_like, under_prefix
from ..storage.files import shown
from ..storage.lock import locked
from .budget import Budget, Progress
from .build import Parts, build, env_info_of
from .choices import warn_of_crowding
from .directory import CONFIG, add_to_run, claim, fixed
from .meter import Meter
from .recorder import Recorder
from .report import Report
from .saved import read_run, rewind
from .topology import Topology

log = logging.getLogger("paceline")

Found = tuple[Path, checkpoint.Checkpoint]
"""A checkpoint, and where it lies."""
GENERAL = {"continuous": "Box actions", "discrete": "discrete actions", "images": "images"}
"""Presets for environments that nothing was tuned for."""
COMMON = (*BUDGETS, "stop_at_return", "log_every")
"""Of what alters no learning, what decides when ranks talk to each other."""
MOST = 2**53
"""No run is longer, in whatever unit."""


def start(
    config: Config,
    folder: Path | None,
    new_folder: Callable[[Config], Path],
    sync: Sync,
    topology: Topology,
    stopping: Callable[[], bool],
    asked: float,
) -> Iterator[Report]:
    """A run from its beginning, in a new folder if none is given; `asked` for at that time."""
    with interruptible():
        env_info = env_info_of(config)
    config = fit_to_spaces(config, env_info.obs_spec, env_info.act_spec)
    _agree_on(config, sync)
    with ExitStack() as stack:
        with interruptible():
            parts = stack.enter_context(build(config, None, env_info, sync, topology))
        if config.init_from:
            _start_from(config.init_from, parts)
        if topology.writes:
            folder = folder or new_folder(config)
            stack.enter_context(locked(folder))
            claim(folder, config, asdict(parts.choices), topology.launch)
            _introduce(config, folder, parts)
        yield from _record(config, folder or Path(), parts, Progress(), stopping, asked)


def go_on(
    folder: Path,
    changes: dict[str, Any],
    config: Config,
    choices: Choices,
    sync: Sync,
    topology: Topology,
    stopping: Callable[[], bool],
    asked: float,
) -> Iterator[Report]:
    """A run from its newest whole checkpoint, of which rank 0 tells the others."""
    choices = _fewer_threads(choices)
    _agree_on(config, sync)
    with ExitStack() as stack:
        newest = None
        if topology.writes:
            stack.enter_context(locked(folder))
            newest = _newest(folder / "checkpoints")
        sent = sync.gather(newest and [str(newest[0]), vars(newest[1])])[0]
        found: Found | None = sent and (Path(sent[0]), checkpoint.Checkpoint(**sent[1]))
        with interruptible():
            env_info = env_info_of(config)
            if found is not None:
                _refuse_other_spaces(*found, env_info)
            parts = stack.enter_context(build(config, choices, env_info, sync, topology))
        progress = Progress()
        if found is not None:
            progress = _restore(*found, config, parts)
        elif config.init_from:
            _start_from(config.init_from, parts)
        if topology.writes:
            if found is None:
                log.warning(f"{shown(folder)} has no checkpoint yet; it starts from the beginning")
            rewind(folder, config, progress.iter, changes, topology.size > 1)
            if parts.choices != choices:
                _note_eager(folder, parts)
            _introduce(config, folder, parts)
        yield from _record(config, folder, parts, progress, stopping, asked)


def _fewer_threads(choices: Choices) -> Choices:
    """Of a run from a far larger machine, or one that somebody has written."""
    cpus = machine.available_cpus()
    if choices.threads <= 8 * cpus:
        return choices
    log.warning(
        f"this run learnt with {choices.threads} threads, too many for {cpus} CPUs: it goes on "
        f"with {cpus}, and so not exactly as it would have"
    )
    return replace(choices, threads=cpus)


def _note_eager(folder: Path, parts: Parts) -> None:
    """The one choice of a run that may not hold: here its step can't be compiled."""
    log.warning(
        "so far this run's minibatch step was compiled, and from here on it is not: it goes on, "
        "but not exactly as it would have"
    )
    try:
        add_to_run(folder, choices=asdict(parts.choices))
    except OSError as error:
        raise StoppedEarly(f"{folder} can't be written: {error.strerror}") from None


def _refuse_other_spaces(path: Path, found: checkpoint.Checkpoint, env_info: EnvInfo) -> None:
    """The policy was made for the environment as it was."""
    network = saved_network(path, found)
    ours, theirs = (network.obs, network.act), (env_info.obs_spec.seen, env_info.act_spec)
    changed = specs_mismatch(ours, theirs)
    if changed:
        role, was, now = changed
        raise BadInput(
            f"the environment has changed: its {role} were {was} when {path} was made, and are "
            f"{now} now; put it back as it was, or begin a new run"
        )


def _agree_on(config: Config, sync: Sync) -> None:
    """Ranks that were started with other options would each do something else."""
    common = {name: getattr(config, name) for name in COMMON}
    ours, *others = sync.gather(fixed(config) | common)
    for number, theirs in enumerate(others, 1):
        for name, value in ours.items():
            if theirs[name] != value:
                raise BadInput(
                    f"{name} is {value!r} on rank 0 and {theirs[name]!r} on rank {number}; start "
                    "all ranks with the same options"
                )


def _introduce(config: Config, folder: Path, parts: Parts) -> None:
    """What is about to run, and on what."""
    choices, sync = parts.choices, parts.sync
    if parts.env_info.resume == "none":
        log.warning(
            f"the state of {config.env_name} can't be saved: a run that is resumed from a "
            "checkpoint begins new episodes, and so does not go on exactly as it would have"
        )
    learners = f"{sync.world_size} learners ({sync.path}) × " if sync.path else ""
    # What a run was begun with, also where it goes on: its configuration has it all filled in.
    name = printable(str(read_run(folder)[0].get("preset", config.preset)))[:60]
    preset = f"{config.algo_section} {name}"
    if name in GENERAL:
        preset = f"general defaults for {GENERAL[name]} (--preset {name})"
    elif name in ("none", "auto"):
        preset = "none"
    log.info(
        f"{config.algo_name} on {config.env_name} · {learners}{config.columns} envs × "
        f"{config.rollout_steps} steps · seed {config.seed} · preset: {preset}"
    )
    log.info(
        f"{machine.cpu_name()}, {machine.available_cpus()} CPUs: "
        f"{_processes(config, parts.topology)}, learner {several(choices.threads, 'thread')}, "
        f"{choices.device}, {'compiled' if choices.compiled else 'eager'} step → {shown(folder)}"
    )
    warn_of_crowding(config, choices.threads, parts.topology)


def _processes(config: Config, topology: Topology) -> str:
    if topology.watcher:
        return f"{topology.learners} learners and one process that watches"
    if not config.workers:
        return "no workers"
    each = config.num_envs // config.workers
    bound = ", pinned" if config.pin else ""
    return (
        f"{config.workers} workers × {each} envs ({printable(str(config.resolved_sampler))}{bound})"
    )


def _record(
    config: Config,
    folder: Path,
    parts: Parts,
    progress: Progress,
    stopping: Callable[[], bool],
    asked: float,
) -> Iterator[Report]:
    """The ring, with each report evaluated, written and, when due, followed by a checkpoint."""
    budget = Budget.of(config)
    counted = budget, progress, config.log_every, stopping
    if parts.sampler is not None:
        reports = ring(parts, *counted)
    else:
        assert parts.sync.monitor is not None
        reports = parts.sync.monitor(parts.learner, Meter(parts, progress), *counted)
    if not parts.topology.lockstep and parts.topology.learns:
        _get_ready(parts)
        yield from reports  # a learner that others watch leaves nothing behind by itself
        return
    with closing(Recorder(config, folder, parts, progress, asked)) as recorder:
        try:
            _get_ready(parts)
            for report in reports:
                yield recorder.record(report)
            if budget.score_reached(progress) and parts.sync.rank == 0:
                log.info(f"the last episodes' mean return has reached {config.stop_at_return:g}")
            recorder.finish()
        except (GeneratorExit, StopNow):
            recorder.stop()
            raise
        except (EnvironmentFailed, Diverged) as error:
            recorder.fail(error)
            raise


def _get_ready(parts: Parts) -> None:
    """Nobody's clock starts before all environments, of all ranks, are ready for a step."""
    if parts.sampler is not None:
        parts.sampler.begin()
        torch.set_num_threads(parts.choices.threads)  # environments may have set another number
    parts.sync.all(True)


def _newest(checkpoints: Path) -> Found | None:
    """The newest whole checkpoint, if any was made; damaged ones are set aside, and said."""
    checkpoint.remove_partial(checkpoints)
    if not checkpoint.paths(checkpoints):
        return None
    path, found, problems = checkpoint.load_newest(checkpoints)
    for problem in problems:
        log.warning(f"damaged, passed over: {problem}")
    checkpoint.set_aside(checkpoints, path)
    return path, found


def _restore(path: Path, found: checkpoint.Checkpoint, config: Config, parts: Parts) -> Progress:
    facts, sync = _checked(path, found.facts), parts.sync
    for name, value in fixed(config).items():
        if facts["config"].get(name, value) != value:
            raise BadInput(
                f"{name} is {value!r} in {CONFIG} and was {facts['config'][name]!r} when "
                f"{shown(path)} was made; put it back, since it alters what is learnt"
            )
    began = time.perf_counter()
    different: list[ReplayMismatch] = []
    try:
        per_column = parts.learner.per_column
        learner, sampler = checkpoint.split_rank(found.arrays, sync.rank, sync.size, per_column)
        check_like(learner, parts.learner.state())
        parts.learner.restore(learner)
        if isinstance(parts.sampler, Serial) and not parts.topology.lockstep:
            parts.sampler.skip(facts["iter"])
        elif parts.sampler is not None:
            different = parts.sampler.restore(sampler)
    except (ValueError, KeyError, OverflowError, MemoryError) as error:
        place = shown(path / "state.safetensors")
        raise BadInput(f"{place} does not fit this run: {error}") from None
    if different:
        log.warning(
            f"the environments of columns {format_differences(different)} did not replay to the "
            "same observation and return; they begin a new episode, and the run goes on, but not "
            "exactly as it would have"
        )
    if parts.sampler is not None:
        parts.sampler.publish(parts.learner.weights, parts.learner.version)
    progress = Progress(facts["iter"], facts["steps"], facts["time"], best=facts["best"])
    progress.first, progress.episodes = facts["first"], facts["episodes"]
    progress.recent.extend(facts["recent"])
    if sync.rank == 0:
        log.info(f"resuming from {shown(path)} ({time.perf_counter() - began:.1f} s)")
        if facts["evaluated"] and facts["evaluated"] == facts["best"]:
            checkpoint.mark_best(path)  # in case the run was killed before it could
    return progress


def _start_from(source: str, parts: Parts) -> None:
    """Take over the weights and the running statistics of a saved policy; nothing else."""
    path, found = locate(source)
    from_checkpoint(path, found, vars(parts.network))  # refuses what is no policy
    theirs = found.facts["network"]
    ours = json.loads(json.dumps(network_facts(parts.network)))
    del ours["log_std_init"]  # how weights were drawn, not how they are used
    for name in ours:
        if theirs.get(name) != ours[name]:
            raise BadInput(
                f"init_from {shown(source)}: its {name} is {_short(theirs.get(name))}, and that of "
                f"this run is {_short(ours[name])}; they have to be the same"
            )
    parts.learner.load_weights(found.weights, under_prefix("learner.", found.arrays))
    if parts.sampler is not None:
        parts.sampler.publish(parts.learner.weights, parts.learner.version)
    if parts.sync.rank == 0:
        log.info(f"starting from the weights of {shown(path)}")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]} …"


@with_config(ConfigDict(strict=True, allow_inf_nan=False))
class Facts(TypedDict):
    """What a checkpoint's state.json says of the run's progress."""

    iter: Annotated[int, Ge(0), Le(MOST)]
    steps: Annotated[int, Ge(0), Le(MOST)]
    time: Annotated[float, Ge(0), Le(MOST)]
    recent: list[float]
    first: list[float]
    episodes: Annotated[int, Ge(0), Le(MOST)]
    best: float | None
    evaluated: float | None
    config: dict[str, Any]


def _checked(path: Path, facts: dict[str, Any]) -> Facts:
    try:
        checked = TypeAdapter(Facts).validate_python(facts)
    except ValidationError as error:
        cause = error.errors()[0]
        place = ".".join(str(part) for part in cause["loc"])
        raise BadInput(f"{shown(path / 'state.json')}: {place}: {cause['msg']}") from None
    said, named = checked["iter"], int(path.name)
    if said != named:
        raise BadInput(f"{shown(path / 'state.json')}: iter is {said}, not {named}")
    return checked
