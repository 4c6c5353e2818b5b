"""Command-line flags and their help, generated from the configuration's dataclasses."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import inspect
import textwrap
from itertools import pairwise
from typing import Any, NoReturn, get_type_hints

from .config import Config
from .errors import BadInput


class Parser(argparse.ArgumentParser):
    """Refuses like everything else here: a sentence, and the nearest name that exists."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, **options)

    def error(self, message: str) -> NoReturn:
        raise BadInput(message)

    def parse(self, arguments: list[str], mixed: bool = False) -> dict[str, Any]:
        """What was given, and only that, by name; options and other arguments may be `mixed`."""
        parse = self.parse_known_intermixed_args if mixed else self.parse_known_args
        given, unknown = parse(arguments)
        if unknown:
            flag = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            kind = "option" if flag.startswith("-") else "argument"
            raise BadInput(f"{flag}: there is no such {kind}{hint}")
        return vars(given)


@dataclasses.dataclass(frozen=True)
class Field:
    """One option, by its dotted name."""

    name: str
    text: str
    is_bool: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def fields_of(kind: Any = Config, prefix: str = "") -> list[Field]:
    """Every option with its documentation; sections come last."""
    texts, hints = _docstrings(kind), get_type_hints(kind)
    found: list[Field] = []
    sections: list[Field] = []
    for entry in dataclasses.fields(kind):
        section = entry.default_factory
        if isinstance(section, type) and dataclasses.is_dataclass(section):
            sections += fields_of(section, f"{prefix}{entry.name}.")
        else:
            is_bool = hints[entry.name] in (bool, bool | None)
            found.append(Field(prefix + entry.name, texts.get(entry.name, ""), is_bool))
    return found + sections


def _docstrings(kind: type) -> dict[str, str]:
    """The text under each field of a dataclass."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: str(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def config_parser(*positional: str) -> Parser:
    """Takes every option of `Config`, `--config FILE`, and the positional arguments named."""
    parser = Parser(argument_default=argparse.SUPPRESS)
    for name in positional:
        parser.add_argument(name)
    parser.add_argument("--config", metavar="FILE")
    for field in fields_of():
        if field.is_bool:
            parser.add_argument(field.flag, dest=field.name, nargs="?", const="true")
            parser.add_argument(
                f"--no-{field.flag[2:]}", dest=field.name, action="store_const", const="false"
            )
        else:
            parser.add_argument(field.flag, dest=field.name)
    return parser


def nested(given: dict[str, Any]) -> dict[str, Any]:
    """{"ppo.clip": 1} → {"ppo": {"clip": 1}}"""
    out: dict[str, Any] = {}
    for name, value in given.items():
        *sections, last = name.split(".")
        place = out
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return out


def help_text(config: Config) -> str:
    """Every option, its meaning, and the value it has if it is not given."""
    lines = ["  --config FILE", "      a .yaml, .json, .toml or .py file; flags win over it"]
    section = ""
    for field in fields_of():
        value: Any = config
        for part in field.name.split("."):
            value = getattr(value, part)
        prefix = field.name.rpartition(".")[0]
        if prefix != section:
            lines.append(f"\n{prefix}:")
            section = prefix
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        lines.append(f"  {field.flag}")
        text = textwrap.fill(f"{field.text} [{shown}]", 88)
        lines.append(textwrap.indent(text, " " * 6))
    return "\n".join(lines)
