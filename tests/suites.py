"""Oracles for tests: the environment suites stepped without Paceline. B = columns.

`step` returns what a row of a rollout should hold: observations [B, ...] as stored, then rewards,
terminated, truncated, valid and first, each [B].
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
    """Every episode has a seed and is begun in a row of its own."""

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
    """Plain Gymnasium environments; `fresh`, a new one for every episode, where a reset keeps
    something of the last."""

    def __init__(
        self, make, columns, seed, first_column, action=None, show=np.asarray, fresh=False
    ):
        super().__init__(columns, seed, first_column, action)
        self.make, self.show, self.fresh = make, show, fresh
        self.envs = [make() for _ in range(columns)]

    def begin(self, i):
        if self.fresh:
            self.envs[i].close()
            self.envs[i] = self.make()
        return self.show(self.envs[i].reset(seed=self.seed_of(i))[0])

    def advance(self, i, action):
        obs, reward, terminated, truncated, _ = self.envs[i].step(action)
        return self.show(obs), reward, terminated, truncated

    def close(self):
        for env in self.envs:
            env.close()


class Ale(Episodic):
    """ALE's vector environment with one game each, so that none can disturb another.

    One episode in `seed_every` is seeded.
    """

    def __init__(self, game, options, columns, seed, first_column, seed_every=SEED_EVERY):
        from ale_py.vector_env import AtariVectorEnv

        super().__init__(columns, seed, first_column)
        self.seed_every = seed_every
        ours = {"stack_num": 1, "reward_clipping": False, "num_threads": 1}
        self.envs = [AtariVectorEnv(game, 1, **ours | options) for _ in range(columns)]

    def begin(self, i):
        if self.episode[i] % self.seed_every:
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
        from paceline.envs.suites.procgen import import_procgen

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


class Batched:
    """A vector environment, which resets in the row after an episode's end by itself."""

    def __init__(self, env, columns, action=None, show=np.array, seed=None):
        self.env, self.show, self.action = env, show, action or (lambda drawn: drawn)
        self.ended, self.seed = np.zeros(columns, bool), seed

    def reset(self):
        return self.show(self.env.reset(seed=self.seed)[0])

    def step(self, drawn):
        obs, reward, terminated, truncated, _ = self.env.step(self.action(drawn))
        begun, self.ended = self.ended, terminated | truncated
        assert not reward[begun].any() and not self.ended[begun].any()
        return self.show(obs), reward.copy(), terminated.copy(), truncated.copy(), ~begun, begun

    def close(self):
        self.env.close()


def vector(env_id, options, columns, seed, first_column):
    """Gymnasium's own vector environment, with one seed for all columns."""
    env = gym.make_vec(env_id, columns, vectorization_mode="vector_entry_point", **options)
    return Batched(env, columns, seed=episode_seed(seed, first_column, 0))


