"""From the arguments of `paceline scale` to a plan; all that can be refused is refused here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ...config.flags import ConfigParser, config_parser, nested
from ...config.resolve import resolve
from ...config.schema import BUDGETS, Config
from ...errors import BadInput
from .arguments import looked_at, number_from, refuse_to_lose, whole_from
from .runs import ENDLESS, SETTINGS

ALONE = {
    "ranks": {"ranks": "1"},
    "workers": {"num_workers": "0", "sampler": "auto", "sync": "auto"},
}
"""What makes a run one process; what only goes with more is taken back."""
INSTEAD = {
    **dict.fromkeys(BUDGETS, "say how long a run is measured with --iters or --seconds"),
    "stop_at_return": "write --target-return to measure the time until then",
    "log_jsonl": "the metrics of every run are in logs/",
}
"""What scale says to its runs, and how to say it to scale."""


@dataclass(frozen=True, kw_only=True)
class Plan:
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
    folder: Path
    base: Config
    """the training on one process"""
    given: dict[str, str]
    """options of every run"""
    limits: dict[str, str]
    """budgets of the runs to the target return"""
    lifted: dict[str, str]
    """budgets of the configuration's file, made endless for all other runs"""

    @property
    def alone(self) -> int:
        """The count at which a run is one process."""
        return 1 if self.kind == "ranks" else 0

    def num_envs(self, count: int) -> int:
        """Over all ranks or workers."""
        return self.base.num_envs * (max(count, 1) if self.weak else 1)

    def options(self, count: int, repeat: int = 0) -> dict[str, str]:
        """Of a training run at this count, all but its budget."""
        shape = {"num_envs": self.num_envs(count), "seed": self.base.seed + repeat}
        if self.kind == "workers":
            shape["num_workers"] = count
        else:
            shape |= {"ranks": count, "num_envs": self.num_envs(count) // count}
            if self.base.batch_size:  # as many minibatches, of which every rank has its share
                shape["minibatches"] = self.base.minibatch_count
        one = ALONE[self.kind] if count == self.alone else {}
        return self.given | {name: str(value) for name, value in shape.items()} | one


def plan_of(arguments: list[str]) -> Plan:
    """What these arguments ask for."""
    parser = _parser()
    given = parser.parse(arguments)
    kind, counts = _counted(given)
    own = {name: given.pop(name) for name in ("weak", "repeats", "iters", "seconds")}
    warmup, target = given.pop("warmup_iters"), given.pop("target_return")
    limits = {n: given.pop(n) for n in BUDGETS if n in given and target is not None}
    for name, hint in INSTEAD.items():
        if name in given:
            flag = f"--{name.replace('_', '-')}"
            raise BadInput(f"{flag} is {given[name]!r}, and scale sets it for its runs: {hint}")
    place, overwrite = given.pop("output_dir", None), given.pop("overwrite", "false") == "true"
    file = parser.file
    if kind == "workers":
        given |= _of_all(given.pop("num_envs_per_worker", None), file, given, counts, own["weak"])
    base = _base(file, given | ALONE[kind])
    if base.compile == "auto":  # by the length of a run, which should not decide here
        given["compile"] = "off"
    for name in ("num_envs_per_worker", "batch_size") if kind == "ranks" else ():
        given.pop(name, None)  # said otherwise, for each count
    plan = Plan(
        kind=kind,
        counts=counts,
        warmup=warmup,
        target=target,
        folder=Path(place) if place else _new_folder(base),
        base=base,
        given=SETTINGS | given,
        limits=limits,
        lifted={name: ENDLESS[name] for name in BUDGETS if file.get(name) is not None},
        **own,
    )
    _check(plan, file)
    refuse_to_lose(plan.folder, overwrite)
    return plan


def _parser() -> ConfigParser:
    """Takes every option of `train` beside its own; `--ranks` and `--num-workers` as lists."""
    parser = config_parser()
    parser.add_argument("--weak", action="store_true", default=False)
    parser.add_argument("--repeats", type=whole_from, default=3)
    parser.add_argument("--warmup-iters", type=lambda text: whole_from(text, 0), default=5)
    parser.add_argument("--iters", type=whole_from, default=None)
    parser.add_argument("--seconds", type=lambda text: number_from(text, 0.1), default=5.0)
    parser.add_argument("--target-return", type=number_from, default=None)
    return parser


def _counted(given: dict[str, Any]) -> tuple[str, list[int]]:
    """What is counted, and the counts in order."""
    ranks, workers = given.pop("ranks", None), given.pop("num_workers", None)
    if (ranks is None) == (workers is None):
        raise BadInput(
            "say what is counted, and one thing only: --ranks 1,2 for data-parallel ranks, or "
            "--num-workers 1,2 for processes that sample"
        )
    kind, text = ("workers", workers) if ranks is None else ("ranks", ranks)
    flag = "--ranks" if kind == "ranks" else "--num-workers"
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", text):
        raise BadInput(f"{flag} is {text!r}: write whole numbers and commas, such as {flag} 1,2,4")
    counts = sorted({int(part) for part in text.split(",")})
    if kind == "ranks" and not counts[0]:
        raise BadInput(f"{flag} is {text!r}: there is always one rank; write such as {flag} 1,2")
    return kind, counts


def _of_all(
    each: Any, file: Mapping[str, Any], given: Mapping[str, Any], counts: list[int], weak: bool
) -> dict[str, str]:
    """The environments of one worker as those of one process, or of the most workers."""
    each = file.get("num_envs_per_worker") if each is None else each
    if each is None or "num_envs" in given:
        return {}
    if not str(each).isdigit():
        raise BadInput(f"num_envs_per_worker is {each!r}: write a whole number, such as 8")
    return {"num_envs": str(int(each) * (1 if weak else max(1, *counts)))}


def _base(file: Mapping[str, Any], flags: Mapping[str, Any]) -> Config:
    """The training on one process, with what suits its environment filled in."""
    return looked_at(resolve(file, _nested(flags)))[0]


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    return nested({name: value for name, value in flags.items() if name != "config"})


def _check(plan: Plan, file: Mapping[str, Any]) -> None:
    """Every run's configuration, before the first begins."""
    envs = plan.base.num_envs
    for count in plan.counts:
        if not plan.weak and envs % max(count, 1):
            whole = math.lcm(*(max(n, 1) for n in plan.counts))
            raise BadInput(
                f"num_envs {envs} can't be shared equally by {count} {plan.kind}; leave {count} "
                f"out, or write --num-envs {-(-envs // whole) * whole}"
            )
        resolve(file, _nested(plan.options(count)))


def _new_folder(config: Config) -> Path:
    name = re.sub("[:/]", "-", config.env_name)
    return Path("runs") / f"scale-{name}-{config.algo_section}-{datetime.now():%Y%m%d-%H%M%S}"
