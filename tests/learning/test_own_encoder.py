"""A user's own encoder: learns, resumes to the byte, acts; what can't be held is refused."""

from __future__ import annotations

from functools import partial

import nets
import numpy as np
import pytest
import torch
from saved_runs import PLAIN
from worlds import ACTIONS, OBSERVATIONS, Anything

import paceline
from paceline.errors import BadInput
from paceline.learning.compiler import compiler_missing


def config_of(folder, encoder, env_id="CartPole-v1", **options):
    defaults = {
        **PLAIN,
        "num_envs": 4,
        "rollout_steps": 32,
        "total_steps": 512,
        "eval_episodes": 2,
    }
    return paceline.Config(
        env_id=env_id, encoder=encoder, output_dir=str(folder), **(defaults | options)
    )


def weights_of(run, **options):
    return {name: w.tobytes() for name, w in paceline.load(run, **options).weights.items()}


SIGHT = partial(Anything, OBSERVATIONS["image and numbers"], ACTIONS["box"])
CASES = {
    "by name": ("nets:Wide", "CartPole-v1", {}),
    "class": (nets.Wide, "CartPole-v1", {"hidden": (16,), "normalize_obs": True}),
    "shared": (nets.Wide, "CartPole-v1", {"shared_trunk": True}),
    "dict": (nets.Sight, SIGHT, {"state_dependent_std": True}),
    "discrete": (torch.nn.Linear(16, 8), "FrozenLake-v1", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_trains_resumes_to_the_byte_and_acts(case, tmp_path):
    encoder, env_id, options = CASES[case]
    list(paceline.train(config_of(tmp_path / "whole", encoder, env_id, **options)))
    for report in paceline.train(config_of(tmp_path / "parts", encoder, env_id, **options)):
        if report.iter == 2:
            break
    given = {"encoder": encoder} if isinstance(encoder, torch.nn.Module) else {}
    again = given | ({} if isinstance(env_id, str) else {"env_id": env_id})
    list(paceline.resume(tmp_path / "parts", **again))
    assert weights_of(tmp_path / "whole", **given) == weights_of(tmp_path / "parts", **given)
    agent = paceline.load(tmp_path / "whole", **given)
    result = paceline.evaluate(agent, env_id, 3)
    assert np.isfinite(result.mean)
    assert any("module" in name for name in agent.weights)
    assert isinstance(agent.module, torch.nn.Module)


def test_the_module_that_is_handed_out_says_what_the_agent_does(tmp_path):
    list(paceline.train(config_of(tmp_path / "run", nets.Wide, normalize_obs=True)))
    agent = paceline.load(tmp_path / "run")
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    with torch.no_grad():
        logits, values = agent.module(torch.from_numpy(obs))
    assert logits.argmax(-1).tolist() == agent.act(obs)
    assert values.shape == (64, 1)


def test_an_object_is_asked_for_again(tmp_path):
    list(paceline.train(config_of(tmp_path / "run", torch.nn.Linear(4, 8))))
    with pytest.raises(BadInput, match=r"encoder.*resume"):
        list(paceline.resume(tmp_path / "run", total_steps=1024))
    with pytest.raises(BadInput, match=r"encoder="):
        paceline.load(tmp_path / "run")


def test_an_objects_weights_are_where_learning_begins(tmp_path):
    encoder = torch.nn.Linear(4, 8)
    before = encoder.weight.detach().clone()
    config = config_of(tmp_path / "run", encoder, lr=0.0)
    list(paceline.train(config))
    weights = paceline.load(tmp_path / "run", encoder=encoder).weights
    np.testing.assert_array_equal(weights["policy.trunk.0.module.weight"], before.numpy())


def test_a_classes_weights_follow_the_seed_and_its_constants_do_not(tmp_path):
    agents = []
    for seed in (1, 2):
        config = config_of(tmp_path / str(seed), nets.Wide, lr=0.0, seed=seed)
        list(paceline.train(config))
        agents.append(paceline.load(tmp_path / str(seed)))
    name = "policy.trunk.0.module.layers.0.weight"
    assert (agents[0].weights[name] != agents[1].weights[name]).any()
    one, other = (agent.module.state_dict() for agent in agents)
    torch.testing.assert_close(
        one["policy.trunk.0.module.fixed"], other["policy.trunk.0.module.fixed"]
    )


def test_it_learns_cartpole(tmp_path):
    config = config_of(
        tmp_path / "run",
        nets.Wide,
        hidden=(32,),
        num_envs=8,
        rollout_steps=64,
        total_steps=40_000,
        lr=1e-3,
        epochs=6,
        minibatches=4,
        gamma=0.98,
    )
    for report in paceline.train(config):
        last = report
    assert last.recent_return > 100  # a random policy makes 22


NEVER_CALLED = ("os:getcwd", "builtins:print", "pathlib:Path", "nets:NotAModule")


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        ("nets:Normed", "BatchNorm1d"),
        ("nets:Tied", "tied"),
        ("nets:Halved", "float16"),
        ("nets:Wrong", "can't read"),
        ("nets:InPlace", "in place"),
        ("nets:Double", "float64"),
        ("nets:Summed", "for 2 observations"),
        (nets.NotAModule, "not a class of"),
        *((path, "not a class of") for path in NEVER_CALLED),
        ("nets:Absent", "can't be imported"),
        ("no_such_module:Net", "can't be imported"),
        ("nets", "your own as module:Class"),
    ],
)
def test_what_can_not_be_held_is_refused_by_name(encoder, words, tmp_path):
    with pytest.raises(BadInput, match=words):
        list(paceline.train(config_of(tmp_path / "run", encoder)))
    assert not (tmp_path / "run").exists()


def test_a_checkpoints_word_for_its_encoder_is_never_imported(tmp_path):
    """Only the run's config.yaml, which is for people to read, or the caller may name one."""
    list(paceline.train(config_of(tmp_path / "run", nets.Wide)))
    alone = tmp_path / "alone"
    newest = sorted((tmp_path / "run" / "checkpoints").glob("0*"))[-1]
    newest.rename(alone)
    with pytest.raises(BadInput, match=r"nets:Wide.*encoder="):
        paceline.load(alone)
    assert paceline.load(alone, encoder=nets.Wide).act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compiling", ["off", "on"])
def test_frozen_weights_stay_as_they_are(tmp_path, compiling):
    if compiling == "on" and (missing := compiler_missing()):
        pytest.skip(missing)
    encoder = torch.nn.Sequential(torch.nn.Linear(4, 8).requires_grad_(False), torch.nn.ReLU())
    config = config_of(tmp_path / "run", encoder, hidden=(8,), compile=compiling, lr=1e-2)
    list(paceline.train(config))
    agent = paceline.load(tmp_path / "run", encoder=encoder)
    name = "policy.trunk.0.module.0.weight"
    np.testing.assert_array_equal(agent.weights[name], encoder[0].weight.numpy())
    assert (agent.weights["policy.trunk.1.weight"] != 0).any()
