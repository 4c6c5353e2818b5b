"""From a `Config` to the parts of a run: network, learner, sampler."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from ..config.schema import Config, LogInfo
from ..config.values import seconds
from ..distributed import Local, Sync
from ..envs.source import EnvInfo, inspect_env
from ..envs.spaces import ActionSpec, ObservationSpec
from ..errors import BadInput, OutOfMemory
from ..learning.compiler import COMPILER_TIMEOUT, compile_failure_reason, compiler_timeout
from ..learning.learner import Learner, LearnerConfig
from ..learning.optimizers import OPTIMIZERS
from ..policy.network import ImageEncoder, NetworkSpec
from ..processes.hardware import available_cpus, bound, keep_memory
from ..processes.heartbeat import beating
from ..processes.stopping import interruptible
from ..rollout import Rollout, RolloutSpec
from ..samplers import Sampler
from ..samplers.pool import PoolSpec
from .choices import Choices, choose, cpus_of
from .thread_trial import without_hindering_threads
from .topology import Topology, topology_of

log = logging.getLogger("paceline")

OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "out of memory", os.strerror(errno.ENOMEM))
"""In the text of errors of torch and of the system."""


@dataclass(frozen=True)
class Parts:
    """What a process of a run trains with."""

    sampler: Sampler | None
    """None in a process that only watches"""
    learner: Learner
    sync: Sync
    topology: Topology
    network: NetworkSpec
    choices: Choices
    env_info: EnvInfo
    spec: RolloutSpec
    log_info: LogInfo = "auto"

    def publish(self) -> None:
        """Give the sampler the learner's weights."""
        if self.sampler is not None:
            self.sampler.publish(self.learner.weights, self.learner.version)


def env_info_of(config: Config) -> EnvInfo:
    """The spaces and other properties of the configured environment, which is made once."""
    return inspect_env(config.env_id, **config.env_options)


@contextmanager
def build(
    config: Config,
    choices: Choices | None = None,
    env_info: EnvInfo | None = None,
    sync: Sync | None = None,
    topology: Topology | None = None,
) -> Iterator[Parts]:
    """Make everything, compiled and ready for the first step; close it at the end.

    `choices` are those of a run that is resumed, else they are made.
    """
    env_info = env_info or env_info_of(config)
    sync, topology = sync or Local(), topology or topology_of(config)
    with ExitStack() as stack:
        stack.enter_context(_explained_memory_errors(config))
        network = network_for(config, env_info.obs_spec.seen, env_info.act_spec)
        resumed, choices = choices is not None, choices or choose(config, network, topology)
        choices = Choices(**sync.broadcast(asdict(choices)))
        if choices.device == "cuda" and not torch.cuda.is_available():
            raise BadInput("this run learned on cuda, and torch sees no GPU here")
        # The matrices are small, and rounding would depend on the number of threads.
        stack.enter_context(threadpool_limits(1, "blas"))
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        if network.needs_torch and choices.device == "cpu":
            keep_memory()
        if not resumed and not config.threads and choices.threads > 1 and choices.device == "cpu":
            choices = _try_threads(config, env_info, network, choices, sync, topology)
        torch.set_num_threads(choices.threads)
        learner_cpus, worker_cpus = cpus_of(config, choices.threads, topology)
        stack.enter_context(bound(learner_cpus))
        make_learner = partial(_make_learner, config, env_info, sync, topology)
        learner = make_learner(network, choices)
        network = learner.module.spec  # with a value head for each return
        spec = rollout_spec(config, env_info, network, learner.module.policy.carry_size)
        blank = blank_rollout(spec, env_info.obs_spec)
        if choices.compiled and not _compile_on_all_ranks(learner, blank, config.compile == "on"):
            choices = replace(choices, compiled=False)
            learner = make_learner(network, choices)
        sampler = None
        if topology.learns:
            weights = len(learner.weights)
            sampler = make_sampler(
                config, env_info, network, spec, weights, worker_cpus, sync, topology
            )
            stack.callback(interruptible()(sampler.close))  # an environment may hang when closed
        parts = Parts(
            sampler, learner, sync, topology, network, choices, env_info, spec, config.log_info
        )
        parts.publish()
        yield parts


def _try_threads(
    config: Config,
    env_info: EnvInfo,
    network: NetworkSpec,
    choices: Choices,
    sync: Sync,
    topology: Topology,
) -> Choices:
    """One thread instead of several, if these hinder each other."""
    rows = config.rollout_steps * config.num_envs * env_info.columns_per_env
    cpus, _ = cpus_of(config, choices.threads, topology)
    with bound(cpus):
        minibatch = rows // config.minibatch_count
        return without_hindering_threads(choices, network, minibatch, sync, topology)


