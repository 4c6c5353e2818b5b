"""The environment under examination: made as a run makes it, its calls watched and checked."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym

from ...config.text import printable
from ...envs.env_columns import EnvColumns
from ...envs.native import NativeColumns
from ...envs.source import single_agent_columns, source_of
from ...errors import BadInput
from ..findings import Finding
from .compare import brief
from .request import CALLS, CallHeartbeat, Request
from .rules import RULES


class CallFailed(Exception):
    """The environment raised, or returned something of another form than Gymnasium asks for."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


class EnvFactory:
    """Makes environments by name and options; their calls show in the heartbeat."""

    def __init__(self, request: Request, heartbeat: CallHeartbeat | None = None) -> None:
        self.request = request
        self.heartbeat = heartbeat or CallHeartbeat()
        self._make = source_of(request.env_id, **request.options).one

    @property
    def single(self) -> bool:
        """Whether single environments can be made, rather than only a batch."""
        return self._make is not None

    def make(self) -> tuple[gym.Env[Any, Any], int | None]:
        """An environment, and the time limit to apply from outside, if any."""
        assert self._make is not None, "this suite makes batches only"
        return self._make()

    def columns(self, num_envs: int, seed: int | None = None) -> EnvColumns | NativeColumns:
        """Several environments side by side, as a run steps them."""
        request = self.request
        seed = request.seed if seed is None else seed
        columns = single_agent_columns(request.env_id, num_envs, seed=seed, **request.options)
        columns.heartbeat = self.heartbeat
        return columns


class StepResult(NamedTuple):
    """What reset() or step() returned; after reset() there is no reward and nothing has ended."""

    obs: Any
    info: dict[str, Any]
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False


class CheckedEnv:
    """One environment; a call that fails raises `CallFailed` with the finding."""

    def __init__(self, factory: EnvFactory) -> None:
        self._heartbeat = factory.heartbeat
        self.env, self.limit = self._call("__init__", factory.make)
        self.age = 0
        """steps since the last reset"""
        self._action: Any = None

    @property
    def time_limit(self) -> int | None:
        """From outside, or of a wrapper that Gymnasium has put around it."""
        if self.limit is not None:
            return self.limit
        declared = getattr(getattr(self.env, "spec", None), "max_episode_steps", None)
        return declared if declared and declared > 0 else None

    def reset(self, seed: int | None) -> StepResult:
        self.age = 0
        result = self._call("reset", lambda: self.env.reset(seed=seed))
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise CallFailed(RULES.found("reset-form", value=describe_type(result)))
        return StepResult(*result)

    def step(self, action: Any) -> StepResult:
        self.age += 1
        self._action = action
        result = self._call("step", lambda: self.env.step(action))
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)):
            raise CallFailed(RULES.found("step-form", value=describe_type(result)))
        obs, reward, terminated, truncated, info = result
        return StepResult(obs, info, reward, terminated, truncated)

    def close(self) -> None:
        self._call("close", self.env.close)

    def discard(self) -> None:
        """Close it; whether that fails is found elsewhere."""
        with suppress(CallFailed):
            self.close()

    def _call(self, name: str, function: Callable[[], Any]) -> Any:
        self._heartbeat.row += 1
        self._heartbeat.call = CALLS.index(name)
        try:
            return function()
        except (BadInput, KeyboardInterrupt):
            raise
        except BaseException as error:  # also SystemExit, and exceptions of other languages
            if name == "__init__" and isinstance(error, ModuleNotFoundError):
                raise BadInput(f"it needs a module that is not installed ({error})") from None
            raise CallFailed(self._raised(name, error)) from error

    def _raised(self, name: str, error: BaseException) -> Finding:
        text = describe_error(error)
        if name == "step":
            facts = {"step": self.age, "action": brief(self._action)}
            return RULES.found("step-raises", error=text, **facts)
        if name == "reset" and isinstance(error, TypeError) and "seed" in str(error):
            return RULES.found("reset-seed", error=text)
        return RULES.found(f"{'make' if name == '__init__' else name}-raises", error=text)


def describe_error(error: BaseException) -> str:
    """The error in one line, with the last line of code outside this package."""
    here = str(Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(here)]
    place = f" ({outside[-1].filename}:{outside[-1].lineno})" if outside else ""
    text = printable(f"{type(error).__name__}: {error}")
    return f"{text if len(text) <= 300 else f'{text[:300]} …'}{place}"


def describe_type(value: Any) -> str:
    """`a tuple of 4`, `an array of shape (4,)`, `a value of type dict`"""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"
