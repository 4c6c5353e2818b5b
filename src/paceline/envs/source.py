"""Source: what a suite makes of a name. Single environments, or many behind one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ..errors import BadInput
from .columns import EnvMaker
from .native import BatchMaker


@dataclass(frozen=True)
class Source:
    one: EnvMaker | None = None
    """how one environment is made; None where there are only batches"""
    many: BatchMaker | None = None
    """how a batch is made"""
    stack: int = 1
    """observations that a policy should see as one"""
    elsewhere: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """keyword arguments of worlds, by name, in which a policy that learnt here is evaluated too"""


def needed(module: str, suite: str, extra: str) -> Any:
    """A package that a suite needs, or how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise BadInput(
            f"{suite}: needs a package that is not installed ({error}); install it with "
            f"pip install 'paceline[{extra}]', or everything with make extras"
        ) from None


def refuse_wrappers(suite: str, wrappers: tuple[str, ...]) -> None:
    """Batches have no single environment to put a wrapper around."""
    if wrappers:
        raise BadInput(
            f"env.wrappers is {', '.join(wrappers)}, and {suite}: steps many environments as one, "
            "which has no place for a wrapper; leave it out"
        )
