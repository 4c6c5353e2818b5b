"""Frame stacks: a policy and a learner see what a plain loop stacks.

S = observations in a stack, T = steps of a rollout, N = rows in all, B = columns.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from environments import Anything
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_runs import PLAIN

import paceline
from paceline.envs.columns import episode_seed
from paceline.envs.frame_stack import (
    FrameStack,
    last_frames,
    stack_index,
    stacked,
    stacked_space,
    with_stack,
)
from paceline.envs.spaces import ActionSpec, observation_spec
from paceline.errors import BadInput
from paceline.rollout import Rollout
from paceline.run.build import build

ACT = ActionSpec("discrete", 3)

SPACES = {
    "number": spaces.Box(-1, 1, (1,), np.float32),
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "HWC": spaces.Box(0, 255, (8, 9, 3), np.uint8),
    "CHW": spaces.Box(0, 255, (3, 8, 9), np.uint8),
    "gray": spaces.Box(0, 255, (8, 9), np.uint8),
    "float HWC": spaces.Box(0, 1, (8, 8, 2), np.float32),
}


def seen_as(layout, stack):
    """Observations [S, ...] as one, in the shape that a policy takes."""
    if layout.endswith("HWC"):
        return np.concatenate(list(stack), axis=2)
    return np.concatenate(list(stack), axis=0) if layout == "CHW" else np.stack(list(stack))


def plainly(layout, obs, first, size):
    """The stack of every row, one observation after the other: [N, B, ...]"""
    rows = []
    for t in range(len(obs)):
        row = []
        for column in range(obs.shape[1]):
            stack, at = [], t
            for _ in range(size):
                stack.insert(0, obs[at, column])
                if not first[at, column]:
                    at -= 1
            row.append(seen_as(layout, stack))
        rows.append(row)
    return np.array(rows)


@st.composite
def histories(draw):
    """A layout, a stack's size, a mask or none, rollouts and T, observations, and `first`."""
    layout = draw(st.sampled_from(sorted(SPACES)))
    size, columns = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    rollouts, steps = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    rows = rollouts * steps + 1
    flags = st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns)
    first = np.array(draw(flags)).reshape(rows, columns)
    first[0] = True
    masked = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    space = SPACES[layout]
    obs = rng.uniform(space.low, space.high, (rows, columns, *space.shape)).astype(space.dtype)
    mask = rng.integers(0, 2, (rows, columns, ACT.size)).astype(bool)
    return layout, size, masked, steps, obs, mask, first


def spec_of(layout, size, masked):
    info = {"action_mask": np.ones(ACT.size)} if masked else {}
    return with_stack(observation_spec(SPACES[layout], ACT, info), size)


def stored_as(spec, obs, mask):
    """[N, B] as a rollout holds them."""
    shape, dtype = spec.stored
    found = np.zeros((*obs.shape[:2], *shape), dtype)
    views = spec.split(found)
    name = next(iter(spec.parts))
    views[name][...] = obs.reshape(views[name].shape)
    if spec.mask:
        views["mask"][...] = mask
    return found


def cut(spec, stored, first, steps):
    """Consecutive rollouts of these rows; what lies before an episode's start is garbage."""
    for begin in range(0, len(stored) - 1, steps):
        out = Rollout.allocate(
            steps, stored.shape[1], spec.stored, ACT.stored, history=spec.history
        )
        out.before.view(np.uint8)[...] = 0xA5
        out.obs[:] = stored[begin : begin + steps + 1]
        out.first[:] = first[begin : begin + steps + 1]
        yield begin, out


def assert_seen(spec, seen, expected, mask):
    """What a policy takes, of some rows."""
    views = spec.seen.split(seen)
    part = views[next(iter(spec.parts))]
    np.testing.assert_array_equal(part, expected.reshape(part.shape))
    if spec.mask:
        np.testing.assert_array_equal(views["mask"], mask)


@settings(max_examples=60, deadline=None)
@given(histories())
def test_a_window_shows_the_stacks_that_a_plain_loop_makes(history):
    layout, size, masked, _, obs, mask, first = history
    spec = spec_of(layout, size, masked)
    stored, expected = stored_as(spec, obs, mask), plainly(layout, obs, first, size)
    window = FrameStack(spec, obs.shape[1])
    for t in range(len(obs)):
        for _ in range(2):  # looking twice changes nothing
            seen = window.show(stored[t], first[t])
            assert (seen.shape[1:], seen.dtype) == (spec.seen.stored[0], spec.seen.stored[1])
            assert_seen(spec, seen, expected[t], mask[t])
        window.shift()


