"""From the arguments of `paceline tune` to a plan; all that can be refused is refused here."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.flags import ConfigParser, config_parser, nested
from ...config.resolve import resolve
from ...config.schema import BUDGETS, Config
from ...config.values import parse_duration, parse_steps, seconds
from ...envs.source import EnvInfo
from ...errors import BadInput
from ...processes.hardware import available_cpus
from .arguments import UNLIMITED as ENDLESS
from .arguments import Training
from .runs import SPEED_ONLY as SETTINGS
from .tune_constants import read_constants
from .tune_model import Shape
from .tune_space import Allowance, candidates, shortest

DECIDED = {
    **dict.fromkeys(
        ("num_workers", "ranks", "num_envs_per_worker", "threads", "pin", "sampler", "sync"),
        "tune decides it: leave it out, or write --mode sequential or parallel",
    ),
    "output_dir": "tune writes one file: name it with --output",
    "log_jsonl": "tune keeps no metrics: leave it out",
}
"""What tune says to its bursts, and how to say it to tune."""
MODES = ("any", "sequential", "parallel")
NEVER = "1e15"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is searched, where, and for how long."""

    base: Config
    """the training as it is"""
    env_info: EnvInfo
    given: dict[str, str]
    """options that were given, a configuration's file among them"""
    file: Mapping[str, Any]
    """what that file says"""
    allowed: Allowance
    shape: Shape
    """of `base`"""
    cpus: int
    """of the machine that the choice is for"""
    predicts: bool
    """whether that is another machine than this"""
    budget: float
    """seconds"""
    output: Path
    constants: Path | None
    save_constants: Path | None

    def options(self, shape: Shape, compiled: bool, duration: float) -> dict[str, str]:
        """Of a burst in this shape."""
        kept = {name: value for name, value in self.given.items() if name not in BUDGETS}
        lifted = {name: ENDLESS[name] for name in BUDGETS if self.file.get(name) is not None}
        quiet = {"eval_every": NEVER} if self.base.eval_every else {}
        settings = {
            "stop_at_return": "none",
            "compile": "on" if compiled else "off",
            "duration": f"{duration:.2f}s",
            **{name: str(value) for name, value in self.decided(shape).items()},
        }
        return SETTINGS | kept | lifted | quiet | settings

    def decided(self, shape: Shape) -> dict[str, Any]:
        """What a configuration has to say for this shape."""
        apart = shape.way == "apart"
        found: dict[str, Any] = {
            "num_envs": shape.envs * (shape.workers if apart else 1),
            "num_workers": shape.workers,
            "rollout_steps": shape.steps,
        }
        if not apart and (shape.ranks > 1 or self.base.ranks > 1):
            found["ranks"] = shape.ranks
        if self.base.sampler == "serial":
            found["sampler"] = "auto"
        if self.base.batch_size:
            found["batch_size"] = shape.batch
        elif not self.allowed.whole:
            found["minibatches"] = shape.minibatches
        if self.allowed.threaded:
            found["threads"] = shape.threads
        if shape.pinned or self.base.pin:
            found["pin"] = shape.pinned
        return found

    def config(self, shape: Shape) -> Config:
        """The training in this shape."""
        flags = {name: value for name, value in self.given.items() if name != "config"}
        return resolve(self.file, nested(flags), self.decided(shape))


def plan_of(arguments: list[str]) -> Plan:
    """What these arguments ask for."""
    parser = _parser()
    given = parser.parse(arguments)
    own = {name: given.pop(name) for name in ("time", "max_batch", "min_rollout_steps", "mode")}
    paths = {name: given.pop(name) for name in ("output", "constants", "save_constants")}
    for_cpus, overwrite = given.pop("for_cpus"), given.pop("overwrite", "false") == "true"
    for name, hint in DECIDED.items():
        if name in given:
            raise BadInput(f"--{name.replace('_', '-')} is {given[name]!r}, and {hint}")
    file = parser.file
    base, env_info = Training(given, file).inspect()
    large = bool(env_info.obs_spec.images) or base.own_encoder is not None
    plan = Plan(
        base=base,
        env_info=env_info,
        given=given,
        file=file,
        allowed=_allowed(base, own["max_batch"], own["min_rollout_steps"], own["mode"], large),
        shape=shape_of(base),
        cpus=for_cpus or available_cpus(),
        predicts=for_cpus is not None,
        budget=own["time"],
        output=paths["output"] or Path(f"tuned-{_named(base)}.yaml"),
        constants=paths["constants"],
        save_constants=paths["save_constants"],
    )
    _check(plan, overwrite)
    return plan


