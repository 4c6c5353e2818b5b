"""Types of option values, and how they are written: `1M` steps, `30m`, `64,64`, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any

from annotated_types import Ge, Le
from pydantic import BeforeValidator, ConfigDict

from .registry import by_name

STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
RENDEZVOUS = re.compile(r"env://|file://.+|tcp://(\[[^]]+\]|[^:/?]+):\d+")
"""Forms of `init_method`."""


def parse_steps(value: Any) -> Any:
    """`300_000`, `1e6`, `1M`, `50k` → a whole number."""
    if isinstance(value, str):
        match = re.fullmatch(r"([\d_]*\.?\d+(?:e\d+)?)([kM]?)", value.strip())
        if match is None:
            raise ValueError("should be a number of steps, such as 300_000, 1e6, 50k or 1M")
        value = float(match[1].replace("_", "")) * {"": 1, "k": 1e3, "M": 1e6}[match[2]]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def parse_duration(value: Any) -> str:
    """`90s`, `30m`, `0.5h`, checked; `seconds` converts it."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(value).strip())
    if match is None:
        raise ValueError(f"should carry a unit: write {value}s, {value}m or 0.5h")
    if not 0 < seconds(match[0]) < 10 * 365 * 24 * 3600:
        raise ValueError("should be above 0 and below ten years, such as 90s")
    return match[0]


def seconds(duration: str) -> float:
    """Seconds of a checked duration."""
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def parse_list(value: Any) -> Any:
    """`a,b` → [a, b]"""
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


def parse_wrappers(value: Any) -> Any:
    """Names, classes and functions; what can be imported by its name becomes that name."""
    found = [value] if callable(value) else parse_list(value)
    if not isinstance(found, list | tuple) or not all(
        isinstance(w, str) or callable(w) for w in found
    ):
        raise ValueError(
            "should be a list of wrappers: names as module:Class, in Python also classes, or "
            "functions that take an environment and return it wrapped"
        )
    return tuple(by_name(wrapper) for wrapper in found)


def check_env_id(value: Any) -> Any:
    """A name, or a callable that makes an environment; an environment itself is refused."""
    if not isinstance(value, type) and hasattr(value, "step") and hasattr(value, "reset"):
        registered = getattr(getattr(value, "spec", None), "id", None)
        made = f'gym.make("{registered}")' if registered else f"{type(value).__name__}(...)"
        raise ValueError(
            "this is an environment, and every column needs one of its own; give what makes it, "
            f"such as env_id=lambda: {made}"
        )
    if not isinstance(value, str) and not callable(value):
        raise ValueError("should be a name, or a callable that makes an environment")
    return value


def parse_mapping(value: Any) -> Any:
    """JSON text → a dict; anything else has to be JSON-serializable."""
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


def parse_process_count(value: Any) -> Any:
    """`auto` → the number of available CPUs."""
    if value == "auto":
        from ..processes.hardware import available_cpus

        return available_cpus()
    if isinstance(value, str) and not value.strip().isdigit():
        raise ValueError("should be a whole number, such as 2, or auto")
    return value


def parse_parallel(value: Any) -> Any:
    """`auto`, or a number of CPUs; `none` → None."""
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value in ("auto", None) or (whole and 1 <= value <= 4096):
        return value
    if value == "none":
        return None
    raise ValueError("should be auto, or a number of CPUs, such as 4")


def parse_keys(value: Any) -> Any:
    """`a,b` → (a, b); `none` → (); `auto` stays."""
    if value == "auto":
        return value
    if value == "none":
        return ()
    keys = value.split(",") if isinstance(value, str) else value
    if isinstance(keys, list | tuple) and all(isinstance(key, str) for key in keys):
        keys = tuple(dict.fromkeys(key.strip() for key in keys))
        if not {"", "auto", "none"} & set(keys):
            return keys
    raise ValueError("should be auto, none, or keys of info, such as success,score")


def parse_optional(value: Any) -> Any:
    """`none` → None"""
    return None if value == "none" else value


def check_rendezvous(value: Any) -> Any:
    """An init_method of torch.distributed, without the `?rank=0&world_size=2` that torch allows."""
    if isinstance(value, str) and "?" in value:
        raise ValueError(
            f"write {value.partition('?')[0]} alone, and set RANK and WORLD_SIZE in the "
            "environment of each process; or write --ranks 2, which starts them on this host"
        )
    if isinstance(value, str) and not RENDEZVOUS.fullmatch(value):
        raise ValueError("write env://, file:///a/path or tcp://host:port")
    return value


def one_of(*names: str) -> BeforeValidator:
    """Accepts these names and `module:Class`; in Python also a class or another callable."""
    known = f"one of {', '.join(names)}, or your own as" if names else "your own, as"

    def check(value: Any) -> Any:
        named = value in names or ":" in value if isinstance(value, str) else callable(value)
        if value is not None and not named:
            raise ValueError(f"should be {known} module:Class")
        return by_name(value)

    return BeforeValidator(check)


Steps = Annotated[int, Ge(1), Le(10**15), BeforeValidator(parse_steps)]
Duration = Annotated[str, BeforeValidator(parse_duration)]
Count = Annotated[int, Ge(1), Le(10**9)]
Width = Annotated[int, Ge(1), Le(2**16)]
Choice = str | Callable[..., Any]
"""A name, or in Python the object itself."""