@settings(max_examples=80, deadline=None)
@given(histories())
def test_rollouts_give_the_same_stacks_also_across_their_boundaries(history):
    """Begun with what a window kept, or with what the rollout before ended in."""
    layout, size, masked, steps, obs, mask, first = history
    spec = spec_of(layout, size, masked)
    stored, expected = stored_as(spec, obs, mask), plainly(layout, obs, first, size)
    name, window, kept = next(iter(spec.parts)), FrameStack(spec, obs.shape[1]), None
    for begin, out in cut(spec, stored, first, steps):
        if kept is not None:
            out.before[:] = kept
        found = stacked(spec, out, name)
        rows = expected[begin : begin + steps + 1]
        np.testing.assert_array_equal(found.reshape(rows.shape), rows)
        if spec.mask:
            np.testing.assert_array_equal(
                stacked(spec_of(layout, 1, masked), out, "mask"), out.obs["mask"]
            )
        for t in range(steps):
            window.show(stored[begin + t], first[begin + t])
            window.shift()
        kept = last_frames(spec, out)
        assert kept.shape == (size - 1, obs.shape[1], *spec.history[1][0])
        # A rollout that starts with the window's frames shows the same.
        twin = FrameStack(spec, obs.shape[1])
        twin.before = kept
        after, flags = stored[begin + steps], first[begin + steps]
        ours, theirs = (one.show(after, flags).tobytes() for one in (window, twin))
        assert ours == theirs


@settings(max_examples=40, deadline=None)
@given(histories())
def test_places_are_within_their_column_and_episode(history):
    _, size, _, steps, _, _, first = history
    part, columns = first[: steps + 1], first.shape[1]
    found = stack_index(part, size)
    assert found.shape == (steps + 1, columns, size)
    assert (found % columns == np.arange(columns)[None, :, None]).all()
    rows = found // columns - (size - 1)
    assert (rows[..., -1] == np.arange(steps + 1)[:, None]).all()
    assert ((np.diff(rows, axis=-1) == 0) | (np.diff(rows, axis=-1) == 1)).all()
    for t in range(steps + 1):
        for i in range(columns):
            begun = [s for s in range(t + 1) if part[s, i]][-1]
            assert rows[t, i].min() >= begun


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("layout", SPACES)
def test_what_make_vec_shows_is_what_gymnasiums_wrapper_does(layout, size):
    """Over many episodes, of which some have one step; its space is the wrapper's, too."""
    make = partial(Anything, SPACES[layout], spaces.Discrete(3))
    rows, columns = 80, 2
    twins = [gym.wrappers.FrameStackObservation(make(), size) for _ in range(columns)]
    episode, ended, resets = [0] * columns, [True] * columns, 0
    actions = np.random.default_rng(1).integers(3, size=(rows, columns))
    with paceline.make_vec(make, columns, seed=4, frame_stack=size) as envs:
        seen = envs.reset()
        for t in range(rows):
            for i, twin in enumerate(twins):
                if ended[i]:
                    obs, _ = twin.reset(seed=episode_seed(4, i, episode[i]))
                    episode[i], ended[i], resets = episode[i] + 1, False, resets + 1
                else:
                    obs, _, terminated, truncated, _ = twin.step(actions[t - 1, i])
                    ended[i] = terminated or truncated
                expected = seen_as(layout, obs) if size > 1 else obs[0]
                np.testing.assert_array_equal(seen[i], expected, err_msg=f"row {t}")
                assert envs.observation_space.contains(seen[i])
            seen = envs.step(list(actions[t])).obs
        space, own = envs.observation_space, twins[0].observation_space
        for ours, theirs in ((space.low, own.low), (space.high, own.high)):
            expected = seen_as(layout, theirs) if size > 1 else theirs[0]
            np.testing.assert_array_equal(ours, expected)
    assert resets > 6


def test_a_single_part_within_a_dict_is_stacked_in_its_place():
    """As training does it; what a loop of one's own is shown has the same structure."""
    space = spaces.Dict({"place": spaces.Box(-1, 1, (3,), np.float32)})
    make = partial(Anything, space, spaces.Discrete(3), length=9)
    spec = with_stack(observation_spec(space), 4)
    assert spec.seen.leaves[0].shape == (4, 3)
    with paceline.make_vec(make, 2, frame_stack=4) as envs:
        seen = envs.reset()
        assert seen["place"].shape == (2, 4, 3)
        assert envs.observation_space["place"].shape == (4, 3)
        after = envs.step([0, 1]).obs
        np.testing.assert_array_equal(after["place"][:, :-1], seen["place"][:, 1:])
    assert stacked_space(space, spec)["place"].shape == (4, 3)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Discrete(4), "a discrete one"),
        (spaces.MultiDiscrete([2, 3]), "a discrete one"),
        (spaces.Dict({"a": SPACES["vector"], "b": SPACES["HWC"]}), "several parts"),
    ],
    ids=["discrete", "multi", "dict"],
)
def test_what_can_not_be_stacked_is_refused_with_a_sentence(space, words):
    with pytest.raises(BadInput, match=f"frame_stack is 3.*{words}"):
        with_stack(observation_spec(space), 3)
    assert with_stack(observation_spec(space), 1).stack == 1


# What a learner sees.

