"""The plan of `paceline scale`: its arguments checked, and the options of every run."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.registry import entry
from ...config.resolve import expand_alias
from ...config.schema import BUDGETS, Config
from ...errors import BadInput
from .arguments import (
    Training,
    all_envs,
    check_output_dir,
    new_folder,
    number_from,
    parse_options,
    refuse_flags,
    refuse_parallel,
    whole_number,
)
from .runs import SPEED_ONLY

ONE_PROCESS = {
    "ranks": {"ranks": "1"},
    "workers": {"num_workers": "0", "sampler": "auto", "sync": "auto"},
}
"""Options that make a run one process; samplers and syncs that need more are reset."""
SET_BY_SCALE = {
    **dict.fromkeys(BUDGETS, "write --iters or --seconds for how long a run is measured"),
    "stop_at_return": "write --target-return to measure the time until then",
    "log_jsonl": "the metrics of every run are in logs/",
}


def parse_counts(text: str) -> list[int]:
    """Numbers of ranks or workers, smallest first."""
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", text):
        raise ArgumentTypeError(f"{text!r} should be whole numbers and commas, such as 1,2,4")
    return sorted({int(part) for part in text.split(",")})


OPTIONS: dict[str, dict[str, Any]] = {
    "--weak": {"action": "store_true", "default": False},
    "--repeats": {"type": whole_number(), "default": 3},
    "--warmup-iters": {"type": whole_number(0), "default": 5},
    "--iters": {"type": whole_number()},
    "--seconds": {"type": lambda text: number_from(text, 0.1), "default": 5.0},
    "--target-return": {"type": number_from},
    "--predict": {"type": parse_counts, "default": []},
}
"""Of `scale` alone; it also takes `--ranks` and `--num-workers` as lists."""


@dataclass(frozen=True, kw_only=True)
class ScalePlan:
    """What is measured, and how."""

    kind: str
    """`ranks` or `workers`"""
    counts: list[int]
    weak: bool
    repeats: int
    warmup: int
    iters: int | None
    """measured in each run; None: as many as `seconds` take"""
    seconds: float
    target: float | None
    predict: list[int]
    """numbers of ranks or workers whose speed-up the cost model is asked for"""
    folder: Path
    base: Config
    """the training in one process"""
    training: Training
    """options of every run"""
    limits: dict[str, str]
    """budgets of the runs to the target return"""

    @property
    def alone(self) -> int:
        """The count with which a run is one process."""
        return 1 if self.kind == "ranks" else 0

    @property
    def counts_learners(self) -> bool:
        """Whether it is learners that are counted: ranks, or a3c's workers."""
        given = expand_alias({**self.training.file, **self.training.flags})
        sync = entry("sync", given.get("sync"))
        return self.kind == "ranks" or (sync is not None and sync.counted_by == "num_workers")

    @property
    def unlimited(self) -> dict[str, str]:
        """Options that lift every limit of the training's own file."""
        return self.training.without_file_budget() | {"stop_at_return": "none"}

    def num_envs(self, count: int) -> int:
        """Over all ranks or workers."""
        return self.base.num_envs * (max(count, 1) if self.weak else 1)

    def global_batch(self, count: int) -> int:
        """Rows of one update, over all ranks; A3C's learners each update by themselves."""
        config = self.config(count)
        return config.ranks * config.num_envs * self.base.rollout_steps

    def config(self, count: int) -> Config:
        """Of a run at this count."""
        training = Training(self.options(count), self.training.file)
        return training.config({"preset": self.base.preset})

    def options(self, count: int, repeat: int = 0) -> dict[str, str]:
        """Flags of a run at this count, without its budget."""
        shape = {"num_envs": self.num_envs(count), "seed": self.base.seed + repeat}
        if self.counts_learners:
            shape["num_envs"] //= max(1, count)
        if self.kind == "workers":
            shape["num_workers"] = count
        else:
            shape["ranks"] = count
            if self.base.batch_size:  # the same number of minibatches, shared by the ranks
                shape["minibatches"] = self.base.minibatch_count
        alone = ONE_PROCESS[self.kind] if count == self.alone else {}
        return {**self.training.flags, **{k: str(v) for k, v in shape.items()}, **alone}


def parse_scale(arguments: list[str]) -> ScalePlan:
    """The plan that these arguments ask for; everything invalid is refused here."""
    own, given, file = parse_options(arguments, OPTIONS)
    kind, counts = _counts(given)
    warmup, target = own.pop("warmup_iters"), own.pop("target_return")
    limits = {n: given.pop(n) for n in BUDGETS if n in given and target is not None}
    refuse_flags("scale", given, SET_BY_SCALE)
    refuse_parallel("scale", given, file)
    place, overwrite = given.pop("output_dir", None), given.pop("overwrite", "false") == "true"
    if kind == "workers":
        envs = all_envs(given, file, 1 if own["weak"] else max(1, *counts))
        given.pop("num_envs_per_worker", None)
        given |= {} if envs is None else {"num_envs": envs}
    base, _ = Training(given, file).inspect(ONE_PROCESS[kind])
    if base.compile == "auto":  # which would depend on the length of a run
        given["compile"] = "off"
    if kind == "ranks":  # `options` sets them for each count
        given = {k: v for k, v in given.items() if k not in ("num_envs_per_worker", "batch_size")}
    plan = ScalePlan(
        kind=kind,
        counts=counts,
        warmup=warmup,
        target=target,
        folder=Path(place) if place else new_folder("scale", base, base.algo_section),
        base=base,
        training=Training(SPEED_ONLY | given, file),
        limits=limits,
        **own,
    )
    _check(plan)
    check_output_dir(plan.folder, overwrite)
    return plan


def _counts(given: dict[str, Any]) -> tuple[str, list[int]]:
    """`ranks` or `workers`, and how many of them, smallest first."""
    ranks, workers = given.pop("ranks", None), given.pop("num_workers", None)
    if (ranks is None) == (workers is None):
        raise BadInput(
            "write either --ranks 1,2 for data-parallel ranks or --num-workers 1,2 for processes "
            "that sample"
        )
    kind, text = ("workers", workers) if ranks is None else ("ranks", ranks)
    flag = "--ranks" if kind == "ranks" else "--num-workers"
    try:
        found = parse_counts(text)
    except ArgumentTypeError as error:
        raise BadInput(f"{flag}: {error}") from None
    if kind == "ranks" and not found[0]:
        raise BadInput(f"{flag} is {text!r}: there is always one rank; write such as {flag} 1,2")
    return kind, found


def _check(plan: ScalePlan) -> None:
    """The configuration of every count, before the first run starts."""
    envs = plan.base.num_envs
    all_counts = [*plan.counts, *plan.predict]
    if 0 in plan.predict:
        raise BadInput(f"--predict is for {plan.kind}, of which 0 are none; write such as 4,8,16")
    for count in all_counts:
        if not plan.weak and envs % max(count, 1):
            whole = math.lcm(*(max(n, 1) for n in all_counts))
            raise BadInput(
                f"num_envs {envs} can't be shared equally by {count} {plan.kind}; leave {count} "
                f"out, or write --num-envs {-(-envs // whole) * whole}"
            )
        plan.config(count)
