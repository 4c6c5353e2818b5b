"""The environment under examination: made as a run makes it, its calls watched and checked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy as np

from ...config.text import printable
from ...envs.adapters import ObservationAdapter
from ...envs.env_columns import EnvColumns
from ...envs.guards import describe
from ...envs.native import NativeColumns
from ...envs.source import single_agent_columns, source_of
from ...envs.spaces import ACTION_MASK
from ...errors import BadInput
from ...processes.heartbeat import Heartbeat
from ...rollout import Rollout
from ..findings import Finding
from .compare import StepResult, brief
from .rules import found

CALLS = ("import", "__init__", "reset", "step", "close", "measure")
"""What an environment's process may be doing."""
MAX_ERROR = 400
"""Letters of an error that are shown."""
SHOWS_NEXT = "paceline_shows_next"
"""In the info of a last step that shows the first observation of the next episode."""


class CallHeartbeat(Heartbeat):
    """With the index, in `CALLS`, of the call that is going on."""

    _fields_: ClassVar[Any] = (("call", ctypes.c_int64),)
    call: int


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `paceline check` is asked for."""

    env_id: Any
    """a name; within one process also a callable"""
    options: dict[str, Any] = field(default_factory=dict)
    """of `source_of`: kwargs, time_limit, wrappers"""
    seed: int = 0
    seconds: float = 3.0
    """that the measurement takes, and about what each check may take"""
    timeout: float = 60.0
    """seconds after which a call that has not returned is a hang"""
    replay: int = 0
    """results of the reference to play again in the measuring process; 0 for none"""


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
        return (BatchOfOne(self), None) if self._make is None else self._make()

    def columns(self, num_envs: int, seed: int | None = None) -> EnvColumns | NativeColumns:
        """Several environments side by side, as a run steps them."""
        request = self.request
        seed = request.seed if seed is None else seed
        columns = single_agent_columns(request.env_id, num_envs, seed=seed, **request.options)
        columns.heartbeat = self.heartbeat
        return columns


class BatchOfOne(gym.Env[Any, Any]):
    """A suite that only makes batches, as one environment: a batch with a single column.

    `reset(seed)` makes a new batch; without a seed the batch goes on with its next episode.
    """

    def __init__(self, factory: EnvFactory) -> None:
        self._factory, self._action = factory, None
        self._unused_seed: int | None = factory.request.seed
        """of a batch whose episodes have not begun"""
        self._columns = columns = factory.columns(1, self._unused_seed)
        self._out = Rollout.allocate(1, 1, columns.obs_spec.stored, columns.act_spec.stored)
        self._read = ObservationAdapter(columns.obs_spec).read
        self.action_space, self.observation_space = columns.action_space, columns.observation_space
        if isinstance(space := columns.observation_space, gym.spaces.Dict):
            parts = {key: part for key, part in space.items() if key != ACTION_MASK}
            self.observation_space = gym.spaces.Dict(parts)  # a mask is stored apart

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            if seed != self._unused_seed:
                self.close()
                self._columns = self._factory.columns(1, seed)
            self._unused_seed = None
            self._columns.reset(self._out.obs[-1])
        elif not self._out.first[-1]:
            self._next_row()  # which only resets
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        out, self._action = self._out, action
        self._next_row()
        terminated, truncated = bool(out.terminated[0, 0]), bool(out.truncated[0, 0])
        obs, info = self._seen()
        if (terminated or truncated) and out.first[-1]:
            info[SHOWS_NEXT] = True
        return obs, float(out.reward[0, 0]), terminated, truncated, info

    def close(self) -> None:
        self._columns.close()

    def _next_row(self) -> None:
        self._out.start_next()
        actions: Any = np.asarray(self._action)[None]
        self._columns.step(0, actions, self._out)

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        """Observation and info."""
        obs, spec = self._out.obs[-1], self._columns.obs_spec
        info = {ACTION_MASK: spec.split(obs)["mask"][0].copy()} if spec.mask else {}
        return _first_row(self._read(obs)), info


def _first_row(batched: Any) -> Any:
    """Of the arrays in a structure of them."""
    if isinstance(batched, dict):
        return {key: _first_row(part) for key, part in batched.items()}
    if isinstance(batched, tuple):
        return tuple(map(_first_row, batched))
    return batched[0]


class CheckedEnv:
    """One environment; a call that fails raises `CallFailed` with the finding."""

    def __init__(self, factory: EnvFactory) -> None:
        self._heartbeat, self.single = factory.heartbeat, factory.single
        self.env, self.limit = self._call("__init__", factory.make)
        self.age = 0
        """steps since the last reset"""
        self._action: Any = None

    @property
    def time_limit(self) -> int | None:
        """From outside, or of a wrapper that Gymnasium has put around it."""
        declared = getattr(getattr(self.env, "spec", None), "max_episode_steps", None)
        return self.limit or (declared if declared and declared > 0 else None)

    def reset(self, seed: int | None) -> StepResult:
        self.age = 0
        result = self._call("reset", lambda: self.env.reset(seed=seed))
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise CallFailed(found("reset-form", value=describe_type(result)))
        return StepResult(*result, first=True)

    def step(self, action: Any) -> StepResult:
        self.age += 1
        self._action = action
        result = self._call("step", lambda: self.env.step(action))
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)):
            raise CallFailed(found("step-form", value=describe_type(result)))
        obs, reward, terminated, truncated, info = result
        return StepResult(obs, info, reward, terminated, truncated)

    def close(self) -> None:
        self._call("close", self.env.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

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
        text = printable(describe(error))
        text = text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} …"
        if name == "step":
            return found("step-raises", error=text, step=self.age, action=brief(self._action))
        if name == "reset" and isinstance(error, TypeError) and "seed" in str(error):
            return found("reset-seed", error=text)
        return found(f"{'make' if name == '__init__' else name}-raises", error=text)


def describe_type(value: Any) -> str:
    """`a tuple of 4`, `an array of shape (4,)`, `a value of type dict`"""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    return f"a value of type {type(value).__name__}"
