"""The encoder of symbolic grids."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from environments import ACTIONS, Anything
from saved_runs import PLAIN, assert_resumes_to_the_byte

import paceline
from paceline.config.resolve import fit_to_spaces
from paceline.envs.source import inspect_env
from paceline.policy.grid import CELL, Grid
from paceline.run.build import build

CELLS = gym.spaces.Box(0, 10, (3, 4, 3), np.float32)
SPACE = gym.spaces.Dict({"direction": gym.spaces.Discrete(4), "image": CELLS})
pytestmark = pytest.mark.timeout(120)


def test_kinds_are_names_and_not_quantities():
    """A cell's number enters by which it is: every pair of kinds is equally far apart."""
    torch.manual_seed(0)
    net, direction = Grid(SPACE), torch.zeros(1, 4)
    weight = net.layers[0].weight
    assert weight.shape[1] == 3 * 4 * sum(CELL) + 4
    nothing = torch.zeros(1, 3, 4, 3)
    for part, kinds in enumerate(CELL):
        for kind in range(1, kinds):
            image = nothing.clone()
            image[0, 1, 2, part] = kind
            out, other = (net({"direction": direction, "image": x}) for x in (image, nothing))
            assert not torch.equal(out, other)
    beyond = nothing.clone()
    beyond[0, 0, 0] = torch.tensor([99.0, -3.0, 7.0])  # is taken for the nearest there is
    assert net({"direction": direction, "image": beyond}).isfinite().all()


def test_a_policy_with_it_trains_resumes_is_evaluated_and_loaded(tmp_path):
    env = partial(Anything, SPACE, ACTIONS["discrete"], masked=True)
    small = {"num_envs": 4, "rollout_steps": 16, "minibatches": 2, "total_steps": 192}
    options = PLAIN | small | {"encoder": "grid", "memory": "gru", "eval_episodes": 2}
    config = paceline.Config(env_id=env, output_dir=str(tmp_path), **options)
    assert_resumes_to_the_byte(config, tmp_path, env_id=env)
    agent = paceline.load(tmp_path / "whole")
    assert agent.network.encoder == "grid"
    assert paceline.evaluate(agent, env, 2).episodes == 2
    again = config.replace(output_dir=str(tmp_path / "more"), init_from=str(tmp_path / "whole"))
    assert list(paceline.train(again))


def test_an_observation_without_cells_is_refused():
    config = paceline.Config(env_id="CartPole-v1", encoder="grid", **PLAIN)
    with pytest.raises(paceline.BadInput, match=r"grid.*observation has none"), build(config):
        pass


def test_a_preset_that_asks_for_it_leaves_it_out_where_images_are_shown():
    pytest.importorskip("minigrid")
    env = {"wrappers": ["minigrid.wrappers:RGBImgPartialObsWrapper"]}
    config = paceline.Config(env_id="minigrid:MemoryS7", env=env, memory="gru", threads=1)
    assert (config.preset, config.encoder) == ("minigrid.memory", "grid")
    info = inspect_env(config.env_id, **config.env_options)
    assert fit_to_spaces(config, info.obs_spec, info.act_spec).encoder is None
