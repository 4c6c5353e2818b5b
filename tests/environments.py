"""Environments for tests: any spaces, with or without masks of actions, and nothing hidden."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from paceline.envs.source import EnvInfo, inspect_env, source_of
from paceline.envs.spaces import action_spec
from paceline.policy.actor_critic import ActorCritic
from paceline.policy.agent import Agent
from paceline.policy.network import NetworkSpec
from paceline.processes.heartbeat import Heartbeat
from paceline.rollout import Rollout, RolloutSpec
from paceline.samplers.block import Block
from paceline.samplers.ledger import Ledger
from paceline.samplers.pool import PoolSpec
from paceline.samplers.serial import Serial, make_serial


def env_maker(env_id, *arguments, **options):
    """How one such environment is made."""
    return source_of(env_id, *arguments, **options).one


class Anything(gym.Env):
    """Shows samples of its space and ends now and then; a forbidden action is an error.

    The reward is larger the nearer an action is to the first one there is, so it can be learned.
    """

    def __init__(self, observation, action, masked=False, length=None):
        # Spaces draw their samples from a stream of their own, which two copies must not share.
        self.observation_space, self.action_space = copy.deepcopy((observation, action))
        self.masked, self.length, self.spec_of_action = masked, length, action_spec(action)

    def _look(self):
        """The next observation and its info."""
        sizes = self.spec_of_action.sizes or (self.spec_of_action.size,)
        info = {}
        if self.masked:
            pieces = []
            for size in sizes:  # at least one of each choice stays allowed
                piece = self.np_random.integers(0, 2, size).astype(np.int8)
                piece[self.np_random.integers(size)] = 1
                pieces.append(piece)
            self.mask = np.concatenate(pieces)
            info["action_mask"] = self.mask if len(pieces) == 1 else tuple(pieces)
        return self.observation_space.sample(), info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self._look()

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is outside {self.action_space}"
        self.time += 1
        spec = self.spec_of_action
        if spec.kind == "box":
            reward = -float(np.abs(action).sum())
        else:
            chosen = np.ravel(action) - np.array(spec.starts or spec.start)
            if self.masked:
                ends = np.cumsum((0, *(spec.sizes or (spec.size,))))[:-1]
                assert self.mask[chosen + ends].all(), f"{action!r} is forbidden"
            reward = int(-chosen.sum())
        ended = self.time == self.length if self.length else bool(self.np_random.random() < 0.1)
        observation, info = self._look()
        return observation, reward, ended, False, info


OBSERVATIONS = {
    "box": spaces.Box(-2, 3, (3,), np.float64),
    "matrix": spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
    "number": spaces.Box(0, 1, (), np.float32),
    "discrete": spaces.Discrete(5, start=-2),
    "multidiscrete": spaces.MultiDiscrete([3, 2, 4], start=[1, 0, -1]),
    "grid": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "multibinary": spaces.MultiBinary(4),
    "dict": spaces.Dict(
        {
            "place": spaces.Box(-1, 1, (2,), np.float64),
            "room": spaces.Discrete(3, start=1),
            "held": spaces.Dict({"keys": spaces.MultiBinary(3), "coins": spaces.Discrete(4)}),
        }
    ),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 9, (2, 2)), spaces.MultiBinary(2)]),
    "image and numbers": spaces.Dict(
        {"camera": spaces.Box(0, 255, (12, 12, 3), np.uint8), "speed": spaces.Box(-1, 1, (2,))}
    ),
    "two images": spaces.Tuple([spaces.Box(0, 255, (8, 8, 1), np.uint8)] * 2),
}
ACTIONS = {
    "discrete": spaces.Discrete(4, start=2),
    "multidiscrete": spaces.MultiDiscrete([3, 2, 4], start=[0, 5, -1]),
    "multibinary": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(np.float32([-1, 0]), np.float32([3, 0.5])),
    "half infinite box": spaces.Box(
        np.array([-np.inf, 0.0]), np.array([np.inf, np.inf]), dtype=np.float64
    ),
    "whole numbers": spaces.Box(0, 5, (2,), np.int64),
    "number": spaces.Box(-1, 1, (), np.float32),
}


def serial_of(columns, actor, steps, seed):
    """A serial sampler of columns that are there already."""
    info = EnvInfo(None, {}, columns.obs_spec, columns.act_spec, columns.resume)
    obs, act = columns.obs_spec, columns.act_spec
    spec = RolloutSpec(steps, columns.num_envs, obs.stored, act.stored, obs.history)
    block = Block(columns, actor, spec, seed, Heartbeat())
    return Serial([block], [Ledger(info, spec)], Rollout.from_spec(spec).poisoned())


def serial_in_blocks(parts, seed, blocks, rollout=None):
    """A serial sampler for the parts of a run, whose columns act in so many blocks."""
    given = {"env_info": parts.env_info, "network": parts.network, "seed": seed}
    return make_serial(PoolSpec(**given, rollout=rollout or parts.spec, workers=blocks))


def stepped(columns, actions, obs=None, until=lambda t, out: False):
    """The rollout of `actions` [T, B, ...], from `obs[B]` or else a reset, `until` it is enough."""
    spec, number = columns.obs_spec, columns.num_envs
    out = Rollout.allocate(len(actions), number, spec.stored, columns.act_spec.stored)
    first = np.full(number, obs is None)
    if obs is None:
        obs = out.obs[-1].copy()
        columns.reset(obs)
    out.begin(obs, first)
    for t, action in enumerate(actions):
        columns.step(t, columns.adapt(action), out)
        if until(t, out):
            break
    return out


def agent_of(env_id, hidden=(8,), seed=0, **options):
    """A policy with random weights, and what is known of its environment."""
    info = inspect_env(env_id, **options)
    network = NetworkSpec(info.obs_spec.seen, info.act_spec, hidden, pictures="mlp")
    module = ActorCritic(network)
    module.initialize(seed)
    return Agent(network, {name: w.numpy() for name, w in module.named_weights().items()}), info
