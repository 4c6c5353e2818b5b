"""What no single option can know: which of them do not go together, each refusal a sentence."""

from __future__ import annotations

from .config import Config
from .errors import BadInput

MOST_ROWS = 10**8
"""Of one rollout."""


def check(config: Config) -> None:
    """What no single field can know."""
    rows = config.num_envs * config.rollout_steps
    if rows > MOST_ROWS:
        raise BadInput(
            f"num_envs {config.num_envs} × rollout_steps {config.rollout_steps} is a rollout of "
            f"{rows:,} rows; {MOST_ROWS:,} are the most that is taken"
        )
    if config.batch_size and config.minibatches:
        raise BadInput(
            f"batch_size {config.batch_size} and minibatches {config.minibatches} say the same "
            "thing twice; give one of them"
        )
    if config.batch_size and not shared_equally(config):
        ranks, wanted = config.ranks, max(1, config.batch_size // config.ranks)
        each = "" if ranks == 1 else f" on each of {ranks} ranks"
        near = nearest_divisor(rows, wanted)
        nearest = f"the nearest that does is {near * ranks}" if near else "choose one that does"
        raise BadInput(
            f"batch_size {config.batch_size} does not divide the rollout of {config.num_envs} envs "
            f"× {config.rollout_steps} steps = {rows} rows{each}; {nearest}"
        )
    if config.minibatches and rows % config.minibatches:
        raise BadInput(
            f"minibatches {config.minibatches} does not divide the rollout of {config.num_envs} "
            f"envs × {config.rollout_steps} steps = {rows} rows; "
            f"{_divisor(rows, config.minibatches)}"
        )
    if config.algo == "a2c" and (config.epochs, config.minibatch_count) != (1, 1):
        raise BadInput(
            f"{config.algo_name} takes one step on each rollout, and epochs is {config.epochs} "
            f"with {config.minibatch_count} minibatches; leave both at 1, or use --algo ppo"
        )
    if config.algo == "impala" and config.epochs != 1:
        raise BadInput(
            f"impala passes over each rollout once, and epochs is {config.epochs}; leave it at 1, "
            "or use --algo ppo"
        )
    _check_workers(config)
    _check_ranks(config)
    _check_normalized_rows(config)
    if config.impala.c_bar > config.impala.rho_bar:
        raise BadInput(
            f"impala.c_bar is {config.impala.c_bar} and impala.rho_bar {config.impala.rho_bar}; "
            "c_bar may not be the larger; write both, such as --impala.rho-bar "
            f"{config.impala.rho_bar} --impala.c-bar {config.impala.rho_bar}"
        )


def _check_normalized_rows(config: Config) -> None:
    """A single row has no others to be normalised with: its advantage would be 0."""
    over, rows = config.algorithm.normalize_advantage, config.columns * config.rollout_steps
    option = f"{config.algo}.normalize_advantage"
    if over == "rollout" and config.ranks * rows == 1:
        raise BadInput(
            f"{option} is 'rollout', over which advantages get mean 0, and a rollout of 1 env × 1 "
            f"step is a single row, which would be 0; write --{config.algo}.normalize-advantage "
            "none, or more --rollout-steps"
        )
    if over == "minibatch" and rows == config.minibatch_count:
        raise BadInput(
            f"{option} is 'minibatch', over which advantages get mean 0, and minibatches "
            f"{config.minibatch_count} leaves a single row in each, which would be 0; write "
            f"--{config.algo}.normalize-advantage {'none' if rows == 1 else 'rollout'}, or fewer "
            "--minibatches"
        )


def _check_workers(config: Config) -> None:
    workers, envs, each = config.num_workers, config.num_envs, config.num_envs_per_worker
    sampling: str = config.sampling
    if config.sync == "hogwild":
        sampling = "a3c"
    if sampling == "serial" and workers:
        raise BadInput(f"sampler is 'serial', which has no workers, and num_workers is {workers}")
    if sampling in ("workers", "stream") and not workers:
        raise BadInput(
            f"sampler is {sampling!r}, which needs workers; write --num-workers 2, or auto"
        )
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
    if sampling == "stream" and not config.algorithm.needs_log_ratio:
        raise BadInput(
            f"sampler is 'stream', whose rollouts are made by older weights than those that "
            f"learn, and {config.algo} takes them for its own; write --sampler workers, or "
            "--algo impala, which corrects for it"
        )


def _check_ranks(config: Config) -> None:
    ranks, sync = config.ranks, config.sync
    if sync == "hogwild":
        _check_hogwild(config)
    elif sync == "local" and ranks > 1:
        raise BadInput(f"sync is 'local', which is for one learner, and ranks is {ranks}")
    scheme = config.init_method.partition("://")[0]
    if scheme not in ("env", "file", "tcp"):
        raise BadInput(
            f"init_method is {config.init_method[:80]!r}: write env://, file:///a/path or "
            "tcp://host:port"
        )


def _check_hogwild(config: Config) -> None:
    """Learners that share weights without a lock take one small step at a time."""
    if config.algo != "a2c":
        raise BadInput(
            f"sync is 'hogwild', which goes with a2c alone, as a3c, and algo is {config.algo!r}; "
            "write --algo a3c, or --ranks for learners that wait for each other"
        )
    if config.ranks > 1:
        raise BadInput(
            f"a3c's learners are its workers, and ranks is {config.ranks}; write --num-workers "
            f"{config.ranks}, or --algo a2c for ranks that average their gradients"
        )
    if config.sampler not in ("auto", "serial"):
        raise BadInput(
            f"sampler is {config.sampler!r}, and a3c's learners step their own environments; "
            "leave it out"
        )
    if not config.num_workers:
        raise BadInput("a3c's learners are its workers; write --num-workers 2, or auto")
    for name in ("normalize_obs", "normalize_return"):
        if getattr(config, name):
            raise BadInput(
                f"{name} takes learners that agree on what they have seen, and a3c's do not; "
                "leave it off, or write --algo a2c with --ranks"
            )
    if config.device == "cuda":
        raise BadInput("a3c's learners share memory, not a GPU; write --device cpu")


def _divisor(rows: int, wanted: int) -> str:
    number = nearest_divisor(rows, wanted)
    return f"the nearest that does is {number}" if number else "choose one that does"


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
