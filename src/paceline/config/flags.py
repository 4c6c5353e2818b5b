"""Command-line flags and their help, generated from the dataclasses of the options."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from ..errors import BadInput
from .files import load_file
from .known_names import as_flag, explain_unknown
from .registry import ENTRIES, name_of, section_of, sections
from .resolve import expand_alias, resolve
from .schema import ALIASES, ENCODERS, Config, EnvConfig, option_fields
from .text import did_you_mean, plain

OWN = "module:Class"
"""How a user's own entry is named."""


class Parser(argparse.ArgumentParser):
    """Raises BadInput instead of exiting, and suggests the nearest known flag."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, **options)

    def error(self, message: str) -> NoReturn:
        raise BadInput(message)

    def parse(self, arguments: list[str], mixed: bool = False) -> dict[str, Any]:
        """The values by name; `mixed` allows positional arguments between options."""
        parse = self.parse_known_intermixed_args if mixed else self.parse_known_args
        given, unknown = parse(arguments)
        if unknown:
            flag = unknown[0].partition("=")[0]
            explained = "there is no such argument"
            if flag.startswith("-"):
                explained = self.explain_unknown(flag)
            raise BadInput(f"{flag}: {explained}")
        return vars(given)

    def explain_unknown(self, flag: str) -> str:
        return f"there is no such option{did_you_mean(flag, self._option_string_actions)}"


@dataclasses.dataclass(frozen=True)
class Field:
    """An option, for flags and documentation."""

    name: str
    """dotted, such as ppo.clip"""
    text: str
    """the docstring, in one line"""
    hint: Any
    """the type, with its annotations"""
    default: Any

    @property
    def flag(self) -> str:
        return as_flag(self.name)

    @property
    def choices(self) -> tuple[str, ...]:
        """The names that may be written for it; none if it takes something else."""
        if self.name in ENTRIES:
            auto = ["auto"] if self.default == "auto" else []
            aliases = ALIASES if self.name == "algo" else []
            return (*auto, *ENTRIES[self.name], *aliases, OWN)
        if self.name == "encoder":
            return (*ENCODERS, OWN)
        return _literals(self.hint)

    @property
    def is_bool(self) -> bool:
        return self.hint in (bool, bool | None)


def _literals(hint: Any) -> tuple[str, ...]:
    """The choices of a type that allows nothing else but None."""
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    if hasattr(hint, "__metadata__"):
        return _literals(get_args(hint)[0])
    parts = [_literals(part) for part in get_args(hint) if part is not type(None)]
    return tuple(name for part in parts for name in part) if all(parts) else ()


def fields_of(kinds: Mapping[str, type] | None = None) -> list[Field]:
    """Every option: those of `Config`, then those of each section in `kinds`."""
    named = {"env": EnvConfig, **(sections({}) if kinds is None else kinds)}
    names = {one.name for one in option_fields()} - {"env"}
    plain = [field for field in _fields(Config) if field.name in names]
    return plain + [field for name, kind in named.items() for field in _fields(kind, f"{name}.")]


def _fields(kind: Any, prefix: str = "") -> list[Field]:
    try:
        texts, hints = _docstrings(kind), get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise BadInput(f"the options of {name_of(kind)} can't be read: {error}") from None
    return [
        Field(prefix + one.name, texts.get(one.name, ""), hints[one.name], _default(one))
        for one in dataclasses.fields(kind)
    ]


def _default(field: dataclasses.Field[Any]) -> Any:
    make = field.default_factory
    return field.default if make is dataclasses.MISSING else make()


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """The docstring under each field of a dataclass and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        except (OSError, TypeError):  # no source: defined in a console, for example
            continue
        found |= {
            field.target.id: " ".join(str(text.value.value).split())
            for field, text in pairwise(body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        }
    return found


class ConfigParser(Parser):
    """Takes every option of a configuration, also those of the entries that are chosen."""

    def __init__(self) -> None:
        super().__init__(argument_default=argparse.SUPPRESS)
        self._fields: dict[str, Field] = {}

    file: Mapping[str, Any] = {}
    """contents of the --config file, read once, since it may be a Python program"""
    section = str(Config.algo)
    """section of the chosen algorithm"""

    def parse(self, arguments: list[str], mixed: bool = False) -> dict[str, Any]:
        first = Parser(argument_default=argparse.SUPPRESS)
        for name in ("config", *ENTRIES):
            first.add_argument(f"--{name}")
        chosen: dict[str, Any] = {}
        with suppress(BadInput):  # raised again when all flags are parsed
            chosen = vars(first.parse_known_args(arguments)[0])
        if "config" in chosen:
            self.file = load_file(chosen["config"])
            chosen = {**self.file, **chosen}
        self.section = section_of("algo", expand_alias(chosen).get("algo", Config.algo))
        for field in fields_of(sections(chosen)):
            if field.flag not in self._option_string_actions:
                self.add(field)
        return super().parse(arguments, mixed)

    def explain_unknown(self, flag: str) -> str:
        positive = [one for one in self._option_string_actions if not one.startswith("--no-")]
        known = [plain(one) for one in positive]
        return explain_unknown(flag, None, known, self.section, as_flag)

    def error(self, message: str) -> NoReturn:
        flag = message.removeprefix("argument ").removesuffix(": expected one argument")
        field = self._fields.get(flag)
        if field is None:
            super().error(message)
        takes = f", one of {', '.join(field.choices)}" if field.choices else ""
        raise BadInput(f"{flag}: write a value after it{takes}")

    def add(self, field: Field) -> None:
        self._fields[field.flag] = field
        if field.is_bool:
            self.add_argument(field.flag, dest=field.name, nargs="?", const="true")
            negative = f"--no-{field.flag[2:]}"
            self.add_argument(negative, dest=field.name, action="store_const", const="false")
        else:
            self.add_argument(field.flag, dest=field.name)


def config_parser(*positional: str) -> ConfigParser:
    """A parser of all options, `--config FILE`, and these positional arguments."""
    parser = ConfigParser()
    for name in positional:
        parser.add_argument(name)
    parser.add_argument("--config", metavar="FILE")
    for field in fields_of():
        parser.add(field)
    return parser


def parse_config(arguments: list[str]) -> Config:
    """The configuration that command-line arguments describe: options and `--config FILE`."""
    parser = config_parser()
    given = parser.parse(arguments)
    given.pop("config", None)
    return resolve(parser.file, nested(given))


def nested(given: dict[str, Any]) -> dict[str, Any]:
    """{"ppo.clip": 1} → {"ppo": {"clip": 1}}"""
    out: dict[str, Any] = {}
    for name, value in given.items():
        section, _, last = name.rpartition(".")
        place = out.setdefault(section, {}) if section else out
        place[last] = value
    return out
