"""Policies with memory: built-in cells and one of the user's own, with a critic that shares it or
has its own."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from saved_runs import PLAIN, last_state
from torch import nn

import paceline
from paceline.config.resolve import resolve
from paceline.learning.predict import advance_critic, predict_rollout
from paceline.learning.step import recurrent_inputs
from paceline.policy.recurrent import RecurrentInputs
from paceline.run.build import build

OWN = "test_memory:Cell"
CELLS = {"lstm": "lstm", "gru": "gru", "mingru": "mingru", "own": OWN}
BOTH = list(product(CELLS.values(), (False, True)))
"""Every cell, with a critic of its own and a shared one."""
NAMES = [
    f"{name} {'shared' if shared else 'each'}" for name, shared in product(CELLS, (False, True))
]
OPTIONS = {
    **PLAIN,
    "env_id": "toy:memory",
    "memory_size": 16,
    "hidden": (16,),
    "num_envs": 16,
    "rollout_steps": 32,
    "memory_segment": 8,
    "minibatches": 4,
    "lr": 3e-3,
}
pytestmark = pytest.mark.timeout(180)
every_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
every_way = pytest.mark.parametrize(("cell", "shared"), BOTH, ids=NAMES)


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


class Greedy(Cell):
    """Writes into the carry it is given."""

    def forward(self, x, first, carry):
        carry.mul_(0.5)
        return super().forward(x, first, carry)


class Endless(Cell):
    """Forgets nothing."""

    def forward(self, x, first, carry):
        return super().forward(x, torch.zeros_like(first), carry)


def config_of(memory=OWN, shared=None, **options):
    return paceline.Config(**OPTIONS | {"memory": memory, "shared_trunk": shared} | options)


def trained(folder, *how, **options):
    return list(paceline.train(config_of(*how, output_dir=str(folder), **options)))


PPO = {"total_steps": 60_000}
WAYS = {
    "ppo": PPO,
    "a2c": {"algo": "a2c", "rollout_steps": 8, "minibatches": 1, "total_steps": 120_000},
    "impala": {"algo": "impala", "rollout_steps": 16, "minibatches": 1, "total_steps": 150_000},
    "workers": PPO | {"num_workers": 2},
    "ranks": PPO | {"ranks": 2},
}
LEARNED = [
    ("ppo", "lstm", False),
    *(pytest.param("ppo", cell, None, marks=pytest.mark.slow) for cell in ("gru", "mingru", OWN)),
    pytest.param("ppo", "lstm", True, marks=pytest.mark.slow),
    *(
        pytest.param(way, cell, None, marks=pytest.mark.slow)
        for way in ("a2c", "impala", "workers", "ranks")
        for cell in ("lstm", "mingru")
    ),
]


@pytest.mark.parametrize(("way", "cell", "shared"), LEARNED)
def test_a_cue_that_has_gone_is_named(tmp_path, way, cell, shared):
    """Without memory no policy is right more often than half of the time."""
    trained(tmp_path / "run", cell, shared, eval_episodes=200, log_every=50, **WAYS[way])
    found = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert found["mean"] > 0.95


@every_way
def test_ratios_start_at_one_with_episodes_that_end_within_segments(cell, shared):
    with build(config_of(cell, shared)) as parts:
        learner, ends = parts.learner, 0
        for _ in range(3):
            rollout = parts.sampler.collect()
            ends += rollout.done.sum()
            batch = learner.prepare_batch(rollout)
            for rows in learner.descent.shuffled(batch.rows, rollout, 0, 0).split(128):
                assert len(rows.carry) == 16 and rows.carry.abs().max() > 0
                with torch.no_grad():
                    found = learner.module.predict(rows.inputs, rows.action, recurrent_inputs(rows))
                used = rows.weight > 0
                assert (found.logp - rows.logp)[used].abs().max() < 1e-5
                assert (found.value - rows.value)[used].abs().max() < 1e-5
            learner.update(rollout, 1.0)
            parts.sampler.publish(learner.weights, learner.version)
        assert ends > 50


@every_cell
def test_a_segment_begins_with_what_the_memory_held_before_its_reset(cell):
    """And the pass over a whole rollout from its first state gives every later one."""
    with build(config_of(cell)) as parts:
        parts.sampler.collect()
        rollout, policy = parts.sampler.collect(), parts.learner.module.policy
        assert rollout.state.shape == (5, 16, policy.carry_size)
        assert rollout.first[8::8].any(), "some segment should begin with an episode"
        carry = torch.from_numpy(rollout.state[0])
        for k in range(4):
            np.testing.assert_allclose(carry, rollout.state[k], atol=1e-6)
            obs = torch.from_numpy(rollout.obs[8 * k : 8 * k + 8]).flatten(0, 1)
            first = torch.from_numpy(rollout.first[8 * k : 8 * k + 8])
            with torch.no_grad():
                _, carry = policy.features((obs,), RecurrentInputs(first, carry))
        np.testing.assert_allclose(carry, rollout.state[-1], atol=1e-6)


def looped(self, x, first, carry):
    """`TorchLSTM.forward` as a plain loop over `nn.LSTMCell`."""
    cell, shown = nn.LSTMCell(x.shape[-1], self.size), []
    for now, starts in zip(x, first, strict=True):
        state = carry.masked_fill(starts[:, None], 0.0).chunk(2, -1)
        h, c = torch.func.functional_call(cell, dict(self.named_parameters()), (now, state))
        shown.append(h)
        carry = torch.cat([h, c], -1)
    return torch.stack(shown), carry


def gradient_of(parts, rollout):
    learner = parts.learner
    batch = learner.prepare_batch(rollout)
    (rows,) = learner.descent.shuffled(batch.rows, rollout, 0, 0).split(len(batch.rows.weight))
    return learner._step.gradient(rows, learner._step.scheduled(1.0)).clone()


def test_with_one_segment_the_gradient_is_that_of_a_loop_through_the_whole_rollout(monkeypatch):
    with build(config_of("lstm", memory_segment=None, minibatches=1)) as parts:
        parts.sampler.collect()
        rollout = parts.sampler.collect()
        assert rollout.segment == 32 and rollout.first[1:].any()
        one = gradient_of(parts, rollout)
        monkeypatch.setattr("paceline.policy.recurrent.TorchLSTM.forward", looped)
        other = gradient_of(parts, rollout)
    assert one.norm() > 0.1
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@every_way
def test_rows_that_only_reset_change_no_gradient(cell, shared):
    with build(config_of(cell, shared, minibatches=1)) as parts:
        parts.sampler.collect()
        rollout = parts.sampler.collect()
        assert not rollout.valid[:-1].all()
        found = []
        for noise in (0.0, 1e3):
            # The observation of a row that only resets is the last of its episode: it has a value
            # if that was cut off, and here every episode terminates.
            assert not rollout.truncated.any()
            rollout.obs[:-1][~rollout.valid] += noise
            rollout.action[~rollout.valid] = 0
            found.append(gradient_of(parts, rollout))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@every_way
def test_the_value_of_a_cut_off_episode_counts_all_that_was_seen_in_it(cell, shared):
    options = {"env_id": "CartPole-v1", "env": {"time_limit": 5}, "normalize_obs": False}
    with build(config_of(cell, shared, **options)) as parts:
        parts.sampler.collect()
        rollout, learner = parts.sampler.collect(), parts.learner
        module, spec = learner.module, learner.module.spec
        observations = learner.observations(rollout)
        inputs = module.inputs(observations.parts)
        carry = None if shared else np.zeros((16, module.value_memory.carry_size), np.float32)
        found = predict_rollout(module, rollout, observations, inputs, False, 64, False, carry)
        value = found.value.view(33, 16)
        memory = module.policy.memory if spec.shared_trunk else module.value_memory
        cuts = [(t, b) for t, b in np.argwhere(rollout.truncated) if t >= 4]
        assert len(cuts) > 20
        for t, b in cuts[:10]:
            seen = torch.from_numpy(rollout.obs[t - 4 : t + 2, b])  # six observations, five steps
            assert rollout.first[t - 4, b] and not rollout.first[t - 3 : t + 2, b].any()
            first = torch.tensor([[True], *[[False]] * 5])
            with torch.no_grad():
                nothing = torch.zeros(1, memory.carry_size)
                shown, _ = memory(module.encoded((seen,))[:, None], first, nothing)
                expected = module.value_head(shown[-1])
            assert abs(float(value[t + 1, b] - expected)) < 1e-5


@every_way
def test_two_rollouts_are_one_of_twice_the_length_while_weights_stay(cell, shared):
    found = []
    for steps, count in ((16, 2), (32, 1)):
        with build(config_of(cell, shared, rollout_steps=steps, memory_segment=16)) as parts:
            learner, pieces = parts.learner, []
            for _ in range(count):
                rollout = parts.sampler.collect()
                batch = learner.prepare_batch(rollout)
                learner._critic_carry = batch.critic_carry
                value = batch.rows.value.numpy().reshape(steps, -1)
                # The noise of actions is drawn per rollout: only what does not depend on it.
                pieces.append((rollout.obs[:-1].copy(), value, batch.rows.carry.numpy().copy()))
        found.append(pieces)
    (first, _), (whole,) = found
    np.testing.assert_array_equal(whole[0][:1], first[0][:1])
    np.testing.assert_allclose(whole[2][:16], first[2], atol=1e-6)


def test_a_critic_that_sees_a_column_twice_goes_on_where_it_was():
    """In a stream a batch may hold two rollouts of a fast worker, the older one first."""
    with build(config_of("lstm", False, num_envs=2)) as parts:
        memory = parts.learner.module.value_memory
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(17, 4, 16, generator=draw)
        first = np.zeros((17, 4), bool)
        first[0, :2] = first[5, 1] = first[9, 2] = True
        x[0, 2:] = x[16, :2]  # the next rollout of a column begins with its last observation
        first[0, 2:] = first[16, :2]

        def rollout_of(columns, steps=slice(17)):
            return SimpleNamespace(
                steps=16, segment=8, columns=len(columns), first=first[:, columns][steps],
                column=np.array([7, 4, 7, 4])[columns],
            )  # fmt: skip

        start = np.zeros((2, memory.carry_size), np.float32)
        with torch.no_grad():
            shown, states, after = advance_critic(memory, rollout_of([0, 1, 2, 3]), x, start)
            one, mine, between = advance_critic(memory, rollout_of([0, 1]), x[:, :2], start)
            two, other, last = advance_critic(memory, rollout_of([2, 3]), x[:, 2:], between)
        torch.testing.assert_close(shown, torch.cat([one, two], 1))
        np.testing.assert_allclose(states, np.concatenate([mine, other], 1), atol=1e-7)
        np.testing.assert_allclose(after, last, atol=1e-7)
        assert np.abs(after - between).max() > 1e-3 and np.abs(between).max() > 1e-3


def test_drift_is_of_the_steps_that_were_taken_since_the_rollout():
    with build(config_of("lstm", epochs=1, minibatches=1)) as parts:
        assert parts.learner.update(parts.sampler.collect())["state_drift"] < 1e-5
    with build(config_of("lstm", epochs=4)) as parts:
        assert parts.learner.update(parts.sampler.collect())["state_drift"] > 1e-3


RESUMED = [
    *((cell, shared, 0) for cell, shared in BOTH),
    *(pytest.param(cell, None, 2, marks=pytest.mark.slow) for cell in CELLS.values()),
]


@pytest.mark.parametrize(("cell", "shared", "workers"), RESUMED)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_byte(tmp_path, cell, shared, workers):
    options = {"eval_episodes": 1, "num_workers": workers}
    trained(tmp_path / "whole", cell, shared, total_iters=6, **options)
    trained(tmp_path / "cut", cell, shared, total_iters=3, **options)
    list(paceline.resume(tmp_path / "cut", total_iters=6))
    assert last_state(tmp_path / "whole") == last_state(tmp_path / "cut")


@pytest.fixture(scope="module", params=BOTH, ids=NAMES)
def agent_of(request, tmp_path_factory):
    """Loads the policy of a short run."""
    cell, shared = request.param
    folder = tmp_path_factory.mktemp("agent") / "run"
    trained(folder, cell, shared, total_iters=2, eval_episodes=1)
    return partial(paceline.load, folder)


def test_an_agent_remembers_until_it_is_reset(agent_of):
    agent = agent_of()
    actor, cue = agent.actor(1), np.array([[1.0, 0.0]], np.float32)
    out = [np.empty((1, actor.distribution.size), np.float32) for _ in range(3)]
    carry = np.zeros((1, actor.carry_size), np.float32)
    no, yes = np.zeros(1, bool), np.ones(1, bool)
    actor.step(cue, yes, carry, out[0])
    actor.step(cue, no, carry, out[1])
    actor.step(cue, yes, carry, out[2])
    assert (out[0] != out[1]).any() and (out[0] == out[2]).all()
    seen = []
    for reset in (False, False, True):
        if reset:
            agent.reset()
        agent.act(cue[0])
        seen.append(agent._state.carry)
    assert (seen[0] != seen[1]).any() and (seen[0] == seen[2]).all()


def test_a_caller_may_keep_the_memory_of_many_rows(agent_of):
    """Rows that start an episode forget, the others do not, and no state changes afterwards."""
    agent, draw = agent_of(), np.random.default_rng(0)
    seen = draw.normal(size=(6, 3, 2)).astype(np.float32)
    states, state = [], None
    for t, obs in enumerate(seen):
        if t == 4:
            state = state.restarted([1])
        action, state = agent.step(obs, state)
        assert action.shape == (3,)
        states.append(state)
    for row, start in ((0, 0), (1, 4), (2, 0)):
        alone = None
        for obs in seen[start:, row]:
            _, alone = agent.step(obs, alone)
        np.testing.assert_allclose(alone.carry[0], states[-1].carry[row], rtol=1e-4, atol=1e-6)
    _, again = agent.step(seen[5], states[4])
    np.testing.assert_array_equal(again.carry, states[5].carry)


def test_the_value_of_an_observation_counts_what_was_seen_before_it(agent_of):
    """And asking for it is not seeing it."""
    agent, cue = agent_of(), np.array([1.0, 0.0], np.float32)
    first = [agent.values(cue), agent.values(cue)]
    agent.act(cue)
    second = [agent.values(cue), agent.values(cue)]
    assert first[0] == first[1] != second[0] == second[1]
    agent.reset()
    assert agent.values(cue) == first[0]


def test_a_state_of_another_policy_is_refused(agent_of):
    agent, rows = agent_of(), np.zeros((3, 2), np.float32)
    _, state = agent.step(rows)
    larger = replace(state, carry=np.zeros((3, 1 + state.carry.shape[1]), np.float32))
    with pytest.raises(paceline.BadInput, match="state is of another policy"):
        agent.step(rows, larger)
    with pytest.raises(paceline.BadInput, match="2 observations, and a state of 3"):
        agent.step(rows[:2], state)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": "test_memory:Nothing"}, "can't be imported"),
        ({"memory": "lsmt"}, "module:Class"),
        ({"memory_segment": 5}, "memory_segment 5 does not divide rollout_steps 32.*nearest.* 4"),
        ({"num_envs": 6, "memory_segment": 32}, "--minibatches 3.*--num-envs 8"),
        (
            {"num_envs": 6, "memory_segment": 32, "minibatches": None, "batch_size": 48},
            "4 minibatches can't share 6 segments.*--batch-size 64",
        ),
        ({"memory": "lstm", "compile": "on"}, "can't be compiled.*mingru"),
        ({"memory": "gru", "compile": "on"}, "can't be compiled"),
        ({"memory": None, "memory_size": 16}, "no memory"),
        ({"memory": None, "lstm": 32}, "lstm is 32.*memory_size is 16"),
        ({"memory": "test_memory:Greedy"}, "Greedy can't be used.*in place"),
        ({"memory": "test_memory:Endless"}, "Endless can't be used.*beyond an episode's start"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    with pytest.raises(paceline.BadInput, match=words), build(config_of(**options)):
        pass


def test_a_preset_for_memories_serves_a_policy_without_as_a_control():
    config = paceline.Config(env_id="Pendulum-v1", preset="Pendulum-v1.memory")
    assert (config.memory, config.memory_segment) == (None, None) and config.normalize_return
    assert paceline.Config(**config.as_dict()).options == config.options


def test_lstm_n_is_short_for_an_lstm_of_this_size():
    config = paceline.Config(lstm=32)
    assert (config.memory, config.memory_size, config.lstm) == ("lstm", 32, None)
    again = paceline.Config(**config.as_dict())
    assert (again.memory, again.memory_size) == ("lstm", 32)
    assert "lstm" not in {name for name, value in config.given.items() if value is not None}


def test_a_later_layer_may_change_what_lstm_n_says():
    later = resolve({"lstm": 32}, {"memory_size": 16})
    assert (later.memory, later.memory_size) == ("lstm", 16)
    assert resolve({"lstm": 32}, {"memory": "gru"}).memory == "gru"
    assert resolve({"memory": "gru", "memory_size": 16}, {"lstm": 32}).memory == "lstm"
    assert paceline.Config(lstm=64).replace(memory=None).memory is None


def test_a_segment_of_the_presets_gives_way_to_rollouts_of_another_length():
    config = paceline.Config(env_id="Pendulum-v1", memory="gru", rollout_steps=100)
    assert config.memory_segment < 100 and 100 % config.memory_segment == 0
    with pytest.raises(paceline.BadInput, match="memory_segment 32"):
        config.replace(memory_segment=32)


def test_minibatches_that_nobody_asked_for_are_of_whole_segments():
    config = paceline.Config(env_id="CartPole-v1", memory="lstm", num_envs=3)
    segments = config.num_envs * config.rollout_steps // config.memory_segment
    assert segments % config.minibatch_count == 0
    assert config.memory_segment == config.rollout_steps
