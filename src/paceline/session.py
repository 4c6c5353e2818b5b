"""train, resume, load, evaluate: what users call.

torch is imported where a process trains; one that only starts ranks does without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config.registry import MEMORIES, name_of
from .config.resolve import check_env, fit_to_spaces
from .config.schema import OBJECTS, Config
from .envs.source import EnvId, Wrappers
from .errors import BadInput
from .policy.agent import Agent
from .policy.network import ENCODERS, Encoder
from .policy.saved import USER_MODULES, from_checkpoint, locate
from .processes import launcher
from .ranks.launch import launch, make_job
from .run.directory import (
    CONFIG,
    EVALUATION,
    SAMPLED_EVALUATION,
    new_directory,
    refuse_to_overwrite,
    run_facts,
)
from .run.evaluation import EvalResult, Evaluation, evaluate_policy
from .run.handle import Begin, Run, Training
from .run.saved import SavedRun, open_run, plain_config, refuse_irregular
from .run.topology import Topology, topology_of
from .storage.checkpoint import Checkpoint
from .storage.files import absolute, replace_file, shown

if TYPE_CHECKING:
    from .run.build import Parts

log = logging.getLogger("paceline")


def train(config: Config, stopping: Callable[[], bool] = lambda: False) -> Run:
    """A run to iterate over: it trains, writes its directory, and yields a report after every
    `log_every` iterations.

    Leaving the loop early ends the run cleanly, with a checkpoint to resume from. Reports may be
    seconds apart; when `stopping()` returns true the next comes after the current iteration. With
    several ranks this process starts them, unless it is one of them, and yields rank 0's reports.
    """
    requested_at, topology = launcher.requested_at(), topology_of(config)
    if config.output_dir and topology.writes:
        refuse_to_overwrite(Path(config.output_dir), config, topology.launch)
    if config.parallel is not None:
        return Run(config, partial(_calibrate_and_train, config, requested_at), stopping)
    return Run(config, _beginning(config, topology, requested_at), stopping)


def _beginning(config: Config, topology: Topology, requested_at: float) -> Begin:
    if topology.must_launch:
        return partial(_launch_training, config, topology.size)
    return partial(_train_here, config, None, topology, requested_at)


def resume(run: str | Path, stopping: Callable[[], bool] = lambda: False, **changes: Any) -> Run:
    """Continue a run from its newest intact checkpoint, as if it had never stopped.

    The budget may be extended, and logging and evaluation changed; nothing that affects learning.
    """
    folder, requested_at = Path(absolute(run)), launcher.requested_at()
    saved = open_run(folder, changes)
    config, topology = saved.config, topology_of(saved.config)
    if topology.must_launch:
        job = make_job("resume", str(folder), config.env_id, **changes)
        return Run(config, partial(launch, job, config, topology.size), stopping)
    return Run(config, partial(_train_here, config, saved, topology, requested_at), stopping)


@contextmanager
def _calibrate_and_train(
    config: Config, requested_at: float, stopping: Callable[[], bool]
) -> Iterator[Training]:
    from .run.parallel import calibrated

    config = calibrated(config)
    with _beginning(config, topology_of(config), requested_at)(stopping) as training:
        yield training


@contextmanager
def _train_here(
    config: Config,
    saved: SavedRun | None,
    topology: Topology,
    requested_at: float,
    stopping: Callable[[], bool],
) -> Iterator[Training]:
    from .run.training import open_training

    with open_training(config, saved, topology, stopping, requested_at) as training:
        yield training


@contextmanager
def _launch_training(
    config: Config, processes: int, stopping: Callable[[], bool]
) -> Iterator[Training]:
    """Start the ranks of a run, in a directory that all of them know."""
    made = None if config.output_dir else new_directory(config)
    request = config.with_output_dir(str(made)) if made else config
    try:
        job = make_job("train", request, config.env_id)
        with launch(job, request, processes, stopping) as ranks:
            yield ranks
    finally:
        if made:
            with suppress(OSError):  # not empty: it holds the run
                made.rmdir()


@contextmanager
def build(config: Config) -> Iterator[Parts]:
    """The parts of a run, without the loop and without a directory: a sampler and a learner.

    With worker processes too; ranks and a3c, which are several processes, are `train`'s.
    """
    topology = topology_of(config)
    if config.parallel is not None:
        raise BadInput(
            f"parallel is {config.parallel!r}, by which train chooses the processes of a run, and "
            "build makes the parts of one; leave it out, or use paceline.train(config)"
        )
    if topology.size > 1:
        raise BadInput(
            f"build makes the parts of one process, and this is a run of {topology.size}; leave "
            "out ranks (and a3c), or use paceline.train(config)"
        )
    from .run.build import build as build_parts
    from .run.build import env_info_of

    env_info = env_info_of(config)
    config = fit_to_spaces(config, env_info.obs_spec, env_info.act_spec)
    with build_parts(config, None, env_info, topology=topology) as parts:
        assert parts.sampler is not None
        parts.sampler.begin()
        yield parts


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
    seed: int | None = None,
    kwargs: dict[str, Any] | None = None,
    time_limit: int | None = None,
    frame_stack: int | None = None,
    wrappers: Wrappers = (),
    mask_velocity: bool = False,
    memory_inputs: Sequence[str] = (),
) -> EvalResult:
    """Run `episodes` episodes of `env_id` with `agent`, greedily unless `sample`.

    `env_id` is a name, a class or a function that makes an environment, and gets `kwargs`;
    `wrappers`, `time_limit`, `frame_stack` and `mask_velocity` are those of `Config(env=...)`, and
    have to be given again if the policy was trained with them, as has `memory_inputs`. The same
    `seed` gives the same episodes; without one they are those of every evaluation.
    """
    if not isinstance(agent, Agent):
        raise BadInput(
            f"agent is {str(agent)[:60]!r}; give what paceline.load returns, such as "
            "paceline.evaluate(paceline.load(run), env_id)"
        )
    if not isinstance(episodes, Integral):
        raise BadInput(f"episodes is {episodes!r}; write a whole number")
    options = {
        "time_limit": time_limit,
        "frame_stack": frame_stack,
        "wrappers": wrappers,
        "mask_velocity": mask_velocity,
        "memory_inputs": memory_inputs,
    }
    evaluation = Evaluation(episodes=int(episodes), sample=sample, seed=seed)
    checked = check_env(kwargs, **options)
    result = evaluate_policy(agent, env_id, checked, evaluation)
    assert result is not None  # nothing stops it
    return result


def evaluate_saved(
    source: Path, evaluation: Evaluation, env_id: str | None = None
) -> EvalResult | None:
    """Evaluate a saved policy where it was trained, or in `env_id`, and write the result into its
    run: eval.json, or eval-sampled.json. None if it was stopped before an episode had ended."""
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
    if run is not None and run_facts(run).get("wrappers_are_callable"):
        raise BadInput(
            "this run's env.wrappers were Python objects; evaluate it from Python with "
            "paceline.evaluate(paceline.load(run), env_id, wrappers=those_objects)"
        )
    options = dict(config.env_options) if config else {}
    evaluation.log_info = config.log_info if config else "auto"
    if env_id is not None:
        options = options | {"kwargs": {}}  # those were the other environment's
    # Never the name in the checkpoint, which would be imported.
    name = env_id or (config.env_name if config else "")
    result = evaluate_policy(agent, name, options, evaluation)
    if result is None:
        return None
    result = replace(result, checkpoint=shown(path), env_id=name)
    if run is not None:
        place = run / (SAMPLED_EVALUATION if evaluation.sample else EVALUATION)
        try:
            replace_file(place, result.as_json())
        except OSError as error:
            log.warning(f"{shown(place)} can't be written: {error.strerror}")
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
    own = [name for name in USER_MODULES if network.get(name) not in (None, *ENCODERS, *MEMORIES)]
    if not own:
        return {}
    facts, config = run_facts(run), plain_config(run)
    named = {name: getattr(config, name) for name in own if not facts.get(OBJECTS[name])}
    return {name: name_of(part) for name, part in named.items() if part is not None}
