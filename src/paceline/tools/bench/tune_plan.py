"""The plan of `paceline tune`: its arguments checked, and the options of every burst."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...config.files import load_file
from ...config.schema import BUDGETS, Config
from ...config.values import parse_duration, seconds
from ...envs.source import EnvInfo
from ...errors import BadInput
from ...processes.hardware import available_cpus
from ...run.cost_model import Constants, Shape, shape_of
from .arguments import (
    Training,
    file_name,
    parse_options,
    refuse_flags,
    refuse_parallel,
    whole_number,
)
from .runs import SPEED_ONLY
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


def _duration(text: str) -> float:
    try:
        return seconds(parse_duration(text))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} {error}") from None


OPTIONS: dict[str, dict[str, Any]] = {
    "--time": {"type": _duration, "default": 240.0},
    "--max-batch": {"type": whole_number(1, 10**8)},
    "--min-rollout-steps": {"type": whole_number(1, 10**8)},
    "--mode": {"choices": ("any", "sequential", "parallel"), "default": "any"},
    "--for-cpus": {"type": whole_number(1, 4096)},
    "--output": {"type": Path},
    "--constants": {"type": Path},
    "--save-constants": {"type": Path},
}
"""Of `tune` alone."""


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
    save_constants: Path | None
    constants: tuple[Constants, Mapping[str, Any]] | None = None
    """of --constants, and where they were measured"""

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
            "num_envs": shape.envs,
            "num_workers": shape.learners if hogwild else shape.workers,
            "rollout_steps": shape.steps,
        }
        if not hogwild and (shape.learners > 1 or self.base.ranks > 1):
            found["ranks"] = shape.learners
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
    own, given, file = parse_options(arguments, OPTIONS)
    overwrite = given.pop("overwrite", "false") == "true"
    refuse_flags("tune", given, SET_BY_TUNE)
    refuse_parallel("tune", given, file)
    training = Training(given, file)
    base, env_info = training.inspect()
    cpus, constants = own["for_cpus"], own["constants"]
    if constants is not None and cpus is None:
        raise BadInput(
            f"--constants is {constants}, and this machine can be measured; write --for-cpus N for "
            "the model's choice for another"
        )
    plan = TunePlan(
        training=training,
        base=base,
        env_info=env_info,
        shape=shape_of(base),
        limits=_limits(base, env_info, own),
        cpus=cpus or available_cpus(),
        predicts=cpus is not None,
        budget=own["time"],
        output=own["output"] or Path(f"tuned-{file_name(base.env_name)}-{base.algo_name}.yaml"),
        save_constants=own["save_constants"],
        constants=None if constants is None else read_constants(constants, base),
    )
    _check(plan)
    _check_output(plan.output, ".yaml", overwrite)
    if plan.save_constants is not None:
        _check_output(plan.save_constants, ".json", overwrite)
    return plan


def trace_of(config: Config) -> float:
    """λ of the advantages or targets."""
    algorithm: Any = config.algorithm
    return getattr(algorithm, "gae_lambda", getattr(algorithm, "vtrace_lambda", 1.0))


def _limits(config: Config, env_info: EnvInfo, own: Mapping[str, Any]) -> Limits:
    shape, most, least = shape_of(config), own["max_batch"], own["min_rollout_steps"]
    if most is not None and most < shape.rows:
        raise BadInput(
            f"--max-batch is {most}, and an update has {shape.rows} rows already "
            f"({shape.rows // shape.steps} envs × {shape.steps} steps); write that or more"
        )
    if least is not None and least > shape.steps:
        raise BadInput(
            f"--min-rollout-steps is {least}, and rollouts have {shape.steps} steps; write that "
            f"or less, or --rollout-steps {least}"
        )
    return Limits(
        max_rows=most or shape.rows,
        min_steps=least or min_rollout(shape.steps, config.gamma, trace_of(config)),
        mode=own["mode"],
        one_minibatch=config.algo == "a2c",
        segment=config.memory_segment or 1,
        threaded=bool(env_info.obs_spec.images) or config.own_encoder is not None,
    )


def _check(plan: TunePlan) -> None:
    """Refuse a mode that no shape has."""
    if plan.limits.mode == "sequential" and plan.shape.schedule == "hogwild":
        raise BadInput("--mode is sequential, and a3c's learners are processes; write --algo a2c")
    if plan.limits.mode == "parallel" and plan.cpus == 1:
        raise BadInput("--mode is parallel, and there is one CPU; leave it out")
    if not candidates(plan.shape, plan.limits, plan.cpus):
        raise BadInput(
            f"--mode is {plan.limits.mode}, and {plan.shape.rows} rows of an update can't be "
            f"shared by {plan.cpus} CPUs or fewer; write a larger --max-batch"
        )


def _check_output(path: Path, suffix: str, overwrite: bool) -> None:
    if path.suffix != suffix:
        raise BadInput(f"{path} should end in {suffix}, such as {path.stem or 'tuned'}{suffix}")
    if not path.parent.is_dir():
        raise BadInput(f"{path} can't be written: there is no directory {path.parent}")
    if path.is_dir() or (path.exists() and not overwrite):
        raise BadInput(f"{path} exists; name another, or replace it with --overwrite")


def read_constants(path: Path, config: Config) -> tuple[Constants, Mapping[str, Any]]:
    """Constants of a file of --save-constants, and where they were measured."""
    facts = load_file(path)
    known = facts.get("constants")
    names = {field.name for field in fields(Constants)}
    if not isinstance(known, dict) or known.keys() != names:
        raise BadInput(f"{path} holds no constants of tune; write them with --save-constants")
    if not all(isinstance(value, (int, float)) and value >= 0 for value in known.values()):
        raise BadInput(f"{path}: every constant should be a number from 0 on")
    for name, value in {"env_id": config.env_name, "algo": config.algo}.items():
        if facts.get(name) != value:
            raise BadInput(
                f"{path} was measured with {name} {facts.get(name)!r}, and this is {value!r}; "
                "measure it with --save-constants"
            )
    return Constants(**known), facts
