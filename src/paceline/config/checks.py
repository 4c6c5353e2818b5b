"""What no single option can know: which of them do not go together, each refusal a sentence."""

from __future__ import annotations

from ..errors import BadInput
from .registry import ENTRIES
from .schema import Config

MOST_ROWS = 10**8
"""Of one rollout."""


def check(config: Config) -> None:
    """What no single field can know."""
    envs, steps = config.num_envs, config.rollout_steps
    rows, size, ranks = envs * steps, config.batch_size, config.ranks
    if rows > MOST_ROWS:
        raise BadInput(
            f"num_envs {envs} × rollout_steps {steps} is a rollout of {rows:,} rows; "
            f"{MOST_ROWS:,} are the most that is taken"
        )
    if size and config.minibatches:
        raise BadInput(
            f"batch_size {size} and minibatches {config.minibatches} say the same thing twice; "
            "give one of them"
        )
    rollout = f"the rollout of {envs} envs × {steps} steps = {rows} rows"
    if size and not shared_equally(config):
        each = "" if ranks == 1 else f" on each of {ranks} ranks"
        near = _nearest(rows, max(1, size // ranks), ranks)
        raise BadInput(f"batch_size {size} does not divide {rollout}{each}; {near}")
    if config.minibatches and rows % config.minibatches:
        near = _nearest(rows, config.minibatches)
        raise BadInput(f"minibatches {config.minibatches} does not divide {rollout}; {near}")
    if config.memory_segment and steps % config.memory_segment:
        raise BadInput(
            f"memory_segment {config.memory_segment} does not divide rollout_steps {steps}; "
            f"{_nearest(steps, config.memory_segment)}"
        )
    entries = (config.entry(option) for option in ENTRIES if option != "algo")
    for chosen in (config.algorithm, *entries):
        if refuse := getattr(chosen, "refuse", None):
            refuse(config)
    _check_workers(config)
    if config.init_method.partition("://")[0] not in ("env", "file", "tcp"):
        raise BadInput(
            f"init_method is {config.init_method[:80]!r}: write env://, file:///a/path or "
            "tcp://host:port"
        )
    _check_normalized_rows(config)


def _check_normalized_rows(config: Config) -> None:
    """A single row has no others to be normalised with: its advantage would be 0."""
    over, rows = config.algorithm.normalize_advantage, config.columns * config.rollout_steps
    option = f"{config.algo_section}.normalize_advantage"
    flag = option.replace("_", "-")
    if over == "rollout" and config.ranks * rows == 1:
        raise BadInput(
            f"{option} is 'rollout', over which advantages get mean 0, and a rollout of 1 env × 1 "
            f"step is a single row, which would be 0; write --{flag} none, or more --rollout-steps"
        )
    if over == "minibatch" and rows == config.minibatch_count:
        raise BadInput(
            f"{option} is 'minibatch', over which advantages get mean 0, and minibatches "
            f"{config.minibatch_count} leaves a single row in each, which would be 0; write "
            f"--{flag} {'none' if rows == 1 else 'rollout'}, or fewer --minibatches"
        )


def _check_workers(config: Config) -> None:
    workers, envs, each = config.num_workers, config.num_envs, config.num_envs_per_worker
    if each and not workers:
        raise BadInput(
            f"num_envs_per_worker is {each}, and there are no workers; write --num-workers 2, or "
            "auto, or --num-envs for environments in the learner's own process"
        )
    if each and each * workers != envs:
        raise BadInput(
            f"num_envs {envs} is not num_envs_per_worker {each} × num_workers {workers}; "
            "give one of the first two"
        )
    if workers and envs % workers:
        near = nearest_divisor(envs, min(workers, envs))
        raise BadInput(
            f"num_envs {envs} can't be shared equally by {workers} workers; write --num-workers "
            f"{near}, or --num-envs {-(-envs // workers) * workers}"
        )


def _nearest(rows: int, wanted: int, times: int = 1) -> str:
    number = nearest_divisor(rows, wanted)
    return f"the nearest that does is {number * times}" if number else "choose one that does"


def nearest_divisor(rows: int, wanted: int) -> int | None:
    """The nearest number that does divide, if it is not far away."""
    for distance in range(100_000):
        for number in (wanted - distance, wanted + distance):
            if 0 < number <= rows and rows % number == 0:
                return number
    return None


def shared_equally(config: Config) -> bool:
    """Whether `batch_size` is the same number of rows of every rank, and divides them."""
    rows, size = config.num_envs * config.rollout_steps, config.batch_size
    return not size or (size % config.ranks == 0 and rows % (size // config.ranks) == 0)
