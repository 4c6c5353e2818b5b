"""Guards against what a user's environment may raise and return."""

from __future__ import annotations

import logging
import os
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from . import adapters

log = logging.getLogger("paceline")

ENV_ERRORS = (Exception, SystemExit, GeneratorExit)
"""What an environment may raise and be rebuilt for: neither Ctrl-C nor any other signal."""
OUR_FILES = (__file__, str(Path(__file__).with_name("env_columns.py")), adapters.__file__)
"""Code that reads what an environment returned: an error raised here is about those values."""
CHECK = "try `paceline check ENV`"


class WrongReturn(TypeError):
    """An environment returned something else than it has to; the message says what."""


def end_if_forked(process: int) -> None:
    """End a child that an environment forked and that returned into our code."""
    if os.getpid() != process:
        os._exit(1)


def close_quietly(env: Any) -> None:
    """Close an environment or a batch of them; a failure to do so is logged."""
    if not hasattr(env, "close"):  # not an environment, which is reported elsewhere
        return
    try:
        env.close()
    except ENV_ERRORS:
        log.warning("an environment failed to close", exc_info=True)


def describe(error: BaseException) -> str:
    """The error in one line, with the place in the user's code that raised it."""
    if isinstance(error, WrongReturn):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if frames and frames[-1].filename in OUR_FILES:
        place = " (of what the environment returned)"
    try:
        text = f": {error}" if str(error) else ""
    except ENV_ERRORS:  # the user's code too
        text = ""
    return f"{type(error).__name__}{text}{place}"


def unpack_reset(returned: Any) -> tuple[Any, dict[str, Any]]:
    """Observation and info, from what `reset` returned."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:  # an array of 2 is no pair
        raise WrongReturn(
            f"reset() has to return (obs, info), and returned {_kind(returned)}; {CHECK}"
        )
    observation, info = returned
    return observation, info


def wrong_step(returned: Any) -> WrongReturn:
    """The error for a `step` that returned something else than five values."""
    return WrongReturn(
        "step() has to return (obs, reward, terminated, truncated, info), and returned "
        f"{_kind(returned)}; {CHECK}"
    )


def _kind(returned: Any) -> str:
    """What was returned in place of a tuple, or how long the tuple is."""
    if isinstance(returned, tuple | list):
        return f"a {type(returned).__name__} of {len(returned)}"
    return "None" if returned is None else f"one {type(returned).__name__}"


def as_flag(end: Any) -> bool:
    """`terminated` or `truncated` as a bool; refuses what is truthy but no number, such as text."""
    if end is True or end is False:
        return end
    flag = bool(end)
    if flag and (np.asarray(end).dtype.kind not in "biuf" or end != end):
        raise WrongReturn(f"terminated or truncated is {end!r}, neither true nor false; {CHECK}")
    return flag
