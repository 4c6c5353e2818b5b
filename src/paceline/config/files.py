"""Configuration files, read as plain data; `resolve` checks what they say."""

from __future__ import annotations

import json
import runpy
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ..errors import BadInput
from ..storage.files import open_plain
from .schema import Config

MAX_VALUES = 10_000
MAX_BYTES = 64_000


class _Loader(yaml.SafeLoader):
    """Plain data only, and a limit on merged keys, which could multiply exponentially."""

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_VALUES:
            raise ValueError("its merged keys hold too many values")


_load_yaml = partial(yaml.load, Loader=_Loader)
LOADERS: dict[str, Callable[[str], Any]] = {
    ".yaml": _load_yaml,
    ".yml": _load_yaml,
    ".json": json.loads,
    ".toml": tomllib.loads,
}


def load_file(path: str | Path) -> dict[str, Any]:
    """The options in a configuration file, by name, not yet checked.

    A `.py` file is executed, so only a path that the user typed may be passed.
    """
    path = Path(path)
    if path.suffix not in (*LOADERS, ".py"):
        raise BadInput(f"{path}: a configuration is a .yaml, .json, .toml or .py file")
    try:
        if path.suffix == ".py":
            return _run_python(path)
        values = LOADERS[path.suffix](_read_text(path))
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file") from None
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror}") from None
    except BadInput:
        raise
    except RecursionError:
        raise BadInput(f"{path} can't be read: it is nested too deeply") from None
    except Exception as error:  # parsers raise all kinds of errors on malformed input
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BadInput(f"{path} can't be read as {path.suffix[1:]}: {cause}") from None
    if values is None:
        return {}
    _check_size(path, values)
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise BadInput(f"{path}: should hold names and values, not {str(values)[:60]!r}")
    return values


def _run_python(path: Path) -> dict[str, Any]:
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
    return dict(config.given)


def _read_text(path: Path) -> str:
    with open_plain(path, links=True) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadInput(f"{path}: is larger than {MAX_BYTES:,} bytes; is it a configuration?")
    return data.decode("utf-8-sig")


def _check_size(path: Path, values: Any) -> None:
    """A few lines of YAML aliases can expand to more than fits into memory."""
    count, left = 0, [values]
    while left:
        value = left.pop()
        count += 1 + (len(value) // 1000 if isinstance(value, str) else 0)
        if count > MAX_VALUES:
            raise BadInput(f"{path}: holds more than {MAX_VALUES:,} values; is it a configuration?")
        if isinstance(value, int) and value.bit_length() > 1000:
            raise BadInput(f"{path}: holds a number too long to be written")
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, (list, tuple, set)):
            left += value
