"""Config: one shallow tree of documented dataclasses, and the one place where its sources meet.

Later wins: the field's default, the algorithm's, the preset's, the file's, the flag's.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, MaxLen
from pydantic import BeforeValidator, ConfigDict

from . import launcher
from .algorithms.a2c import A2C
from .algorithms.impala import IMPALA
from .algorithms.ppo import PPO
from .registry import name_of

ENCODERS = ("mlp", "small", "nature", "impala")
"""That have a name of their own."""
LONGEST = 10 * 365 * 24 * 3600
"""Seconds."""


def parse_steps(value: Any) -> Any:
    """`300_000`, `1e6`, `1M`, `50k` → a whole number."""
    if isinstance(value, str):
        match = re.fullmatch(r"([\d_]*\.?\d+(?:e\d+)?)([kM]?)", value.strip())
        if match is None:
            raise ValueError("should be a number of steps, such as 300_000, 1e6, 50k or 1M")
        value = float(match[1].replace("_", "")) * {"": 1, "k": 1e3, "M": 1e6}[match[2]]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def parse_duration(value: Any) -> Any:
    """`90s`, `30m`, `0.5h` → seconds; `duration` says it back as text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(value).strip())
    if match is None:
        raise ValueError(f"should carry a unit: write {value}s, {value}m or 0.5h")
    if not 0 < seconds(match[0]) < LONGEST:
        raise ValueError("should be longer than nothing and shorter than ten years, such as 90s")
    return match[0]


def seconds(duration: str) -> float:
    """Seconds of a duration that has been validated."""
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def _list(value: Any) -> Any:
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


def _mapping(value: Any) -> Any:
    try:
        if isinstance(value, str):
            return json.loads(value)
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"should hold numbers, text, lists and names only ({error}); "
            "in Python, a callable env_id can close over anything else"
        ) from None
    return value


def _processes(value: Any) -> Any:
    """`auto`: as many as there are CPUs to run them."""
    if value != "auto":
        if isinstance(value, str) and not value.strip().isdigit():
            raise ValueError("should be a whole number, such as 2, or auto")
        return value
    from .machine import available_cpus

    return available_cpus()


def _or_none(value: Any) -> Any:
    return None if value == "none" else value


def _encoder(value: Any) -> Any:
    """A name; a class that can be imported again is known by its own."""
    if isinstance(value, str) and ":" not in value and value not in ENCODERS:
        raise ValueError(f"should be one of {', '.join(ENCODERS)}, or your own as module:Class")
    if not isinstance(value, type) or value.__module__ == "__main__":
        return value
    module = sys.modules.get(value.__module__)
    return name_of(value) if getattr(module, value.__name__, None) is value else value


