"""Hidden velocities, and the previous action and reward as part of the observation."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from environments import ACTIONS, OBSERVATIONS, Anything
from saved_runs import PLAIN, last_state, left_after

import paceline
from paceline.envs.source import make_columns, source_of
from paceline.envs.wrappers import VELOCITIES, MemoryInputs
from paceline.rollout import Rollout

VERSIONS = {"CartPole": 1, "Acrobot": 1, "Pendulum": 1, "MountainCar": 0, "LunarLander": 3}
BOTH = ("action", "reward")


def rolled(columns, steps, actions):
    obs, act = columns.obs_spec, columns.act_spec
    out = Rollout.allocate(steps, columns.num_envs, obs.stored, act.stored)
    columns.reset(out.obs[-1])
    out.first[-1] = True
    out.start_next()
    for t in range(steps):
        columns.step(t, columns.adapt(actions[t]), out)
    return out


@pytest.mark.parametrize("name", [*VERSIONS, "MountainCarContinuous"])
def test_velocities_are_0_and_the_rest_is_what_it_was(name):
    if name == "LunarLander":
        pytest.importorskip("Box2D")
    env_id = f"{name}-v{VERSIONS.get(name, 0)}"
    seen = []
    for hidden in (False, True):
        with make_columns(env_id, 2, seed=3, mask_velocity=hidden) as columns:
            kind, size = columns.act_spec.kind, columns.act_spec.size
            draw = np.random.default_rng(0)
            actions = draw.normal(size=(30, 2, size)).astype(np.float32)
            out = rolled(columns, 30, actions if kind == "box" else actions.argmax(-1))
            seen.append(out.obs.copy())
    whole, masked = seen
    velocities = list(VELOCITIES[name])
    assert not masked[..., velocities].any() and np.ptp(whole[..., velocities], (0, 1)).all()
    shown = np.setdiff1d(np.arange(whole.shape[-1]), velocities)
    np.testing.assert_array_equal(masked[..., shown], whole[..., shown])


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observation", ["box", "dict", "image and numbers", "discrete"])
def test_a_policy_sees_what_it_did_and_what_it_got(observation, action):
    """In every space; at an episode's start there is neither."""
    env = partial(Anything, OBSERVATIONS[observation], ACTIONS[action], length=4)
    with make_columns(env, 2, memory_inputs=BOTH, masks=False) as columns:
        spec, act = columns.obs_spec, columns.act_spec
        at = {leaf.path[0]: place for leaf, _, place in spec.places}
        draw = np.random.default_rng(1)
        shape, _ = act.stored
        if act.kind == "box":
            actions = draw.normal(size=(12, 2, *shape)).astype(np.float32)
        else:
            sizes = np.array(act.choices)
            actions = draw.integers(0, sizes, size=(12, 2, len(sizes))).reshape(12, 2, *shape)
        out = rolled(columns, 12, actions)
        vectors = spec.split(out.obs)["vector"].reshape(13, 2, -1)
        rewards = vectors[..., at["previous_reward"]][..., 0]
        shown = vectors[..., at["previous_action"]]
        begins = np.concatenate([np.ones((1, 2), bool), out.first[1:]])
        assert 2 < begins.sum() < 20
        np.testing.assert_array_equal(rewards[begins], 0)
        steps = out.valid & ~begins[1:]
        np.testing.assert_array_equal(rewards[1:][steps], out.reward[steps])
        for t, b in np.argwhere(steps):
            given = columns.adapt(actions[t])[b]
            if act.kind == "box":
                np.testing.assert_allclose(shown[t + 1, b], np.ravel(given))
            else:
                chosen = np.split(shown[t + 1, b], np.cumsum(np.array(act.choices) + 1)[:-1])
                found = [int(one.argmax()) for one in chosen]
                assert [one.sum() for one in chosen] == [1] * len(chosen)
                assert found == (np.ravel(actions[t, b]) + 1).tolist()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_an_agent_shows_its_policy_what_training_showed(tmp_path, env_id):
    """Played by `Agent.act` in a plain environment, and by the wrapper that training has."""
    small = {"num_envs": 2, "rollout_steps": 16, "minibatches": 1, "total_iters": 2}
    config = paceline.Config(
        env_id=env_id,
        memory="gru",
        memory_size=8,
        memory_inputs=BOTH,
        eval_episodes=2,
        output_dir=str(tmp_path / "run"),
        **PLAIN | small,
    )
    list(paceline.train(config))
    agent = paceline.load(tmp_path / "run")
    with pytest.raises(paceline.BadInput, match="reward"):
        for _ in range(2):
            agent.act(np.zeros(4 if env_id == "CartPole-v1" else 3))
    plain, wrapped = gym.make(env_id), MemoryInputs(gym.make(env_id), BOTH)
    taken = []
    for env in (plain, wrapped):
        agent.reset()
        seen, _ = env.reset(seed=4)
        actions, reward = [], None
        for _ in range(15):
            action = agent.act(seen, reward=reward)
            actions.append(action)
            seen, reward, terminated, *_ = env.step(action)
            if terminated:
                break
        taken.append(np.array(actions))
        env.close()
    np.testing.assert_allclose(*taken, rtol=1e-5, atol=1e-6)
    assert paceline.evaluate(agent, env_id, 2, memory_inputs=BOTH).episodes == 2


