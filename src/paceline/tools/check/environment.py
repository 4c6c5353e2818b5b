"""Instance: one environment; its calls show in the heartbeat, and its answers have their form.

What it raises, and answers of another form, end in a `Broken` that says what to do.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ...config.text import printable
from ...errors import BadInput
from .compare import brief
from .finding import AT_STEP, Broken, Finding
from .request import CALLS
from .subject import Subject

ENDS_RUNS = "a run makes it anew each time, loses the episode, and gives up after ten in a row"
OLD_API = "gymnasium.Env has replaced this interface of the old gym; training can't go on with it"


class Answer(NamedTuple):
    """What a reset or a step gave; a reset gives no reward and ends nothing."""

    obs: Any
    info: dict[str, Any]
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False


class Instance:
    """One environment. `age` counts its steps since the last reset."""

    def __init__(self, subject: Subject) -> None:
        self._heartbeat = subject.heartbeat
        self._call("__init__", lambda: self._take(subject))
        self.age = 0

    def _take(self, subject: Subject) -> None:
        made = subject.make()
        assert made is not None, "a suite without single environments has no instances"
        self.env, self.limit = made

    def reset(self, seed: int | None) -> Answer:
        self.age = 0
        answer = self._call("reset", lambda: self.env.reset(seed=seed))
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise Broken(
                Finding(
                    "wrong",
                    "reset",
                    f"reset() returned {shown_kind(answer)}, not a pair (observation, info)",
                    OLD_API,
                    "return observation, {} from reset()",
                )
            )
        return Answer(*answer)

    def step(self, action: Any) -> Answer:
        self.age += 1
        self._given = partial(brief, action)
        answer = self._call("step", lambda: self.env.step(action))
        if not (isinstance(answer, tuple) and len(answer) == 5 and isinstance(answer[4], dict)):
            raise Broken(
                Finding(
                    "wrong",
                    "step",
                    f"step() returned {shown_kind(answer)}, not the five values observation, "
                    "reward, terminated, truncated, info",
                    OLD_API,
                    "return observation, reward, terminated, truncated, info, where terminated "
                    "means that the task is over and truncated that time has run out",
                )
            )
        obs, reward, terminated, truncated, info = answer
        return Answer(obs, info, reward, terminated, truncated)

    def close(self) -> None:
        self._call("close", self.env.close)

    def leave(self) -> None:
        """Close it; that this may fail has been seen before."""
        with suppress(Broken):
            self.close()

    def _call(self, name: str, function: Callable[[], Any]) -> Any:
        self._heartbeat.row += 1
        self._heartbeat.call = CALLS.index(name)
        try:
            return function()
        except (BadInput, KeyboardInterrupt):
            raise
        except ModuleNotFoundError as error:
            if name != "__init__":
                raise Broken(self._raised(name, error)) from error
            raise BadInput(f"it needs a module that is not installed ({error})") from None
        except BaseException as error:  # also what other languages throw
            raise Broken(self._raised(name, error)) from error

    def _raised(self, name: str, error: BaseException) -> Finding:
        said = described(error)
        if name == "reset" and isinstance(error, TypeError) and "seed" in str(error):
            return Finding(
                "wrong",
                "reset",
                f"reset(seed=…) raised {said}",
                "every episode is begun with a seed of its own, or no run could be repeated",
                "write def reset(self, *, seed=None, options=None), and in it "
                "super().reset(seed=seed)",
            )
        if name == "close":
            return Finding(
                "risky",
                "close",
                f"close() raised {said}",
                "what it holds may stay open, and every run ends with a warning",
                "let close() succeed whatever state the environment is in",
            )
        if name == "__init__":
            why, fix = "nothing can be trained on it", "mend what it names"
            return Finding("wrong", "make", f"making it raised {said}", why, fix)
        at = f"{AT_STEP}{self.age}, for the action {self._given()}" if name == "step" else ""
        fix = "mend what it names"
        return Finding("wrong", name, f"{name}() raised {said}{at}", ENDS_RUNS, fix)


def described(error: BaseException) -> str:
    """The error in one line, with the last place outside this package that it went through."""
    here = str(Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(here)]
    place = f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""
    return f"{shortened(f'{type(error).__name__}: {error}')}{place}"


def shortened(text: str, most: int = 300) -> str:
    text = printable(text)
    return text if len(text) <= most else f"{text[:most]} …"


def shown_kind(answer: Any) -> str:
    """`a tuple of 4`, `an array of shape (4,)`, `a dict`"""
    if isinstance(answer, tuple):
        return f"a tuple of {len(answer)}"
    if hasattr(answer, "shape"):
        return f"an array of shape {tuple(answer.shape)}"
    return "None" if answer is None else f"a value of type {type(answer).__name__}"
