"""What an unknown option was meant to be: another library's name for one, or a misspelt one."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .registry import ALGORITHMS
from .text import listed, nearest, plain

FILE = Path(__file__).with_name("known_names.yaml")
LIBRARIES = {
    "sb3": "SB3 and its zoo",
    "cleanrl": "CleanRL",
    "sample_factory": "Sample Factory",
    "pufferlib": "PufferLib",
    "rllib": "RLlib",
    "other": "others",
}
"""Whose names a row of the table has, and how they are called."""
OF_ALGORITHM = "*."
"""Beginning of an option that is in the section of the chosen algorithm."""
MAX_INSIDE = 6
"""Options of an unknown section that a message names."""
Spelling = Callable[[str], str]
"""How an option is written where the user wrote: as a flag, or as a key."""


@dataclass(frozen=True)
class Row:
    """Names of other libraries for one thing."""

    names: Mapping[str, list[str]]
    """by library"""
    options: tuple[str, ...] = ()
    """what it is here; of options that begin with `*.` those that the algorithm has"""
    note: str = ""
    """in what it differs"""
    none: str = ""
    """why there is none"""
    planned: str = ""
    """what is planned"""

    def texts(self) -> str:
        return " ".join([self.note, self.none, self.planned])


@cache
def rows() -> list[Row]:
    """The table of names."""
    return [_row(dict(one)) for one in _content()["names"]]


@cache
def values() -> dict[str, dict[str, str]]:
    """For options that choose by name: what there is to say of names that are not there."""
    return {
        option: {name: text for names, text in texts.items() for name in names.split()}
        for option, texts in _content()["values"].items()
    }


@cache
def _content() -> dict[str, Any]:
    return dict(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def _row(given: dict[str, Any]) -> Row:
    option = given.pop("option", ())
    texts = {kind: given.pop(kind, "") for kind in ("note", "none", "planned")}
    return Row(given, (option,) if isinstance(option, str) else tuple(option), **texts)


@cache
def _rows_by_name() -> dict[str, Row]:
    return {name: row for row in rows() for names in row.names.values() for name in names}


def as_flag(option: str) -> str:
    """`--ppo.clip`"""
    return "--" + option.replace("_", "-")


def as_key(option: str, inside: str = "") -> str:
    """`lr`; `ppo: {clip: …}`, but `ppo.clip` for one who wrote inside that section."""
    section, _, last = option.rpartition(".")
    return option if section in ("", inside) else f"{section}: {{{last}: …}}"


def spelled(text: str, spell: Spelling) -> str:
    """A text of the table with each {option} written as the user writes them."""
    return re.sub(r"\{([a-z_.]+)\}", lambda found: spell(found[1]), text)


def expanded(option: str, known: Collection[str]) -> list[str]:
    """`*.clip` → that option of every algorithm that has it."""
    if not option.startswith(OF_ALGORITHM):
        return [option]
    names = [f"{section}.{option.removeprefix(OF_ALGORITHM)}" for section in ALGORITHMS]
    return [name for name in names if name in known]


def explain_unknown(
    name: str, value: Any, known: Collection[str], section: str, spell: Spelling
) -> str:
    """That an option does not exist, and which one to write instead.

    `known` are all options, and `section` is that of the chosen algorithm.
    """
    written_otherwise = plain(name) in known
    row = None if written_otherwise else _row_of(name)
    is_section = isinstance(value, Mapping) and not written_otherwise and not (row and row.options)
    if is_section and (inside := _explain_inside(value, known, section, spell)):
        return f"there is no such section; its options are written without it: {inside}"
    if row and row.planned:
        return f"there is no such option yet: {spelled(row.planned, spell)}"
    if row and row.none:
        return f"there is no such option: {spelled(row.none, spell)}"
    meant = _meant(name, known, section)
    here = listed([spell(option) for option in meant]) if meant else ""
    if row is None:
        return "there is no such option" + (f"; did you mean {here}?" if here else "")
    others = ALGORITHMS.keys() - {section}
    lacks = all(option.partition(".")[0] in others for option in meant)
    has_none = f", and {section} has none" if lacks else ""
    note = f" ({spelled(row.note, spell)})" if row.note else ""
    return f"there is no such option; here it is {here}{has_none}{note}"


def explain_value(option: str, value: Any, spell: Spelling) -> str:
    """`; lstm is planned`, of a value that other libraries have; nothing for any other."""
    text = values().get(option, {}).get(plain(str(value)))
    return f"; {value} {spelled(text, spell)}" if text else ""


def _explain_inside(
    value: Mapping[Any, Any], known: Collection[str], section: str, spell: Spelling
) -> str:
    """What the options in an unknown section are, by themselves."""
    found = []
    for name in [one for one in value if isinstance(one, str)][:MAX_INSIDE]:
        if meant := _meant(name, known, section):
            here = listed([*map(spell, meant)])
            found.append(here if here == name else f"{here} for {name}")
    return ", ".join(found)


def _row_of(name: str) -> Row | None:
    """By the whole name, its last part, or what it turns off (`--no-cuda`)."""
    whole, table = plain(name), _rows_by_name()
    last = whole.rpartition(".")[2]
    return next(
        (table[one] for one in (whole, last, last.removeprefix("no_")) if one in table), None
    )


def _meant(name: str, known: Collection[str], section: str) -> list[str]:
    """The options that were probably meant; those of the algorithm in `section` come first."""
    if plain(name) in known:
        return [plain(name)]
    row = _row_of(name)
    if row is not None:
        found = [one for option in row.options for one in _of_section(option, known, section)]
        return found or [one for option in row.options for one in expanded(option, known)]
    last = plain(name).rpartition(".")[2]
    same = [one for one in known if one.rpartition(".")[2] == last]
    if same:
        return [f"{section}.{last}"] if f"{section}.{last}" in same else same[:1]
    near = nearest(name, known)
    return [near] if near else []


def _of_section(option: str, known: Collection[str], section: str) -> list[str]:
    own = option.replace(OF_ALGORITHM, f"{section}.")
    return [own] if own == option or own in known else []
