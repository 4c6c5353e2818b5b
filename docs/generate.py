"""What pages take from the code: tables of configuration.md, line numbers of architecture.md, names
of migrating.md.

    python docs/generate.py               # rewrite the pages
    python docs/generate.py --check       # exit 1 if that would change one

In configuration.md `<!-- options -->…<!-- /options -->` holds every option, `<!-- presets -->…
<!-- /presets -->` every preset with its source. In architecture.md a link [`Class.method`](/src/…)
leads to the line where that is defined. In migrating.md `<!-- names -->`, `<!-- none -->` and
`<!-- planned -->` hold the table of other libraries' names.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator

from paceline.config.flags import Field, fields_of
from paceline.config.help import flags_of, grouped
from paceline.config.known_names import LIBRARIES, Row, as_flag, expanded, rows, spelled
from paceline.config.presets import presets
from paceline.config.registry import ALGORITHMS, entry
from paceline.config.resolve import field_names
from paceline.config.values import parse_duration, parse_steps, parse_wrappers

DOCS = Path(__file__).parent
LINK = re.compile(r"\[`([\w.]+)`\]\(/(src/[\w/]+\.py)(?:#L\d+)?\)")
"""A link to a class or function of the package."""


def options() -> str:
    """A table for each group, in the order of the dataclass."""
    lines: list[str] = []
    for title, fields in grouped(fields_of()).items():
        lines += ["", f"### {title}", ""]
        lines += ["| flag | default | takes | meaning |", "|---|---|---|---|"]
        for field in fields:
            cells = (f"`{field.flag}`", default_of(field), takes(field), text_of(field))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def text_of(field: Field) -> str:
    """What Markdown would take for HTML or for a cell's end is escaped."""
    return field.text.replace("<", "&lt;").replace("|", "\\|")


def default_of(field: Field) -> str:
    """The field's own, and an algorithm's where it has another."""
    others = [
        f"{algo}: {_shown(entry('algo', algo).defaults[field.name])}"
        for algo in ALGORITHMS
        if field.name in entry("algo", algo).defaults
    ]
    return "; ".join([_shown(field.default), *others])


