"""Config: one shallow tree of documented dataclasses, and the one place where its sources meet.

Later wins: the field's default, the algorithm's, the preset's, the file's, the flag's.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MaxLen
from pydantic import BeforeValidator, ConfigDict

from ..errors import BadInput, PacelineError
from .registry import ENTRIES, MADE, as_dicts, by_name, entry, name_of, section_of

ENCODERS = ("mlp", "small", "nature", "impala")
"""That have a name of their own."""


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
    if not 0 < seconds(match[0]) < 10 * 365 * 24 * 3600:
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
    if value == "auto":
        from ..processes.hardware import available_cpus

        return available_cpus()
    if isinstance(value, str) and not value.strip().isdigit():
        raise ValueError("should be a whole number, such as 2, or auto")
    return value


def _or_none(value: Any) -> Any:
    return None if value == "none" else value


def _one_of(*names: str) -> BeforeValidator:
    """One of these names, or a user's own: `module:Class`, or from Python what it stands for."""
    known = f"one of {', '.join(names)}, or your own as" if names else "your own, as"

    def checked(value: Any) -> Any:
        named = value in names or ":" in value if isinstance(value, str) else callable(value)
        if value is not None and not named:
            raise ValueError(f"should be {known} module:Class")
        return by_name(value)

    return BeforeValidator(checked)


Steps = Annotated[int, Ge(1), Le(10**15), BeforeValidator(parse_steps)]
Duration = Annotated[str, BeforeValidator(parse_duration)]
Count = Annotated[int, Ge(1), Le(10**9)]
Width = Annotated[int, Ge(1), Le(2**16)]
Own = str | Callable[..., Any]
"""A name, or from Python what a user has made."""
STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)


