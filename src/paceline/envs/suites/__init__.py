"""Suites of environments, one file each, listed as `SUITES` in `config/registry.py`.

Here: how they refuse names and options.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from typing import Any

from ...config.registry import name_of
from ...errors import BadInput
from ..source import Wrappers

FEW = 5
"""Names that are all shown to who asks for another."""
MISSION = "mission"
"""Key of MiniGrid's task in words, which no policy here reads."""


def require(module: str, suite: str) -> Any:
    """Import a suite's package, or say how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise BadInput(
            f"{suite}: needs a package that is not installed ({error}); install it with "
            f"pip install 'paceline[{suite}]', or everything with make extras"
        ) from None


def unknown_name(
    suite: str, name: str, known: Collection[str], env_id: str | None = None
) -> BadInput:
    """`env_id` is what the user wrote, where that is not suite:name."""
    prefix = "" if suite == "gym" else f"{suite}:"
    if len(known) <= FEW:
        hint = f"there are {', '.join(prefix + one for one in known)}"
    elif near := difflib.get_close_matches(name, known, n=3, cutoff=0.5):
        hint = f"did you mean {', '.join(prefix + one for one in near)}?"
    else:
        hint = f"see `paceline list envs {suite}`"
    return BadInput(f"env_id {env_id or prefix + name!r} is not a registered environment; {hint}")


def registered_names(package: str, prefixes: tuple[str, ...]) -> list[str]:
    """Short names of the environments that a package registers."""
    return sorted(_registered(package, prefixes))


def registered_id(package: str, prefixes: tuple[str, ...], name: str) -> str:
    """Gymnasium's id of a short name; the id itself is one, too."""
    known, short = _registered(package, prefixes), _short(name, prefixes)
    if short not in known:
        raise unknown_name(package, short, known)
    return known[short]


def _registered(package: str, prefixes: tuple[str, ...]) -> dict[str, str]:
    from gymnasium import registry

    require(package, package)  # importing it registers them
    return {_short(one, prefixes): one for one in registry if one.startswith(prefixes)}


def _short(env_id: str, prefixes: tuple[str, ...]) -> str:
    """Without the first prefix and the version."""
    return env_id.removeprefix(prefixes[0]).removesuffix("-v0")


def check_batch_options(
    suite: str, kwargs: Mapping[str, Any], reserved: Iterable[str], wrappers: Wrappers
) -> None:
    """Refuse wrappers, since a batch has no single environment to wrap, and `reserved` kwargs."""
    if wrappers:
        raise BadInput(
            f"env.wrappers is {', '.join(map(name_of, wrappers))}, and {suite}: steps many "
            "environments as one, which has no place for a wrapper; leave it out"
        )
    for name in reserved:
        if name in kwargs:
            raise BadInput(
                f"env.kwargs has {name}, which Paceline gives {suite}: itself; leave it out"
            )


def rejected_kwargs(env: str, kwargs: Mapping[str, Any], error: Exception) -> BadInput:
    """The environment's own complaint about its keyword arguments, in one line."""
    return BadInput(f"env.kwargs is {dict(kwargs)}, which {env} refuses: {first_line(error)}")


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
