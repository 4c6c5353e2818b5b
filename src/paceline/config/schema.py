"""Config: every option of a training run, as documented dataclasses.

Each field's docstring is its `--help` text and its row in docs/configuration.md.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MaxLen
from pydantic import BeforeValidator

from ..errors import BadInput, PacelineError
from .registry import ENTRIES, MADE, as_dicts, entry, name_of, section_of
from .schedules import ScheduleBudget, ScheduleOption
from .values import (
    STRICT,
    Choice,
    Count,
    Duration,
    Steps,
    Width,
    check_env_id,
    check_rendezvous,
    one_of,
    parse_keys,
    parse_list,
    parse_mapping,
    parse_optional,
    parse_parallel,
    parse_process_count,
    parse_wrappers,
)

ENCODERS = ("mlp", "small", "nature", "impala", "grid")
"""Built-in encoders."""
BUDGETS = ("total_steps", "total_iters", "duration")
CHOSEN = ("num_workers", "ranks", "sampler", "num_envs_per_worker")
"""Options that `parallel` decides."""
ALIASES: dict[str, dict[str, Any]] = {
    "a3c": {"algo": "a2c", "sync": "hogwild", "num_workers": "auto"},
    "ddppo": {"algo": "ppo", "ranks": "auto"},
}
"""Names of `algo` that stand for several options."""
NO_OPTION = {"option": False}
"""Metadata of a field that is not an option: it has no flag and is in no file."""
MemoryInputs = Annotated[tuple[Literal["action", "reward"], ...], BeforeValidator(parse_list)]
DEFAULT_MEMORY = 64
"""Features of a memory."""
LogInfo = Literal["auto"] | tuple[str, ...]
"""Which numbers in `info` are logged: those found, or those with these keys."""
OBJECTS = {
    "env_id": "env_is_callable",
    "env": "wrappers_are_callable",
    **{name: f"{name}_is_callable" for name in ("lr_schedule", "encoder", *ENTRIES)},
}
"""Options that may be Python objects, or hold them, which no file can; and the field of run.json
that says whether they did."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The section `env`: how each environment is made."""

    __pydantic_config__ = STRICT

    kwargs: Annotated[dict[str, Any], BeforeValidator(parse_mapping)] = field(default_factory=dict)
    """keyword arguments of the environment or of its suite; JSON on the command line"""
    time_limit: Count | None = None
    """truncate episodes after this many steps, instead of the environment's own limit"""
    frame_stack: Annotated[Count, Le(1024)] | None = None
    """number of frames stacked into one observation (4 for Atari, else 1)"""
    wrappers: Annotated[tuple[Choice, ...], BeforeValidator(parse_wrappers)] = ()
    """Gymnasium wrappers, innermost first, as module:Class, comma-separated; in Python also classes
    and functions"""
    vector: bool = False
    """use the environment's own vectorized implementation, if it has one (CartPole-v1 has)"""
    mask_velocity: bool = False
    """show 0 in place of velocities, so that a policy needs memory (Acrobot, CartPole, LunarLander,
    MountainCar, Pendulum)"""


@dataclass(frozen=True, kw_only=True)
class MadeEnvConfig(EnvConfig):
    """How environments are made."""

    memory_inputs: MemoryInputs = ()


