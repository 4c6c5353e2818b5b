"""Procgen's sixteen games: `procgen:coinrun`, with `num_levels`, `start_level` and
`distribution_mode` (easy, hard, …) among `--env.kwargs`.

Procgen resets within the last step of an episode, hides its final observation, and does not
distinguish time limits. So every end counts as a termination, whose successor has no value.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np

from ...errors import BadInput
from ...rollout import Array
from ..columns import Resume
from ..native import Batch, SeedOf
from ..source import Source, Wrappers
from . import check_batch_options, rejected_kwargs, unknown_name

GAMES = (
    "bigfish bossfight caveflyer chaser climber coinrun dodgeball fruitbot heist jumper leaper "
    "maze miner ninja plunder starpilot"
)
MODES = {
    "easy": GAMES,
    "hard": GAMES,
    "extreme": "chaser dodgeball leaper starpilot",
    "memory": "caveflyer dodgeball heist jumper maze miner",
    "exploration": "coinrun caveflyer leaper jumper maze heist climber ninja",
}
"""Which games have which `distribution_mode`."""
ALL_LEVELS = {"num_levels": 0, "start_level": 0}
RESERVED = ("num", "env_name", "rand_seed", "num_threads", "resource_root")


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: Wrappers
) -> Source:
    """A policy that was trained on some of the levels is evaluated on all levels too."""
    check_batch_options("procgen", kwargs, RESERVED, wrappers)
    if name not in names():
        raise unknown_name("procgen", name, names())
    if time_limit:
        raise BadInput(
            f"env.time_limit is {time_limit}, and procgen: has time limits of its own that can't "
            "be changed; leave it out"
        )
    import_procgen()
    _check_kwargs(name, kwargs)
    elsewhere = {"all_levels": kwargs | ALL_LEVELS} if kwargs.get("num_levels", 0) else {}
    return Source(many=partial(ProcgenBatch, name, kwargs), elsewhere=elsewhere)


def _check_kwargs(game: str, kwargs: dict[str, Any]) -> None:
    """Refuse values for which the library would end the process."""
    for key in (*ALL_LEVELS, "debug_mode"):
        value = kwargs.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            raise BadInput(f"env.kwargs: {key} is {value!r}; write a whole number, 0 or more")
    mode = kwargs.get("distribution_mode", "hard")
    modes = [mode for mode, games in MODES.items() if game in games.split()]
    if mode not in modes:
        raise BadInput(
            f"env.kwargs: distribution_mode is {mode!r}, and {game} has {', '.join(modes)}"
        )


def names() -> list[str]:
    return GAMES.split()


def import_procgen() -> Any:
    """The package, without `gym`: it only registers itself there when it is imported."""
    if (imported := sys.modules.get("procgen")) is not None:
        return imported
    names = ("gym", "gym.envs", "gym.envs.registration")
    stubs = {name: ModuleType(name) for name in names if name not in sys.modules}
    if names[2] in stubs:
        stubs[names[2]].register = lambda *_, **__: None  # type: ignore[attr-defined]
    sys.modules.update(stubs)
    try:
        return import_module("procgen")
    except ImportError as error:
        raise BadInput(
            f"procgen: needs packages that are not installed ({error}); make extras installs them, "
            "as does pip install cffi, then pip install --no-deps procgen-mirror==0.10.7 "
            "gym3==0.3.3 (without --no-deps they would replace numpy by an old one)"
        ) from None
    finally:
        for name in stubs:
            sys.modules.pop(name, None)


class ProcgenBatch(Batch):
    same_step_autoreset = True
    resume: Resume = "state"

    def __init__(
        self, game: str, kwargs: dict[str, Any], num_envs: int, seed_of: SeedOf, threads: int
    ) -> None:
        self._game = game
        defaults = {"rand_seed": seed_of(0, 0), "num_threads": threads if threads > 1 else 0}
        try:
            self._env = import_procgen().ProcgenGym3Env(num_envs, game, **defaults | kwargs)
        except Exception as error:
            raise rejected_kwargs("procgen:", kwargs, error) from None
        self.observation_space: gym.Space[Any] = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(15)
        self._truncated = np.zeros(num_envs, np.bool_)

    def reset(self) -> Any:
        return self._env.observe()[1]["rgb"]

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array]:
        self._env.act(actions)
        reward, obs, first = self._env.observe()
        return obs["rgb"], reward, first, self._truncated

    def info(self, i: int) -> Mapping[str, Any]:
        """Whether the level that was just left was completed; seeds of levels are left out."""
        return {"prev_level_complete": self._env.get_info()[i]["prev_level_complete"]}

    def state(self) -> dict[str, Array]:
        """The bytes of all environments one after the other, how many each has, and a checksum."""
        states = self._env.get_state()
        sizes = np.array([len(one) for one in states], np.int64)
        packed = np.frombuffer(b"".join(states), np.uint8).copy()
        return {"sizes": sizes, "bytes": packed, "check": self._checksum(sizes, packed)}

    def _checksum(self, sizes: Array, packed: Array) -> Array:
        """For a state that is damaged or another game's, the library would end the process."""
        whole = self._game.encode() + sizes.tobytes() + packed.tobytes()
        return np.array(zlib.crc32(whole), np.int64)

    def restore(self, state: dict[str, Array]) -> None:
        try:
            sizes, packed, check = state["sizes"], state["bytes"], state["check"]
        except KeyError as error:
            raise ValueError(f"the state lacks {error}") from None
        shapes = (sizes.shape, packed.ndim, check.shape) == (self._truncated.shape, 1, ())
        dtypes = sizes.dtype == np.int64 and packed.dtype == np.uint8
        if not (shapes and dtypes) or check != self._checksum(sizes, packed):
            raise ValueError(f"it is damaged, or not of as many environments of {self._game}")
        pieces = np.split(packed, np.cumsum(sizes)[:-1])
        self._env.set_state([piece.tobytes() for piece in pieces])

    def close(self) -> None:
        self._env.close()
