"""The plan of `paceline tune`: its arguments checked, and the options of every burst."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.flags import ConfigParser, config_parser
from ...config.schema import BUDGETS, Config
from ...config.values import parse_duration, seconds
from ...envs.source import EnvInfo
from ...errors import BadInput
from ...processes.hardware import available_cpus
from .arguments import Training, file_name, refuse_flags, whole_number
from .runs import SPEED_ONLY
from .tune_fit import read_constants
from .tune_model import Shape
from .tune_space import Limits, candidates, min_rollout

SET_BY_TUNE = {
    **dict.fromkeys(
        ("num_workers", "ranks", "num_envs_per_worker", "threads", "pin", "sampler", "sync"),
        "leave it out, or write --mode sequential or parallel",
    ),
    "output_dir": "tune writes one file, which --output names",
    "log_jsonl": "tune keeps no metrics; leave it out",
}
NEVER = "1e15"


@dataclass(frozen=True, kw_only=True)
class TunePlan:
    """What is searched, and for how long."""

    training: Training
    base: Config
    """its configuration without tune"""
    env_info: EnvInfo
    shape: Shape
    """of `base`"""
    limits: Limits
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
        """Flags of a burst in this shape."""
        given = self.training.flags
        kept = {name: value for name, value in given.items() if name not in BUDGETS}
        settings = {
            "stop_at_return": "none",
            "compile": "on" if compiled else "off",
            "duration": f"{duration:.2f}s",
            **{name: str(value) for name, value in self.changes(shape).items()},
        }
        if self.base.eval_every:
            settings["eval_every"] = NEVER
        return SPEED_ONLY | kept | self.training.without_file_budget() | settings

    def changes(self, shape: Shape) -> dict[str, Any]:
        """Options of the configuration that lay it out in this shape."""
        hogwild = shape.schedule == "hogwild"
        found: dict[str, Any] = {
            "num_envs": shape.envs * (shape.workers if hogwild else 1),
            "num_workers": shape.workers,
            "rollout_steps": shape.steps,
        }
        if not hogwild and (shape.ranks > 1 or self.base.ranks > 1):
            found["ranks"] = shape.ranks
        if self.base.sampler == "serial":
            found["sampler"] = "auto"
        if self.base.batch_size:
            found["batch_size"] = shape.batch
        elif not self.limits.one_minibatch:
            found["minibatches"] = shape.minibatches
        if self.limits.threaded:
            found["threads"] = shape.threads
        if shape.pinned or self.base.pin:
            found["pin"] = shape.pinned
        return found


def parse_tune(arguments: list[str]) -> TunePlan:
    """The plan that these arguments ask for; everything invalid is refused here."""
    parser = tune_parser()
    given = parser.parse(arguments)
    own = {name: given.pop(name) for name in ("max_batch", "min_rollout_steps", "mode")}
    paths = {name: given.pop(name) for name in ("output", "constants", "save_constants")}
    budget, for_cpus = given.pop("time"), given.pop("for_cpus")
    overwrite = given.pop("overwrite", "false") == "true"
    refuse_flags("tune", given, SET_BY_TUNE)
    training = Training(given, parser.file)
    base, env_info = training.inspect()
    default = Path(f"tuned-{file_name(base.env_name)}-{base.algo_name}.yaml")
    plan = TunePlan(
        training=training,
        base=base,
        env_info=env_info,
        shape=shape_of(base),
        limits=_limits(base, env_info, **own),
        cpus=for_cpus or available_cpus(),
        predicts=for_cpus is not None,
        budget=budget,
        output=paths["output"] or default,
        constants=paths["constants"],
        save_constants=paths["save_constants"],
    )
    _check(plan, overwrite)
    return plan


def tune_parser() -> ConfigParser:
    """Takes every option of `train` too."""
    parser = config_parser()
    parser.add_argument("--time", type=_duration, default=240.0)
    parser.add_argument("--max-batch", type=whole_number(1, 10**8), default=None)
    parser.add_argument("--min-rollout-steps", type=whole_number(1, 10**8), default=None)
    parser.add_argument("--mode", choices=("any", "sequential", "parallel"), default="any")
    parser.add_argument("--for-cpus", type=whole_number(1, 4096), default=None)
    for flag in ("--output", "--constants", "--save-constants"):
        parser.add_argument(flag, type=Path, default=None)
    return parser


def _duration(text: str) -> float:
    try:
        return seconds(parse_duration(text))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} {error}") from None


def shape_of(config: Config) -> Shape:
    """How a training is laid out by its configuration."""
    overlaps = config.algorithm.needs_log_ratio and config.sampler != "workers"
    lockstep = config.entry("sync").lockstep
    return Shape(
        envs=config.columns,
        steps=config.rollout_steps,
        minibatches=config.minibatch_count,
        workers=config.num_workers,
        ranks=config.ranks,
        pinned=config.pin,
        schedule="hogwild" if not lockstep else "stream" if overlaps else "alternate",
    )


def trace_of(config: Config) -> float:
    """λ of the advantages or targets."""
    algorithm: Any = config.algorithm
    return getattr(algorithm, "gae_lambda", getattr(algorithm, "vtrace_lambda", 1.0))


def _limits(
    config: Config,
    env_info: EnvInfo,
    max_batch: int | None,
    min_rollout_steps: int | None,
    mode: str,
) -> Limits:
    shape, least = shape_of(config), min_rollout_steps
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
    return Limits(
        max_rows=max_batch or shape.rows,
        min_steps=least or min_rollout(shape.steps, config.gamma, trace_of(config)),
        mode=mode,
        one_minibatch=config.algo == "a2c",
        threaded=bool(env_info.obs_spec.images) or config.own_encoder is not None,
    )


def _check(plan: TunePlan, overwrite: bool) -> None:
    if plan.constants is not None and not plan.predicts:
        raise BadInput(
            f"--constants is {plan.constants}, and this machine can be measured; write --for-cpus "
            "N for the model's choice for another"
        )
    if plan.limits.mode == "sequential" and plan.shape.schedule == "hogwild":
        raise BadInput("--mode is sequential, and a3c's learners are processes; write --algo a2c")
    if plan.limits.mode == "parallel" and plan.cpus == 1:
        raise BadInput("--mode is parallel, and there is one CPU; leave it out")
    if not candidates(plan.shape, plan.limits, plan.cpus):
        raise BadInput(
            f"--mode is {plan.limits.mode}, and {plan.shape.rows} rows of an update can't be "
            f"shared by {plan.cpus} CPUs or fewer; write a larger --max-batch"
        )
    for path, suffix in ((plan.output, ".yaml"), (plan.save_constants, ".json")):
        if path is not None:
            _check_output(path, suffix, overwrite)
    if plan.constants is not None:
        read_constants(plan.constants, plan.base)


def _check_output(path: Path, suffix: str, overwrite: bool) -> None:
    if path.suffix != suffix:
        raise BadInput(f"{path} should end in {suffix}, such as {path.stem or 'tuned'}{suffix}")
    if not path.parent.is_dir():
        raise BadInput(f"{path} can't be written: there is no directory {path.parent}")
    if path.is_dir() or (path.exists() and not overwrite):
        raise BadInput(f"{path} exists; name another, or replace it with --overwrite")