def _parser() -> ConfigParser:
    """Takes every option of `train` beside its own."""
    parser = config_parser()
    parser.add_argument("--time", type=_duration, default=240.0)
    parser.add_argument("--max-batch", type=_steps, default=None)
    parser.add_argument("--min-rollout-steps", type=_steps, default=None)
    parser.add_argument("--mode", choices=MODES, default="any")
    parser.add_argument("--for-cpus", type=lambda text: _steps(text, 4096), default=None)
    for flag in ("--output", "--constants", "--save-constants"):
        parser.add_argument(flag, type=Path, default=None)
    return parser


def _duration(text: str) -> float:
    try:
        return seconds(parse_duration(text))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} {error}") from None


def _steps(text: str, most: int = 10**8) -> int:
    try:
        number = parse_steps(text)
    except ValueError:
        number = None
    if not isinstance(number, int) or not 1 <= number <= most:
        raise ArgumentTypeError(f"{text!r} should be a whole number from 1 to {most:,}")
    return number


def shape_of(config: Config, threads: int = 1) -> Shape:
    """How a training is laid out as it is."""
    lockstep = config.entry("sync").lockstep
    stream = config.algorithm.needs_log_ratio and config.sampler != "workers"
    return Shape(
        envs=config.columns,
        steps=config.rollout_steps,
        minibatches=config.minibatch_count,
        workers=config.num_workers,
        ranks=config.ranks,
        threads=threads,
        pinned=config.pin,
        way="turns" if lockstep and not stream else "stream" if lockstep else "apart",
    )


def trace_of(config: Config) -> float:
    """λ of the advantages or targets."""
    algorithm: Any = config.algorithm
    return getattr(algorithm, "gae_lambda", getattr(algorithm, "vtrace_lambda", 1.0))


def _allowed(
    config: Config, max_batch: int | None, least: int | None, mode: str, large: bool
) -> Allowance:
    shape = shape_of(config)
    if max_batch is not None and max_batch < shape.rows:
        raise BadInput(
            f"--max-batch is {max_batch}, and an update has {shape.rows} rows already "
            f"({shape.ranks * shape.envs} envs × {shape.steps} steps); write that or more"
        )
    if least is not None and least > shape.steps:
        raise BadInput(
            f"--min-rollout-steps is {least}, and rollouts have {shape.steps} steps; write that "
            f"or less, or --rollout-steps {least}"
        )
    return Allowance(
        max_rows=max_batch or shape.rows,
        min_steps=least or shortest(shape.steps, config.gamma, trace_of(config)),
        mode=mode,
        whole=config.algo == "a2c",
        threaded=large,
    )


def _named(config: Config) -> str:
    return f"{re.sub('[:/]', '-', config.env_name)}-{config.algo_name}"


def _check(plan: Plan, overwrite: bool) -> None:
    if plan.constants is not None and not plan.predicts:
        raise BadInput(
            f"--constants is {plan.constants}, and this machine can be measured; write --for-cpus "
            "N for the model's choice for another"
        )
    if plan.allowed.mode == "sequential" and plan.shape.way == "apart":
        raise BadInput("--mode is sequential, and a3c's learners are processes; write --algo a2c")
    if plan.allowed.mode == "parallel" and plan.cpus == 1:
        raise BadInput("--mode is parallel, and there is one CPU; leave it out")
    if not candidates(plan.shape, plan.allowed, plan.cpus):
        raise BadInput(
            f"--mode is {plan.allowed.mode}, and {plan.shape.rows} rows of an update can't be "
            f"shared by {plan.cpus} CPUs or fewer; write a larger --max-batch"
        )
    for path, suffix in ((plan.output, ".yaml"), (plan.save_constants, ".json")):
        if path is not None:
            _refuse_to_lose(path, suffix, overwrite)
    if plan.constants is not None:
        read_constants(plan.constants, plan.base)


def _refuse_to_lose(path: Path, suffix: str, overwrite: bool) -> None:
    if path.suffix != suffix:
        raise BadInput(f"{path} should end in {suffix}, such as {path.stem or 'tuned'}{suffix}")
    if not path.parent.is_dir():
        raise BadInput(f"{path} can't be written: there is no directory {path.parent}")
    if path.is_dir() or (path.exists() and not overwrite):
        raise BadInput(f"{path} exists; name another, or replace it with --overwrite")
