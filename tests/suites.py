"""The environment suites as anyone else steps them: oracles for tests, made without Paceline.

B = columns. An oracle's row is what a rollout should hold: observations [B, ...] as stored, then
rewards, terminated, truncated, valid and first, each [B].
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from paceline.envs.columns import episode_seed
from paceline.envs.suites.atari import SEED_EVERY


class Episodic:
    """Columns that are given a seed for each episode, and reset in a row of its own."""

    def __init__(self, columns, seed, first_column, action=None):
        self.action = action or (lambda drawn: drawn)
        self.seed, self.first_column = seed, first_column
        self.episode, self.ended = [0] * columns, [False] * columns

    def seed_of(self, i):
        return episode_seed(self.seed, self.first_column + i, self.episode[i])

    def reset(self):
        return np.stack([self.begin(i) for i in range(len(self.ended))])

    def step(self, drawn):
        rows = []
        for i, action in enumerate(self.action(drawn)):
            if self.ended[i]:
                self.episode[i] += 1
                self.ended[i] = False
                rows.append((self.begin(i), 0.0, False, False, False, True))
            else:
                obs, reward, terminated, truncated = self.advance(i, action)
                self.ended[i] = bool(terminated or truncated)
                rows.append((obs, reward, terminated, truncated, True, False))
        return tuple(np.array(part) for part in zip(*rows, strict=True))


class Singles(Episodic):
    """Plain Gymnasium environments."""

    def __init__(self, make, columns, seed, first_column, action=None, show=np.asarray):
        super().__init__(columns, seed, first_column, action)
        self.show, self.envs = show, [make() for _ in range(columns)]

    def begin(self, i):
        return self.show(self.envs[i].reset(seed=self.seed_of(i))[0])

    def advance(self, i, action):
        obs, reward, terminated, truncated, _ = self.envs[i].step(action)
        return self.show(obs), reward, terminated, truncated

    def close(self):
        for env in self.envs:
            env.close()


class Fresh(Singles):
    """A new one for every episode, where they keep something of the last."""

    def __init__(self, make, *arguments, **options):
        super().__init__(make, *arguments, **options)
        self._make = make

    def begin(self, i):
        self.envs[i].close()
        self.envs[i] = self._make()
        return super().begin(i)


class Ale(Episodic):
    """A vector environment of ALE's with one game each, so that none can disturb another.

    The first of `generation` episodes is given a seed, and those after it follow by themselves.
    """

    def __init__(self, game, options, columns, seed, first_column, generation=SEED_EVERY):
        from ale_py.vector_env import AtariVectorEnv

        super().__init__(columns, seed, first_column)
        self.generation = generation
        ours = {"stack_num": 1, "reward_clipping": False, "num_threads": 1}
        self.envs = [AtariVectorEnv(game, 1, **ours | options) for _ in range(columns)]

    def begin(self, i):
        if self.episode[i] % self.generation:
            return self.advance(i, 0)[0]
        obs, _ = self.envs[i].reset(seed=np.array([self.seed_of(i)]))
        return obs[0, 0].copy()

    def advance(self, i, action):
        obs, reward, terminated, truncated, _ = self.envs[i].step(np.array([action]))
        return obs[0, 0].copy(), reward[0], terminated[0], truncated[0]

    def close(self):
        self.envs = []


class Gym3:
    """Procgen by gym3, whose last observation of an episode is the next one's first."""

    def __init__(self, game, options, columns, seed, first_column):
        from paceline.envs.suites.procgen import (
            import_procgen,  # the import needs a trick, and nothing else
        )

        seed = episode_seed(seed, first_column, 0)
        self.env = import_procgen().ProcgenGym3Env(
            columns, game, rand_seed=seed, num_threads=0, **options
        )

    def reset(self):
        reward, obs, first = self.env.observe()
        assert first.all() and not reward.any()
        return obs["rgb"].copy()

    def step(self, drawn):
        self.env.act(drawn)
        reward, obs, first = self.env.observe()
        never = np.zeros(len(first), bool)
        return obs["rgb"].copy(), reward.copy(), first.copy(), never, ~never, first.copy()

    def close(self):
        self.env.close()


