"""What `paceline check` is asked for: an environment, its options, and how long to examine it."""

from __future__ import annotations

import ctypes
import json
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from ...errors import BadInput
from ...processes.heartbeat import Heartbeat

MAX_SECONDS = 3600.0
TRAIN_OPTIONS = ("env.kwargs", "env.time_limit", "env.wrappers", "seed", "worker_timeout")
"""Options that mean what they mean to `paceline train`, and are validated as there."""
CALLS = ("import", "__init__", "reset", "step", "close", "measure")
"""What an environment's process may be doing."""


class CallHeartbeat(Heartbeat):
    """With the index, in `CALLS`, of the call that is going on."""

    _fields_: ClassVar[Any] = (("call", ctypes.c_int64),)
    call: int


@dataclass(frozen=True, kw_only=True)
class Request:
    """Plain data, which goes to another process as JSON."""

    env_id: Any
    """a name; within one process also a callable"""
    kwargs: dict[str, Any] = field(default_factory=dict)
    time_limit: int | None = None
    wrappers: tuple[str, ...] = ()
    seed: int = 0
    seconds: float = 3.0
    """that the measurement takes, and about what each check may take"""
    timeout: float = 60.0
    """seconds after which a call that has not returned is a hang"""
    replay: int = 0
    """steps of the reference episodes to play again in the measuring process; 0 for none"""

    @property
    def options(self) -> dict[str, Any]:
        """Of `source_of`."""
        return {
            "kwargs": self.kwargs,
            "time_limit": self.time_limit,
            "wrappers": tuple(self.wrappers),
        }

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def parse(arguments: list[str]) -> tuple[Request, bool]:
    """The request, and whether the report is to be JSON."""
    from ...config.flags import Parser, nested
    from ...config.resolve import resolve
    from ...config.values import seconds
    from ..bench.arguments import number_from

    parser = Parser()
    parser.add_argument("env", nargs="?")
    for name in TRAIN_OPTIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name)
    parser.add_argument("--seconds", type=lambda text: number_from(text, 0.1), default=3.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse(arguments, mixed=True)
    if given["env"] is None:
        raise BadInput("name an environment: a Gymnasium id, module:Id-v0, or suite:Name")
    if given["seconds"] > MAX_SECONDS:
        raise BadInput(f"--seconds is {given['seconds']:g}: an hour, 3600, is the most")
    options = {name: given[name] for name in TRAIN_OPTIONS if given[name] is not None}
    config = resolve({"env_id": given["env"], "preset": "none"}, nested(options))
    request = Request(
        env_id=given["env"],
        kwargs=config.env.kwargs,
        time_limit=config.env.time_limit,
        wrappers=config.env.wrappers,
        seed=config.seed,
        seconds=given["seconds"],
        timeout=seconds(config.worker_timeout),
    )
    return request, given["json"]
