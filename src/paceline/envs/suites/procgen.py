"""Procgen's sixteen games: `procgen:coinrun`, with `num_levels`, `start_level` and
`distribution_mode` (easy, hard, …) among `--env.kwargs`.

Procgen keeps an episode's last observation to itself and shows the next one's first in its place,
and does not tell a time limit from a real end. So each end counts as a termination, whose
successor has no value, and no row is spent on resetting.
"""

from __future__ import annotations

import sys
import zlib
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
from ..source import Source, meant, refusal, refuse_own, refuse_wrappers

GAMES = (
    *("bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot"),
    *("heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot"),
)
MODES = {
    "easy": GAMES,
    "hard": GAMES,
    "extreme": ("chaser", "dodgeball", "leaper", "starpilot"),
    "memory": ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"),
    "exploration": (
        *("coinrun", "caveflyer", "leaper", "jumper", "maze", "heist", "climber", "ninja"),
    ),
}
"""Which games have them."""
ALL_LEVELS = {"num_levels": 0, "start_level": 0}


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: tuple[str, ...]
) -> Source:
    """A policy that learnt on some levels is evaluated on all, too."""
    refuse_wrappers("procgen", wrappers)
    if name not in GAMES:
        raise BadInput(f"env_id 'procgen:{name}' does not exist; {meant('procgen', name, GAMES)}")
    if time_limit:
        raise BadInput(
            f"env.time_limit is {time_limit}, and procgen: has time limits of its own that can't "
            "be changed; leave it out"
        )
    _library()
    _check(name, kwargs)
    some = kwargs.get("num_levels", 0)
    elsewhere = {"all_levels": kwargs | ALL_LEVELS} if some else {}
    return Source(many=partial(ProcgenBatch, name, kwargs), elsewhere=elsewhere)


def _check(game: str, kwargs: dict[str, Any]) -> None:
    """What the library would end the process for."""
    refuse_own("procgen", kwargs, ("num", "env_name", "rand_seed", "num_threads", "resource_root"))
    for key in (*ALL_LEVELS, "debug_mode"):
        value = kwargs.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            raise BadInput(f"env.kwargs: {key} is {value!r}; write a whole number, 0 or more")
    mode = kwargs.get("distribution_mode", "hard")
    modes = [mode for mode, having in MODES.items() if game in having]
    if mode not in modes:
        raise BadInput(
            f"env.kwargs: distribution_mode is {mode!r}, and {game} has {', '.join(modes)}"
        )


def names() -> list[str]:
    return list(GAMES)


def _library() -> Any:
    """Procgen's gym3 interface. At import it registers with a `gym` that nothing here needs."""
    if (found := sys.modules.get("procgen")) is not None:
        return found
    stand_in = ModuleType("gym"), ModuleType("gym.envs"), ModuleType("gym.envs.registration")
    stand_in[2].register = lambda *_, **__: None  # type: ignore[attr-defined]
    ours = {module.__name__: module for module in stand_in if module.__name__ not in sys.modules}
    sys.modules.update(ours)
    try:
        return import_module("procgen")
    except ImportError as error:
        raise BadInput(
            f"procgen: needs packages that are not installed ({error}); make extras installs them, "
            "as does pip install cffi, then pip install --no-deps procgen-mirror==0.10.7 "
            "gym3==0.3.3 (without --no-deps they would replace numpy by an old one)"
        ) from None
    finally:
        for name in ours:
            sys.modules.pop(name, None)


class ProcgenBatch(Batch):
    ends_show_the_next = True
    resume: Resume = "state"

    def __init__(
        self, game: str, kwargs: dict[str, Any], num_envs: int, seed_of: SeedOf, threads: int
    ) -> None:
        self._game = game
        ours = {"rand_seed": seed_of(0, 0), "num_threads": threads if threads > 1 else 0}
        try:
            self._env = _library().ProcgenGym3Env(num_envs, game, **ours | kwargs)
        except Exception as error:
            raise refusal("procgen", kwargs, error) from None
        self.observation_space: gym.Space[Any] = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(15)
        self._never = np.zeros(num_envs, np.bool_)

    def reset(self) -> Any:
        return self._env.observe()[1]["rgb"]

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array]:
        self._env.act(actions)
        reward, obs, first = self._env.observe()
        return obs["rgb"], reward, first, self._never

    def state(self) -> dict[str, Array]:
        """Of each environment its bytes, behind their number."""
        found = self._env.get_state()
        sizes = np.array([len(one) for one in found], np.int64)
        packed = np.frombuffer(b"".join(found), np.uint8).copy()
        return {"sizes": sizes, "bytes": packed, "check": self._checksum(sizes, packed)}

    def _checksum(self, sizes: Array, packed: Array) -> Array:
        """The library ends the process for a state that is not its own, or another game's."""
        whole = self._game.encode() + sizes.tobytes() + packed.tobytes()
        return np.array(zlib.crc32(whole), np.int64)

    def restore(self, state: dict[str, Array]) -> None:
        try:
            sizes, packed, check = state["sizes"], state["bytes"], state["check"]
        except KeyError as error:
            raise ValueError(f"the state lacks {error}") from None
        shapes = (sizes.shape, packed.ndim, check.shape) == (self._never.shape, 1, ())
        kinds = sizes.dtype == np.int64 and packed.dtype == np.uint8
        if not (shapes and kinds) or check != self._checksum(sizes, packed):
            raise ValueError(f"it is damaged, or not of as many environments of {self._game}")
        pieces = np.split(packed, np.cumsum(sizes)[:-1])
        self._env.set_state([piece.tobytes() for piece in pieces])

    def close(self) -> None:
        self._env.close()