def _shown(value: Any) -> str:
    if value is None or value in ((), {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def takes(field: Field) -> str:
    """What may be written for it."""
    if field.choices:
        return ", ".join(f"`{choice}`" for choice in field.choices)
    if field.is_bool:
        return f"on its own; `--no-{field.flag[2:]}`"
    return ", ".join(dict.fromkeys(_kinds(field.hint))) or "text"


def _kinds(hint: Any) -> Iterator[str]:
    """Bounds and forms that a type allows."""
    metadata = getattr(hint, "__metadata__", ())
    validators = [mark.func for mark in metadata if isinstance(mark, BeforeValidator)]
    if parse_steps in validators:
        yield "a number such as `300_000`, `1M`"
    elif parse_duration in validators:
        yield "`90s`, `30m`, `0.5h`"
    elif parse_wrappers in validators:
        yield "names `a:B,c:D`"
    elif metadata:
        base = hint.__origin__
        if get_origin(base) is tuple:
            one = get_args(base)[0]
            words = get_args(one) if get_origin(one) is Literal else ()
            yield ", ".join(f"`{word}`" for word in words) or "whole numbers `64,64`"
        elif get_origin(base) is dict:
            yield "JSON"
        else:
            yield from _number(base, metadata)
    else:
        for part in get_args(hint):
            yield from _kinds(part)
        if hint in (int, float):
            yield from _number(hint, ())


def _number(base: Any, metadata: tuple[Any, ...]) -> Iterator[str]:
    bounds = []
    for mark in metadata:
        for kind, sign in ((Ge, "≥"), (Gt, ">"), (Le, "≤")):
            if isinstance(mark, kind):
                bounds.append(f"{sign} {getattr(mark, kind.__name__.lower())}")
    word = {int: "whole number", float: "number"}.get(base)
    if word:
        yield " ".join([word, ", ".join(bounds)]).strip()


def preset_list() -> str:
    """Each preset: its first line, where its values come from, and the values."""
    lines: list[str] = []
    for algo in ALGORITHMS:
        for name, path in presets(algo).items():
            first, source = _comments(path.read_text(encoding="utf-8"))
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
            given = ", ".join(f"`{key} {value}`" for key, value in flags_of(values))
            lines += [f"### {algo} {name}", "", f"{_sentence(first)}", ""]
            lines += [f"{source}", ""] if source else []
            lines += [f"Values: {given}.", ""]
    return "\n".join(lines).strip()


def _comments(text: str) -> tuple[str, str]:
    """The first line, and the lines under it as one paragraph."""
    comments = [
        line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")
    ]
    return comments[0], " ".join(comments[1:])


def _sentence(text: str) -> str:
    text = text[0].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def names_here() -> str:
    """The table of other libraries' names with an option here."""
    lines = [
        f"| {' | '.join(LIBRARIES.values())} | Paceline |",
        "|---" * (len(LIBRARIES) + 1) + "|",
    ]
    known = field_names()
    for row in rows():
        if row.options:
            found = [one for option in row.options for one in expanded(option, known)]
            note = f" ({spelled(row.note, _code)})" if row.note else ""
            lines.append(f"| {_names(row)} | {', '.join(map(_code, found))}{note} |")
    return "\n".join(lines)


def names_without(kind: str) -> str:
    """The names for which there is none here, or none yet."""
    lines = ["| name | |", "|---|---|"]
    for row in rows():
        if text := getattr(row, kind):
            names = dict.fromkeys(name for names in row.names.values() for name in names)
            cell = ", ".join(f"`{name}`" for name in names)
            lines.append(f"| {cell} | {spelled(text, _code)} |")
    return "\n".join(lines)


def _names(row: Row) -> str:
    cells = (row.names.get(library, []) for library in LIBRARIES)
    return " | ".join(", ".join(f"`{name}`" for name in names) for names in cells)


def _code(option: str) -> str:
    return f"`{as_flag(option)}`"


def with_names(page: str) -> str:
    """migrating.md with the tables of names."""
    page = filled(page, "names", names_here())
    for kind in ("none", "planned"):
        page = filled(page, kind, names_without(kind))
    return page


def with_tables(page: str) -> str:
    """configuration.md with both tables as they should be."""
    for marker, content in (("options", options()), ("presets", preset_list())):
        page = filled(page, marker, content)
    return page


def filled(page: str, marker: str, content: str) -> str:
    """The page with this content between the two comments that hold it."""
    pattern = re.compile(rf"(<!-- {marker} -->).*?(<!-- /{marker} -->)", re.DOTALL)
    if not pattern.search(page):
        sys.exit(f"a page has no <!-- {marker} -->…<!-- /{marker} --> to fill")
    return pattern.sub(lambda found: f"{found[1]}\n{content}\n{found[2]}", page)


def with_lines(page: str) -> str:
    """architecture.md with every link to a name at the line of its definition."""
    return LINK.sub(lambda link: f"[`{link[1]}`](/{link[2]}{_anchor(link[1], link[2])})", page)


def _anchor(name: str, path: str) -> str:
    """`#L12` for a class, function or method that the file defines; nothing for the file."""
    if path.endswith(f"/{name}"):
        return ""
    scope: Any = ast.parse((DOCS.parent / path).read_text(encoding="utf-8"))
    for part in name.split("."):
        found = [node for node in scope.body if getattr(node, "name", None) == part]
        if not found:
            sys.exit(f"architecture.md: {path} defines no {name}")
        scope = found[0]
    return f"#L{scope.lineno}"


PAGES = {
    DOCS / "configuration.md": with_tables,
    DOCS / "architecture.md": with_lines,
    DOCS / "migrating.md": with_names,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    check, stale = parser.parse_args(arguments).check, False
    for page, updated in PAGES.items():
        before = page.read_text(encoding="utf-8")
        after = updated(before)
        if check and before != after:
            print(f"{page.name} is stale; run python docs/generate.py", file=sys.stderr)
            stale = True
        elif not check:
            page.write_text(after, encoding="utf-8")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
