"""Arguments that the measuring commands share: options of `train`, numbers, output directories."""

from __future__ import annotations

import math
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config.flags import config_parser, nested
from ...config.resolve import fit_to_spaces, resolve
from ...config.schema import BUDGETS, Config
from ...config.values import parse_steps
from ...errors import BadInput

if TYPE_CHECKING:
    from ...envs.source import EnvInfo

UNLIMITED = {"total_steps": "1e15", "total_iters": "1e15", "duration": "87000h"}
"""Budgets that no run reaches."""


@dataclass(frozen=True)
class Training:
    """The training that a command measures."""

    flags: Mapping[str, str]
    """options of `train` as they were typed, by name; --config among them"""
    file: Mapping[str, Any]
    """the content of --config"""

    def config(self, changes: Mapping[str, Any] | None = None) -> Config:
        flags = {name: value for name, value in self.flags.items() if name != "config"}
        return resolve(self.file, nested(flags), changes or {})

    def inspect(self, changes: Mapping[str, Any] | None = None) -> tuple[Config, EnvInfo]:
        """The configuration with the preset that suits its environment, and the environment."""
        from ...envs.source import inspect_env

        config, here = self.config(changes), Path.cwd()
        try:
            env_info = inspect_env(config.env_id, **config.env_options)
        finally:
            os.chdir(here)  # which an environment may have changed
        return fit_to_spaces(config, env_info.obs_spec, env_info.act_spec), env_info

    def without_file_budget(self) -> dict[str, str]:
        """Flags that lift the budgets of the file, where the command decides when a run ends."""
        return {name: UNLIMITED[name] for name in BUDGETS if self.file.get(name) is not None}


def parse_options(
    arguments: list[str], options: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, str], Mapping[str, Any]]:
    """By name: values of a command's own options, flags of `train`, the content of --config.

    `options` has the keywords of `add_argument` for each of its own flags and arguments.
    """
    parser = config_parser()
    for flag, keywords in options.items():
        parser.add_argument(flag, **{"default": None, **keywords})
    given = parser.parse(arguments, mixed=any(not flag.startswith("-") for flag in options))
    names = [flag.removeprefix("--").replace("-", "_") for flag in options]
    own = {name: given.pop(name) for name in names}
    return own, given, parser.file


def all_envs(given: Mapping[str, Any], file: Mapping[str, Any], workers: int) -> str | None:
    """num_envs of so many workers, also where they are given for each; None if not given."""
    if "num_envs" in given and "num_envs_per_worker" in given:
        raise BadInput("--num-envs and --num-envs-per-worker say the same thing: write one of them")
    for source in (given, file):
        if source.get("num_envs") is not None:
            return str(source["num_envs"])
        each = source.get("num_envs_per_worker")
        if each is not None:
            if not str(each).isdigit():
                raise BadInput(f"num_envs_per_worker is {each!r}: write a whole number, such as 8")
            return str(int(each) * workers)
    return None


def refuse_flags(
    command: str, given: Mapping[str, Any], hints: Mapping[str, str], where: str = ""
) -> None:
    """Options that the command itself sets for its runs are errors; the hint says what to write."""
    for name, hint in hints.items():
        if name in given:
            flag = f"--{name.replace('_', '-')}"
            raise BadInput(f"{flag} is {given[name]!r}{where}, and {command} sets it: {hint}")


def refuse_parallel(command: str, given: Mapping[str, Any], file: Mapping[str, Any]) -> None:
    """Commands that set the processes of their runs do not have them chosen."""
    for source, where in ((given, ""), (file, f" in {given.get('config')}")):
        chosen = {name: value for name, value in source.items() if value is not None}
        refuse_flags(command, chosen, {"parallel": "it is for train; leave it out"}, where)


def whole_number(least: int = 1, most: int = 10**9) -> Callable[[str], int]:
    """Parser of a whole number in this range, such as 500, 16k or 1e6."""

    def parse(text: str) -> int:
        try:
            number = parse_steps(text)
        except ValueError:
            number = None
        if not isinstance(number, int) or not least <= number <= most:
            raise ArgumentTypeError(f"{text!r} should be a whole number from {least} to {most:,}")
        return number

    return parse


def number_from(text: str, least: float = -math.inf) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        raise ArgumentTypeError(f"{text!r} should be a number, such as 10")
    return value


def new_folder(command: str, config: Config, *more: str) -> Path:
    """`runs/<command>-<env>-<more>-<time>`"""
    env = file_name(config.env_name)
    return Path("runs") / "-".join([command, env, *more, f"{datetime.now():%Y%m%d-%H%M%S}"])


def file_name(env_id: str) -> str:
    return re.sub("[:/]", "-", env_id)


def check_output_dir(folder: Path, overwrite: bool, ours: tuple[str, ...] | None = None) -> None:
    """Refuse a directory that holds files (of those named, if `ours` are), without --overwrite."""
    names = [name for name in contents(folder) if ours is None or name in ours]
    if names and not overwrite:
        raise BadInput(
            f"--output-dir {folder} is not empty ({names[0]}); choose another, or replace "
            "what is in it with --overwrite"
        )


def contents(folder: Path) -> list[str]:
    """Names of the files in a directory; none if it does not exist."""
    try:
        return sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(f"--output-dir {folder} can't be read: {error.strerror}") from None
