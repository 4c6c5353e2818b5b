"""Rollouts of real environments by a real actor with random weights. B = columns."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from environments import env_maker, serial_of

from paceline.envs.env_columns import EnvColumns
from paceline.policy.actor import make_actor
from paceline.policy.actor_critic import Policy
from paceline.policy.network import NetworkSpec
from paceline.rollout import Episode

FIELDS = ("obs", "first", "action", "logp", "reward", "terminated", "truncated", "valid")


def acting(columns, steps, seed=0, scale=0.3):
    """A serial sampler over `columns`, whose policy acts differently on different observations."""
    network = NetworkSpec(columns.obs_spec.seen, columns.act_spec, (16,), pictures="mlp")
    sampler = serial_of(columns, make_actor(network, columns.num_envs), steps, seed)
    size = sum(parameter.numel() for parameter in Policy(network).parameters())
    weights = np.random.default_rng(0).normal(scale=scale, size=size)
    sampler.publish(weights.astype(np.float32), 3)
    return sampler


def sampler_of(make, steps, columns=3, seed=0, first_column=0, stack=1):
    envs = EnvColumns(make, columns, seed, first_column, stack=stack)
    return acting(envs, steps, seed), envs


def made_by(env_class, /, **kwargs):
    """How Paceline makes an environment from a class."""
    return env_maker(env_class, kwargs)


def copied(rollout):
    """Its arrays, which the next `collect()` overwrites."""
    return {name: np.copy(getattr(rollout, name)) for name in FIELDS}


def joined(rollouts):
    """Consecutive rollouts as one; each has to begin with what the last one ended in."""
    for before, after in pairwise(rollouts):
        for name in ("obs", "first"):
            np.testing.assert_array_equal(before[name][-1], after[name][0])
    whole = {name: np.concatenate([r[name] for r in rollouts]) for name in FIELDS}
    for name in ("obs", "first"):
        inner = [r[name][:-1] for r in rollouts]
        whole[name] = np.concatenate([*inner, rollouts[-1][name][-1:]])
    return whole


def collect(sampler, rollouts):
    """Copies of the next rollouts, and the episodes that ended in them; closes the sampler."""
    arrays, episodes = [], []
    for _ in range(rollouts):
        rollout = sampler.collect()
        arrays.append(copied(rollout))
        episodes += rollout.episodes
    sampler.close()
    return arrays, episodes


def turns(parts, number):
    """So many turns of the ring; each rollout until it is overwritten; the learner's version."""
    for _ in range(number):
        rollout, version = parts.sampler.collect(), parts.learner.version
        yield rollout, version
        parts.learner.update(rollout, 1.0)
        parts.sampler.publish(parts.learner.weights, parts.learner.version)


def collected(make, steps, rollouts=1, **options):
    return collect(sampler_of(make, steps, **options)[0], rollouts)


def assert_rows_are(oracle, rows, episodes, first_column):
    """Every observation, reward and flag equals the oracle's, and so does every episode.

    `oracle` is one of tests/suites.py; `rows` are consecutive rollouts as one.
    """
    columns, dtype = rows["reward"].shape[1], rows["obs"].dtype
    expected, totals, lengths = [], [0.0] * columns, [0] * columns
    np.testing.assert_array_equal(rows["obs"][0], oracle.reset().astype(dtype))
    assert rows["first"][0].all()
    for t, action in enumerate(rows["action"]):
        obs, reward, terminated, truncated, valid, first = oracle.step(action)
        pairs = {
            "obs": (rows["obs"][t + 1], obs.astype(dtype)),
            "reward": (rows["reward"][t], np.float32(reward)),
            "terminated": (rows["terminated"][t], terminated),
            # Where both happen at once, terminated wins and the other flag means nothing.
            "truncated": (rows["truncated"][t] & ~rows["terminated"][t], truncated & ~terminated),
            "valid": (rows["valid"][t], valid),
            "first": (rows["first"][t + 1], first),
        }
        for name, (ours, theirs) in pairs.items():
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{name}, row {t}")
        for i in range(columns):
            totals[i] += float(np.float32(reward[i])) * bool(valid[i])
            lengths[i] += bool(valid[i])
            if terminated[i] or truncated[i]:
                expected.append(Episode(first_column + i, totals[i], lengths[i]))
                totals[i], lengths[i] = 0.0, 0
    oracle.close()
    assert [(e.column, e.length) for e in episodes] == [(e.column, e.length) for e in expected]
    found, theirs = [e.total for e in episodes], [e.total for e in expected]
    np.testing.assert_allclose(found, theirs, rtol=1e-9, atol=1e-9)
