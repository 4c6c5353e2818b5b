"""`paceline train --help`: options in groups, with what they take, their meaning and default."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BeforeValidator

from .flags import OWN, Field, fields_of
from .known_names import as_flag
from .presets import preset_values
from .registry import ALGORITHMS
from .schema import Config, option_fields
from .text import listed
from .values import parse_duration

SEEDS = (
    "train with the seeds 0 to N-1, or from --seed on: a run each in --output-dir, side by side "
    "where each is one process, and a table with their mean at the end"
)
COMMAND = [
    Field("config", "a .yaml, .json, .toml or .py file; flags win over it", str, None),
    Field("seeds", SEEDS, int, None),
]
"""Options of the command, which are not options of a run."""
START = (
    "env_id",
    "algo",
    "total_steps",
    "duration",
    "num_envs",
    "num_workers",
    "lr",
    "seed",
    "seeds",
    "output_dir",
    "config",
    "preset",
    "ranks",
    "parallel",
)
"""The options that people use first."""
GROUPS = {
    "algo": "What is trained",
    "total_steps": "When it ends, where it begins",
    "num_envs": "Environments and processes",
    "rollout_steps": "Rollouts and optimization",
    "hidden": "Network",
    "device": "Machine",
    "eval_every": "Evaluation, checkpoints, logging",
}
"""The first option of each group; the others follow it in the dataclass."""
SECTIONS = {"env": "Environment", **{name: name.upper() for name in ALGORITHMS}}
"""Sections of options, each a group."""
PLACEHOLDERS = {
    "config": "FILE",
    "env_id": "ID",
    "preset": "NAME",
    "init_from": "RUN",
    "init_method": "URL",
    "parallel": "{auto,N}",
    "hidden": "SIZES",
    "schedule_budget": "BUDGET",
    "log_info": "KEYS",
    "memory_inputs": "action,reward",
    "log_jsonl": "FILE",
    "output_dir": "DIR",
    "env.kwargs": "JSON",
    "env.wrappers": "NAMES",
}
"""What stands for the value, unless it follows from the type."""
INTRODUCTION = (
    "Defaults are in brackets; presets set others for many environments, which --env-id ID --help "
    "shows. A switch such as --pin is turned off with --no-pin."
)
MAX_WIDTH, NARROW = 100, 72
"""Columns of a line at most; below the other, an option's text begins on a line of its own."""
INDENT, NARROW_INDENT = 26, 6
"""Columns before an option's text."""


def help_text(config: Config) -> str:
    """The help for the algorithm of `config`, with the preset if its environment was given."""
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
    kinds = {name: type(options) for name, options in config.options.items()}
    others = [name for name in ALGORITHMS if name != config.algo_section]
    fields = [one for one in fields_of(kinds) if one.name.partition(".")[0] not in others]
    by_name = {field.name: field for field in [*COMMAND, *fields]}
    start = [by_name[name] for name in START]
    groups = grouped(field for field in fields if field.name not in START)
    own = SECTIONS.get(config.algo_section, config.algo_section)
    ordered = {"Start here": start, own: groups.pop(own, []), **groups}
    general = getattr(config.entry("algo"), "defaults", {})
    parts = [_wrapped(INTRODUCTION, width)]
    for title, members in ordered.items():
        options = [
            _option(field, general.get(field.name, field.default), width) for field in members
        ]
        parts.append("\n".join([f"{title}:", *options]) if options else "")
    parts.append(_wrapped(f"For {listed(others)}: paceline train --algo {others[0]} --help", width))
    return "\n\n".join(part for part in [*parts, _preset(config, width)] if part)


def grouped(fields: Iterable[Field]) -> dict[str, list[Field]]:
    """The options of each group, by its title."""
    titles, title = {}, ""
    for option in option_fields():
        title = titles[option.name] = GROUPS.get(option.name, title)
    groups: dict[str, list[Field]] = {}
    for field in fields:
        section = field.name.rpartition(".")[0]
        title = SECTIONS.get(section, section) if section else titles[field.name]
        groups.setdefault(title, []).append(field)
    return groups


def _option(field: Field, default: Any, width: int) -> str:
    """`  --flag VALUE  text [default]`, the text in lines of its own where the flag is long."""
    column = INDENT if width >= NARROW else NARROW_INDENT
    head = f"  {field.flag} {placeholder(field)}".rstrip()
    text = " ".join([field.text, *_default(field, default)])
    lines = _wrapped(text, width - column).split("\n")
    if len(head) < column - 1:
        first = f"{head:<{column}}{lines.pop(0)}"
    else:
        first = head
    return "\n".join([first, *(" " * column + line for line in lines)])


def placeholder(field: Field) -> str:
    """What stands for the value: `{adam,rmsprop}`, `N`; nothing for a switch."""
    if field.is_bool:
        return ""
    if field.choices:
        return OWN if field.choices == (OWN,) else f"{{{','.join(field.choices)}}}"
    parts = list(_parts(field.hint))
    if field.name in PLACEHOLDERS:
        return PLACEHOLDERS[field.name]
    if field.name.endswith("_schedule"):
        return "SCHEDULE"
    if any(isinstance(one, BeforeValidator) and one.func is parse_duration for one in parts):
        return "TIME"
    return "X" if float in parts else "N" if int in parts else "VALUE"


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from _parts(part)


def _default(field: Field, value: Any) -> list[str]:
    """`[0.99]`; nothing where the text says what happens."""
    if value is None or value in ((), {}):
        return []
    if field.is_bool:
        return ["[on]" if value else "[off]"]
    return [f"[{value:g}]" if isinstance(value, float) else f"[{value}]"]


def _preset(config: Config, width: int) -> str:
    """What the preset of the given environment sets."""
    given = config.given
    if not {"env_id", "preset"} & given.keys() or given.get("preset") == "none":
        return ""
    values = preset_values(given)
    name = values.pop("preset", None)
    if name is None:
        text = (
            f"{config.env_id} has no preset of its own for {config.algo_section}: the general one "
        )
        return _wrapped(f"{text}for its spaces is used, see `paceline list presets`.", width)
    title = f"Set by the preset {name} (--preset none leaves it out):"
    return "\n".join([title, *(f"  {flag} {value}" for flag, value in flags_of(values))])


def flags_of(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The flag and the value, as they are typed, of each option in a file's content."""
    for key, value in values.items():
        if isinstance(value, dict) and key != "kwargs":
            yield from flags_of(value, f"{prefix}{key}.")
        elif isinstance(value, dict):
            yield as_flag(prefix + key), f"'{json.dumps(value)}'"
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            text = ",".join(map(str, value)) if isinstance(value, list) else text
            yield as_flag(prefix + key), text


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False, break_long_words=False)