def make_sampler(
    config: Config,
    env_info: EnvInfo,
    network: NetworkSpec,
    spec: RolloutSpec,
    weights: int,
    cpus: list[list[int]],
    sync: Sync,
    topology: Topology,
) -> Sampler:
    """The configured sampler; `weights` is the number of those that act."""
    given = PoolSpec(
        env_info=env_info,
        network=network,
        weights=weights,
        workers=config.workers,
        rollout=spec,
        seed=config.seed,
        first_column=topology.learner_index * spec.columns,
        cpus=cpus,
        timeout=seconds(config.worker_timeout),
        max_restarts=config.max_restarts,
        log_info=config.log_info,
        heartbeat=sync.heartbeat,
        threads=max(1, available_cpus() // topology.local_size),
    )
    return config.entry("sampler").make(given, config)


def rollout_spec(
    config: Config, env_info: EnvInfo, network: NetworkSpec, carry: int
) -> RolloutSpec:
    """What one learner's rollouts hold; `carry` is the size of its policy's memory."""
    # Values that acting computes anyway are stored for the learner.
    stores_values = network.acts_with_value and not config.algorithm.needs_log_ratio
    return RolloutSpec(
        steps=config.rollout_steps,
        columns=config.num_envs * env_info.columns_per_env,
        obs=env_info.obs_spec.stored,
        action=env_info.act_spec.stored,
        history=env_info.obs_spec.history,
        values=network.value_heads if stores_values else 0,
        carry=carry,
        segment=(config.memory_segment or 1) if carry else 1,
        columns_per_env=env_info.columns_per_env,
    )


def blank_rollout(spec: RolloutSpec, obs: ObservationSpec) -> Rollout:
    """A rollout of zeros, for compiling."""
    blank = Rollout.from_spec(spec)
    for array in blank.arrays().values():
        array[...] = np.zeros((), array.dtype)
    if obs.kind == "discrete":
        obs.split(blank.obs)["index"][:] = obs.start
    return blank


def network_for(config: Config, obs: ObservationSpec, act: ActionSpec) -> NetworkSpec:
    """The configured network; what the configuration leaves open suits the observation."""
    own = config.own_encoder
    image = bool(obs.images) and own is None
    pictures: ImageEncoder | None = None
    if image:
        pictures = config.encoder  # type: ignore[assignment]
    elif own is None and config.encoder not in (None, "mlp"):
        raise BadInput(
            f"encoder is {config.encoder!r}, which reads images, and this environment shows none; "
            "leave it out"
        )
    if config.normalize_obs and not (obs.kind != "discrete" and obs.numeric.any()):
        raise BadInput(
            f"normalize_obs is for vectors of numbers, and this environment's observation is "
            f"{'an image, which is scaled anyway' if obs.images else 'discrete'}; leave it off"
        )
    if config.state_dependent_std and act.kind != "box":
        raise BadInput("state_dependent_std is for Box actions, and these are not; leave it off")
    vector = () if own is not None else (64, 64)
    wide = (256,) if pictures == "impala" else (512,)
    shared = image if config.shared_trunk is None else config.shared_trunk
    return NetworkSpec(
        obs=obs,
        act=act,
        hidden=(wide if image else vector) if config.hidden is None else config.hidden,
        activation=config.activation or ("relu" if image else "tanh"),
        shared_trunk=shared,
        normalize_obs=config.normalize_obs,
        log_std_init=config.log_std_init,
        state_dependent_std=config.state_dependent_std,
        encoder=own,
        pictures=pictures,
        precision=config.precision,
        memory=config.memory,
        memory_size=config.memory_size,
    )


def _make_learner(
    config: Config,
    env_info: EnvInfo,
    sync: Sync,
    topology: Topology,
    network: NetworkSpec,
    choices: Choices,
) -> Learner:
    plan = LearnerConfig(
        epochs=config.epochs,
        minibatches=config.minibatch_count,
        gamma=config.gamma,
        lr=config.lr,
        lr_schedule=config.lr_schedule,
        max_grad_norm=config.max_grad_norm,
        normalize_return=config.normalize_return,
        clip_reward=config.clip_reward,
        seed=config.seed,
    )
    optimizer = OPTIMIZERS[config.optimizer](eps=config.optimizer_eps)
    index = topology.local_rank if choices.device == "cuda" else None
    device = torch.device(choices.device, index) if index is not None else torch.device("cpu")
    make_bonus = None if config.bonus is None else partial(config.make_entry, "bonus")
    columns = config.num_envs * env_info.columns_per_env
    return Learner(
        network,
        config.algorithm,
        optimizer,
        sync,
        plan,
        columns,
        device,
        env_info.obs_spec,
        make_bonus,
    )


def _compile_on_all_ranks(learner: Learner, blank: Rollout, required: bool) -> bool:
    """Rank 0 compiles first, and the others load it from the cache; whether all succeeded."""
    sync, done = learner.sync, True
    with beating(sync.heartbeat):
        for rank_0_first in (True, False):
            if (sync.rank == 0) is rank_0_first:
                done = _compile(learner, blank, required)
            done = sync.all(done)
            if not done:
                break
    return done


def _compile(learner: Learner, blank: Rollout, required: bool) -> bool:
    """Compile before the clock starts; False if that fails and is not `required`."""
    level = logging.INFO if learner.sync.rank == 0 else logging.DEBUG
    log.log(level, "compiling the minibatch step …")
    try:
        with compiler_timeout(COMPILER_TIMEOUT) as ended:
            log.log(level, "compiled in %.1f s", learner.warm_up(blank))
    except Exception as error:
        cause = compile_failure_reason(error)
        if ended:
            cause = f"the compiler had not ended after {COMPILER_TIMEOUT:.0f} s"
        if required:
            raise BadInput(f"the minibatch step can't be compiled: {cause}") from error
        log.warning("the minibatch step can't be compiled (%s); it runs eagerly", cause)
        return False
    return True


@contextmanager
def _explained_memory_errors(config: Config) -> Iterator[None]:
    """Turn an allocation that fails into an `OutOfMemory` that says what to reduce."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        named = any(words in str(error) for words in OUT_OF_MEMORY)
        if not named and not isinstance(error, MemoryError):
            raise
        rows = config.num_envs * config.rollout_steps
        raise OutOfMemory(
            f"memory ran out with rollouts of {config.num_envs:,} envs × {config.rollout_steps:,} "
            f"steps in {config.minibatch_count:,} minibatches ({rows // config.minibatch_count:,} "
            "rows each): write a smaller --num-envs, --rollout-steps or --hidden, or more "
            "--minibatches"
        ) from error