Steps = Annotated[int, Ge(1), Le(10**15), BeforeValidator(parse_steps)]
Duration = Annotated[str, BeforeValidator(parse_duration)]
Count = Annotated[int, Ge(1), Le(10**9)]
Width = Annotated[int, Ge(1), Le(2**16)]
_STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    __pydantic_config__ = _STRICT

    kwargs: Annotated[dict[str, Any], BeforeValidator(_mapping)] = field(default_factory=dict)
    """keyword arguments of the environment, or of its suite; on the command line as JSON"""
    time_limit: Count | None = None
    """cut episodes off after this many steps, instead of the environment's own limit"""
    frame_stack: Annotated[Count, Le(1024)] | None = None
    """observations stacked into one (4 for Atari, else 1)"""
    wrappers: Annotated[tuple[str, ...], BeforeValidator(_list)] = ()
    """wrappers put around the environment, inside first, as module:Class, comma-separated"""
    vector: bool = False
    """step the environment's own vector implementation, where it has one (CartPole-v1 has)"""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run. `Config(...)` fills what is not given from the preset for its environment."""

    __pydantic_config__ = _STRICT

    algo: Literal["ppo", "a2c", "impala"] = "ppo"
    """what is optimised; also a3c (a2c by learners that wait for nobody), ddppo (ppo with ranks)"""
    env_id: str | Callable[..., Any] = "CartPole-v1"
    """a Gymnasium id, module:Id-v0, or suite:Name; in Python also a callable"""
    preset: str = "auto"
    """values to start from: `auto` (tuned for the env_id, or else what suits its spaces), `none`,
    an env_id, `continuous`, `discrete` or `images`"""
    seed: Annotated[int, Ge(0), Le(2**31 - 1)] = 0
    """decides everything random"""

    total_steps: Steps | None = None
    """end after this many environment steps (1M if no budget is given at all)"""
    total_iters: Steps | None = None
    """end after this many iterations"""
    duration: Duration | None = None
    """end after this much time, such as 90s, 30m, 0.5h"""
    stop_at_return: Annotated[float | None, BeforeValidator(_or_none)] = None
    """end when the last 100 episodes' mean return reaches this (`none`: never)"""
    init_from: str | None = None
    """start from the weights of this run or checkpoint, with fresh counters"""

    num_envs: Count = 8
    """environments stepped side by side"""
    num_workers: Annotated[int, Ge(0), Le(4096), BeforeValidator(_processes)] = 0
    """processes that step them (0: none but the learner's own; `auto`: one per CPU); for a3c, its
    learners"""
    num_envs_per_worker: Count | None = None
    """environments of each worker, instead of num_envs"""
    sampler: Literal["auto", "serial", "workers", "stream"] = "auto"
    """where rollouts come from (auto: with workers, `stream` for impala, else `workers`)"""
    ranks: Annotated[int, Ge(1), Le(4096), BeforeValidator(_processes)] = 1
    """learners with environments of their own that average their gradients (`auto`: one per CPU;
    under torchrun as many as it has started); num_envs and num_workers are those of each"""
    sync: Literal["auto", "local", "allreduce", "hogwild"] = "auto"
    """what learners do with their gradients (auto: with ranks `allreduce`; `hogwild` is a3c's)"""
    backend: Literal["auto", "shm", "gloo", "nccl"] = "auto"
    """what sums go through (auto: memory within a host, gloo between hosts, nccl for GPUs)"""
    init_method: str = "env://"
    """where ranks meet, as torch.distributed has it: env://, file:///path or tcp://host:port"""
    rollout_steps: Count = 128
    """steps of each environment between two updates"""
    epochs: Count = 4
    """passes over each rollout"""
    minibatches: Count | None = None
    """optimiser steps per pass (4 for ppo, 1 for the others)"""
    batch_size: Count | None = None
    """rows of one minibatch over all ranks, instead of their number"""
    lr: Annotated[float, Ge(0)] = 3e-4
    """learning rate"""
    anneal_lr: bool = False
    """let `lr` fall linearly to 0 over the run"""
    gamma: Annotated[float, Ge(0), Le(1)] = 0.99
    """discount"""
    max_grad_norm: Annotated[float, Gt(0)] = 0.5
    """the gradient is cut to this length"""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """what moves the weights"""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-5
    """the optimiser's ε"""
    normalize_obs: bool = False
    """subtract the running mean of observations and divide by their deviation"""
    normalize_return: bool = False
    """divide rewards by the running deviation of the discounted return"""
    clip_reward: bool = False
    """learn from the sign of each reward; what is reported stays as it is"""

    hidden: Annotated[tuple[Width, ...], MaxLen(64), BeforeValidator(_list)] | None = None
    """sizes of the dense layers, such as 64,64 (that for vectors, 512 for images)"""
    activation: Literal["tanh", "relu", "elu"] | None = None
    """between layers (tanh for vectors, relu for images)"""
    shared_trunk: bool | None = None
    """policy and value on the same layers (for images yes, otherwise no)"""

    log_std_init: Annotated[float, Ge(-20), Le(2)] = 0.0
    """log of a Box action's deviation at the start; -1 explores a third as widely as 0"""
    state_dependent_std: bool = False
    """let the network say the deviation of a Box action in each state, not one for all"""
    encoder: Annotated[str | Callable[..., Any], BeforeValidator(_encoder)] | None = None
    """what comes before the heads: mlp, small, nature or impala for images (nature, or small for
    those of under 36 pixels), or your own, as module:Class; in Python also a class or a module"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """what comes before the heads computes in float32, or in bfloat16 where the CPU or GPU can"""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where the learner computes"""
    threads: Annotated[int, Ge(0), Le(4096)] = 0
    """threads of the learner (0: one for vectors, all cores for images)"""
    compile: Literal["auto", "on", "off"] = "auto"
    """compile the minibatch step, which needs a C++ compiler (auto: if the run is long enough)"""
    pin: bool = False
    """bind every process to CPUs of its own"""
    worker_timeout: Duration = "60s"
    """replace a worker that has made no step for this long, as if it had died"""
    max_restarts: Annotated[int, Ge(0), Le(10**6)] = 5
    """give up when a worker, or the ranks, fail more often than this without getting further"""
    rank_timeout: Duration = "120s"
    """start all ranks again when one shows no sign of life for this long"""
    max_lag: Annotated[int, Ge(2), Le(10**6)] = 8
    """in a stream, wait for a rollout before it is this many updates old"""

    eval_every: Steps | None = None
    """evaluate every so many steps, and keep the best checkpoint"""
    eval_episodes: Count = 20
    """episodes of each evaluation, also of the one at the end"""
    save_every: Steps | None = None
    """checkpoint every so many steps (else twice a minute)"""
    keep: Count = 3
    """checkpoints kept, beside the best"""
    log_every: Count = 1
    """iterations of one report"""
    log_jsonl: str | None = None
    """write the metrics to this file too"""
    track: Literal["tensorboard", "none"] = "tensorboard"
    """where curves go, beside metrics.jsonl"""
    output_dir: str | None = None
    """the run's directory (else runs/<env>-<algo>-<time>)"""
    overwrite: bool = False
    """replace the run that `output_dir` holds"""

    env: EnvConfig = field(default_factory=EnvConfig)
    ppo: PPO = field(default_factory=PPO)
    a2c: A2C = field(default_factory=A2C)
    impala: IMPALA = field(default_factory=IMPALA)

    given: ClassVar[Mapping[str, Any]] = {}
    """what was asked for, as opposed to filled in; each `Config` has its own"""
    working_directory: ClassVar[str] = ""
    """where it was made, and where `runs/` is; an environment may change to another"""

    def replace(self, **changes: Any) -> Config:
        """The same request with `changes`; what nobody asked for is filled in anew."""
        from .configure import resolve

        return resolve(self.given, changes)

    def at(self, output_dir: str) -> Config:
        """The same run, in another place."""
        moved = copy.copy(self)
        vars(moved).update(output_dir=output_dir, given={**self.given, "output_dir": output_dir})
        return moved

    @property
    def own_encoder(self) -> str | Callable[..., Any] | None:
        """The user's encoder, if it is theirs."""
        return None if self.encoder in ENCODERS else self.encoder

    @property
    def algorithm(self) -> PPO | A2C | IMPALA:
        """The hyper-parameters of the chosen algorithm."""
        return getattr(self, self.algo)

    @property
    def sampling(self) -> Literal["serial", "workers", "stream"]:
        """The sampler, by name."""
        if self.sampler != "auto":
            return self.sampler
        if not self.num_workers or self.sync == "hogwild":
            return "serial"
        return "stream" if self.algorithm.needs_log_ratio else "workers"

    @property
    def syncing(self) -> Literal["local", "allreduce", "hogwild"]:
        """The sync, by name."""
        if self.sync != "auto":
            return self.sync
        return "allreduce" if self.ranks > 1 else "local"

    @property
    def processes(self) -> int:
        """Processes that a launcher starts; of a3c's, one watches."""
        return self.num_workers + 1 if self.sync == "hogwild" else self.ranks

    @property
    def rank(self) -> int | None:
        """Which of them this is; None if they have yet to be started, or there is but one."""
        if self.processes == 1:
            return None
        name = "num_workers" if self.sync == "hogwild" else "ranks"
        return launcher.rank(asked=self.given.get(name) is not None)

    @property
    def columns(self) -> int:
        """Environments of one learner."""
        return self.num_envs // (self.num_workers if self.sync == "hogwild" else 1)

    @property
    def env_name(self) -> str:
        if isinstance(self.env_id, str):
            return self.env_id
        return getattr(self.env_id, "__name__", type(self.env_id).__name__)

    @property
    def algo_name(self) -> str:
        """As users call it."""
        return "a3c" if self.syncing == "hogwild" else self.algo

    @property
    def minibatch_count(self) -> int:
        """Optimiser steps per pass, given either way."""
        rows = self.ranks * self.num_envs * self.rollout_steps
        return rows // self.batch_size if self.batch_size else self.minibatches or 1

    def as_dict(self) -> dict[str, Any]:
        """Plain data that `Config(**…)` turns into the same run again."""
        plain: dict[str, Any] = {}
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            section = is_dataclass(value) and not isinstance(value, type)
            plain[entry.name] = dataclasses.asdict(value) if section else value
        plain |= {"preset": "none", "env_id": self.env_name}
        if self.encoder is not None:
            plain["encoder"] = name_of(self.encoder)
        return json.loads(json.dumps(plain))


