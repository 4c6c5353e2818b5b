"""Sizes that depend on each other: environments, workers, batch and learning rate of a `Config`.

Filled in if not given, refused if given and wrong.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ..errors import BadInput
from ..processes.launcher import launched, local_size
from .schema import DEFAULT_MEMORY, Config

MAX_GROWTH = 4
"""How many times the batch and the learning rate of one process several have at most."""
SHORT_ROLLOUT = 16
"""Steps below which rollouts are not shortened."""
MAX_ROWS = 10**8
"""Rows of a rollout."""
DIVISOR_DISTANCE = 100_000
"""How far a divisor is searched for."""


def fill_sizes(config: Config) -> Config:
    """Complete, and so that everything divides equally."""
    return _divide_rollout(_grow(_share_envs(config)))


def _share_envs(config: Config) -> Config:
    """num_envs and num_workers, so that every worker has equally many environments."""
    given = config.given
    workers, each, envs = config.num_workers, config.num_envs_per_worker, config.num_envs
    auto_workers, auto_envs = given.get("num_workers") == "auto", given.get("num_envs") is None
    if auto_workers and config.ranks > 1:  # the ranks of a host share its CPUs
        started = launched(given.get("ranks") is not None, config.init_method)
        workers = max(1, workers // (local_size(config.ranks) if started else config.ranks))
    # The workers of a3c are learners, and num_envs is what each of them has.
    sharing = workers if config.entry("sync").counted_by != "num_workers" else min(workers, 1)
    if each and workers and auto_envs:
        envs = sharing * each
    elif workers and auto_envs and config.entry("sampler").runs_ahead:
        envs = -(-min(workers, MAX_GROWTH) * envs // workers) * workers
    if auto_workers and sharing > 1 and envs % workers:
        workers = sharing = max(n for n in range(1, workers + 1) if envs % n == 0)
    if each and not workers:
        raise BadInput(
            f"num_envs_per_worker is {each}, but there are no workers; write --num-workers 2, or "
            "auto, or --num-envs for environments in the learner's own process"
        )
    if each and each * sharing != envs:
        raise BadInput(
            f"num_envs {envs} is not num_envs_per_worker {each} × num_workers {sharing}; give only "
            "one of the first two"
        )
    if sharing and envs % sharing:
        raise BadInput(
            f"num_envs {envs} can't be divided among {workers} workers; write --num-workers "
            f"{_nearest_divisor(envs, min(workers, envs))}, or --num-envs "
            f"{-(-envs // workers) * workers}"
        )
    return dataclasses.replace(config, num_workers=workers, num_envs=envs)


def _grow(config: Config) -> Config:
    """The preset's values for several ranks, or workers of a stream, with its environments each.

    Batch and learning rate grow with their number (Goyal 2017), up to MAX_GROWTH times; beyond that
    rollouts get shorter. A stream's rate grows with the square root only (docs/ranks.md has why).
    What is given stays, and with a number of environments everything does.
    """
    times, steps = growth(config), config.rollout_steps
    if times == 1:
        return config
    scaled: dict[str, Any] = {
        "lr": config.lr * (math.sqrt(times) if config.entry("sampler").runs_ahead else times),
        "batch_size": config.batch_size and config.batch_size * times,
        "rollout_steps": max(min(steps, SHORT_ROLLOUT), steps * times // _parts(config)),
    }
    changes = {name: value for name, value in scaled.items() if config.given.get(name) is None}
    return dataclasses.replace(config, **changes)


def growth(config: Config) -> int:
    """How many times the batch of one process it has."""
    sizes = (config.given.get(name) for name in ("num_envs", "num_envs_per_worker"))
    own = any(size is not None for size in sizes)
    return 1 if own else min(_parts(config), MAX_GROWTH)


def _parts(config: Config) -> int:
    """How many times the preset's environments an update has rows of."""
    streaming = config.workers if config.entry("sampler").runs_ahead else 1
    return config.ranks * max(1, min(streaming, MAX_GROWTH))