@dataclass(frozen=True, kw_only=True)
class Config:
    """A resolved training run, as `paceline.Config(...)` returns it."""

    algo: Annotated[Choice, one_of(*ENTRIES["algo"], *ALIASES)] = "ppo"
    """training algorithm; also `a3c` (asynchronous a2c: learners update shared weights without
    locks) and `ddppo` (ppo on several ranks)"""
    env_id: Annotated[str | Callable[..., Any], BeforeValidator(check_env_id)] = "CartPole-v1"
    """Gymnasium id, module:Id-v0, or suite:Name; in Python also a callable that makes it"""
    preset: str = "auto"
    """hyperparameters to start from: `auto` (tuned for the env_id, else general ones for its
    spaces), `none`, an env_id, `continuous`, `discrete` or `images`"""
    seed: Annotated[int, Ge(0), Le(2**31 - 1)] = 0
    """random seed of the run"""

    total_steps: Steps | None = None
    """stop after this many environment steps (1M if no budget is given)"""
    total_iters: Steps | None = None
    """stop after this many iterations, each a rollout and an update"""
    duration: Duration | None = None
    """stop after this much training time, such as 90s, 30m, 0.5h"""
    stop_at_return: Annotated[float | None, BeforeValidator(parse_optional)] = None
    """stop when the mean return of the last 100 episodes reaches this (`none`: never)"""
    init_from: str | None = None
    """start from the weights of this run or checkpoint, with all counters at 0"""

    num_envs: Count = 8
    """parallel environments of each learner: of the run, of each rank, of each a3c learner"""
    num_workers: Annotated[int, Ge(0), Le(4096), BeforeValidator(parse_process_count)] = 0
    """worker processes that step the environments (0: the learner steps them itself; `auto`: one
    per CPU); for a3c, the number of learners"""
    num_envs_per_worker: Count | None = None
    """environments per worker (for a3c, per learner), instead of num_envs"""
    sampler: Annotated[Choice, one_of("auto", *ENTRIES["sampler"])] = "auto"
    """how rollouts are collected (auto: `serial`; with workers `workers`, or `stream` for impala
    with one minibatch)"""
    pool: Annotated[Choice, one_of(*ENTRIES["pool"])] = "processes"
    """how workers are run"""
    ranks: Annotated[int, Ge(1), Le(4096), BeforeValidator(parse_process_count)] = 1
    """data-parallel learners, each with its own environments, that average their gradients (`auto`:
    one per CPU; under torchrun its world size); num_envs and num_workers are per rank, and without
    num_envs the learning rate and the batch grow with the ranks"""
    parallel: Annotated[Literal["auto"] | int | None, BeforeValidator(parse_parallel)] = None
    """choose num_workers and ranks by a calibration of at most 3 s: the best use of all CPUs
    (`auto`), or of so many"""
    sync: Annotated[Choice, one_of("auto", *ENTRIES["sync"])] = "auto"
    """how learners combine their gradients (auto: `allreduce` if ranks > 1; a3c uses `hogwild`)"""
    backend: Literal["auto", "shm", "gloo", "nccl"] = "auto"
    """transport of the all-reduce (auto: shared memory within a host, gloo between hosts, nccl for
    GPUs)"""
    init_method: Annotated[str, BeforeValidator(check_rendezvous)] = "env://"
    """rendezvous of the ranks, as in torch.distributed: env://, file:///path or tcp://host:port"""
    rollout_steps: Count = 128
    """steps per environment in each rollout"""
    epochs: Count = 4
    """epochs (passes over the rollout) per update"""
    minibatches: Count | None = None
    """minibatches, and so optimizer steps, per epoch (4 for ppo, 1 for the others)"""
    batch_size: Count | None = None
    """minibatch size summed over all ranks, instead of minibatches"""
    lr: Annotated[float, Ge(0)] = 3e-4
    """learning rate of the optimizer"""
    lr_schedule: ScheduleOption = "constant"
    """learning rate over the budget: constant, linear or cosine (to 0; to 1e-5 with linear:1e-5),
    also after a rise over its first 5% as in warmup:0.05+linear; or your own as module:function, in
    Python also a function of progress_remaining"""
    schedule_budget: ScheduleBudget = None
    """budget that schedules follow, and then stay at their end, such as total_steps=1M (the run's
    own; `keep`, when a run is resumed with another budget: the one that it had)"""
    gamma: Annotated[float, Ge(0), Le(1)] = 0.99
    """discount factor γ"""
    max_grad_norm: Annotated[float, Gt(0)] = 0.5
    """gradients are clipped to this norm"""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """optimizer of the network's weights"""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-5
    """ε of the optimizer"""
    normalize_obs: bool = False
    """normalize observations by their running mean and standard deviation"""
    normalize_return: bool = False
    """divide rewards by the running standard deviation of the discounted return"""
    clip_reward: bool = False
    """train on the sign of each reward; returns are reported unclipped"""
    bonus: Annotated[Choice, one_of(*ENTRIES["bonus"])] | None = None
    """exploration bonus, as module:Class"""

    hidden: Annotated[tuple[Width, ...], MaxLen(64), BeforeValidator(parse_list)] | None = None
    """sizes of the hidden layers, such as 64,64 (64,64 for vectors, 512 for images)"""
    activation: Literal["tanh", "relu", "elu"] | None = None
    """activation function (tanh for vectors, relu for images)"""
    shared_trunk: bool | None = None
    """share the hidden layers between policy and value function (yes for images, else no)"""

    log_std_init: Annotated[float, Ge(-20), Le(2)] = 0.0
    """initial log standard deviation of Box actions"""
    state_dependent_std: bool = False
    """predict the standard deviation of Box actions from the observation, instead of learning one
    for all states"""
    encoder: Annotated[Choice, one_of(*ENCODERS)] | None = None
    """feature extractor: mlp; small, nature or impala for images (nature, or small for images below
    36 pixels); grid for MiniGrid's cells; or your own, as module:Class, in Python also a class or
    a module"""
    memory: Annotated[Choice, one_of(*ENTRIES["memory"])] | None = None
    """recurrent policy: an lstm, gru or mingru cell between the layers and the heads, or your own,
    as module:Class; policy and value have one each, unless shared_trunk is on"""
    memory_size: Width = DEFAULT_MEMORY
    """output features of the memory"""
    memory_segment: Count | None = None
    """steps that gradients flow back through; divides rollout_steps (all of it)"""
    memory_inputs: MemoryInputs = ()
    """what a policy sees besides the observation: the previous action, reward, or action,reward"""
    lstm: Width | None = None
    """short for --memory lstm --memory-size N"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """float format of the feature extractor: float32, or bfloat16 if the CPU or GPU supports it"""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """device of the learner (auto: a GPU if there is one)"""
    threads: Annotated[int, Ge(0), Le(4096)] = 0
    """CPU threads of the learner (0: one for vectors, all cores for images unless one is faster)"""
    compile: Literal["auto", "on", "off"] = "auto"
    """compile the minibatch step with torch.compile, which needs a C++ compiler (auto: if the run
    is long enough to gain from it)"""
    pin: bool = False
    """pin every process to its own CPUs"""
    worker_timeout: Duration = "60s"
    """restart a worker that has made no step for this long"""
    max_restarts: Annotated[int, Ge(0), Le(10**6)] = 5
    """stop the run after more than this many restarts, of a worker or of the ranks, without
    progress"""
    rank_timeout: Duration = "120s"
    """restart all ranks if one sends no heartbeat for this long"""
    max_lag: Annotated[int, Ge(2), Le(10**6)] = 8
    """maximum policy lag of a stream, in updates: the learner waits for a rollout before it is this
    old"""

    eval_every: Steps | None = None
    """evaluate every so many steps, and keep the best checkpoint"""
    eval_episodes: Annotated[int, Ge(0), Le(10**6)] = 20
    """episodes per evaluation, also of the final one (0: no evaluation)"""
    save_every: Steps | None = None
    """save a checkpoint every so many steps (else twice a minute)"""
    keep: Count = 3
    """number of checkpoints kept, besides the best"""
    log_every: Count = 1
    """iterations per report"""
    log_info: Annotated[LogInfo, BeforeValidator(parse_keys)] = "auto"
    """numbers in the info of an episode's last step to log, averaged over episodes: keys, such as
    success,score or stats.goals; auto: all there are, if they are at most 8; none"""
    log_jsonl: str | None = None
    """also write the metrics to this file"""
    track: Literal["tensorboard", "none"] = "tensorboard"
    """experiment tracker, besides metrics.jsonl"""
    output_dir: str | None = None
    """directory of the run (else runs/<env>-<algo>-<time>)"""
    overwrite: bool = False
    """replace the run in output_dir"""

    env: EnvConfig = field(default_factory=EnvConfig)
    options: Mapping[str, Any] = field(default_factory=dict, metadata=NO_OPTION)
    """options of every algorithm and of the other chosen entries, by section"""
    given: Mapping[str, Any] = field(default_factory=dict, metadata=NO_OPTION, compare=False)
    """the options that were given, as opposed to filled in"""
    working_directory: str = field(default="", metadata=NO_OPTION, compare=False)
    """where `runs/` lies; an environment may change the process's own"""

    def __getattr__(self, name: str) -> Any:
        """A section of options, such as `config.ppo`."""
        options = vars(self).get("options", {})
        if name in options:
            return options[name]
        raise AttributeError(f"a configuration has no {name!r}")

    def replace(self, **changes: Any) -> Config:
        """Resolved again from the given options and `changes`."""
        from .resolve import given_options, resolve

        return resolve(given_options(self), changes)

    def with_output_dir(self, output_dir: str) -> Config:
        """The same run in another directory."""
        given = {**self.given, "output_dir": output_dir}
        return dataclasses.replace(self, output_dir=output_dir, given=given)

    def entry(self, option: str) -> Any:
        """The registry entry that `algo`, `sampler`, `sync`, `pool`, `memory` or `bonus` chose."""
        resolved = {"sampler": "resolved_sampler", "sync": "resolved_sync"}
        return entry(option, getattr(self, resolved.get(option, option)))

    def make_entry(self, option: str, *arguments: Any) -> Any:
        """Call the chosen pool or bonus with `arguments`, and its options if it has any."""
        chosen = getattr(self, option)
        section = section_of(option, chosen)
        options = {"options": self.options[section]} if section in self.options else {}
        try:
            made = self.entry(option)(*arguments, **options)
        except PacelineError:
            raise
        except Exception as error:
            if isinstance(chosen, str) and chosen in ENTRIES[option]:
                raise
            raise BadInput(
                f"{option}: {name_of(chosen)} can't be made ({type(error).__name__}: {error})"
            ) from error
        missing = [name for name in MADE[option] if not hasattr(made, name)]
        if missing:
            raise BadInput(f"{option}: what {name_of(chosen)} makes has no {', '.join(missing)}")
        return made

    @property
    def env_options(self) -> dict[str, Any]:
        """How environments are made, as arguments of `envs.source.source_of`."""
        return {**vars(self.env), "memory_inputs": self.memory_inputs}

    @property
    def own_encoder(self) -> str | Callable[..., Any] | None:
        """The encoder, unless it is one of vectors and images."""
        return None if self.encoder in ENCODERS and self.encoder != "grid" else self.encoder

    @property
    def algo_section(self) -> str:
        """Name of the algorithm's section of options."""
        return section_of("algo", self.algo)

    @property
    def algorithm(self) -> Any:
        """The algorithm with its hyperparameters."""
        return self.options[self.algo_section]

    @property
    def resolved_sampler(self) -> Choice:
        """The sampler, `auto` resolved."""
        if self.sampler != "auto":
            return self.sampler
        return self.workers_sampler if self.workers else "serial"

    @property
    def workers_sampler(self) -> Choice:
        """The sampler that the run has, or would have, with workers.

        A rollout that is one update old is as many steps old as an update takes. V-trace corrects
        for one step or two; with several minibatches workers keep in step (docs/parallel.md).
        """
        if self.sampler not in ("auto", "serial"):
            return self.sampler
        off_policy = self.algorithm.needs_log_ratio and self.epochs * self.minibatch_count == 1
        return "stream" if off_policy else "workers"

    @property
    def resolved_sync(self) -> Choice:
        """The sync, `auto` resolved."""
        if self.sync != "auto":
            return self.sync
        return "allreduce" if self.ranks > 1 else "local"

    @property
    def learners(self) -> int:
        """Number of learners over all processes."""
        return int(getattr(self, self.entry("sync").counted_by))

    @property
    def workers(self) -> int:
        """Worker processes per learner."""
        return 0 if self.entry("sync").counted_by == "num_workers" else self.num_workers

    @property
    def env_name(self) -> str:
        """The env_id, or the name of the callable."""
        if isinstance(self.env_id, str):
            return self.env_id
        return getattr(self.env_id, "__name__", type(self.env_id).__name__)

    @property
    def algo_name(self) -> str:
        """The alias that the options amount to, such as a3c, or else the algorithm's name."""
        chosen = {"algo": self.algo, "sync": self.resolved_sync}
        named = (alias for alias, means in ALIASES.items() if chosen.items() <= means.items())
        return next(named, self.algo_section)

    @property
    def minibatch_count(self) -> int:
        """Minibatches per epoch, whether given as `minibatches` or `batch_size`."""
        rows = self.ranks * self.num_envs * self.rollout_steps
        return rows // self.batch_size if self.batch_size else self.minibatches or 1

    @property
    def objects(self) -> dict[str, Any]:
        """The options that are Python objects, as they are given again to resume the run."""
        found = {name: value for name in OBJECTS if callable(value := getattr(self, name))}
        wrapped = any(callable(wrapper) for wrapper in self.env.wrappers)
        return found | ({"env": {"wrappers": self.env.wrappers}} if wrapped else {})

    def as_dict(self) -> dict[str, Any]:
        """JSON-serializable; `Config(**config.as_dict())` is the same run."""
        plain = {one.name: getattr(self, one.name) for one in option_fields()}
        plain |= {"preset": "none", "env_id": self.env_name, **self.options}
        wrappers = tuple(name_of(wrapper) for wrapper in self.env.wrappers)
        plain["env"] = dataclasses.replace(self.env, wrappers=wrappers)
        if self.parallel is not None:
            plain |= dict.fromkeys(CHOSEN)
        for name, value in as_dicts(plain).items():
            plain[name] = name_of(value) if callable(value) else value
        return json.loads(json.dumps(plain))


def option_fields() -> list[dataclasses.Field[Any]]:
    """The fields of `Config` that a user sets."""
    return [one for one in dataclasses.fields(Config) if one.metadata.get("option", True)]