ALGORITHM_DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": {"minibatches": 4},
    "a2c": {
        "rollout_steps": 5,
        "epochs": 1,
        "minibatches": 1,
        "lr": 7e-4,
        "optimizer": "rmsprop",
        "log_every": 100,
    },
    "impala": {
        "rollout_steps": 20,
        "epochs": 1,
        "minibatches": 1,
        "lr": 6e-4,
        "optimizer": "rmsprop",
        "log_every": 20,
    },
}
ALIASES: dict[str, dict[str, Any]] = {
    "a3c": {"algo": "a2c", "sync": "hogwild", "num_workers": "auto"},
    "ddppo": {"algo": "ppo", "ranks": "auto"},
}
"""Names for ways of running an algorithm, which are resolved when a configuration is read."""
BUDGETS = ("total_steps", "total_iters", "duration")
DEFAULT_BUDGET = 1_000_000


def _init(self: Config, **given: Any) -> None:
    """Config(...) in Python goes the same way as files and flags."""
    from .configure import resolve

    if len(given) == len(dataclasses.fields(Config)) and given["preset"] == "auto":
        given["preset"] = "none"  # by dataclasses.replace: all is said, and nothing left to fill
    self.__dict__.update(vars(resolve(given)))


# The generated signature stays what editors and type checkers see.
Config.__init__ = _init  # type: ignore[method-assign]


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `under`, section by section."""
    out = dict(under)
    for key, value in over.items():
        below = out.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and key != "kwargs":
            value = merged(below, value)
        out[key] = value
    return out


def presets(algo: str) -> dict[str, Path]:
    """The files of tuned values for an algorithm, by env_id."""
    folder = Path(__file__).parent / "presets"
    return {path.stem: path for path in sorted(folder.glob("*/*.yaml")) if path.parent.name == algo}
