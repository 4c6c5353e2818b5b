"""Paceline: on-policy reinforcement learning, fast on CPUs, exact on resume.

Importing this costs nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config.schema import Config
    from .envs.vec import make_vec
    from .errors import BadInput, Diverged, EnvironmentFailed, PacelineError, StoppedEarly
    from .policy.agent import Agent
    from .run.evaluation import EvalResult
    from .run.handle import Run
    from .run.report import Report
    from .session import build, evaluate, load, resume, train

_WHERE = {
    "Agent": "policy.agent",
    "BadInput": "errors",
    "Config": "config.resolve",
    "Diverged": "errors",
    "EnvironmentFailed": "errors",
    "EvalResult": "run.evaluation",
    "PacelineError": "errors",
    "Report": "run.report",
    "Run": "run.handle",
    "StoppedEarly": "errors",
    "build": "session",
    "evaluate": "session",
    "load": "session",
    "make_vec": "envs.vec",
    "resume": "session",
    "train": "session",
}

__all__ = [
    "Agent",
    "BadInput",
    "Config",
    "Diverged",
    "EnvironmentFailed",
    "EvalResult",
    "PacelineError",
    "Report",
    "Run",
    "StoppedEarly",
    "build",
    "evaluate",
    "load",
    "make_vec",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"paceline has no {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, for tab completion; none of them is loaded by this."""
    return list(__all__)
