"""A run in this process: the training loop, recorded in a run directory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ..config.resolve import fit_to_spaces
from ..config.schema import BUDGETS, Config
from ..config.sizes import growth
from ..config.text import printable, several
from ..config.values import seconds
from ..distributed import Local, Sync
from ..errors import BadInput, Diverged, EnvironmentFailed, LostRank, StoppedEarly
from ..policy.agent import Agent
from ..processes.channel import PROGRESS
from ..processes.hardware import available_cpus, cpu_name
from ..processes.stopping import StopNow, interruptible
from ..ring import ring, watch
from ..storage.checkpoint import Checkpoint
from ..storage.files import shown
from ..storage.lock import locked
from .budget import RECENT, Budget, Progress
from .build import Parts, build, env_info_of
from .checkpointing import (
    check_spaces,
    load_initial_weights,
    newest_checkpoint,
    restore,
)
from .choices import Choices, warn_if_oversubscribed
from .directory import (
    CONFIG,
    begun_by_launch,
    claim,
    fixed,
    new_directory,
    planned_directory,
    run_facts,
    write_run,
    writing,
)
from .evaluation import EvalResult
from .live_agent import LiveAgent
from .recorder import Recorder
from .report import Report
from .saved import SavedRun, open_run, rewind
from .topology import Topology

log = logging.getLogger("paceline")

GENERAL = {"continuous": "Box actions", "discrete": "discrete actions", "images": "images"}
"""Presets for environments without tuned values."""
EPISODES = 20
"""Episodes of an evaluation that is asked for, where the configuration has none."""
SYNCHRONIZED = (*BUDGETS, "stop_at_return", "schedule_budget", "log_every")
"""Options that do not affect learning, and yet have to be the same on all ranks."""


@contextmanager
def open_training(
    config: Config,
    saved: SavedRun | None,
    topology: Topology,
    stopping: Callable[[], bool],
    requested_at: float,
) -> Iterator[LocalTraining]:
    """Prepare training in this process, which may be one of several ranks, from the beginning or
    from `saved`.

    Ranks that their launcher has restarted resume what they had begun. `requested_at` is when the
    user asked for the run, by the monotonic clock.
    """
    with ExitStack() as stack:
        sync = stack.enter_context(closing(_make_sync(config, topology)))
        folder = planned_directory(config, topology.launch) if topology.writes else None
        if saved is None:
            restarted = None
            if folder and begun_by_launch(folder, topology.launch) and (folder / CONFIG).exists():
                restarted = str(folder)
            if place := sync.broadcast(restarted):
                saved = open_run(Path(place), _options_of_this_launch(config))
        if saved is not None:
            config, folder = saved.config, saved.folder
            parts, progress = _resume(saved, sync, topology, stack)
        else:
            config, folder, parts = _start(config, folder, sync, topology, stack)
            progress = Progress()
        if topology.writes:
            _announce(config, folder, parts)
        recorder = None
        if topology.lockstep or not topology.learns:
            recorder = Recorder(config, folder, parts, progress, stopping, requested_at)
            stack.enter_context(closing(recorder))
        training = LocalTraining(config, parts, progress, stopping, recorder)
        try:
            yield training
        finally:
            training.keep_agent()


class LocalTraining:
    """A run in this process, once its parts are made."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        progress: Progress,
        stopping: Callable[[], bool],
        recorder: Recorder | None,
    ) -> None:
        """Without a `recorder`, another process records the run (a3c)."""
        self.config, self._parts, self._progress = config, parts, progress
        self._stopping, self._recorder = stopping, recorder
        self._agent = LiveAgent(parts.network, parts.learner)

    @property
    def directory(self) -> Path:
        return self._require_recorder().folder

    @property
    def agent(self) -> Agent:
        return self._agent

    @property
    def lockstep(self) -> bool:
        """Whether other ranks take part in every checkpoint."""
        return self._parts.sync.size > 1

    def log(self, values: Mapping[str, Any]) -> None:
        self._require_recorder().log(values)

    def evaluate(self, episodes: int | None) -> EvalResult | None:
        return self._require_recorder().evaluate(episodes or self.config.eval_episodes or EPISODES)

    def save(self) -> Path | None:
        if self._parts.sampler is not None and self._parts.sampler.state() is None:
            raise BadInput("there is nothing to save before the first report")
        return self._require_recorder().save()

    def _require_recorder(self) -> Recorder:
        if self._recorder is None:
            raise BadInput(
                "this process is one of a3c's learners, and rank 0 records the run: use its process"
            )
        return self._recorder

    def keep_agent(self) -> None:
        """Before the learner is closed: the agent keeps the weights it has now."""
        self._agent.keep()

    def reports(self) -> Iterator[Report]:
        """Train. A report is written, with what was logged, when the next one is asked for."""
        config, parts, progress = self.config, self._parts, self._progress
        budget, loop = Budget.of(config), watch if parts.sampler is None else ring
        reports = loop(parts, budget, progress, config.log_every, self._stopping)
        recorder = self._recorder
        if recorder is None:
            _wait_until_ready(parts)
            yield from reports
            parts.sync.finish()
            return
        try:
            _wait_until_ready(parts)
            for report in reports:
                yield recorder.record(report)
                recorder.commit()
            if parts.topology.writes:
                _announce_score(budget, progress)
            recorder.finish()
        except (GeneratorExit, StopNow):
            recorder.stop()
            raise
        except (EnvironmentFailed, Diverged) as error:
            recorder.fail(error)
            raise


