"""Registries of algorithms, environment suites, samplers, syncs, worker pools and memories.

An entry is a name with its import path ("module:name") and a one-line summary, so that listing them
imports none of them. Users plug in their own as `module:Class`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from importlib import import_module
from types import FunctionType
from typing import Any

from ..errors import BadInput

Registry = dict[str, tuple[str, str]]

ALGORITHMS: Registry = {
    "ppo": ("paceline.learning.algorithms.ppo:PPO", "proximal policy optimization (Schulman 2017)"),
    "a2c": (
        "paceline.learning.algorithms.a2c:A2C",
        "advantage actor-critic (Mnih 2016, synchronous)",
    ),
    "impala": (
        "paceline.learning.algorithms.impala:IMPALA",
        "actor-critic with V-trace (Espeholt 2018)",
    ),
}
SUITES: Registry = {
    "gym": (
        "paceline.envs.suites.gym:environment",
        "any registered Gymnasium id, also module:Id-v0",
    ),
    "atari": ("paceline.envs.suites.atari:environment", "Atari games by ALE: atari:Pong"),
    "procgen": ("paceline.envs.suites.procgen:environment", "sixteen games: procgen:coinrun"),
    "envpool": ("paceline.envs.suites.envpool:environment", "any task of EnvPool: envpool:Pong-v5"),
    "minigrid": ("paceline.envs.suites.minigrid:environment", "grid worlds: minigrid:DoorKey-5x5"),
    "popgym": (
        "paceline.envs.suites.popgym:environment",
        "tasks that need memory: popgym:RepeatPreviousEasy",
    ),
    "toy": (
        "paceline.envs.suites.toy:environment",
        "tiny tasks with a known optimum: identity, constant, memory, chain",
    ),
}
SAMPLERS: Registry = {
    "serial": ("paceline.samplers.serial:Serial", "in the learner's own process"),
    "workers": ("paceline.samplers.workers:Workers", "processes, synchronous"),
    "stream": ("paceline.samplers.stream:Stream", "processes, asynchronous: for impala"),
}
SYNCS: Registry = {
    "local": ("paceline.distributed.entries:LocalSync", "a single learner"),
    "allreduce": (
        "paceline.distributed.entries:AllreduceSync",
        "data-parallel ranks that sum their gradients",
    ),
    "hogwild": (
        "paceline.distributed.entries:HogwildSync",
        "learners that update shared weights without locks: for a3c",
    ),
}
POOLS: Registry = {
    "processes": (
        "paceline.samplers.process_pool:start_workers",
        "worker processes on this machine",
    ),
}
MEMORIES: Registry = {
    "lstm": ("paceline.policy.memory:LSTM", "long short-term memory (Hochreiter 1997)"),
    "gru": ("paceline.policy.memory:GRU", "gated recurrent unit (Cho 2014)"),
    "mingru": (
        "paceline.policy.memory:MinGRU",
        "gates of the input alone: the fastest to train (Feng 2024)",
    ),
}
ENTRIES: dict[str, Registry] = {
    "algo": ALGORITHMS,
    "sync": SYNCS,
    "sampler": SAMPLERS,
    "pool": POOLS,
    "memory": MEMORIES,
    "bonus": {},
}
"""Options that choose an entry, and their registries."""
NEEDS = {
    "algo": ("targets", "loss", "metrics", "needs_log_ratio"),
    "sync": ("counted_by", "watcher", "lockstep"),
    "sampler": ("runs_ahead", "make"),
    "pool": ("__call__",),
    "memory": ("__call__",),
    "bonus": ("__call__",),
}
"""Attributes that an entry has to have."""
MADE = {
    "pool": ("begin", "publish", "fill", "arrivals", "acting_version", "ledgers", "close"),
    "bonus": ("head", "term", "metrics", "per_column", "reward", "state", "restore"),
}
"""Attributes that the object made by an entry has to have."""


def is_options(value: Any) -> bool:
    """Whether it is a dataclass instance: a section, or an algorithm with its options."""
    return dataclasses.is_dataclass(value) and not callable(value)


def as_dicts(values: Mapping[str, Any]) -> dict[str, Any]:
    """With dataclass instances as dicts."""
    return {
        name: dataclasses.asdict(value) if is_options(value) else value
        for name, value in values.items()
    }


def name_of(thing: Any) -> str:
    """`module:Name` of a class or function, or of an object's class; a name stays."""
    if isinstance(thing, str):
        return thing
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}:{kind.__qualname__}"


