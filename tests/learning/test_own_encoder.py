"""A user's own encoder: learns, resumes to the byte, acts; what can't be held is refused."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from environments import ACTIONS, OBSERVATIONS, Anything
from gymnasium import spaces
from learners import needs_compiler
from saved_runs import PLAIN, last_state
from torch import nn

import paceline
from paceline.errors import BadInput


class Wide(nn.Module):
    """Dense layers on a Box, with a constant drawn when it is made."""

    def __init__(self, space):
        super().__init__()
        (size,) = space.shape
        self.layers = nn.Sequential(nn.Linear(size, 32), nn.LayerNorm(32), nn.ReLU())
        self.register_buffer("fixed", torch.randn(size, 8))

    def forward(self, obs):
        return torch.cat([self.layers(obs), (obs @ self.fixed).tanh()], -1)


class Sight(nn.Module):
    """An image through a convolution, and the rest of a Dict beside it."""

    def __init__(self, space):
        super().__init__()
        assert isinstance(space, spaces.Dict)
        channels = space["camera"].shape[-1]
        self.look = nn.Conv2d(channels, 4, 3, stride=2)
        self.dropout = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(()))
        self.cube = nn.Parameter(torch.zeros(2, 1, 3))

    def forward(self, obs):
        seen = self.look(obs["camera"].permute(0, 3, 1, 2).float() / 255).relu().flatten(1)
        return torch.cat([self.dropout(seen) * self.scale, obs["speed"] + self.cube.sum()], -1)


class Apply(nn.Module):
    """Any function of the output of a dense layer."""

    def __init__(self, function):
        super().__init__()
        self.one, self.function = nn.Linear(4, 4), function

    def forward(self, obs):
        return self.function(self.one(obs))


class Tied(nn.Module):
    def __init__(self, space):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, obs):
        return self.other(self.one(obs))


class NotAModule:
    def __init__(self, space):
        pass


def config_of(folder, encoder, env_id="CartPole-v1", **options):
    small = {"num_envs": 4, "rollout_steps": 32, "total_steps": 512, "eval_episodes": 2}
    given = {"env_id": env_id, "encoder": encoder, "output_dir": str(folder)}
    return paceline.Config(**PLAIN | small | given | options)


def trained(folder, encoder, *env_id, **options):
    """The policy of a run to its end."""
    list(paceline.train(config_of(folder, encoder, *env_id, **options)))
    given = {"encoder": encoder} if isinstance(encoder, nn.Module) else {}
    return paceline.load(folder, **given)


SIGHT = partial(Anything, OBSERVATIONS["image and numbers"], ACTIONS["box"])
CASES = {
    "by name": ("test_own_encoder:Wide", "CartPole-v1", {}),
    "class": (Wide, "CartPole-v1", {"hidden": (16,), "normalize_obs": True}),
    "shared": (Wide, "CartPole-v1", {"shared_trunk": True}),
    "dict": (Sight, SIGHT, {"state_dependent_std": True}),
    "discrete": (nn.Linear(16, 8), "FrozenLake-v1", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_trains_resumes_to_the_byte_and_acts(case, tmp_path):
    encoder, env_id, options = CASES[case]
    agent = trained(tmp_path / "whole", encoder, env_id, **options)
    for report in paceline.train(config_of(tmp_path / "parts", encoder, env_id, **options)):
        if report.iter == 2:
            break
    again = {"encoder": encoder} if isinstance(encoder, nn.Module) else {}
    again |= {} if isinstance(env_id, str) else {"env_id": env_id}
    list(paceline.resume(tmp_path / "parts", **again))
    assert last_state(tmp_path / "whole") == last_state(tmp_path / "parts")
    result = paceline.evaluate(agent, env_id, 3)
    assert np.isfinite(result.mean)
    assert any("module" in name for name in agent.weights)
    assert isinstance(agent.module, nn.Module)


def test_the_module_that_is_handed_out_says_what_the_agent_does(tmp_path):
    agent = trained(tmp_path / "run", Wide, normalize_obs=True)
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    with torch.no_grad():
        logits, values = agent.module(torch.from_numpy(obs))
    assert logits.argmax(-1).tolist() == agent.act(obs).tolist()
    assert values.shape == (64, 1)


def test_an_object_is_asked_for_again(tmp_path):
    trained(tmp_path / "run", nn.Linear(4, 8))
    with pytest.raises(BadInput, match=r"encoder.*resume"):
        list(paceline.resume(tmp_path / "run", total_steps=1024))
    with pytest.raises(BadInput, match=r"encoder="):
        paceline.load(tmp_path / "run")


def test_an_objects_weights_are_where_learning_begins(tmp_path):
    encoder = nn.Linear(4, 8)
    before = encoder.weight.detach().clone()
    weights = trained(tmp_path / "run", encoder, lr=0.0).weights
    np.testing.assert_array_equal(weights["policy.trunk.0.module.weight"], before.numpy())


def test_a_classes_weights_follow_the_seed_and_its_constants_do_not(tmp_path):
    agents = [trained(tmp_path / str(s), Wide, lr=0.0, seed=s) for s in (1, 2)]
    name = "policy.trunk.0.module.layers.0.weight"
    assert (agents[0].weights[name] != agents[1].weights[name]).any()
    one, other = (agent.module.state_dict() for agent in agents)
    fixed = "policy.trunk.0.module.fixed"
    torch.testing.assert_close(one[fixed], other[fixed])


def test_it_learns_cartpole(tmp_path):
    options = {"hidden": (32,), "num_envs": 8, "rollout_steps": 64, "total_steps": 40_000}
    options |= {"lr": 1e-3, "epochs": 6, "minibatches": 4, "gamma": 0.98}
    *_, last = paceline.train(config_of(tmp_path / "run", Wide, **options))
    assert last.recent_return > 100  # a random policy makes 22


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "BatchNorm1d"),
        ("test_own_encoder:Tied", "tied"),
        (nn.Linear(4, 4).half(), "float16"),
        (nn.Linear(7, 4), "can't read"),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)), "in place"),
        (Apply(torch.Tensor.double), "float64"),
        (Apply(lambda features: features.sum(0, keepdim=True)), "for 2 observations"),
        (NotAModule, "not a class of"),
        ("os:getcwd", "not a class of"),  # and it is never called
        ("pathlib:Path", "not a class of"),
        ("test_own_encoder:NotAModule", "not a class of"),
        ("test_own_encoder:Absent", "can't be imported"),
        ("no_such_module:Net", "can't be imported"),
        ("test_own_encoder", "your own as module:Class"),
    ],
)
def test_what_can_not_be_held_is_refused_by_name(encoder, words, tmp_path):
    with pytest.raises(BadInput, match=words):
        list(paceline.train(config_of(tmp_path / "run", encoder)))
    assert not (tmp_path / "run").exists()


def test_a_checkpoints_word_for_its_encoder_is_never_imported(tmp_path):
    """Only the run's config.yaml, which is for people to read, or the caller may name one."""
    trained(tmp_path / "run", Wide)
    alone = tmp_path / "alone"
    newest = sorted((tmp_path / "run" / "checkpoints").glob("0*"))[-1]
    newest.rename(alone)
    with pytest.raises(BadInput, match=r"test_own_encoder:Wide.*encoder="):
        paceline.load(alone)
    assert paceline.load(alone, encoder=Wide).act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compiling", ["off", pytest.param("on", marks=needs_compiler)])
def test_frozen_weights_stay_as_they_are(tmp_path, compiling):
    encoder = nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.ReLU())
    agent = trained(tmp_path / "run", encoder, hidden=(8,), compile=compiling, lr=1e-2)
    name = "policy.trunk.0.module.0.weight"
    np.testing.assert_array_equal(agent.weights[name], encoder[0].weight.numpy())
    assert (agent.weights["policy.trunk.1.weight"] != 0).any()
