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
from operator import attrgetter
from typing import Any, NoReturn, get_type_hints

from ..errors import BadInput
from .files import load_file
from .registry import ENTRIES, name_of, sections
from .resolve import resolve
from .schema import Config, EnvConfig, option_fields
from .text import did_you_mean


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
            kind = "option" if flag.startswith("-") else "argument"
            hint = did_you_mean(flag, self._option_string_actions, 0.6)
            raise BadInput(f"{flag}: there is no such {kind}{hint}")
        return vars(given)


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
        return "--" + self.name.replace("_", "-")

    @property
    def is_bool(self) -> bool:
        return self.hint in (bool, bool | None)


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

    file: Mapping[str, Any] = {}
    """contents of the --config file, read once, since it may be a Python program"""

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
        for field in fields_of(sections(chosen)):
            if field.flag not in self._option_string_actions:
                self.add(field)
        return super().parse(arguments, mixed)

    def add(self, field: Field) -> None:
        if field.is_bool:
            self.add_argument(field.flag, dest=field.name, nargs="?", const="true")
            negative = f"--no-{field.flag[2:]}"
            self.add_argument(negative, dest=field.name, action="store_const", const="false")
        else:
            self.add_argument(field.flag, dest=field.name)


def config_parser(*positional: str) -> ConfigParser:
    """A parser of all options, `--config FILE`, and these positional arguments."""
    parser = ConfigParser(argument_default=argparse.SUPPRESS)
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


def help_text(config: Config) -> str:
    """Every option with its meaning and its value in `config`."""
    lines = ["  --config FILE", "      a .yaml, .json, .toml or .py file; flags win over it"]
    section = ""
    kinds = {name: type(options) for name, options in config.options.items()}
    for field in fields_of(kinds):
        value = attrgetter(field.name)(config)
        prefix = field.name.rpartition(".")[0]
        if prefix != section:
            lines.append(f"\n{prefix}:")
            section = prefix
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        text = textwrap.fill(f"{field.text} [{shown}]", 88)
        lines += [f"  {field.flag}", textwrap.indent(text, " " * 6)]
    return "\n".join(lines)
