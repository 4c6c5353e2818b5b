"""Atari 2600 by ALE's own vector environment: `atari:Pong`, `atari:MsPacman`.

84 × 84 pixels in grey, every fourth frame, the brighter of the last two; up to 30 idle frames at
an episode's start (Mnih 2015). Rewards are the game's: what a learner makes of them is its own
affair (`clip_reward`). An episode is a whole game, not a life (Machado 2018).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from ...errors import BadInput
from ...rollout import Array
from ..columns import Resume
from ..native import Batch, SeedOf
from ..source import Source, meant, needed, refusal, refuse_own, refuse_wrappers

GENERATION = 32
LEAVING = (
    *("hangman", "haunted_house", "ice_hockey", "sir_lancelot", "surround", "time_pilot"),
    "yars_revenge",
)
"""Games in which a reset leaves something of the episode before: a test of all games finds them."""
FOR_TWO = ("combat", "joust", "maze_craze", "warlords")
"""Which ALE has, and ends the process over."""


def environment(
    name: str, kwargs: dict[str, Any], time_limit: int | None, wrappers: tuple[str, ...]
) -> Source:
    """`name` is a game as ALE/Pong-v5 spells it, or as its ROM does; a time limit counts steps."""
    refuse_wrappers("atari", wrappers)
    refuse_own("atari", kwargs, ("num_envs", "batch_size", "num_threads", "autoreset_mode"))
    if "life_loss_info" in kwargs:
        raise BadInput(
            "env.kwargs has life_loss_info, with which ALE tells of ends that are none; leave it "
            "out, or write episodic_life for episodes of one life"
        )
    games = {_plain(game): game for game in _games()}
    game = games.get(_plain(name))
    if game is None:
        raise BadInput(
            f"env_id 'atari:{name}' is not a game of ALE's; {meant('atari', name, names())}"
        )
    options = dict(kwargs)
    skip = options.get("frameskip", 4)  # as is ALE's own
    if time_limit and isinstance(skip, int):  # ALE refuses others
        options["max_num_frames_per_episode"] = time_limit * skip
    stack = 1 if "stack_num" in options else 4
    return Source(many=partial(AtariBatch, game, options), stack=stack)


def names() -> list[str]:
    """Of all games, as ALE/Pong-v5 spells them."""
    return ["".join(part.capitalize() for part in game.split("_")) for game in _games()]


def _plain(name: str) -> str:
    """What a game's spellings have in common."""
    return name.replace("_", "").lower()


def _games() -> list[str]:
    """As their ROMs are called."""
    needed("ale_py", "atari")
    from ale_py import roms

    return sorted(set(roms.get_all_rom_ids()) - set(FOR_TWO))


class AtariBatch(Batch):
    """An episode follows from its column's seed and its number, so that it can be replayed.

    A seed loads the game anew, which takes as long as two hundred steps. It is therefore given to
    one episode in `GENERATION`; those between it and the next only draw how long they are idle at
    their start, and are reached again by as many resets.
    """

    resume: Resume = "replay"

    def __init__(
        self, game: str, options: dict[str, Any], num_envs: int, seed_of: SeedOf, threads: int
    ) -> None:
        from ale_py.vector_env import AtariVectorEnv

        ours = {"stack_num": 1, "reward_clipping": False, "num_threads": threads}
        try:
            self._env = AtariVectorEnv(game, num_envs, **ours | options)
        except (TypeError, ValueError, gym.error.Error) as error:
            raise refusal("atari", options, error) from None
        stack, *shape = self._env.single_observation_space.shape or ()
        self._shape = tuple(shape) if stack == 1 else (stack, *shape)
        self.observation_space: gym.Space[Any] = gym.spaces.Box(0, 255, self._shape, np.uint8)
        self.action_space = self._env.single_action_space
        self._seed_of = seed_of
        # Actions that stick draw random numbers at every step.
        alone = game in LEAVING or options.get("repeat_action_probability")
        self._generation = 1 if alone else GENERATION

    def _plain(self, frames: Array) -> Array:
        return frames.reshape(len(frames), *self._shape)

    def reset(self) -> Any:
        return self._plain(self._env.reset()[0])

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array]:
        frames, reward, terminated, truncated, _ = self._env.step(actions)
        return self._plain(frames), reward, terminated, truncated

    def begin(self, which: Array, episodes: Array, turned: bool) -> Any:
        age = episodes % self._generation
        if turned:
            which = which & (age == 0)
            return self._seeded(which, episodes) if which.any() else None
        found = self._seeded(which, episodes - age)
        for number in range(1, int(age[which].max()) + 1):
            options = {"reset_mask": which & (age >= number)}
            found = self._env.reset(options=options)[0]
        return self._plain(found)

    def _seeded(self, which: Array, episodes: Array) -> Any:
        seeds = [self._seed_of(i, int(episodes[i])) for i in np.flatnonzero(which).tolist()]
        options = {"reset_mask": which}
        return self._plain(self._env.reset(seed=np.array(seeds), options=options)[0])

    def close(self) -> None:
        self.__dict__.pop("_env", None)  # its threads end with it, not with its close()