class Pool:
    """EnvPool, which resets in the row after an episode's end by itself."""

    def __init__(self, task, options, columns, seed, first_column, action=None, show=None):
        import envpool

        seeds = [episode_seed(seed, first_column + i, 0) for i in range(columns)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.env = envpool.make_gymnasium(
                task, num_envs=columns, env_seed=seeds, num_threads=1, **options
            )
        self.show, self.action = show or np.array, action or (lambda drawn: drawn)
        self.ended = np.zeros(columns, bool)

    def reset(self):
        return self.show(self.env.reset()[0])

    def step(self, drawn):
        obs, reward, terminated, truncated, _ = self.env.step(self.action(drawn))
        begun, self.ended = self.ended, terminated | truncated
        assert not reward[begun].any() and not self.ended[begun].any()
        return self.show(obs), reward.copy(), terminated.copy(), truncated.copy(), ~begun, begun

    def close(self):
        self.env.close()


def grid(obs):
    """A MiniGrid observation, or a batch of them, as a vector: direction one-hot, then the grid."""
    direction, image = np.asarray(obs["direction"]), np.asarray(obs["image"])
    lead = direction.shape
    one_hot = (np.arange(4) == direction[..., None]).astype(np.float32)
    return np.concatenate([one_hot, image.reshape(*lead, -1).astype(np.float32)], -1)


def clipped(bound=1.0, dtype=np.float32):
    """Actions of a Box from -bound to bound, which a policy draws around [-1, 1]."""
    return lambda drawn: np.clip(drawn * dtype(bound), -bound, bound).astype(dtype)


def registered(name, **options):
    """Gymnasium's own, through its own wrappers."""
    return lambda: gym.make(name, **options)


def mini(name, **options):
    def make():
        import minigrid  # noqa: F401  registers them

        return gym.make(name, **options)

    return make


@dataclass(frozen=True)
class Case:
    """An environment, what it should look like, and how anyone else steps it."""

    env_id: str
    oracle: Callable[..., Any]
    """(columns, seed, first_column) → one of those above"""
    obs: tuple[tuple[int, ...], Any]
    """shape and dtype of one observation, as stored"""
    action: tuple[str, int]
    """kind and number of actions"""
    package: str = "gymnasium"
    options: dict[str, Any] = field(default_factory=dict)
    steps: int = 40
    """of each rollout"""
    ends: tuple[str, ...] = ()
    """how its episodes end within a few rollouts"""
    stack: int = 1
    resume: str = "replay"
    slow: bool = False

    @property
    def batched(self):
        return self.package in ("ale_py", "procgen", "envpool")

    @property
    def one_by_one(self):
        """Whether each column has seeds of its own."""
        return self.package != "procgen"


def _pong(**options):
    return {
        "obs": ((84, 84), np.uint8),
        "package": "ale_py",
        "stack": 4,
        **options,
    }


def _procgen(game, ends=("terminated",), steps=80, **kwargs):
    return Case(
        f"procgen:{game}",
        partial(Gym3, game, kwargs),
        ((64, 64, 3), np.uint8),
        ("discrete", 15),
        "procgen",
        {"kwargs": kwargs},
        steps=steps,
        ends=ends,
        resume="state",
    )


_POOL = {"package": "envpool", "resume": "none"}
_GRID = (((151,), np.float32), ("discrete", 7))

CASES = {
    "CartPole": Case(
        "CartPole-v1",
        partial(Singles, registered("CartPole-v1")),
        ((4,), np.float32),
        ("discrete", 2),
        ends=("terminated",),
    ),
    "CartPole-limited": Case(
        "CartPole-v1",
        partial(Singles, registered("CartPole-v1", max_episode_steps=15)),
        ((4,), np.float32),
        ("discrete", 2),
        options={"time_limit": 15},
        ends=("terminated", "truncated"),
    ),
    "Pendulum": Case(
        "Pendulum-v1",
        partial(Singles, registered("Pendulum-v1"), action=clipped(2.0)),
        ((3,), np.float32),
        ("box", 1),
        steps=60,
        ends=("truncated",),
    ),
    "LunarLander": Case(
        "LunarLander-v3",
        partial(Singles, registered("LunarLander-v3")),
        ((8,), np.float32),
        ("discrete", 4),
        "Box2D",
        ends=("terminated",),
    ),
    "BipedalWalker": Case(
        "BipedalWalker-v3",
        partial(Fresh, registered("BipedalWalker-v3", max_episode_steps=60), action=clipped()),
        ((24,), np.float32),
        ("box", 4),
        "Box2D",
        {"time_limit": 60},
        ends=("terminated", "truncated"),
    ),
    "HalfCheetah": Case(
        "HalfCheetah-v5",
        partial(Singles, registered("HalfCheetah-v5", max_episode_steps=25), action=clipped()),
        ((17,), np.float32),
        ("box", 6),
        "mujoco",
        {"time_limit": 25},
        ends=("truncated",),
    ),
    "Hopper": Case(
        "Hopper-v5",
        partial(Singles, registered("Hopper-v5", max_episode_steps=20), action=clipped()),
        ((11,), np.float32),
        ("box", 3),
        "mujoco",
        {"kwargs": {"max_episode_steps": 20}},
        ends=("terminated", "truncated"),
    ),
    "atari Pong": Case(
        "atari:Pong",
        partial(Ale, "pong", {"max_num_frames_per_episode": 4 * 35}),
        action=("discrete", 6),
        options={"time_limit": 35},
        steps=25,
        ends=("truncated",),
        **_pong(),
    ),
    "atari Breakout": Case(
        "atari:Breakout",
        partial(Ale, "breakout", {}),
        action=("discrete", 4),
        steps=120,
        ends=("terminated",),
        **_pong(),
    ),
    "atari generations": Case(
        "atari:SpaceInvaders",
        partial(Ale, "space_invaders", {"max_num_frames_per_episode": 4 * 2}),
        action=("discrete", 6),
        options={"time_limit": 2},
        steps=28,
        ends=("truncated",),
        **_pong(),
    ),
    "atari Breakout lives": Case(
        "atari:Breakout",
        partial(
            Ale,
            "breakout",
            {"episodic_life": True, "repeat_action_probability": 0.25},
            generation=1,  # with actions that stick, an episode is not its beginning's alone
        ),
        action=("discrete", 4),
        options={"kwargs": {"episodic_life": True, "repeat_action_probability": 0.25}},
        steps=30,
        ends=("terminated",),
        **_pong(),
    ),
    "procgen coinrun": _procgen("coinrun", steps=120, num_levels=50, distribution_mode="easy"),
    "procgen bigfish": _procgen("bigfish"),
    "procgen fruitbot": _procgen("fruitbot", start_level=3, num_levels=2),
    "envpool CartPole": Case(
        "envpool:CartPole-v1",
        partial(Pool, "CartPole-v1", {"max_episode_steps": 15}),
        ((4,), np.float32),
        ("discrete", 2),
        options={"time_limit": 15},
        ends=("terminated", "truncated"),
        **_POOL,
    ),
    "envpool HalfCheetah": Case(
        "envpool:HalfCheetah-v5",
        partial(
            Pool, "HalfCheetah-v5", {"max_episode_steps": 25}, action=clipped(dtype=np.float64)
        ),
        ((17,), np.float32),
        ("box", 6),
        options={"kwargs": {"max_episode_steps": 25}},
        ends=("truncated",),
        **_POOL,
    ),
    "envpool Pong": Case(
        "envpool:Pong-v5",
        partial(
            Pool,
            "Pong-v5",
            {"max_episode_steps": 30, "stack_num": 1},
            show=lambda obs: obs[:, 0].copy(),
        ),
        ((84, 84), np.uint8),
        ("discrete", 6),
        options={"time_limit": 30},
        ends=("truncated",),
        stack=4,
        **_POOL,
    ),
    "envpool MiniGrid": Case(
        "envpool:MiniGrid-DoorKey-5x5-v0",
        partial(Pool, "MiniGrid-DoorKey-5x5-v0", {"max_episode_steps": 30}, show=grid),
        *_GRID,
        options={"time_limit": 30},
        ends=("truncated",),
        **_POOL,
    ),
    "minigrid": Case(
        "minigrid:DoorKey-5x5",
        partial(Singles, mini("MiniGrid-DoorKey-5x5-v0", max_steps=33), show=grid),
        *_GRID,
        "minigrid",
        {"kwargs": {"max_steps": 33}},
        ends=("truncated",),
    ),
    "minigrid limited": Case(
        "minigrid:MiniGrid-Empty-Random-5x5-v0",
        partial(Singles, mini("MiniGrid-Empty-Random-5x5-v0", max_episode_steps=40), show=grid),
        *_GRID,
        "minigrid",
        {"time_limit": 40},
        steps=60,
        ends=("terminated", "truncated"),
    ),
}


def missing(package):
    """A mark that skips, with the reason, where a package is not installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def cases(*names, where=lambda case: True, slow=()):
    """Parameters of a test: all cases, or those named, or those of a kind; some of them slow."""
    return [
        pytest.param(CASES[name], id=name, marks=marks(CASES[name], name in slow))
        for name in names or CASES
        if where(CASES[name])
    ]


def marks(case, slow):
    return [missing(case.package), *([pytest.mark.slow] if case.slow or slow else [])]