NO_OPTION = {"option": False}
"""Metadata of a field that is no option: no flag, in no file."""
OBJECTS = {"env_id": "env_is_callable", **{n: f"{n}_is_callable" for n in ("encoder", *ENTRIES)}}
"""Options that Python may give as what no file holds, and how run.json says that it did."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    __pydantic_config__ = STRICT

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
    """A training run, as `paceline.Config(...)` resolves it."""

    algo: Annotated[Own, _one_of(*ENTRIES["algo"])] = "ppo"
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
    sampler: Annotated[Own, _one_of("auto", *ENTRIES["sampler"])] = "auto"
    """where rollouts come from (auto: with workers, `stream` for impala, else `workers`)"""
    pool: Annotated[Own, _one_of(*ENTRIES["pool"])] = "processes"
    """what workers are"""
    ranks: Annotated[int, Ge(1), Le(4096), BeforeValidator(_processes)] = 1
    """learners with environments of their own that average their gradients (`auto`: one per CPU;
    under torchrun as many as it has started); num_envs and num_workers are those of each"""
    sync: Annotated[Own, _one_of("auto", *ENTRIES["sync"])] = "auto"
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
    bonus: Annotated[Own, _one_of(*ENTRIES["bonus"])] | None = None
    """exploration bonus, as module:Class"""

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
    encoder: Annotated[Own, _one_of(*ENCODERS)] | None = None
    """what comes before the heads: mlp, small, nature or impala for images (nature, or small for
    those of under 36 pixels), or your own, as module:Class; in Python also a class or a module"""
    memory: Annotated[Own, _one_of(*ENTRIES["memory"])] | None = None
    """recurrent cell after the encoder, as module:Class"""
    memory_size: Width = 64
    """numbers that the memory puts out"""
    memory_segment: Count | None = None
    """successive steps of one environment in a training segment, which divide rollout_steps (the
    nearest to 16 that do)"""
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
    options: Mapping[str, Any] = field(default_factory=dict, metadata=NO_OPTION)
    """sections by name: the options of every algorithm, and of the other entries chosen"""
    given: Mapping[str, Any] = field(default_factory=dict, metadata=NO_OPTION, compare=False)
    """what was asked for, as opposed to filled in"""
    working_directory: str = field(default="", metadata=NO_OPTION, compare=False)
    """where it was made, and where `runs/` is; an environment may change to another"""

    def __getattr__(self, name: str) -> Any:
        """A section of options, such as `config.ppo`."""
        options = vars(self).get("options", {})
        if name in options:
            return options[name]
        raise AttributeError(f"a configuration has no {name!r}")

    def replace(self, **changes: Any) -> Config:
        """The same request with `changes`; what nobody asked for is filled in anew."""
        from .resolve import asked, resolve

        return resolve(asked(self), changes)

    def at(self, output_dir: str) -> Config:
        """The same run, in another place."""
        given = {**self.given, "output_dir": output_dir}
        return dataclasses.replace(self, output_dir=output_dir, given=given)

    def entry(self, option: str) -> Any:
        """What was chosen, looked up: `algo`, `sampler`, `sync`, `pool`, `memory` or `bonus`."""
        resolved = {"sampler": "sampling", "sync": "syncing"}
        return entry(option, getattr(self, resolved.get(option, option)))

    def made(self, option: str, *arguments: Any) -> Any:
        """What the chosen pool or bonus makes of `arguments`, and of its options if it has any."""
        chosen = getattr(self, option)
        section = section_of(option, chosen)
        options = {"options": self.options[section]} if section in self.options else {}
        try:
            found = self.entry(option)(*arguments, **options)
        except (PacelineError, KeyboardInterrupt):
            raise
        except Exception as error:
            if isinstance(chosen, str) and chosen in ENTRIES[option]:
                raise
            raise BadInput(
                f"{option}: {name_of(chosen)} can't be made ({type(error).__name__}: {error})"
            ) from error
        lacking = [name for name in MADE[option] if not hasattr(found, name)]
        if lacking:
            raise BadInput(f"{option}: what {name_of(chosen)} makes has no {', '.join(lacking)}")
        return found

    @property
    def own_encoder(self) -> str | Callable[..., Any] | None:
        """The user's encoder, if it is theirs."""
        return None if self.encoder in ENCODERS else self.encoder

    @property
    def algo_section(self) -> str:
        """The section of the chosen algorithm."""
        return section_of("algo", self.algo)

    @property
    def algorithm(self) -> Any:
        """The hyper-parameters of the chosen algorithm."""
        return self.options[self.algo_section]

    @property
    def sampling(self) -> Own:
        """The sampler that `auto` stands for, or the one that was chosen."""
        if self.sampler != "auto":
            return self.sampler
        if not self.workers:
            return "serial"
        return "stream" if self.algorithm.needs_log_ratio else "workers"

    @property
    def syncing(self) -> Own:
        """The sync that `auto` stands for, or the one that was chosen."""
        if self.sync != "auto":
            return self.sync
        return "allreduce" if self.ranks > 1 else "local"

    @property
    def learners(self) -> int:
        """Over all processes."""
        return int(getattr(self, self.entry("sync").counted_by))

    @property
    def workers(self) -> int:
        """Processes that step the environments of one learner."""
        return 0 if self.entry("sync").counted_by == "num_workers" else self.num_workers

    @property
    def columns(self) -> int:
        """Environments of one learner."""
        return self.num_envs // max(1, self.num_workers - self.workers)

    @property
    def env_name(self) -> str:
        if isinstance(self.env_id, str):
            return self.env_id
        return getattr(self.env_id, "__name__", type(self.env_id).__name__)

    @property
    def algo_name(self) -> str:
        """As users call it."""
        chosen = {"algo": self.algo, "sync": self.syncing}
        named = (alias for alias, means in ALIASES.items() if chosen.items() <= means.items())
        return next(named, self.algo_section)

    @property
    def minibatch_count(self) -> int:
        """Optimiser steps per pass, given either way."""
        rows = self.ranks * self.num_envs * self.rollout_steps
        return rows // self.batch_size if self.batch_size else self.minibatches or 1

    def as_dict(self) -> dict[str, Any]:
        """Plain data that `Config(**…)` turns into the same run again."""
        plain = {one.name: getattr(self, one.name) for one in option_fields()}
        plain |= {"preset": "none", "env_id": self.env_name, **self.options}
        for name, value in as_dicts(plain).items():
            plain[name] = name_of(value) if callable(value) else value
        return json.loads(json.dumps(plain))


def option_fields() -> list[dataclasses.Field[Any]]:
    """The fields of `Config` that a user sets: all but what it remembers."""
    return [one for one in dataclasses.fields(Config) if one.metadata.get("option", True)]


ALIASES: dict[str, dict[str, Any]] = {
    "a3c": {"algo": "a2c", "sync": "hogwild", "num_workers": "auto"},
    "ddppo": {"algo": "ppo", "ranks": "auto"},
}
"""Names for ways of running an algorithm, which are resolved when a configuration is read."""
BUDGETS = ("total_steps", "total_iters", "duration")
PRESETS = Path(__file__).parent / "presets"


def presets(algo: str) -> dict[str, Path]:
    """The files of tuned values for an algorithm, by env_id."""
    return {
        path.stem: path for path in sorted(PRESETS.glob("*/*.yaml")) if path.parent.name == algo
    }