def _options_of_this_launch(config: Config) -> dict[str, Any]:
    """Options that a resume does not take from the run directory: objects, paths, addresses."""
    places = [n for n in ("log_jsonl", "init_method", "init_from") if getattr(config, n)]
    return config.objects | {name: getattr(config, name) for name in places}


def _make_sync(config: Config, topology: Topology) -> Sync:
    """Meet the other ranks, if there are any."""
    if topology.size == 1:
        return Local()
    from ..distributed.rendezvous import join_group

    timeout = seconds(config.rank_timeout)
    try:
        group = join_group(
            topology.init_method, topology.rank, topology.size, timeout, attempt=topology.attempt
        )
        return config.entry("sync").make(group, timeout, config, topology)
    except RuntimeError as error:  # of torch's store
        cause = str(error).strip().splitlines()[0][:200]
        raise LostRank(f"a rank was lost while the ranks met: {cause}") from None


def _start(
    request: Config, folder: Path | None, sync: Sync, topology: Topology, stack: ExitStack
) -> tuple[Config, Path, Parts]:
    """Begin a run, in a new directory under runs/ if none is given."""
    with interruptible(starting=True):
        env_info = env_info_of(request)
    config = fit_to_spaces(request, env_info.obs_spec, env_info.act_spec)
    _check_ranks_agree(config, sync)
    with interruptible(starting=True):
        parts = stack.enter_context(build(config, None, env_info, sync, topology))
    if config.init_from:
        load_initial_weights(config.init_from, parts)
    if topology.writes:
        _announce_growth(config)
        folder = folder or new_directory(request)
        stack.enter_context(locked(folder))
        claim(folder, config, parts.choices, topology.launch)
    return config, folder or Path(), parts


def _resume(
    saved: SavedRun, sync: Sync, topology: Topology, stack: ExitStack
) -> tuple[Parts, Progress]:
    """Go on from the newest intact checkpoint, which rank 0 sends to the others."""
    folder, config, choices = saved.folder, saved.config, _limit_threads(saved.choices)
    _check_ranks_agree(config, sync)
    newest = None
    if topology.writes:
        stack.enter_context(locked(folder))
        newest = newest_checkpoint(folder / "checkpoints")
    sent = sync.broadcast(newest and [str(newest[0]), vars(newest[1])])
    found = (Path(sent[0]), Checkpoint(**sent[1])) if sent else None
    with interruptible(starting=True):
        env_info = env_info_of(config)
        if found is not None:
            check_spaces(*found, env_info)
        parts = stack.enter_context(build(config, choices, env_info, sync, topology))
        progress = Progress() if found is None else restore(*found, config, parts)
    if found is None and config.init_from:
        load_initial_weights(config.init_from, parts)
    if topology.writes:
        if found is None:
            log.warning(f"{shown(folder)} has no checkpoint yet; it starts from the beginning")
        rewind(saved, progress, warn_init_method=topology.size > 1)
        if parts.choices != choices:
            log.warning(
                "so far this run's minibatch step was compiled, and from here on it is not, so the "
                "resumed run is not exact"
            )
            with writing(shown(folder), StoppedEarly):
                write_run(folder, {**saved.facts, "choices": asdict(parts.choices)})
    return parts, progress