def _divide_rollout(config: Config) -> Config:
    """minibatches or batch_size, so that they divide the rollout; and memory_segment."""
    given = config.given
    envs, steps, ranks = config.num_envs, config.rollout_steps, config.ranks
    minibatches, size = config.minibatches, config.batch_size
    rows = envs * steps
    if rows > MAX_ROWS:
        raise BadInput(
            f"num_envs {envs} × rollout_steps {steps} is a rollout of {rows:,} rows; the maximum "
            f"is {MAX_ROWS:,}"
        )
    if size and minibatches:
        raise BadInput(f"give either batch_size ({size}) or minibatches ({minibatches}), not both")
    rollout = f"the rollout of {envs} envs × {steps} steps = {rows} rows"
    if minibatches and rows % minibatches:
        nearest = _nearest_divisor(rows, minibatches)
        if given.get("minibatches") is not None:
            raise BadInput(f"minibatches {minibatches} does not divide {rollout}{_hint(nearest)}")
        minibatches = nearest or 1
    if size and (size % ranks or rows % (size // ranks)):
        nearest = ranks * (_nearest_divisor(rows, max(1, round(size / ranks))) or 0)
        if given.get("batch_size") is not None:
            on_each = f" on each of {ranks} ranks" if ranks > 1 else ""
            raise BadInput(f"batch_size {size} does not divide {rollout}{on_each}{_hint(nearest)}")
        size = nearest or ranks
    config = dataclasses.replace(config, minibatches=minibatches, batch_size=size)
    if config.memory is not None:
        return _divide_segments(config)
    for name, default in (("memory_size", DEFAULT_MEMORY), ("memory_segment", None)):
        if given.get(name) not in (None, default):
            flag = name.replace("_", "-")
            raise BadInput(
                f"{name} is {given[name]}, and the policy has no memory; write --memory lstm, gru "
                f"or mingru beside --{flag}, or leave it out"
            )
    # A preset for policies with memory may have been asked for.
    return dataclasses.replace(config, memory_size=DEFAULT_MEMORY, memory_segment=None)


def _divide_segments(config: Config) -> Config:
    """The memory's sizes, and minibatches of whole segments."""
    steps, envs, parts = config.rollout_steps, config.num_envs, config.minibatch_count
    length = config.memory_segment or steps
    if steps % length:
        nearest = _nearest_divisor(steps, length)
        if config.given.get("memory_segment") is not None:
            raise BadInput(
                f"memory_segment {length} does not divide rollout_steps {steps}{_hint(nearest)}"
            )
        length = nearest or steps
    config = dataclasses.replace(config, memory_segment=length)
    segments = envs * (steps // length)
    if segments % parts == 0:
        return config
    nearest = _nearest_divisor(segments, parts) or 1
    size = config.ranks * envs * steps // nearest
    if any(config.given.get(name) is not None for name in ("minibatches", "batch_size")):
        raise BadInput(
            f"{parts} minibatches can't share {segments} segments of {length} steps (of {envs} "
            f"envs × {steps} steps) equally, and a memory is trained on whole segments; write "
            f"--minibatches {nearest}{f' (--batch-size {size})' if config.batch_size else ''}, "
            f"--num-envs {-(-envs // parts) * parts}, or a shorter --memory-segment"
        )
    if config.batch_size:
        return dataclasses.replace(config, batch_size=size)
    return dataclasses.replace(config, minibatches=nearest)


def _nearest_divisor(rows: int, wanted: int) -> int | None:
    """The divisor of `rows` nearest to `wanted`; None if that is far away."""
    for distance in range(DIVISOR_DISTANCE):
        for number in (wanted - distance, wanted + distance):
            if 0 < number <= rows and rows % number == 0:
                return number
    return None


def _hint(nearest: int | None) -> str:
    return f"; the nearest that does is {nearest}" if nearest else "; choose one that does"
