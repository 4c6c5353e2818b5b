"""`paceline list`: every name that a configuration may choose, without importing any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module

from ..config.known_names import as_flag
from ..config.presets import presets
from ..config.registry import ALGORITHMS, MEMORIES, POOLS, SAMPLERS, SUITES, SYNCS
from ..config.schema import ALIASES
from ..errors import BadInput
from .commands import HELP, USAGE

Lines = Iterator[tuple[str, str]]


def command(arguments: list[str]) -> int:
    if HELP & set(arguments):
        print(USAGE, end="")
    elif arguments[:1] == ["envs"] and arguments[1:]:
        _check_known("suite", arguments[1:], SUITES)
        for suite in arguments[1:]:
            print("\n".join(environments(suite)))
    else:
        _check_known("list", arguments, LISTS)
        for name in arguments or LISTS:
            print(f"{name}:")
            for entry, text in LISTS[name]():
                print(f"  {entry:<32} {text}")
    return 0


def _check_known(kind: str, names: list[str], known: Mapping[str, object]) -> None:
    for name in names:
        if name not in known:
            raise BadInput(f"{name}: there is no such {kind}; there are {', '.join(known)}")


def _registered(registry: dict[str, tuple[str, str]]) -> Callable[[], Lines]:
    return lambda: ((name, text) for name, (_, text) in registry.items())


def _algorithms() -> Lines:
    """Those of the registry, then the names that stand for one with other options."""
    yield from _registered(ALGORITHMS)()
    for alias, options in ALIASES.items():
        flags = " ".join(f"{as_flag(name)} {value}" for name, value in options.items())
        yield alias, f"stands for {flags}"


def _presets() -> Lines:
    """Each preset with its first comment, which says where its values come from."""
    for algo in sorted(ALGORITHMS):
        for name, path in presets(algo).items():
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            yield f"{algo} {name}", first.removeprefix("#").strip()


def environments(suite: str) -> list[str]:
    """Every env_id of a suite, whose package is imported."""
    module = import_module(SUITES[suite][0].partition(":")[0])
    prefix = "" if suite == "gym" else f"{suite}:"
    return [prefix + name for name in module.names()]


LISTS: dict[str, Callable[[], Lines]] = {
    "algorithms": _algorithms,
    "envs": _registered(SUITES),
    "memories": _registered(MEMORIES),
    "samplers": _registered(SAMPLERS),
    "syncs": _registered(SYNCS),
    "pools": _registered(POOLS),
    "presets": _presets,
}
