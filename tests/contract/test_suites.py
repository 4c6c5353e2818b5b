"""One contract for all suites: their rows are those of the suite itself, stepped without Paceline.

T = rows, B = columns.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
from sampling import joined
from suites import CASES, cases
from worlds import serial_of

import paceline
from paceline.envs.columns import episode_seed
from paceline.envs.source import inspect_env, make_columns
from paceline.policy.actor import make_actor
from paceline.policy.actor_critic import ActorCritic, Policy
from paceline.policy.agent import Agent
from paceline.policy.network import NetworkSpec
from paceline.rollout import Episode, Rollout
from paceline.run import evaluation

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore:.*precision lowered")]

COLUMNS, SEED, FIRST_COLUMN, ROLLOUTS = 3, 11, 5, 4
MORE_ATARI = ("atari Breakout lives", "atari Breakout", "atari generations")
FIELDS = ("obs", "first", "action", "logp", "reward", "terminated", "truncated", "valid")

EVALUATED = ("CartPole-limited", "procgen fruitbot", "envpool CartPole", "minigrid limited")


def columns_of(case, columns=COLUMNS, seed=SEED, first_column=FIRST_COLUMN, env_id=None, **more):
    options = case.options | more
    return make_columns(env_id or case.env_id, columns, seed, first_column, **options)


def sampled(case, rollouts=ROLLOUTS):
    """Rollouts of a policy that tries everything, as one; and the episodes it was told of."""
    columns = columns_of(case)
    network = NetworkSpec(columns.obs_spec.seen, columns.act_spec, (8,), pictures="mlp")
    sampler = serial_of(columns, make_actor(network, COLUMNS), case.steps, SEED)
    size = sum(parameter.numel() for parameter in Policy(network).parameters())
    weights = np.random.default_rng(0).normal(scale=0.02, size=size).astype(np.float32)
    sampler.publish(weights, 0)
    arrays, episodes = [], []
    for _ in range(rollouts):
        rollout = sampler.collect()
        arrays.append({name: getattr(rollout, name).copy() for name in FIELDS})
        episodes += rollout.episodes
    sampler.close()
    return joined(arrays), episodes


def drawn(case, rows, columns=COLUMNS, seed=0):
    """Actions [T, B, ...] as a policy could have drawn them, the same for all columns."""
    rng, (kind, size) = np.random.default_rng(seed), case.action
    shape = (rows, 1) if kind == "discrete" else (rows, 1, size)
    one = rng.integers(size, size=shape) if kind == "discrete" else rng.uniform(-1.5, 1.5, shape)
    one = one if kind == "discrete" else one.astype(np.float32)
    return np.repeat(one, columns, axis=1)


def played(case, rows=40, columns=COLUMNS, **options):
    """Rows of columns that all act alike: {name: [T, B, ...]}"""
    with columns_of(case, columns, **options) as found:
        spec = found.obs_spec
        out = Rollout.allocate(rows, columns, spec.stored, found.act_spec.stored)
        found.reset(out.obs[-1])
        out.first[-1] = True
        out.start_next()
        for t, action in enumerate(drawn(case, rows, columns)):
            found.step(t, found.adapt(action), out)
    names = ("obs", "first", "reward", "terminated", "truncated", "valid")
    return {name: getattr(out, name) for name in names}


def same(one, other):
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("case", cases(slow=("atari Breakout lives", "atari Breakout")))
def test_rollouts_are_what_the_suite_does_with_the_same_seeds_and_actions(case):
    """Every observation, reward and flag to the bit, and every episode's return and length."""
    rows, episodes = sampled(case)
    check_resets(case, rows)
    oracle = case.oracle(COLUMNS, SEED, FIRST_COLUMN)
    expected, totals, lengths = [], [0.0] * COLUMNS, [0] * COLUMNS
    np.testing.assert_array_equal(rows["obs"][0], oracle.reset().astype(rows["obs"].dtype))
    assert rows["first"][0].all()
    for t, action in enumerate(rows["action"]):
        obs, reward, terminated, truncated, valid, first = oracle.step(action)
        where = f"row {t}"
        np.testing.assert_array_equal(
            rows["obs"][t + 1], obs.astype(rows["obs"].dtype), err_msg=where
        )
        np.testing.assert_array_equal(rows["reward"][t], np.float32(reward), err_msg=where)
        np.testing.assert_array_equal(rows["terminated"][t], terminated, err_msg=where)
        # Where both happen at once, terminated wins and the other flag means nothing.
        np.testing.assert_array_equal(
            rows["truncated"][t] & ~rows["terminated"][t], truncated & ~terminated, err_msg=where
        )
        np.testing.assert_array_equal(rows["valid"][t], valid, err_msg=where)
        np.testing.assert_array_equal(rows["first"][t + 1], first, err_msg=where)
        for i in range(COLUMNS):
            totals[i] += float(np.float32(reward[i])) * bool(valid[i])
            lengths[i] += bool(valid[i])
            if terminated[i] or truncated[i]:
                expected.append(Episode(FIRST_COLUMN + i, totals[i], lengths[i]))
                totals[i], lengths[i] = 0.0, 0
    oracle.close()
    assert [(e.column, e.length) for e in episodes] == [(e.column, e.length) for e in expected]
    found, theirs = [e.total for e in episodes], [e.total for e in expected]
    np.testing.assert_allclose(found, theirs, rtol=1e-9, atol=1e-9)
    for end in case.ends:
        assert rows[end].any(), f"no episode was {end}: nothing is shown by this"
    for end in {"terminated", "truncated"} - set(case.ends):
        assert not rows[end].any(), f"an episode was {end}"