RUNS = {
    "vector": ("vector", 3, False, {}),
    "matrix, normalized": ("matrix", 4, False, {"normalize_obs": True}),
    "vector, masked": ("vector", 2, True, {}),
    "HWC": ("HWC", 4, False, {}),
    "CHW, masked": ("CHW", 3, True, {}),
    "gray": ("gray", 4, False, {}),
    "gray, masked, small": ("gray", 5, True, {"encoder": "small"}),
    "not stacked": ("HWC", 1, True, {}),
    "impala": ("gray", 4, False, {"algo": "impala", "minibatches": 1}),
}
STEPS, COLUMNS = 12, 4


def config_of(layout, size, masked, options):
    defaults = {
        **PLAIN,
        "num_envs": COLUMNS,
        "rollout_steps": STEPS,
        "hidden": (16,),
        "total_iters": 1000,
        "minibatches": 4,
        "env": {"frame_stack": size},
    }
    if "HW" in layout or layout == "gray":
        defaults["encoder"] = "mlp"
    make = partial(Anything, SPACES[layout], spaces.Discrete(3), masked=masked)
    return paceline.Config(env_id=make, **(defaults | options))


@contextmanager
def built(name):
    """The parts of a run, with weights by which every observation asks for another action."""
    with build(config_of(*RUNS[name])) as parts:
        with torch.no_grad():
            parts.learner.module.policy.head.weight.mul_(200)
        parts.sampler.publish(parts.learner.weights, parts.learner.version)
        yield parts


def learn(parts, rollout):
    parts.learner.update(rollout, 1.0)
    parts.sampler.publish(parts.learner.weights, parts.learner.version)


def watched(parts):
    """What the policy is given while it acts, in order."""
    (block,), seen = parts.sampler._blocks, []
    step = block._actor.step

    def watch(obs, *out):
        seen.append(obs.copy())
        step(obs, *out)

    block._actor.step = watch
    return seen


def ratios(learner, minibatch):
    """π/μ of the rows that count."""
    with torch.no_grad():
        logp = learner.module.predict(minibatch.inputs, minibatch.action).logp
    return (logp - minibatch.logp)[minibatch.weight > 0].exp()


@pytest.mark.parametrize("name", RUNS)
def test_a_learner_sees_what_the_policy_saw_when_it_acted(name):
    """Row by row, in rollouts with episodes that end in them and span them."""
    with built(name) as parts:
        learner, stored = parts.learner, parts.env_info.obs_spec
        seen, ends = watched(parts), 0
        for _ in range(3):
            seen.clear()
            rollout = parts.sampler.collect()
            ends += rollout.done.sum()
            shown = learner.observations(rollout)
            looked = shown.gather_images(learner.module.inputs(shown.parts))
            acted = stored.seen.split(np.concatenate(seen[:STEPS]))
            for part, (which, ours) in zip(looked, acted.items(), strict=True):
                theirs = part[: STEPS * COLUMNS].numpy()
                if which == "vector" and learner.module.spec.normalize_obs:
                    continue  # it is given normalized, and judged by the ratio below
                assert theirs.dtype == ours.dtype
                np.testing.assert_array_equal(theirs, ours.reshape(theirs.shape), err_msg=which)
            learn(parts, rollout)
        assert ends > 5


@pytest.mark.parametrize("name", RUNS)
def test_the_ratio_of_every_first_minibatch_is_one(name):
    """And would not be, if rows were given to each other's actions."""
    with built(name) as parts:
        learner = parts.learner
        for _ in range(3):
            rollout = parts.sampler.collect()
            batch = learner.prepare_batch(rollout)
            found = []
            for minibatch in learner.descent.shuffled(batch.rows, rollout, 0, 0).split(12):
                looked = batch.with_images(minibatch).inputs
                right = ratios(learner, replace(minibatch, inputs=looked))
                found.append(right)
                turned = tuple(part.roll(1, 0) for part in looked)
                wrong = ratios(learner, replace(minibatch, inputs=turned))
                assert (wrong - 1).abs().max() > 1e-2
            torch.testing.assert_close(
                torch.cat(found), torch.ones(int(rollout.valid.sum())), rtol=0, atol=1e-5
            )
            learn(parts, rollout)


@pytest.mark.parametrize("name", ["HWC", "gray", "vector"])
def test_a_rollout_holds_each_observation_once(name):
    """With as many more as the first stacks reach back; and so does the learner, of pictures."""
    layout, size, *_ = RUNS[name]
    one = SPACES[layout].low.nbytes
    with built(name) as parts:
        rollout = parts.sampler.collect()
        assert rollout.obs.nbytes == (STEPS + 1) * COLUMNS * one
        assert rollout.before.nbytes == (size - 1) * COLUMNS * one
        parts.learner.update(rollout, 1.0)
        kept_frames = parts.learner.observations(rollout).frames.values()
        kept = [frames.nbytes for frames in kept_frames]
        pictures = layout != "vector"
        assert kept == [(size - 1 + STEPS + 1) * COLUMNS * one] * pictures
        assert all(frames.dtype == torch.uint8 for frames in kept_frames)
        state = parts.sampler.state()
        assert sum(np.asarray(array).nbytes for array in state.values()) < size * COLUMNS * one + (
            STEPS * COLUMNS * 8 + 8 * COLUMNS * 8
        )
