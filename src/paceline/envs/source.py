"""Source: what a suite makes of a name. Single environments, or many behind one call."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from .columns import EnvMaker
from .native import BatchMaker

if TYPE_CHECKING:
    from . import Columns

MISSION = "mission"
"""MiniGrid's task in words, which no policy here reads."""
ColumnsMaker = Callable[[int, int, int], "Columns"]
"""From a number of environments, the run's seed and the first column, to all of them."""


@dataclass(frozen=True)
class Source:
    one: EnvMaker | None = None
    """how one environment is made; None where there are only batches"""
    many: BatchMaker | None = None
    """how a batch is made"""
    columns: ColumnsMaker | None = None
    """how columns of a kind of their own are made, such as those of teams; instead of the above"""
    stack: int = 1
    """observations that a policy should see as one"""
    elsewhere: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """keyword arguments of worlds, by name, in which a policy that learnt here is evaluated too"""

    def __call__(self) -> Any:
        """One environment, as any callable `env_id` gives: in Python a source may be one."""
        if self.one is None:
            raise BadInput("this source has no single environment to make")
        return self.one()[0]


def needed(module: str, suite: str) -> Any:
    """A package that a suite needs, or how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise BadInput(
            f"{suite}: needs a package that is not installed ({error}); install it with "
            f"pip install 'paceline[{suite}]', or everything with make extras"
        ) from None


def meant(suite: str, name: str, known: Iterable[str]) -> str:
    """What a name that a suite does not know may be a slip of, as one would write it."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if not near:
        return f"see `paceline list envs {suite}`"
    return f"did you mean {', '.join(f'{suite}:{one}' for one in near)}?"


def refuse_own(suite: str, kwargs: Mapping[str, Any], own: Iterable[str]) -> None:
    """Keyword arguments that are not the user's to give."""
    for name in own:
        if name in kwargs:
            raise BadInput(
                f"env.kwargs has {name}, which Paceline gives {suite}: itself; leave it out"
            )


def refusal(suite: str, kwargs: Mapping[str, Any], error: Exception) -> BadInput:
    """A suite's own objection to its keyword arguments, in one line."""
    return BadInput(f"env.kwargs is {dict(kwargs)}, which {suite}: refuses: {first_line(error)}")


def first_line(error: Exception) -> str:
    """Of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def refuse_wrappers(suite: str, wrappers: tuple[str, ...]) -> None:
    """Batches have no single environment to put a wrapper around."""
    if wrappers:
        raise BadInput(
            f"env.wrappers is {', '.join(wrappers)}, and {suite}: steps many environments as one, "
            "which has no place for a wrapper; leave it out"
        )
