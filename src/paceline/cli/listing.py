"""What there is to choose from, one line each, without importing any of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

from ..config.registry import ALGORITHMS, POOLS, SAMPLERS, SUITES, SYNCS
from ..config.schema import PRESETS

Lines = Iterator[tuple[str, str]]


def _registered(registry: dict[str, tuple[str, str]]) -> Callable[[], Lines]:
    return lambda: ((name, text) for name, (_, text) in registry.items())


def _presets() -> Lines:
    """Each preset's first comment says where its values come from."""
    for path in sorted(PRESETS.glob("*/*.yaml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        yield f"{path.parent.name} {path.stem}", first.removeprefix("#").strip()


def environments(suite: str) -> list[str]:
    """Every env_id of a suite, which is imported for it."""
    module = import_module(SUITES[suite][0].partition(":")[0])
    prefix = "" if suite == "gym" else f"{suite}:"
    return [prefix + name for name in module.names()]


LISTS: dict[str, Callable[[], Lines]] = {
    "algorithms": _registered(ALGORITHMS),
    "envs": _registered(SUITES),
    "samplers": _registered(SAMPLERS),
    "syncs": _registered(SYNCS),
    "pools": _registered(POOLS),
    "presets": _presets,
}
