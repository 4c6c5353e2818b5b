"""Configuration files as plain data; what they say is checked elsewhere."""

from __future__ import annotations

import json
import runpy
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ..errors import BadInput
from ..storage.files import open_plain
from .registry import ENTRIES, as_dicts, by_name, is_options, section_of
from .schema import Config

MOST_VALUES = 10_000
MOST_BYTES = 64_000
"""Of what a configuration may hold."""


class _Yaml(yaml.SafeLoader):
    """Plain data only; and keys that are merged can't multiply without end."""

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MOST_VALUES:
            raise ValueError("its merged keys hold too many values")


_yaml = partial(yaml.load, Loader=_Yaml)
LOADERS: dict[str, Callable[[str], Any]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".json": json.loads,
    ".toml": tomllib.loads,
}


def load_file(path: str | Path) -> dict[str, Any]:
    """A configuration file as plain data; what it says is not yet checked.

    A `.py` file is executed, so only a path that the user typed may lead here.
    """
    path = Path(path)
    if path.suffix not in (*LOADERS, ".py"):
        raise BadInput(f"{path}: a configuration is a .yaml, .json, .toml or .py file")
    try:
        if path.suffix == ".py":
            return _from_python(path)
        values = LOADERS[path.suffix](_text(path))
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file") from None
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror}") from None
    except BadInput:
        raise
    except RecursionError:
        raise BadInput(f"{path} can't be read: it is nested too deeply") from None
    except Exception as error:  # a parser may trip over anything
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BadInput(f"{path} can't be read as {path.suffix[1:]}: {cause}") from None
    if values is None:
        return {}
    _check_size(path, values)
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise BadInput(f"{path}: should hold names and values, not {str(values)[:60]!r}")
    return values


def _check_size(path: Path, values: Any) -> None:
    """A few lines of YAML can refer to themselves until they mean more than any memory holds."""
    count, left = 0, [values]
    while left:
        value = left.pop()
        count += 1 + (len(value) // 1000 if isinstance(value, str) else 0)
        if count > MOST_VALUES:
            raise BadInput(
                f"{path}: holds more than {MOST_VALUES:,} values; is it a configuration?"
            )
        if isinstance(value, int) and value.bit_length() > 1000:
            raise BadInput(f"{path}: holds a number too long to be written")
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, (list, tuple, set)):
            left += value


def _from_python(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        config = runpy.run_path(str(path)).get("config")
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(f"{path} raised {type(error).__name__}: {str(error)[:300]}") from error
    if not isinstance(config, Config):
        raise BadInput(f"{path}: should set `config = paceline.Config(...)`, not {config!r}")
    return plain(config.given)


def plain(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Sections that come as dataclasses, from Python, become dicts; so does a chosen entry that
    comes with its options, such as `algo=PPO(clip=0.1)`."""
    out = dict(layer)
    for option, registry in ENTRIES.items():
        value = layer.get(option)
        if is_options(value):
            out[option] = by_name(type(value), registry)
            out[section_of(option, out[option])] = value
        elif option in layer:
            out[option] = by_name(value, registry)
    return as_dicts(out)


def _text(path: Path) -> str:
    with open_plain(path, links=True) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadInput(f"{path}: is larger than {MOST_BYTES:,} bytes; is it a configuration?")
    return data.decode("utf-8-sig")
