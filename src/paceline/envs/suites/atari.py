"""Atari 2600 by ALE's vector environment: `atari:Pong`, `atari:MsPacman`.

84 × 84 gray pixels, the maximum of the last two of every four frames, and up to 30 no-op frames at
the start of an episode (Mnih 2015). Rewards are the game's score; clipping them is the learner's
option (`clip_reward`). An episode is a whole game, not a life (Machado 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from ...errors import BadInput
from ...rollout import Array
from ..columns import Resume
from ..native import Batch, SeedOf
from ..source import Source, Wrappers
from . import check_batch_options, rejected_kwargs, require, unknown_name

SEED_EVERY = 32
"""Episodes of a column from one seed to the next, see `AtariBatch`."""
STATE_SURVIVES_RESET = (
    "hangman haunted_house ice_hockey sir_lancelot surround time_pilot yars_revenge"
)
"""Games in which a plain reset keeps something of the last episode; a test of all finds them."""
TWO_PLAYERS = ("combat", "joust", "maze_craze", "warlords")
"""ALE ships these ROMs, and ends the process when one is loaded."""
RESERVED = ("num_envs", "batch_size", "num_threads", "autoreset_mode")


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: Wrappers
) -> Source:
    """`name` is spelled as in ALE/Pong-v5 or as the ROM; a time limit counts steps, not frames."""
    check_batch_options("atari", kwargs, RESERVED, wrappers)
    if "life_loss_info" in kwargs:
        raise BadInput(
            "env.kwargs has life_loss_info, with which ALE reports the loss of a life as an end; "
            "leave it out, or write episodic_life for episodes of one life"
        )
    game = {_normalized(rom): rom for rom in _roms()}.get(_normalized(name))
    if game is None:
        raise unknown_name("atari", name, names())
    options = dict(kwargs)
    skip = options.get("frameskip", 4)  # ALE's default
    if time_limit and isinstance(skip, int):  # ALE refuses other types
        options["max_num_frames_per_episode"] = time_limit * skip
    stack = 1 if "stack_num" in options else 4
    return Source(many=partial(AtariBatch, game, options), stack=stack)


def names() -> list[str]:
    """All games, spelled as in ALE/Pong-v5."""
    return ["".join(part.capitalize() for part in rom.split("_")) for rom in _roms()]


def _normalized(name: str) -> str:
    return name.replace("_", "").lower()


def _roms() -> list[str]:
    require("ale_py", "atari")
    from ale_py import roms

    return sorted(set(roms.get_all_rom_ids()) - set(TWO_PLAYERS))


class AtariBatch(Batch):
    """An episode follows from its column's seed and its number, so that it can be replayed.

    Seeding loads the ROM anew, which takes as long as 200 steps. So only one episode in SEED_EVERY
    is seeded. Those in between differ in nothing but their no-op frames, and are reached again by
    as many plain resets.
    """

    resume: Resume = "replay"

    def __init__(
        self, game: str, options: dict[str, Any], num_envs: int, seed_of: SeedOf, threads: int
    ) -> None:
        from ale_py.vector_env import AtariVectorEnv

        defaults = {"stack_num": 1, "reward_clipping": False, "num_threads": threads}
        try:
            self._env = AtariVectorEnv(game, num_envs, **defaults | options)
        except (TypeError, ValueError, gym.error.Error) as error:
            raise rejected_kwargs("atari:", options, error) from None
        stack, *shape = self._env.single_observation_space.shape or ()
        self._shape = tuple(shape) if stack == 1 else (stack, *shape)
        self.observation_space: gym.Space[Any] = gym.spaces.Box(0, 255, self._shape, np.uint8)
        self.action_space = self._env.single_action_space
        self._seed_of = seed_of
        # Sticky actions draw random numbers at every step, so each episode needs its own seed.
        every = game in STATE_SURVIVES_RESET.split() or options.get("repeat_action_probability")
        self._seed_every = 1 if every else SEED_EVERY

    def _frames(self, stacks: Array) -> Array:
        """Without the axis of a stack of one."""
        return stacks.reshape(len(stacks), *self._shape)

    def reset(self) -> Any:
        return self._frames(self._env.reset()[0])

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array]:
        stacks, reward, terminated, truncated, self._infos = self._env.step(actions)
        return self._frames(stacks), reward, terminated, truncated

    def info(self, i: int) -> Mapping[str, Any]:
        return {key: values[i] for key, values in self._infos.items()}

    def begin(self, which: Array, episodes: Array, autoreset: bool) -> Any:
        resets = episodes % self._seed_every
        if autoreset:
            which = which & (resets == 0)
            return self._seeded_reset(which, episodes) if which.any() else None
        obs = self._seeded_reset(which, episodes - resets)
        for number in range(1, int(resets[which].max()) + 1):
            mask = which & (resets >= number)
            obs = self._frames(self._env.reset(options={"reset_mask": mask})[0])
        return obs

    def _seeded_reset(self, which: Array, episodes: Array) -> Any:
        seeds = [self._seed_of(i, int(episodes[i])) for i in np.flatnonzero(which).tolist()]
        options = {"reset_mask": which}
        return self._frames(self._env.reset(seed=np.array(seeds), options=options)[0])

    def close(self) -> None:
        self.__dict__.pop("_env", None)  # its threads end with the object, not with its close()