def test_a_run_with_both_resumes_to_the_byte_and_is_evaluated_as_it_was_trained(tmp_path):
    small = {"num_envs": 2, "rollout_steps": 16, "minibatches": 1, "total_iters": 5}
    config = paceline.Config(
        memory="lstm",
        memory_inputs="action,reward",
        env={"mask_velocity": True},
        eval_episodes=2,
        **PLAIN | small,
    )
    list(paceline.train(config.replace(output_dir=str(tmp_path / "whole"))))
    left_after(config.replace(output_dir=str(tmp_path / "cut")), 2)
    list(paceline.resume(tmp_path / "cut"))
    assert last_state(tmp_path / "whole") == last_state(tmp_path / "cut")
    assert paceline.load(tmp_path / "whole").network.obs.size == 4 + 3 + 1


def reversed_and_shorter(env):
    return gym.wrappers.TransformObservation(
        env, lambda seen: seen[2::-1], gym.spaces.Box(-9, 9, (3,), np.float32)
    )


def test_velocities_are_hidden_below_wrappers_that_move_them():
    wrappers = [reversed_and_shorter]
    with make_columns("CartPole-v1", 1, mask_velocity=True, wrappers=wrappers) as columns:
        obs = rolled(columns, 5, np.zeros((5, 1), np.int64)).obs[:, 0]
    assert not obs[:, 1].any() and obs[:, [0, 2]].any(0).all()


class ShownTwice(gym.Wrapper):
    """Has a key of its own that memory inputs have, too."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        box = gym.spaces.Box(0, 1, (1,), np.float32)
        self.observation_space = gym.spaces.Dict({"previous_action": box})

    def reset(self, **options):
        return {"previous_action": np.zeros(1, np.float32)}, {}


@pytest.mark.parametrize("given", ["foo", ("foo",), None, 3])
def test_what_is_no_memory_input_is_refused(given):
    with pytest.raises(paceline.BadInput, match="memory_inputs"):
        paceline.make_vec("CartPole-v1", 2, memory_inputs=given)
    with paceline.make_vec("CartPole-v1", 2, memory_inputs="action") as envs:
        assert "previous_action" in envs.observation_space.spaces


class Parts(gym.ObservationWrapper):
    """CartPole as a Dict whose only key comes after those of memory inputs."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Dict({"state": self.env.observation_space})

    def observation(self, observation):
        return {"state": observation}


def test_an_agent_knows_a_batch_by_the_environments_own_parts(tmp_path):
    small = {"num_envs": 2, "rollout_steps": 16, "minibatches": 1, "total_iters": 1}
    options = PLAIN | small | {"memory": "gru", "memory_inputs": BOTH, "eval_episodes": 1}
    list(paceline.train(paceline.Config(env_id=Parts, output_dir=str(tmp_path / "run"), **options)))
    agent = paceline.load(tmp_path / "run")
    assert agent.act({"state": np.zeros(4, np.float32)}) in (0, 1)
    for rows in (3, 1):
        batch = {"state": np.zeros((rows, 4), np.float32)}
        actions, state = agent.step(batch)
        assert actions.shape == (rows,)
        assert agent.step(batch, state, reward=np.zeros(rows))[0].shape == (rows,)


@pytest.mark.parametrize(
    ("env_id", "options", "words"),
    [
        ("FrozenLake-v1", {"mask_velocity": True}, "velocities in.*this environment is FrozenLake"),
        ("toy:chain", {"mask_velocity": True}, "none that is registered"),
        ("CartPole-v1", {"mask_velocity": True, "vector": True}, "mask_velocity.*one by one"),
        ("CartPole-v1", {"memory_inputs": BOTH, "vector": True}, "memory_inputs.*one by one"),
        (
            "CartPole-v1",
            {"memory_inputs": BOTH, "frame_stack": 2},
            "memory_inputs.*stack is 2",
        ),
        (ShownTwice, {"memory_inputs": BOTH}, "has previous_action already"),
    ],
)
def test_where_it_can_not_be_that_is_said(env_id, options, words):
    with pytest.raises(paceline.BadInput, match=words):
        make_columns(env_id, 1, **options)


def test_a_batch_of_games_has_no_place_for_it():
    pytest.importorskip("envpool")
    with pytest.raises(paceline.BadInput, match=r"memory_inputs.*one by one"):
        source_of("envpool:CartPole-v1", memory_inputs=BOTH)