def check_resets(case, rows):
    """A row that resets counts for nothing; of Procgen's there are none."""
    done = rows["terminated"] | rows["truncated"]
    if case.package == "procgen":
        assert rows["valid"].all() and not rows["truncated"].any()
        np.testing.assert_array_equal(rows["first"][1:], done)
        return
    resets = ~rows["valid"]
    np.testing.assert_array_equal(resets[1:], done[:-1])
    np.testing.assert_array_equal(rows["first"][1:], resets)
    assert resets.any() and not resets[0].any()
    assert not rows["reward"][resets].any()
    assert not done[resets].any()


@pytest.mark.parametrize("case", cases(slow=MORE_ATARI))
def test_what_is_stored_is_what_the_spaces_say(case):
    with columns_of(case, 1) as columns:
        spec, act = columns.obs_spec, columns.act_spec
        assert (spec.stored[0], np.dtype(spec.stored[1])) == (case.obs[0], np.dtype(case.obs[1]))
        assert (act.kind, act.size) == case.action
        assert (spec.stack, columns.resume) == (case.stack, case.resume)
        space = columns.observation_space
    rows = played(case, rows=3, columns=1)
    assert rows["obs"].shape == (4, 1, *case.obs[0]) and rows["obs"].dtype == case.obs[1]
    assert rows["reward"].dtype == np.float32
    if isinstance(space, gym.spaces.Box):
        for seen in rows["obs"].reshape(-1, *case.obs[0]):
            assert space.contains(seen.astype(space.dtype))
    info = inspect_env(case.env_id, **case.options)
    assert (info.obs_spec, info.act_spec, info.resume) == (spec, act, case.resume)


@pytest.mark.parametrize("case", cases(slow=MORE_ATARI))
def test_make_vec_shows_observations_of_its_space_and_takes_its_actions(case):
    options = case.options
    with paceline.make_vec(case.env_id, 2, seed=SEED, **options) as envs:
        space, seen = envs.observation_space, [envs.reset()]
        envs.action_space.seed(0)
        actions = [[envs.action_space.sample() for _ in range(2)] for _ in range(5)]
        seen += [envs.step(np.stack(action)).obs for action in actions]
    for obs in seen:
        parts = obs if isinstance(obs, dict) else {None: obs}
        spaces = space.spaces if isinstance(space, gym.spaces.Dict) else {None: space}
        assert parts.keys() == spaces.keys()
        for key, part in parts.items():
            assert part.shape == (2, *spaces[key].shape)
            for one in part:
                assert spaces[key].contains(np.asarray(one).astype(spaces[key].dtype)), key
    if case.stack > 1:
        assert seen[0].shape == (2, case.stack, *case.obs[0])
        np.testing.assert_array_equal(seen[1][:, :-1], seen[0][:, 1:])
        np.testing.assert_array_equal(seen[0], np.repeat(seen[0][:, -1:], case.stack, 1))


