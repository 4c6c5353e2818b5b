"""From a `Config` to the parts of a run: which network, which sampler, which learner."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from ..config.schema import Config
from ..config.values import seconds
from ..distributed import Sync
from ..distributed.local import Local
from ..envs.source import EnvInfo, inspect_env
from ..envs.spaces import ActionSpec, ObservationSpec
from ..errors import BadInput, LostRank, OutOfMemory
from ..learning.compiler import COMPILER_TIMEOUT, compile_failure_reason, compiler_timeout
from ..learning.learner import Learner, LearnerConfig
from ..learning.optimizers import OPTIMIZERS
from ..policy.network import ImageEncoder, NetworkSpec
from ..processes.hardware import Choices, available_cpus, bound, keep_memory
from ..processes.heartbeat import beating
from ..processes.stopping import interruptible
from ..rollout import Rollout, RolloutSpec
from ..samplers import Sampler
from ..samplers.pool import PoolSpec
from .choices import choose, cpus_of
from .topology import Topology, topology_of

log = logging.getLogger("paceline")

ALLOCATORS = ("can't allocate memory", "bad_alloc", "out of memory")
"""What torch says, in a RuntimeError."""


@dataclass(frozen=True)
class Parts:
    sampler: Sampler | None
    """none in a process that only watches"""
    learner: Learner
    sync: Sync
    topology: Topology
    network: NetworkSpec
    choices: Choices
    env_info: EnvInfo
    spec: RolloutSpec


def env_info_of(config: Config) -> EnvInfo:
    """Its environment, looked at."""
    return inspect_env(config.env_id, **vars(config.env))


def make_sync(config: Config, topology: Topology) -> Sync:
    """How this process agrees with the other learners of the run, having met them."""
    if topology.size == 1:
        return Local()
    from ..distributed.rendezvous import join_group

    timeout = seconds(config.rank_timeout)
    try:
        where = topology.init_method, topology.rank, topology.size
        group = join_group(*where, timeout, attempt=topology.attempt)
        return config.entry("sync").make(group, timeout, config, topology)
    except RuntimeError as error:  # of the store where ranks meet
        cause = str(error).strip().splitlines()[0][:200]
        raise LostRank(f"a rank went while it met the others: {cause}") from None


@contextmanager
def build(
    config: Config,
    kept: Choices | None = None,
    env_info: EnvInfo | None = None,
    sync: Sync | None = None,
    topology: Topology | None = None,
) -> Iterator[Parts]:
    """Make everything, compiled and ready for the first step; close it at the end.

    `kept` are the choices of the run that is resumed; `env_info`, if it has been looked at already.
    """
    env_info, sync, topology = (
        env_info or env_info_of(config),
        sync or Local(),
        topology or topology_of(config),
    )
    with ExitStack() as stack:
        stack.enter_context(memory_told(config))
        network = network_for(config, env_info.obs_spec.seen, env_info.act_spec)
        choices = Choices(**sync.gather(asdict(kept or choose(config, network, topology)))[0])
        if choices.device == "cuda" and not torch.cuda.is_available():
            raise BadInput("this run learnt on cuda, and torch sees no GPU here")
        # numpy's products are small, and their last bits would depend on the number of threads.
        stack.enter_context(threadpool_limits(1, "blas"))
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(choices.threads)
        if network.needs_torch and choices.device == "cpu":
            keep_memory()
        learner_cpus, worker_cpus = cpus_of(config, choices.threads, topology)
        stack.enter_context(bound(learner_cpus))
        learner = _learner(config, network, sync, topology, choices, env_info)
        network = learner.module.spec  # with a value head for each return
        spec = rollout_spec(config, env_info, network, learner.module.policy.carry_size)
        if choices.compiled and not _all_warmed_up(
            learner, blank_rollout(spec, env_info.obs_spec), config
        ):
            choices = replace(choices, compiled=False)
            learner = _learner(config, network, sync, topology, choices, env_info)
        sampler = None
        if topology.learns:
            given = config, env_info, network, spec, len(learner.weights), worker_cpus
            sampler = make_sampler(*given, sync, topology)
            stack.callback(_close, sampler)
            sampler.publish(learner.weights, learner.version)
        yield Parts(sampler, learner, sync, topology, network, choices, env_info, spec)


def _close(sampler: Sampler) -> None:
    with interruptible():  # an environment may hang when it is closed
        sampler.close()


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
    """The sampler that the configuration asks for; `weights` is how many are published."""
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
        heartbeat=sync.heartbeat,
        threads=max(1, available_cpus() // topology.local_size),
    )
    return config.entry("sampler").make(given, config)


def rollout_spec(
    config: Config, env_info: EnvInfo, network: NetworkSpec, carry: int
) -> RolloutSpec:
    """What one learner's rollouts hold; `carry` is what its policy's memory does, in floats."""
    # Where values nearly come for free with acting, the learner need not compute them.
    tells_value = network.acts_with_value and not config.algorithm.needs_log_ratio
    return RolloutSpec(
        steps=config.rollout_steps,
        columns=config.columns * env_info.columns_per_env,
        obs=env_info.obs_spec.stored,
        action=env_info.act_spec.stored,
        history=env_info.obs_spec.history,
        values=network.value_heads if tells_value else 0,
        carry=carry,
        segment=(config.memory_segment or 1) if carry else 1,
        columns_per_env=env_info.columns_per_env,
    )


def blank_rollout(spec: RolloutSpec, obs: ObservationSpec) -> Rollout:
    """A rollout of the right shapes, with nothing in it."""
    blank = Rollout.from_spec(spec)
    for array in blank.arrays().values():
        array[...] = np.zeros((), array.dtype)
    if obs.kind == "discrete":
        obs.split(blank.obs)["index"][:] = obs.start
    return blank


def network_for(config: Config, obs: ObservationSpec, act: ActionSpec) -> NetworkSpec:
    """What the configuration says, and for what it leaves open what suits the observation."""
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
    if config.memory is not None:
        if config.shared_trunk is False:
            raise BadInput("shared_trunk is off, and policy and value share a memory; leave it out")
        shared = True
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


def _learner(
    config: Config,
    network: NetworkSpec,
    sync: Sync,
    topology: Topology,
    choices: Choices,
    env_info: EnvInfo,
) -> Learner:
    plan = LearnerConfig(
        epochs=config.epochs,
        minibatches=config.minibatch_count,
        gamma=config.gamma,
        lr=config.lr,
        anneal_lr=config.anneal_lr,
        max_grad_norm=config.max_grad_norm,
        normalize_return=config.normalize_return,
        clip_reward=config.clip_reward,
        seed=config.seed,
        compiled=choices.compiled,
    )
    optimizer = OPTIMIZERS[config.optimizer](eps=config.optimizer_eps)
    index = topology.local_rank if choices.device == "cuda" else None
    device = torch.device(choices.device, index) if index is not None else torch.device("cpu")
    make_bonus = None if config.bonus is None else partial(config.make_entry, "bonus")
    return Learner(
        *(
            network,
            config.algorithm,
            optimizer,
            sync,
            plan,
            config.columns * env_info.columns_per_env,
        ),
        *(device, env_info.obs_spec, make_bonus),
    )


def _all_warmed_up(learner: Learner, blank: Rollout, config: Config) -> bool:
    """Rank 0 compiles first, and the others find what it has left in the cache."""
    sync, must, done = learner.sync, config.compile == "on", True
    with beating(sync.heartbeat):
        for turn in (True, False):
            if (sync.rank == 0) is turn:
                done = _warmed_up(learner, blank, must, aloud=sync.rank == 0)
            done = sync.all(done)
            if not done:
                break
    return done


def _warmed_up(learner: Learner, blank: Rollout, must: bool, aloud: bool) -> bool:
    """Compile before the clock starts; False where that fails and need not succeed."""
    level = logging.INFO if aloud else logging.DEBUG
    log.log(level, "compiling the minibatch step …")
    try:
        with compiler_timeout(COMPILER_TIMEOUT) as ended:
            log.log(level, "compiled in %.1f s", learner.warm_up(blank))
    except Exception as error:
        cause = compile_failure_reason(error)
        if ended:
            cause = f"the compiler had not ended after {COMPILER_TIMEOUT:.0f} s"
        if must:
            raise BadInput(f"the minibatch step can't be compiled: {cause}") from error
        log.warning("the minibatch step can't be compiled (%s); it runs eagerly", cause)
        return False
    return True


@contextmanager
def memory_told(config: Config) -> Iterator[None]:
    """Meanwhile, memory that is refused is an `OutOfMemory`."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        refused = isinstance(error, MemoryError) or any(word in str(error) for word in ALLOCATORS)
        if isinstance(error, OSError):
            refused = error.errno == errno.ENOMEM
        if not refused:
            raise
        rows = config.columns * config.rollout_steps
        raise OutOfMemory(
            f"memory ran out with rollouts of {config.columns:,} envs × {config.rollout_steps:,} "
            f"steps in {config.minibatch_count:,} minibatches ({rows // config.minibatch_count:,} "
            "rows each): write a smaller --num-envs, --rollout-steps or --hidden, or more "
            "--minibatches"
        ) from error