def pool(task, options, columns, seed, first_column, **more):
    """EnvPool, seeded when it is made."""
    import envpool

    seeds = [episode_seed(seed, first_column + i, 0) for i in range(columns)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = envpool.make_gymnasium(
            task, num_envs=columns, env_seed=seeds, num_threads=1, **options
        )
    return Batched(env, columns, **more)


def grid(obs):
    """A MiniGrid observation, or a batch of them, as a vector: direction one-hot, then the grid."""
    direction, image = np.asarray(obs["direction"]), np.asarray(obs["image"])
    lead = direction.shape
    one_hot = (np.arange(4) == direction[..., None]).astype(np.float32)
    return np.concatenate([one_hot, image.reshape(*lead, -1).astype(np.float32)], -1)


def clipped(bound=1.0, dtype=np.float32):
    """Actions of a Box from -bound to bound, which a policy draws around [-1, 1]."""
    return lambda drawn: np.clip(drawn * dtype(bound), -bound, bound).astype(dtype)


@dataclass(frozen=True)
class Case:
    """An environment, its specs, and its oracle."""

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

    @property
    def batched(self):
        return self.package in ("ale_py", "procgen", "envpool")

    @property
    def one_by_one(self):
        """Whether each column has seeds of its own."""
        return self.resume != "state"


DISCRETE2, ENDS = ("discrete", 2), ("terminated", "truncated")


def _single(env_id, size, action, package="gymnasium", limit=None, bound=1.0, fresh=False, **more):
    """One of Gymnasium's own, which the oracle makes with its own wrappers."""
    given = {} if limit is None else {"max_episode_steps": limit}
    adapt = clipped(bound) if action[0] == "box" else None
    oracle = partial(Singles, partial(gym.make, env_id, **given), action=adapt, fresh=fresh)
    more.setdefault("options", {} if limit is None else {"time_limit": limit})
    return Case(env_id, oracle, ((size,), np.float32), action, package, **more)


def _atari(game, actions, limit=None, kwargs=None, seed_every=SEED_EVERY, **more):
    rom, options = game.replace("SpaceI", "Space_I").lower(), dict(kwargs or {})
    if limit:
        options["max_num_frames_per_episode"] = 4 * limit
    return Case(
        f"atari:{game}",
        partial(Ale, rom, options, seed_every=seed_every),
        ((84, 84), np.uint8),
        ("discrete", actions),
        "ale_py",
        {"kwargs": kwargs} if kwargs else {"time_limit": limit},
        stack=4,
        **more,
    )


def _procgen(game, steps=80, **kwargs):
    return Case(
        f"procgen:{game}",
        partial(Gym3, game, kwargs),
        ((64, 64, 3), np.uint8),
        ("discrete", 15),
        "procgen",
        {"kwargs": kwargs},
        steps=steps,
        ends=("terminated",),
        resume="state",
    )


def _pool(task, obs, actions, limit, ends=("truncated",), stack=1, options=None, **oracle):
    given = {"max_episode_steps": limit, **({"stack_num": 1} if stack > 1 else {})}
    return Case(
        f"envpool:{task}",
        partial(pool, task, given, **oracle),
        obs,
        actions,
        "envpool",
        options or {"time_limit": limit},
        ends=ends,
        stack=stack,
        resume="none",
    )


def _minigrid(name, given, options, **more):
    """`given` are the arguments by which the oracle makes it."""

    def make():
        import minigrid  # noqa: F401  registers them

        return gym.make(name if name.startswith("MiniGrid") else f"MiniGrid-{name}-v0", **given)

    oracle = partial(Singles, make, show=grid)
    return Case(f"minigrid:{name}", oracle, *GRID, "minigrid", options, **more)


def _popgym(name, obs, actions, **more):
    def make():
        import popgym  # noqa: F401  registers them

        return gym.make(f"popgym-{name}-v0")

    return Case(f"popgym:{name}", partial(Singles, make), obs, actions, "popgym", **more)


GRID = (((151,), np.float32), ("discrete", 7))
STICKY_LIVES = {"episodic_life": True, "repeat_action_probability": 0.25}

CASES = {
    "CartPole": _single("CartPole-v1", 4, DISCRETE2, ends=("terminated",)),
    "CartPole-limited": _single("CartPole-v1", 4, DISCRETE2, limit=15, ends=ENDS),
    "CartPole vector": Case(
        "CartPole-v1",
        partial(vector, "CartPole-v1", {"max_episode_steps": 15}),
        ((4,), np.float32),
        DISCRETE2,
        options={"vector": True, "time_limit": 15},
        ends=ENDS,
        resume="state",
    ),
    "Pendulum": _single("Pendulum-v1", 3, ("box", 1), bound=2.0, steps=60, ends=("truncated",)),
    "LunarLander": _single("LunarLander-v3", 8, ("discrete", 4), "Box2D", ends=("terminated",)),
    "BipedalWalker": _single(
        "BipedalWalker-v3", 24, ("box", 4), "Box2D", limit=60, fresh=True, ends=ENDS
    ),
    "HalfCheetah": _single(
        "HalfCheetah-v5", 17, ("box", 6), "mujoco", limit=25, ends=("truncated",)
    ),
    "Hopper": _single(
        "Hopper-v5",
        11,
        ("box", 3),
        "mujoco",
        limit=20,
        options={"kwargs": {"max_episode_steps": 20}},
        ends=ENDS,
    ),
    "atari Pong": _atari("Pong", 6, limit=35, steps=25, ends=("truncated",)),
    "atari Breakout": _atari("Breakout", 4, steps=120, ends=("terminated",)),
    "atari generations": _atari("SpaceInvaders", 6, limit=2, steps=28, ends=("truncated",)),
    # With sticky actions every episode has a seed.
    "atari Breakout lives": _atari(
        "Breakout", 4, kwargs=STICKY_LIVES, seed_every=1, steps=30, ends=("terminated",)
    ),
    "procgen coinrun": _procgen("coinrun", steps=120, num_levels=50, distribution_mode="easy"),
    "procgen bigfish": _procgen("bigfish"),
    "procgen fruitbot": _procgen("fruitbot", start_level=3, num_levels=2),
    "envpool CartPole": _pool("CartPole-v1", ((4,), np.float32), DISCRETE2, 15, ENDS),
    "envpool HalfCheetah": _pool(
        "HalfCheetah-v5",
        ((17,), np.float32),
        ("box", 6),
        limit=25,
        options={"kwargs": {"max_episode_steps": 25}},
        action=clipped(dtype=np.float64),
    ),
    "envpool Pong": _pool(
        "Pong-v5",
        ((84, 84), np.uint8),
        ("discrete", 6),
        limit=30,
        stack=4,
        show=lambda obs: obs[:, 0].copy(),
    ),
    "envpool MiniGrid": _pool("MiniGrid-DoorKey-5x5-v0", *GRID, 30, show=grid),
    "minigrid": _minigrid(
        "DoorKey-5x5", {"max_steps": 33}, {"kwargs": {"max_steps": 33}}, ends=("truncated",)
    ),
    "popgym": _popgym(
        "RepeatPreviousEasy", ((), np.int64), ("discrete", 4), steps=60, ends=("terminated",)
    ),
    "minigrid limited": _minigrid(
        "MiniGrid-Empty-Random-5x5-v0",
        {"max_episode_steps": 40},
        {"time_limit": 40},
        steps=60,
        ends=ENDS,
    ),
}


def missing(package):
    """A mark that skips, with the reason, where a package is not installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def cases(*names, where=lambda case: True, slow=()):
    """Parameters of a test: all cases, or those named, or those of a kind; some of them slow."""
    return [
        pytest.param(
            CASES[name],
            id=name,
            marks=[missing(CASES[name].package), *([pytest.mark.slow] if name in slow else [])],
        )
        for name in names or CASES
        if where(CASES[name])
    ]
