"""Samplers for these tests: real environments, a real actor, weights drawn at random."""

from __future__ import annotations

import numpy as np
from worlds import env_maker, serial_of

from paceline.envs.env_columns import EnvColumns
from paceline.envs.frame_stack import stacked
from paceline.policy.actor import make_actor
from paceline.policy.actor_critic import Policy
from paceline.policy.network import NetworkSpec

FIELDS = ("obs", "first", "action", "logp", "reward", "terminated", "truncated", "valid")


def sampler_of(make, steps, columns=3, seed=0, first_column=0, stack=1):
    """A serial sampler whose policy acts differently on different observations."""
    envs = EnvColumns(make, columns, seed, first_column, stack=stack)
    network = NetworkSpec(envs.obs_spec.seen, envs.act_spec, (16,))
    sampler = serial_of(envs, make_actor(network, columns), steps, seed)
    size = sum(parameter.numel() for parameter in Policy(network).parameters())
    weights = np.random.default_rng(0).normal(scale=0.3, size=size)
    sampler.publish(weights.astype(np.float32), 3)
    return sampler, envs


def made_by(env_class, /, **kwargs):
    """How Paceline makes an environment from a class."""
    return env_maker(env_class, kwargs)


def copied(rollout, spec=None):
    """Its arrays, which the next `collect()` would overwrite, with stacks as a policy sees them."""
    arrays = {name: np.copy(getattr(rollout, name)) for name in FIELDS}
    if spec is not None and spec.stack > 1:
        arrays["obs"] = stacked(spec, rollout, next(iter(spec.parts)))
    return arrays


def joined(rollouts):
    """Consecutive rollouts as one; each begins with the observation the last one ended in."""
    whole = {name: np.concatenate([r[name] for r in rollouts]) for name in FIELDS}
    for name in ("obs", "first"):
        inner = [r[name][:-1] for r in rollouts]
        whole[name] = np.concatenate([*inner, rollouts[-1][name][-1:]])
    return whole


def collected(make, steps, rollouts=1, **options):
    """Copies of the first rollouts, and the episodes that ended in them."""
    sampler, envs = sampler_of(make, steps, **options)
    arrays, episodes = [], []
    for _ in range(rollouts):
        rollout = sampler.collect()
        arrays.append(copied(rollout, envs.obs_spec))
        episodes += rollout.episodes
    sampler.close()
    return arrays, episodes