def by_name(thing: Any, registry: Registry | None = None) -> Any:
    """A class or function → its name in the registry, or the `module:Name` that imports it, if
    there is one."""
    if not isinstance(thing, type | FunctionType) or thing.__module__ == "__main__":
        return thing
    known = {path: name for name, (path, _) in (registry or {}).items()}
    if getattr(sys.modules.get(thing.__module__), thing.__name__, None) is thing:
        return known.get(name_of(thing), name_of(thing))
    return thing


def imported(registry: Registry, name: str, what: str) -> Any:
    """Import a registry's entry, or a user's `module:Class`; `what` is the option that names it."""
    path = registry[name][0] if name in registry else name
    module, _, attributes = path.partition(":")
    try:
        found: Any = import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (Exception, SystemExit) as error:
        if name in registry:
            raise
        raise BadInput(
            f"{what}: {path[:200]!r} can't be imported ({type(error).__name__}: {error}); write "
            "module:Class, such as my_package.parts:MyClass, with a module that is installed, in "
            "the current directory or on PYTHONPATH"
        ) from None
    return found


def entry(option: str, value: Any) -> Any:
    """The entry that an option's value chooses; None if it is no name (`auto`, a mistake)."""
    named = isinstance(value, str) and (value in ENTRIES[option] or ":" in value)
    if not named and (isinstance(value, str) or not callable(value)):
        return None
    found = imported(ENTRIES[option], value, option) if named else value
    for need in NEEDS[option]:
        if not hasattr(found, need):
            raise BadInput(f"{option}: {name_of(value)} has no {need}, which every {option} needs")
    return found


def section_of(option: str, value: Any) -> str:
    """Name of the section with an entry's options."""
    if isinstance(value, str) and ":" not in value:
        return value
    found = entry(option, value)
    kind = found if isinstance(found, type) else type(found)
    return str(getattr(kind, "name", kind.__name__.lower()))


def sections(chosen: Mapping[str, Any]) -> dict[str, type]:
    """The options dataclass of each section: of every algorithm, and of the chosen entries."""
    found = {name: entry("algo", name) for name in ALGORITHMS}
    for option in ENTRIES:
        thing = entry(option, chosen.get(option))
        kind = thing if option == "algo" else getattr(thing, "Options", None)
        if kind is None:
            continue
        name = section_of(option, chosen[option])
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            raise BadInput(f"{option}: Options of {name_of(thing)} is {kind!r}, not a dataclass")
        if not name.isidentifier() or found.setdefault(name, kind) is not kind:
            raise BadInput(
                f"{option}: {name_of(thing)} can't have the section {name!r}; change its `name`"
            )
    return found


def stand_in(option: str, path: str, sections: Mapping[str, Mapping[str, Any]]) -> type:
    """A substitute for a `module:Class` that must not be imported, with the options in `sections`.

    Comparing runs needs their options, not their code, which may be missing or a stranger's.
    """
    module, _, names = path.partition(":")
    own = names.rpartition(".")[2].lower()
    name = own if own in sections or not sections else next(iter(sections))
    facts = dict.fromkeys(NEEDS[option]) | {"normalize_advantage": "none", "name": name}
    facts |= {"counted_by": "ranks", "lockstep": True} if option == "sync" else {}
    fields = [(key, Any, None) for key in sections.get(name, {})]
    try:
        options = dataclasses.make_dataclass("Options", fields, namespace=facts, frozen=True)
    except TypeError as error:
        raise BadInput(f"{name}: {error}") from None
    made = {"Options": options, "__module__": module, "__qualname__": names}
    return type(own, (options,), made)