@pytest.mark.parametrize("case", cases(*EVALUATED, "atari Pong"))
def test_a_reset_after_an_end_begins_with_a_step_that_counts(case):
    columns = 2
    with columns_of(case, columns) as found:
        spec = found.obs_spec
        out = Rollout.allocate(1, columns, spec.stored, found.act_spec.stored)
        found.reset(out.obs[-1])
        for action in drawn(case, 2000, columns):
            out.start_next()
            found.step(0, found.adapt(action), out)
            if out.done.any():
                break
        assert out.done.any()
        found.reset(out.obs[-1])
        out.start_next()
        found.step(0, found.adapt(action), out)
        assert out.valid.all() and not out.first[1].any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", cases(slow=MORE_ATARI))
def test_rows_depend_on_the_seed_and_the_column_and_on_no_company(case):
    """Columns 5 and 6 together, again, with another seed, and 6 with 7; all acting alike."""
    rows = 150 if case.package == "procgen" else 40  # columns may share a level at first
    ours, again = (played(case, rows, 2) for _ in range(2))
    other, shifted = (
        played(case, rows, 2, seed=SEED + 1),
        played(case, rows, 2, first_column=FIRST_COLUMN + 1),
    )
    assert same(ours, again)
    assert ours["obs"].tobytes() != other["obs"].tobytes() != shifted["obs"].tobytes()
    for obs in (ours["obs"], other["obs"], shifted["obs"]):
        assert obs[:, 0].tobytes() != obs[:, 1].tobytes()
    for name, array in ours.items():
        alike = array[:, 1].tobytes() == shifted[name][:, 0].tobytes()
        assert alike or not case.one_by_one, name


@pytest.mark.parametrize("case", cases(where=lambda case: case.batched, slow=MORE_ATARI))
def test_the_number_of_threads_changes_nothing(case):
    one, many = (played(case, 50, columns=4, threads=threads) for threads in (1, 3))
    assert same(one, many)


def tasks():
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", cases(slow=MORE_ATARI))
def test_close_leaves_no_thread_no_process_and_no_file(case, tmp_path, monkeypatch):
    """The columns are still there, and asked to close a second time."""
    monkeypatch.chdir(tmp_path)
    played(case, 2, columns=2, threads=3)  # what a library keeps once it has been loaded
    gc.collect()
    this = psutil.Process()
    before = tasks(), this.num_fds(), len(this.children(recursive=True))
    columns = columns_of(case, 2, threads=3)
    columns.reset(np.zeros((2, *columns.obs_spec.stored[0]), columns.obs_spec.stored[1]))
    columns.close()
    deadline = time.monotonic() + 3
    while tasks() > before[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tasks(), this.num_fds(), len(this.children(recursive=True))) == before
    columns.close()
    assert not list(Path(tmp_path).iterdir())


@pytest.mark.parametrize("case", cases("procgen coinrun"))
def test_procgens_options_reach_it(case):
    """On one level all columns begin alike; on another, otherwise; backgrounds can be left out."""

    def begins(**kwargs):
        return played(case, rows=1, kwargs=kwargs)["obs"][0]

    one, other = begins(num_levels=1), begins(num_levels=1, start_level=1)
    plain = begins(num_levels=1, use_backgrounds=False)
    for obs in (one, other, plain):
        assert all(obs[0].tobytes() == obs[i].tobytes() for i in range(COLUMNS))
    assert len({obs[0].tobytes() for obs in (one, other, plain)}) == 3


@pytest.mark.parametrize("case", cases("atari Pong"))
def test_ataris_options_reach_it(case):
    """A time limit counts steps whatever their frames, and pictures may be larger, or in colour."""
    rows = played(case, rows=40, columns=1, time_limit=9, kwargs={"frameskip": 2})
    assert np.flatnonzero(rows["truncated"][:, 0]).tolist() == [8, 18, 28, 38]
    for kwargs, shape, stack in (
        ({"img_height": 96, "img_width": 100}, (96, 100), 4),
        ({"grayscale": False}, (84, 84, 3), 4),
        ({"stack_num": 2}, (2, 84, 84), 1),
    ):
        assert played(case, rows=1, columns=1, kwargs=kwargs)["obs"].shape == (2, 1, *shape)
        assert inspect_env(case.env_id, kwargs=kwargs).obs_spec.stack == stack


