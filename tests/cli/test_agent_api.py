"""paceline.load: a saved policy in Python, one observation at a time or many."""

from __future__ import annotations

import functools
import json
import shutil
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

import paceline
from paceline.errors import BadInput

KINDS = {
    "vector": ("CartPole-v1", {}, ["--total-steps", "3000"]),
    "normalized": ("CartPole-v1", {}, ["--total-steps", "3000", "--normalize-obs"]),
    "box": ("Pendulum-v1", {}, ["--total-iters", "2"]),
    "discrete": ("toy:chain", {}, ["--total-iters", "2"]),
    "image": ("toy:identity", {"image": True}, ["--total-iters", "1", "--threads", "1"]),
}


@pytest.fixture(scope="module")
def runs(shell_in, tmp_path_factory):
    """One run of each kind, trained when it is first asked for."""
    shell = shell_in(tmp_path_factory.mktemp("agents"))

    @functools.cache
    def run(kind):
        env_id, kwargs, flags = KINDS[kind]
        options = ["--env-id", env_id, "--eval-episodes", "1", "--num-envs", "4", *flags]
        return shell.train_here(kind, *options, "--env.kwargs", json.dumps(kwargs)).path

    return run


def observations(kind, number=12):
    """Observations of a random walk, as the environment itself gives them."""
    env_id, kwargs, _ = KINDS[kind]
    with paceline.make_vec(env_id, number, kwargs=kwargs, seed=5) as envs:
        envs.action_space.seed(0)
        obs = envs.reset()
        for _ in range(3):
            obs = envs.step([envs.action_space.sample() for _ in range(number)]).obs
    return obs


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_observations_gets_the_same_actions_as_each_alone(runs, kind):
    agent, obs = paceline.load(runs(kind)), observations(kind)
    together = agent.act(obs)
    assert isinstance(together, np.ndarray) and len(together) == len(obs)
    for action, one in zip(together, obs, strict=True):
        np.testing.assert_allclose(agent.act(one), action, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_action_lies_in_the_environments_space(runs, kind):
    agent, (env_id, kwargs, _) = paceline.load(runs(kind)), KINDS[kind]
    with paceline.make_vec(env_id, 1, kwargs=kwargs) as envs:
        for sample in (False, True):
            for action in agent.act(observations(kind), sample=sample):
                assert envs.action_space.contains(action), repr(action)


@pytest.mark.parametrize("kind", KINDS)
def test_the_torch_module_and_the_actor_compute_the_same(runs, kind):
    """Logits or means of `agent.module`, in torch, and of the actor that samples, in numpy."""
    agent, obs = paceline.load(runs(kind)), observations(kind)
    with torch.no_grad():
        expected, value = agent.module(torch.from_numpy(obs))
    out = np.empty((len(obs), agent.network.act.size), np.float32)
    agent.actor(len(obs)).step(obs, None, None, out)
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-5, atol=1e-5)
    assert value.shape == (len(obs), 1)
    assert np.ptp(out) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_torch_module(runs, kind):
    """A float for one observation, an array for several; acting does not change them."""
    agent, obs = paceline.load(runs(kind)), observations(kind)
    with torch.no_grad():
        expected = agent.module(torch.from_numpy(obs))[1][:, 0].numpy()
    agent.act(obs)
    np.testing.assert_allclose(agent.values(obs), expected, rtol=1e-5, atol=1e-5)
    alone = agent.values(obs[0])
    assert isinstance(alone, float) and alone == pytest.approx(float(expected[0]), abs=1e-5)
    assert np.ptp(expected) > 0


@pytest.mark.parametrize("kind", ["vector", "normalized", "discrete", "image"])
def test_the_greedy_action_is_the_most_likely(runs, kind):
    agent, obs = paceline.load(runs(kind)), observations(kind)
    with torch.no_grad():
        logits, _ = agent.module(torch.from_numpy(obs))
    assert agent.act(obs).tolist() == logits.argmax(-1).tolist()


def test_sampled_actions_follow_the_policys_probabilities(runs):
    agent, obs = paceline.load(runs("vector")), observations("vector")[0]
    with torch.no_grad():
        logits, _ = agent.module(torch.from_numpy(obs[None]))
    p, n = float(logits.softmax(-1)[0, 1]), 4000
    drawn = np.mean([agent.act(obs, sample=True) for _ in range(n)])
    assert abs(drawn - p) < 5 * np.sqrt(p * (1 - p) / n)


def test_a_loaded_agent_drives_a_plain_gymnasium_environment(runs):
    agent = paceline.load(runs("box"))
    env = gym.make("Pendulum-v1")
    obs, _ = env.reset(seed=0)
    for _ in range(5):
        obs, *_ = env.step(agent.act(obs))
    env.close()
    assert obs.shape == (3,)


def test_lists_are_accepted_as_arrays(runs):
    agent, obs = paceline.load(runs("vector")), observations("vector")
    assert agent.act(obs.tolist()).tolist() == agent.act(obs).tolist()
    assert agent.act(obs[0].tolist()) == agent.act(obs[0])


def test_an_observation_of_another_shape_is_refused_with_both_shapes(runs):
    agent = paceline.load(runs("vector"))
    for wrong in (np.zeros(3), np.zeros((2, 5)), np.zeros((2, 3, 4)), 0.0):
        for method in (agent.act, agent.values):
            with pytest.raises(BadInput, match=r"\(4,\)"):
                method(wrong)


def test_a_checkpoint_can_be_loaded_without_its_run(runs, tmp_path):
    last = sorted((runs("vector") / "checkpoints").glob("0*"))[-1]
    moved = shutil.copytree(last, tmp_path / "policy")
    obs = observations("vector")
    expected = paceline.load(runs("vector")).act(obs)
    np.testing.assert_array_equal(paceline.load(moved).act(obs), expected)


def test_a_directory_without_checkpoints_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(BadInput, match="neither a run nor a checkpoint"):
            paceline.load(path)


def test_loading_and_acting_on_vectors_needs_no_torch(runs, shell):
    program = (
        "import sys, numpy, paceline; agent = paceline.load(sys.argv[1]); "
        "agent.act(numpy.zeros(4)); print('torch' in sys.modules)"
    )
    ended = shell.execute(sys.executable, "-c", program, runs("vector"))
    assert ended.out.strip() == "False", ended


def test_evaluate_refuses_what_is_no_agent_and_no_number(runs):
    with pytest.raises(BadInput, match=r"agent is 'runs/x'; .*paceline.load\(run\)"):
        paceline.evaluate("runs/x", "CartPole-v1")
    with pytest.raises(BadInput, match="episodes is '2'"):
        paceline.evaluate(paceline.load(runs("vector")), "CartPole-v1", "2")
