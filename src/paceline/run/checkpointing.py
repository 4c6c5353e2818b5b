"""The state of a run, over all its ranks: into a checkpoint and back."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..config.schema import Config
from ..envs.columns import ReplayMismatch
from ..envs.source import EnvInfo
from ..envs.spaces import policy_mismatch
from ..errors import BadInput
from ..learning.learner import Learner
from ..policy.saved import from_checkpoint, locate, network_facts, saved_network
from ..rollout import Array
from ..samplers.block import format_differences
from ..samplers.serial import Serial
from ..storage import checkpoint
from ..storage.arrays import check_like, under_prefix
from ..storage.checkpoint import FACTS, Checkpoint
from ..storage.files import shown
from .budget import Progress
from .build import Parts
from .directory import CONFIG, fixed

log = logging.getLogger("paceline")

LONG_REPLAY = 1_000_000
"""Environment steps from which a replay on resume is announced."""


def gather_state(parts: Parts) -> dict[str, Array] | None:
    """The arrays of all ranks, which all have to call this; None before the first rollout."""
    sampler = parts.sampler.state() if parts.sampler is not None else {}
    if sampler is None:
        return None
    sync, learner = parts.sync, parts.learner
    state = checkpoint.rank_arrays(learner.state(), sampler, sync.rank, learner.per_column)
    return checkpoint.join_ranks(sync.gather(state) if sync.size > 1 else [state])


def replay_steps(state: dict[str, Array]) -> int:
    """Environment steps that a resume from this state has to replay."""
    return sum(len(array) for name, array in state.items() if name.endswith(".actions"))


def make_checkpoint(
    config: Config,
    parts: Parts,
    progress: Progress,
    state: dict[str, Array],
    evaluated: float | None,
) -> Checkpoint:
    facts = vars(progress) | {
        "recent": list(progress.recent),
        "evaluated": evaluated,
        "network": network_facts(parts.network),
        "config": fixed(config),
    }
    return Checkpoint(copy_weights(parts.learner), state, facts)


def copy_weights(learner: Learner) -> dict[str, Array]:
    """Copies of the weights, by name."""
    named = learner.module.named_weights()
    return {name: weight.numpy(force=True).copy() for name, weight in named.items()}


def newest_checkpoint(checkpoints: Path) -> tuple[Path, Checkpoint] | None:
    """The newest intact one, if there is any; damaged ones are set aside with a warning."""
    checkpoint.remove_partial(checkpoints)
    if not checkpoint.paths(checkpoints):
        return None
    path, found, problems = checkpoint.load_newest(checkpoints)
    for problem in problems:
        log.warning(f"damaged, passed over: {problem}")
    checkpoint.set_aside(checkpoints, path)
    return path, found


def check_spaces(path: Path, found: Checkpoint, env_info: EnvInfo) -> None:
    """Refuse an environment whose spaces are not those that the policy was made for."""
    network = saved_network(path, found)
    now = env_info.obs_spec.seen, env_info.act_spec
    if changed := policy_mismatch((network.obs, network.act), now, env_info.env_id):
        raise BadInput(
            f"the environment has changed since {shown(path)} was made: {changed}; restore the "
            "environment, or start a new run"
        )


def restore(path: Path, found: Checkpoint, config: Config, parts: Parts) -> Progress:
    """Load a checkpoint into learner and sampler; how far the run had come."""
    progress, sync = _read_progress(path, found.facts), parts.sync
    before = found.facts["config"]
    for name, value in fixed(config).items():
        known = before.get(name, value)
        if isinstance(known, dict) and isinstance(value, dict):
            known = {**value, **known}  # a section may have got options since
        if known != value:
            raise BadInput(
                f"{name} is {value!r} in {CONFIG} and was {before[name]!r} when {shown(path)} was "
                "made; put it back, since it affects learning"
            )
    began = time.perf_counter()
    different: list[ReplayMismatch] = []
    try:
        per_column = parts.learner.per_column
        learner, sampler = checkpoint.split_rank(found.arrays, sync.rank, sync.size, per_column)
        check_like(learner, parts.learner.state())
        parts.learner.restore(learner)
        if isinstance(parts.sampler, Serial) and not parts.topology.lockstep:
            parts.sampler.skip(progress.iter)
        elif parts.sampler is not None:
            different = parts.sampler.restore(sampler)
    except (ValueError, KeyError, OverflowError, MemoryError) as error:
        place = shown(path / "state.safetensors")
        raise BadInput(f"{place} does not fit this run: {error}") from None
    if different:
        log.warning(
            f"the environments of columns {format_differences(different)} did not replay to the "
            "same observation and return; they start new episodes, so the resumed run is not exact"
        )
    parts.publish()
    if sync.rank == 0:
        log.info(f"resuming from {shown(path)} ({time.perf_counter() - began:.1f} s)")
        if progress.best is not None and found.facts["evaluated"] == progress.best:
            checkpoint.mark_best(path)  # in case the run was killed before it could
    return progress


def _read_progress(path: Path, facts: dict[str, Any]) -> Progress:
    """From state.json, which is refused unless it holds all that `make_checkpoint` writes."""
    place = shown(path / FACTS)
    needed = {*vars(Progress()), "evaluated", "config"} - {"info_names"}  # older ones lack it
    if missing := needed - facts.keys():
        raise BadInput(f"{place}: there is no {min(missing)}")
    try:
        progress = TypeAdapter(Progress).validate_json(json.dumps(facts))
    except ValidationError as error:
        cause = error.errors()[0]
        name = ".".join(str(part) for part in cause["loc"])
        raise BadInput(f"{place}: {name}: {cause['msg']}") from None
    if progress.iter != int(path.name):
        raise BadInput(f"{place}: iter is {progress.iter}, not {int(path.name)}")
    if not isinstance(facts["config"], dict):
        raise BadInput(f"{place}: config does not hold names and values")
    return progress


def load_initial_weights(source: str, parts: Parts) -> None:
    """Start from the weights and normalizer statistics of a saved policy (`init_from`)."""
    path, found = locate(source)
    network = saved_network(path, found)
    spaces = (network.obs, network.act), (parts.network.obs, parts.network.act)
    if other := policy_mismatch(*spaces, "this run's environment"):
        raise BadInput(f"init_from {shown(source)}: {other}")
    theirs = found.facts["network"]
    ours = json.loads(json.dumps(network_facts(parts.network)))
    del ours["log_std_init"]  # how weights are initialized, not how they are used
    for name in ours:
        if theirs.get(name) != ours[name]:
            raise BadInput(
                f"init_from {shown(source)}: its {name} is {_short(theirs.get(name))}, and that of "
                f"this run is {_short(ours[name])}; they have to be the same"
            )
    from_checkpoint(path, found, vars(parts.network))  # its weights are what they should be
    parts.learner.load_weights(found.weights, under_prefix("learner.", found.arrays))
    parts.publish()
    if parts.sync.rank == 0:
        log.info(f"starting from the weights of {shown(path)}")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]} …"