@pytest.mark.parametrize("sticky", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", cases("atari Breakout lives"))
def test_replayed_columns_end_where_the_originals_stand(case, sticky):
    """Of different ages, one of them just ended; and from there they go on alike.

    Those that wait for their turn are stepped idly meanwhile, and may lose a life just before it.
    """
    if not sticky:
        case = replace(case, options={"kwargs": {"episodic_life": True}})

    def moment(columns):
        late = sticky or columns.episode.min() > 2
        open_ones = (columns.row - columns.started)[~columns.ended]
        return late and len(open_ones) == COLUMNS - 1 and len(set(open_ones)) == COLUMNS - 1

    check_replay(case, moment)


def check_replay(case, moment):
    """Columns that were stepped until `moment(columns)`, and a twin that is brought there."""
    actions, columns = drawn(case, 600, seed=3), columns_of(case)
    spec = columns.obs_spec
    out = Rollout.allocate(len(actions), COLUMNS, spec.stored, columns.act_spec.stored)
    columns.reset(out.obs[-1])
    out.start_next()
    for row, action in enumerate(actions):
        columns.step(row, columns.adapt(action), out)
        if moment(columns):
            break
    else:
        pytest.fail("no such moment")
    stop, expected, state = row + 1, out.obs[row + 1].copy(), columns.state()
    ages = columns.row - columns.started
    taken = [
        None if columns.ended[i] else actions[stop - ages[i] : stop, i] for i in range(COLUMNS)
    ]
    rows, valid = np.arange(stop)[:, None] >= stop - ages, out.valid[:stop]
    returns = (out.reward[:stop] * (rows & valid)).sum(0, dtype=np.float64)
    twin = columns_of(case)
    twin.restore(state)
    assert twin.replay(taken, expected, returns) == []
    for name, array in twin.state().items():
        np.testing.assert_array_equal(array, state[name], err_msg=name)
    later = drawn(case, 80, seed=4)
    assert same(followed(columns, later, expected), followed(twin, later, expected))
    columns.close()
    twin.close()


GAMES = ("TimePilot", "IceHockey", "SirLancelot", "Surround", "MsPacman", "Pitfall")


@pytest.mark.parametrize(
    "game", [GAMES[0], *(pytest.param(game, marks=pytest.mark.slow) for game in GAMES[1:])]
)
@pytest.mark.parametrize("case", cases("atari Pong"))
def test_an_episode_follows_from_its_seed_and_number_in_every_game(case, game):
    """A plain reset of ALE's leaves something of the last episode behind, in some of them."""
    with columns_of(case, 1, env_id=f"atari:{game}") as columns:
        size = columns.act_spec.size
    case = replace(
        case,
        env_id=f"atari:{game}",
        action=("discrete", size),
        options={"time_limit": 60},
    )
    check_replay(case, lambda columns: columns.episode.min() == 3 and columns.row % 61 == 40)


EVERY_GAME = """
import os
import sys

import numpy as np

from paceline.envs.suites import atari
from paceline.envs.source import make_columns
from paceline.rollout import Rollout


def rows(columns, actions, obs):
    spec = columns.obs_spec
    out = Rollout.allocate(len(actions), 2, spec.stored, columns.act_spec.stored)
    out.begin(obs, np.zeros(2, bool))
    for t, action in enumerate(actions):
        columns.step(t, columns.adapt(action), out)
    return out


def replays(game):
    ours, twin = (make_columns(f"atari:{game}", 2, seed=5, time_limit=90) for _ in range(2))
    actions = np.random.default_rng(0).integers(ours.act_spec.size, size=(360, 2))
    obs = np.zeros((2, *ours.obs_spec.stored[0]), np.uint8)
    ours.reset(obs)
    played = rows(ours, actions[:300], obs)
    seen = played.obs[-1]
    state = ours.state()
    taken = [
        None if state["ended"][i] else actions[int(state["started"][i]) : 300, i]
        for i in range(2)
    ]
    since = [played.reward[int(start) :, i].sum() for i, start in enumerate(state["started"])]
    twin.restore(state)
    if twin.replay(taken, seen, np.array(since)):
        return "does not replay"
    one, other = (rows(columns, actions[300:], seen) for columns in (ours, twin))
    return "" if one.obs.tobytes() == other.obs.tobytes() else "goes on otherwise"


for game in atari.names():
    child = os.fork()
    if not child:
        said = replays(game)
        if said:
            print(game, said, flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(game, "ends the process", flush=True)
print("all", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", cases("atari Pong"))
def test_every_game_there_is_can_be_played_and_replayed(case):
    """Each in a process of its own, which a game without a single player would end."""
    ended = subprocess.run(
        [sys.executable, "-c", EVERY_GAME], capture_output=True, text=True, timeout=850
    )
    assert ended.stdout.splitlines() == ["all"]


def followed(columns, actions, obs):
    """What comes after `obs[B]`."""
    spec = columns.obs_spec
    out = Rollout.allocate(len(actions), COLUMNS, spec.stored, columns.act_spec.stored)
    out.begin(obs, np.zeros(COLUMNS, bool))
    for t, action in enumerate(actions):
        columns.step(t, columns.adapt(action), out)
    return {name: getattr(out, name) for name in ("obs", "first", "reward", "terminated", "valid")}


@pytest.mark.parametrize("case", cases(*EVALUATED, "atari Pong", slow=("atari Pong",)))
def test_an_evaluation_counts_each_episode_of_the_suite_once(case, monkeypatch):
    """Five, in two columns: the first has three of them, whichever end first."""
    monkeypatch.setattr(evaluation, "SIDE_BY_SIDE", 2)
    info = inspect_env(case.env_id, **case.options)
    network = NetworkSpec(info.obs_spec.seen, info.act_spec, (8,), pictures="mlp")
    module = ActorCritic(network)
    module.initialize(4)
    weights = {name: weight.numpy() for name, weight in module.named_weights().items()}
    agent = Agent(network, weights)
    found = paceline.evaluate(agent, case.env_id, 5, **case.options)
    oracle, actor = case.oracle(2, evaluation.EVALUATION_SEED, 0), agent.actor(2)
    parameters = np.empty((2, actor.distribution.size), np.float32)
    action = np.empty((2, *info.act_spec.stored[0]), info.act_spec.stored[1])
    obs, totals, lengths = oracle.reset(), [[0.0], [0.0]], [[0], [0]]
    frames = [[one] * case.stack for one in obs]
    while min(map(len, totals)) < 4:
        seen = np.stack([np.stack(column) for column in frames]).astype(case.obs[1])
        actor.step(seen if case.stack > 1 else seen[:, 0], None, None, parameters)
        actor.distribution.greedy(parameters, action)
        obs, reward, terminated, truncated, valid, first = oracle.step(action)
        for i in range(2):
            frames[i] = [obs[i]] * case.stack if first[i] else [*frames[i][1:], obs[i]]
            totals[i][-1] += float(np.float32(reward[i])) * valid[i]
            lengths[i][-1] += valid[i]
            if terminated[i] or truncated[i]:
                totals[i].append(0.0)
                lengths[i].append(0)
    oracle.close()
    assert found.returns == pytest.approx([totals[e % 2][e // 2] for e in range(5)])
    assert found.length_mean == pytest.approx(np.mean([lengths[e % 2][e // 2] for e in range(5)]))
    seeds = [episode_seed(evaluation.EVALUATION_SEED, e % 2, e // 2) for e in range(5)]
    assert found.seeds == ([] if case.batched else seeds)  # where each has one of its own


@pytest.mark.parametrize("env_id", ["CliffWalking-v1", "envpool:CliffWalking-v1"])
def test_an_evaluation_ends_where_episodes_do_not(env_id, monkeypatch):
    """A policy that always walks up, in a world without a time limit."""
    if env_id.startswith("envpool"):
        pytest.importorskip("envpool")
    monkeypatch.setattr(evaluation, "NO_LIMIT", 30)
    info = inspect_env(env_id)
    network = NetworkSpec(info.obs_spec.seen, info.act_spec, ())
    weights = {
        name: weight.detach().numpy()
        for name, weight in ActorCritic(network).named_weights().items()
    }
    agent = Agent(network, {name: np.zeros_like(weight) for name, weight in weights.items()})
    found = paceline.evaluate(agent, env_id, 40)
    assert found.returns == [-30.0] * 40 and found.length_mean == 30


def test_every_suite_is_here():
    packages = {case.package for case in CASES.values()}
    assert packages == {
        *("gymnasium", "Box2D", "mujoco"),
        *("ale_py", "procgen", "envpool", "minigrid"),
    }
