"""A recurrent cell of one's own, `--memory module:Class`: nothing in the package knows of it."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from saved_runs import PLAIN, last_state
from torch import nn

import paceline
from paceline.learning.step import recurrent_inputs
from paceline.policy.actor_critic import RecurrentInputs
from paceline.run.build import build

CELL = "test_own_memory:Cell"
OPTIONS = {
    **PLAIN,
    "env_id": "toy:memory",
    "memory": CELL,
    "memory_size": 16,
    "hidden": (16,),
    "num_envs": 16,
    "rollout_steps": 32,
    "memory_segment": 8,
    "lr": 3e-3,
}
pytestmark = pytest.mark.timeout(180)


class Cell(nn.Module):
    """A minimal gated unit (Zhou 2016): what is carried is what it shows."""

    def __init__(self, features, size):
        super().__init__()
        self.carry_size = size
        self.gate = nn.Linear(features + size, size)
        self.candidate = nn.Linear(features + size, size)

    def forward(self, x, first, carry):
        shown = []
        for now, starts in zip(x, first, strict=True):
            carry = carry.masked_fill(starts[:, None], 0.0)
            both = torch.cat([now, carry], -1)
            keep = self.gate(both).sigmoid()
            carry = keep * carry + (1 - keep) * self.candidate(both).tanh()
            shown.append(carry)
        return torch.stack(shown), carry


config_of = partial(paceline.Config, **OPTIONS)


def trained(folder, **options):
    config = config_of(output_dir=str(folder), **options)
    return list(paceline.train(config))


PPO = {"minibatches": 4, "total_steps": 60_000}
WAYS = {
    "ppo": PPO,
    "a2c": {"algo": "a2c", "rollout_steps": 8, "total_steps": 120_000, "log_every": 50},
    "impala": {"algo": "impala", "rollout_steps": 16, "total_steps": 150_000, "log_every": 50},
    "workers": PPO | {"num_workers": 2},
    "ranks": PPO | {"ranks": 2},
}


@pytest.mark.sampled(len(WAYS))
@pytest.mark.parametrize("way", WAYS)
def test_a_cue_that_has_gone_is_named(tmp_path, way):
    """Without memory no policy is right more often than half of the time."""
    trained(tmp_path / "run", eval_episodes=200, **WAYS[way])
    found = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert found["mean"] > 0.95


def test_ratios_start_at_one_with_episodes_that_end_within_segments():
    with build(config_of(minibatches=4)) as parts:
        learner, ends = parts.learner, 0
        for _ in range(3):
            rollout = parts.sampler.collect()
            ends += rollout.done.sum()
            batch = learner.prepare_batch(rollout)
            for rows in learner.descent.shuffled(batch.rows, rollout, 0, 0).split(128):
                assert rows.carry.shape == (16, 16) and rows.carry.abs().max() > 0
                memory = recurrent_inputs(rows)
                with torch.no_grad():
                    logp = learner.module.predict(rows.inputs, rows.action, memory).logp
                assert (logp - rows.logp)[rows.weight > 0].abs().max() < 1e-5
            learner.update(rollout, 1.0)
            parts.sampler.publish(learner.weights, learner.version)
        assert ends > 50


def test_a_segment_begins_with_what_the_memory_held_before_its_reset():
    """And the pass over a whole rollout from its first state gives every later one."""
    with build(config_of()) as parts:
        parts.sampler.collect()
        rollout, policy = parts.sampler.collect(), parts.learner.module.policy
        assert rollout.state.shape == (5, 16, 16)
        assert rollout.first[8::8].any(), "some segment should begin with an episode"
        carry = torch.from_numpy(rollout.state[0])
        for k in range(4):
            np.testing.assert_allclose(carry, rollout.state[k], atol=1e-6)
            obs = torch.from_numpy(rollout.obs[8 * k : 8 * k + 8]).flatten(0, 1)
            first = torch.from_numpy(rollout.first[8 * k : 8 * k + 8])
            with torch.no_grad():
                _, carry = policy.features((obs,), RecurrentInputs(first, carry))
        np.testing.assert_allclose(carry, rollout.state[-1], atol=1e-6)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_byte(tmp_path, workers):
    options = {"minibatches": 4, "eval_episodes": 1, "num_workers": workers}
    trained(tmp_path / "whole", total_iters=6, **options)
    trained(tmp_path / "cut", total_iters=3, **options)
    list(paceline.resume(tmp_path / "cut", total_iters=6))
    assert last_state(tmp_path / "whole") == last_state(tmp_path / "cut")


def test_an_agent_remembers_until_it_is_reset(tmp_path):
    trained(tmp_path / "run", minibatches=4, total_iters=2, eval_episodes=1)
    agent = paceline.load(tmp_path / "run")
    actor, cue = agent.actor(1), np.array([[1.0, 0.0]], np.float32)
    out = [np.empty((1, actor.distribution.size), np.float32) for _ in range(3)]
    carry, no, yes = np.zeros((1, 16), np.float32), np.zeros(1, bool), np.ones(1, bool)
    actor.step(cue, yes, carry, out[0])
    actor.step(cue, no, carry, out[1])
    actor.step(cue, yes, carry, out[2])
    assert (out[0] != out[1]).any() and (out[0] == out[2]).all()
    seen = []
    for reset in (False, False, True):
        if reset:
            agent.reset()
        agent.act(cue[0])
        seen.append(agent._carry.copy())
    assert (seen[0] != seen[1]).any() and (seen[0] == seen[2]).all()


def test_the_value_of_an_observation_counts_what_was_seen_before_it(tmp_path):
    """And asking for it is not seeing it."""
    trained(tmp_path / "run", minibatches=4, total_iters=2, eval_episodes=1)
    agent, cue = paceline.load(tmp_path / "run"), np.array([1.0, 0.0], np.float32)
    first = [agent.values(cue), agent.values(cue)]
    agent.act(cue)
    second = [agent.values(cue), agent.values(cue)]
    assert first[0] == first[1] != second[0] == second[1]
    agent.reset()
    assert agent.values(cue) == first[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": "test_own_memory:Nothing"}, "can't be imported"),
        ({"memory": "lstm"}, "module:Class"),
        ({"shared_trunk": False}, "shared_trunk"),
        ({"memory_segment": 5}, "memory_segment"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    with pytest.raises(paceline.BadInput, match=words), build(config_of(**options)):
        pass
