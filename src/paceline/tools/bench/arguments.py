"""What commands that measure have in common: numbers as they are typed, and places to write to."""

from __future__ import annotations

import math
import os
import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING

from ...config.resolve import fit_to_spaces
from ...config.schema import Config
from ...errors import BadInput

if TYPE_CHECKING:
    from ...envs.source import EnvInfo


def whole_from(text: str, least: int = 1, most: int = 10**9) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
        raise ArgumentTypeError(f"{text!r} should be a whole number from {least} on, such as 5")
    if int(text) > most:
        raise ArgumentTypeError(f"{text!r} should be a whole number up to {most:,}, such as 5")
    return int(text)


def number_from(text: str, least: float = -math.inf) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        raise ArgumentTypeError(f"{text!r} should be a number, such as 10")
    return value


def refuse_to_lose(folder: Path, overwrite: bool, ours: tuple[str, ...] | None = None) -> None:
    """What a directory holds, or of it what is `ours`, is replaced only where that was said."""
    names = [name for name in held(folder) if ours is None or name in ours]
    if names and not overwrite:
        raise BadInput(
            f"--output-dir {folder} is not empty ({names[0]}); choose another, or replace "
            "what is in it with --overwrite"
        )


def held(folder: Path) -> list[str]:
    """Names of what is in a directory that may not be there."""
    try:
        return sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(f"--output-dir {folder} can't be read: {error.strerror}") from None


def looked_at(config: Config) -> tuple[Config, EnvInfo]:
    """With what suits its environment filled in; which may not leave us in another directory."""
    from ...envs.source import inspect_env

    here = Path.cwd()
    try:
        env_info = inspect_env(config.env_id, **vars(config.env))
    finally:
        os.chdir(here)
    return fit_to_spaces(config, env_info.obs_spec, env_info.act_spec), env_info