def _limit_threads(choices: Choices) -> Choices:
    """Fewer threads for a run from a far larger machine, or with an edited run.json."""
    cpus = available_cpus()
    if choices.threads <= 8 * cpus:
        return choices
    log.warning(
        f"this run learned with {choices.threads} threads, too many for {cpus} CPUs: it continues "
        f"with {cpus}, so the resumed run is not exact"
    )
    return replace(choices, threads=cpus)


def _check_ranks_agree(config: Config, sync: Sync) -> None:
    """Refuse ranks that were started with different options."""
    ours, *others = sync.gather(
        fixed(config) | {name: getattr(config, name) for name in SYNCHRONIZED}
    )
    for rank, theirs in enumerate(others, 1):
        for name, value in ours.items():
            if theirs[name] != value:
                raise BadInput(
                    f"{name} is {value!r} on rank 0 and {theirs[name]!r} on rank {rank}; start "
                    "all ranks with the same options"
                )


def _announce_score(budget: Budget, progress: Progress) -> None:
    """Say whether the return that ends a run was reached."""
    if budget.score is None:
        return
    if budget.score_reached(progress):
        log.info(f"the mean return of recent episodes reached {budget.score:g}")
        return
    recent, found = progress.recent, f"fewer than {RECENT} episodes have ended"
    if len(recent) == RECENT:
        found = f"the mean return of the last {RECENT} episodes is {sum(recent) / RECENT:.4g}"
    log.warning(
        f"the budget is spent, and stop_at_return {budget.score:g} was not reached: {found}"
    )


def _wait_until_ready(parts: Parts) -> None:
    """Reset the environments of all ranks before the clock of any starts."""
    level = PROGRESS if parts.topology.writes else logging.DEBUG
    if parts.sampler is not None:
        log.log(level, "resetting the environments")
        with interruptible(starting=True):
            parts.sampler.begin()
        torch.set_num_threads(parts.choices.threads)  # environments may have set another number
    parts.sync.barrier()
    log.log(level, "collecting the first rollout")


def _announce(config: Config, folder: Path, parts: Parts) -> None:
    """Log what is about to run, on which hardware."""
    choices, sync = parts.choices, parts.sync
    if parts.env_info.resume == "none":
        log.warning(
            f"the state of {config.env_name} can't be saved: a resumed run starts new episodes, "
            "and so is not exact"
        )
    learners = f"{sync.world_size} learners ({sync.path}) × " if sync.path else ""
    # From run.json: the configuration of a resumed run has the preset's values filled in.
    name = printable(str(run_facts(folder).get("preset", config.preset)))[:60]
    preset = f"{config.algo_section} {name}"
    if name in GENERAL:
        preset = f"general defaults for {GENERAL[name]} (--preset {name})"
    elif name in ("none", "auto"):
        preset = "none"
    log.info(
        f"{config.algo_name} on {config.env_name} · {learners}{config.num_envs} envs × "
        f"{config.rollout_steps} steps · seed {config.seed} · preset: {preset}"
    )
    log.info(
        f"{cpu_name()}, {available_cpus()} CPUs: {_describe_processes(config, parts.topology)}, "
        f"learner {several(choices.threads, 'thread')}, {choices.device}, "
        f"step {'compiled' if choices.compiled else 'not compiled'} → {shown(folder)}"
    )
    warn_if_oversubscribed(config, choices.threads, parts.topology)


def _announce_growth(config: Config) -> None:
    """Say what differs from one process, where the user has left it to the number of processes."""
    times = growth(config)
    if times > 1 and config.given.get("lr") is None:
        envs = config.ranks * config.num_envs
        log.info(
            f"the learning rate is {config.lr:.3g}, raised since an update has {times} times the "
            f"rows of one process ({envs} envs × {config.rollout_steps} steps); --num-envs or --lr "
            "sets your own"
        )


def _describe_processes(config: Config, topology: Topology) -> str:
    if topology.watcher:
        return f"{topology.learners} learners and one process that watches"
    if not config.workers:
        return "no workers"
    each, sampler = config.num_envs // config.workers, printable(str(config.resolved_sampler))
    pinned = ", pinned" if config.pin else ""
    return f"{config.workers} workers × {each} envs ({sampler}{pinned})"
