"""report.html: one file that holds its text, its numbers, and the code that draws them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Any

SCRIPTS = ("text.js", "charts.js", "tables.js", "figures.js", "report.js")
DIGITS = 6
"""Significant digits of a number on the page; its charts and tables show three."""


def page(content: dict[str, Any]) -> str:
    """The whole page. It asks for nothing from anywhere, and names in it are never markup."""
    parts = {
        "title": _text(content["title"]),
        "subtitle": _text(content.get("subtitle", "")),
        "verdict": _listed("verdict", content.get("verdict", [])),
        "notes": _listed("notes", content.get("notes", [])),
        "failed": _failed(content.get("failed", [])),
        "about": _about(content),
        "content": _json(content),
        "css": _file("report.css"),
        "code": "\n</script>\n<script>\n".join(map(_file, SCRIPTS)),
    }
    # In one pass: what is filled in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("report.html"))


def _file(name: str) -> str:
    return files(__package__).joinpath("html", name).read_text(encoding="utf-8").strip()


def _json(content: Any) -> str:
    """JSON in ASCII that neither ends the script element nor opens a comment in it."""
    text = json.dumps(_plain(content), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    """Numbers of numpy become Python's, and those that are not finite unknown."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def _text(value: Any) -> str:
    """Escaped; bytes of a file's name that are no text become question marks."""
    return escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def _listed(kind: str, sentences: Iterable[Any]) -> str:
    found = "".join(f"<li>{_text(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{kind}">{found}</ul>' if found else ""


def _failed(failed: Iterable[dict[str, Any]]) -> str:
    found = "".join(
        f"<li><strong>{_text(one['name'])}</strong> {_text(one['cause'])}</li>" for one in failed
    )
    return f'<ul class="failed" aria-label="What failed">{found}</ul>' if found else ""


def _about(content: dict[str, Any]) -> str:
    """What was varied, the machine, the command, and how the statistics were made."""
    varied = {name: ", ".join(map(str, all_)) for name, all_ in content.get("varied", {}).items()}
    parts = [
        _defined("What differs between groups", varied),
        _defined("Machine", content.get("machine", {})),
    ]
    if content.get("statistics"):
        parts.append(f"<h3>Statistics</h3>{_listed('small', content['statistics'])}")
    if content.get("command"):
        parts.append(
            f'<h3>Command</h3><pre tabindex="0"><code>{_text(content["command"])}</code></pre>'
        )
    return "\n".join(part for part in parts if part)


def _defined(title: str, terms: dict[str, Any]) -> str:
    if not terms:
        return ""
    found = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in terms.items()
    )
    return f"<h3>{title}</h3><dl>{found}</dl>"
