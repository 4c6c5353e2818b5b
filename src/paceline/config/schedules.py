"""Schedules: how the learning rate, or another hyperparameter, changes over a run.

`progress_remaining` falls from 1 to 0 over the budget, as in Stable-Baselines3.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator

from ..errors import BadInput
from .registry import imported, name_of
from .values import parse_duration, parse_steps

SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda left: 1.0,
    "linear": lambda left: left,
    "cosine": lambda left: 0.5 * (1.0 - math.cos(math.pi * left)),
}
"""The way from the first value (1) to the end (0), while what is `left` falls from 1 to 0."""
EXAMPLES = "constant, linear, linear:1e-5, cosine:1e-5, warmup:0.05 or warmup:0.05+linear"
WRONG = f"should be {EXAMPLES}, or your own as module:function"
PATH = re.compile(r"(?!(?:constant|linear|cosine|warmup):)[\w.]+:[A-Za-z_<][\w.<>]*")
"""module:function"""
UNITS = {"total_steps": parse_steps, "total_iters": parse_steps, "duration": parse_duration}
"""Budgets that schedules can follow."""
KEEP = "keep"


class Schedule(Protocol):
    def value(self, start: float, progress_remaining: float) -> float:
        """The hyperparameter that is configured as `start`, at this point of the run."""

    def factor(self, start: float, progress_remaining: float) -> float:
        """The same as a factor of `start`."""


@dataclass(frozen=True)
class NamedSchedule:
    """Rises from 0 over the share `warmup` of the budget, then goes to `end` in a known shape."""

    shape: str = "constant"
    end: float = 0.0
    """value at the end of the budget, unless it is constant"""
    warmup: float = 0.0

    def value(self, start: float, progress_remaining: float) -> float:
        spent = 1.0 - progress_remaining
        if spent < self.warmup:
            return start * spent / self.warmup
        left = progress_remaining / (1.0 - self.warmup)
        return self.end + (start - self.end) * SHAPES[self.shape](left)

    def factor(self, start: float, progress_remaining: float) -> float:
        end = self.end / start if self.end else 0.0
        return NamedSchedule(self.shape, end, self.warmup).value(1.0, progress_remaining)


@dataclass(frozen=True)
class OwnSchedule:
    """A user's function of `progress_remaining`, which returns the value."""

    option: str
    function: Callable[[float], float]

    def value(self, start: float, progress_remaining: float) -> float:
        name = f"{self.option}: {name_of(self.function)}"
        try:
            value = self.function(progress_remaining)
        except Exception as error:
            raise BadInput(f"{name} raised {type(error).__name__}: {error}") from error
        try:
            value = float(value)
        except (TypeError, ValueError):
            value = math.nan
        if not 0 <= value < math.inf:
            raise BadInput(
                f"{name} returned {value!r} for progress_remaining {progress_remaining:g}; it has "
                "to be a number, 0 or more"
            )
        return value

    def factor(self, start: float, progress_remaining: float) -> float:
        return self.value(start, progress_remaining) / start


def make_schedule(option: str, given: str | Callable[..., Any]) -> Schedule:
    """The schedule that an option's value stands for; a function is tried at both ends."""
    if isinstance(given, str) and not PATH.fullmatch(given):
        return _named(given)
    function = imported({}, given, option) if isinstance(given, str) else given
    own = OwnSchedule(option, function)
    for progress_remaining in (1.0, 0.0):
        own.value(1.0, progress_remaining)
    return own


def is_constant(given: str | Callable[..., Any]) -> bool:
    return given == "constant"


def needs_start(given: str) -> bool:
    """Whether its factor is undefined where the hyperparameter is 0."""
    return bool(PATH.fullmatch(given)) or _named(given).end > 0


def _named(text: str) -> NamedSchedule:
    """`warmup:SHARE+SHAPE:END`, of which only SHAPE or the warm-up is needed."""
    warmup = 0.0
    if text.startswith("warmup:"):
        share, _, text = text.removeprefix("warmup:").partition("+")
        text, warmup = text or "constant", _number(share)
        if not 0 < warmup < 1:
            raise ValueError("should warm up over a share between 0 and 1, such as warmup:0.05")
    shape, colon, end = text.partition(":")
    if shape not in SHAPES or (colon and shape == "constant"):
        raise ValueError(WRONG)
    return NamedSchedule(shape, _number(end) if colon else 0.0, warmup)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(WRONG) from None
    if not 0 <= number < math.inf:
        raise ValueError(f"should end at a number that is 0 or more: {EXAMPLES}")
    return number


def parse_schedule(value: Any) -> Any:
    """Text, checked; a function as module:function if it can be imported, else as it is."""
    if callable(value):
        return _importable(value) or value
    if not isinstance(value, str):
        raise ValueError(WRONG)
    value = value.strip()
    if not PATH.fullmatch(value):
        _named(value)
    return value


def parse_named_schedule(value: Any) -> Any:
    """The same for the options of a section, which no object can be given for."""
    value = parse_schedule(value)
    if callable(value):
        raise ValueError("should be a function that can be imported: define it in a module")
    return value


def _importable(function: Any) -> str | None:
    """`module:name` of a function, if it is found there."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    found = getattr(sys.modules.get(str(module)), name, None)
    return f"{module}:{name}" if found is function and module != "__main__" else None


def parse_schedule_budget(value: Any) -> Any:
    """`total_steps=1M` or `duration=30m`, checked, several with commas; `none` → None."""
    if value in (None, "none"):
        return None
    if value == KEEP:
        raise ValueError("is for a run that is resumed; for a new one write such as total_steps=1M")
    return ",".join(f"{name}={limit}" for name, limit in schedule_budget(value).items())


def schedule_budget(text: Any) -> dict[str, Any]:
    """`total_steps=1M` → {"total_steps": 1000000}"""
    limits = {}
    for part in str(text).split(","):
        name, _, limit = part.strip().partition("=")
        if name not in UNITS or not limit:
            raise ValueError("should be such as total_steps=1M, total_iters=500 or duration=30m")
        limits[name] = UNITS[name](limit)
        if isinstance(limits[name], float) or limits[name] == 0:
            raise ValueError("should be a whole number above 0, such as total_steps=1M")
    return limits


ScheduleOption = Annotated[str | Callable[..., Any], BeforeValidator(parse_schedule)]
SectionSchedule = Annotated[str, BeforeValidator(parse_named_schedule)]
ScheduleBudget = Annotated[str | None, BeforeValidator(parse_schedule_budget)]
