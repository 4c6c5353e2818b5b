"""Guards against what an environment raises and returns."""

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
"""What an environment may raise and be rebuilt for: not Ctrl-C, nor any other signal."""
READERS = (__file__, str(Path(__file__).with_name("columns.py")), adapters.__file__)
"""Files that look at what an environment has returned."""


def end_if_forked(process: int) -> None:
    """A child that an environment has forked, and let return, is not to go on with the run."""
    if os.getpid() != process:
        os._exit(1)


def close_quietly(env: Any) -> None:
    """Close an environment or a batch of them; a failure to do so is only told."""
    if not hasattr(env, "close"):  # no environment at all, which is told elsewhere
        return
    try:
        env.close()
    except ENV_ERRORS:
        log.warning("an environment failed to close", exc_info=True)


def describe(error: BaseException) -> str:
    """The error in one line, with the place in the user's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if frames and frames[-1].filename in READERS:
        place = " (of what the environment returned)"
    try:
        said = f": {error}" if str(error) else ""
    except ENV_ERRORS:  # an error's own text is the user's code too
        said = ""
    return f"{type(error).__name__}{said}{place}"


def reset_pair(found: Any) -> tuple[Any, dict[str, Any]]:
    """What `reset` has to return."""
    try:
        observation, info = found
    except (TypeError, ValueError):
        raise TypeError(
            f"reset() returned {type(found).__name__}, not an observation and an info"
        ) from None
    return observation, info


def end_flag(end: Any) -> bool:
    """`terminated` or `truncated`; what is true only by being something is refused."""
    if end is True or end is False:
        return end
    found = bool(end)
    if found and (np.asarray(end).dtype.kind not in "biuf" or end != end):
        raise TypeError(f"terminated or truncated is {end!r}, neither true nor false")
    return found
