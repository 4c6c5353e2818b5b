"""One contract for all suites: their rows are those of the suite itself, stepped without Paceline.

T = rows, B = columns.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
from environments import agent_of, stepped
from sampling import acting, assert_rows_are, collect, joined
from suites import cases

import paceline
from paceline.envs.columns import episode_seed
from paceline.envs.source import inspect_env, make_columns
from paceline.envs.suites import atari
from paceline.run import evaluation

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore:.*precision lowered")]

COLUMNS, SEED, FIRST_COLUMN, ROLLOUTS = 3, 11, 5, 4
MORE_ATARI = ("atari Breakout lives", "atari Breakout", "atari generations")
EVALUATED = ("CartPole-limited", "procgen fruitbot", "envpool CartPole", "minigrid limited")


def columns_of(case, columns=COLUMNS, seed=SEED, first_column=FIRST_COLUMN, env_id=None, **more):
    options = case.options | more
    return make_columns(env_id or case.env_id, columns, seed, first_column, **options)


def drawn(case, rows, columns=COLUMNS, seed=0):
    """Actions [T, B, ...] as a policy could have drawn them, the same for all columns."""
    rng, (kind, size) = np.random.default_rng(seed), case.action
    if kind == "discrete":
        one = rng.integers(size, size=(rows, 1))
    else:
        one = rng.uniform(-1.5, 1.5, (rows, 1, size)).astype(np.float32)
    return np.repeat(one, columns, axis=1)


def same(one, other):
    names = ("obs", "first", "reward", "terminated", "truncated", "valid")
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in names)


def played(case, rows=40, columns=COLUMNS, **options):
    """Rows of columns that all act alike."""
    with columns_of(case, columns, **options) as found:
        return stepped(found, drawn(case, rows, columns))


@pytest.mark.parametrize("case", cases(slow=("atari Breakout lives", "atari Breakout")))
def test_rollouts_are_what_the_suite_does_with_the_same_seeds_and_actions(case):
    """Every observation, reward and flag to the bit, and every episode's return and length."""
    rollouts, episodes = collect(acting(columns_of(case), case.steps, SEED, scale=0.02), ROLLOUTS)
    rows = joined(rollouts)
    assert_rows_are(case.oracle(COLUMNS, SEED, FIRST_COLUMN), rows, episodes, FIRST_COLUMN)
    for end in ("terminated", "truncated"):
        assert rows[end].any() == (end in case.ends), end


@pytest.mark.parametrize("case", cases(slow=MORE_ATARI))
def test_what_is_stored_is_what_the_spaces_say(case):
    info = inspect_env(case.env_id, **case.options)
    spec, act = info.obs_spec, info.act_spec
    assert (spec.stored[0], np.dtype(spec.stored[1])) == (case.obs[0], np.dtype(case.obs[1]))
    assert (act.kind, act.size) == case.action
    assert (spec.stack, info.resume) == (case.stack, case.resume)


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
    with columns_of(case, 2) as columns:
        actions = drawn(case, 2000, 2)
        stepped(columns, actions, until=lambda t, out: out.done[t].any())
        assert columns.row < len(actions), "no episode ended"
        after = stepped(columns, actions[:1])
        assert after.valid.all() and not after.first[1].any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", cases(slow=MORE_ATARI))
def test_rows_depend_on_the_seed_and_the_column_and_on_no_company(case):
    """Columns 5 and 6 together, again, with another seed, and 6 with 7; all acting alike."""
    rows = 150 if case.package == "procgen" else 40  # columns may share a level at first
    ours, again = (played(case, rows, 2) for _ in range(2))
    other = played(case, rows, 2, seed=SEED + 1)
    shifted = played(case, rows, 2, first_column=FIRST_COLUMN + 1)
    assert same(ours, again)
    assert ours.obs.tobytes() != other.obs.tobytes() != shifted.obs.tobytes()
    for obs in (ours.obs, other.obs, shifted.obs):
        assert obs[:, 0].tobytes() != obs[:, 1].tobytes()
    if case.one_by_one:
        assert same(ours.column_range(1, 2), shifted.column_range(0, 1))


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
        return played(case, rows=1, kwargs=kwargs).obs[0]

    one, other = begins(num_levels=1), begins(num_levels=1, start_level=1)
    plain = begins(num_levels=1, use_backgrounds=False)
    for obs in (one, other, plain):
        assert all(obs[0].tobytes() == obs[i].tobytes() for i in range(COLUMNS))
    assert len({obs[0].tobytes() for obs in (one, other, plain)}) == 3


@pytest.mark.parametrize("case", cases("atari Pong"))
def test_ataris_options_reach_it(case):
    """A time limit counts steps whatever their frames, and images may be larger, or in color."""
    rows = played(case, rows=40, columns=1, time_limit=9, kwargs={"frameskip": 2})
    assert np.flatnonzero(rows.truncated[:, 0]).tolist() == [8, 18, 28, 38]
    for kwargs, shape, stack in (
        ({"img_height": 96, "img_width": 100}, (96, 100), 4),
        ({"grayscale": False}, (84, 84, 3), 4),
        ({"stack_num": 2}, (2, 84, 84), 1),
    ):
        assert played(case, rows=1, columns=1, kwargs=kwargs).obs.shape == (2, 1, *shape)
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
    """Columns that were stepped until `moment(columns)`, and a twin that is replayed to there."""
    actions, columns, twin = drawn(case, 600, seed=3), columns_of(case), columns_of(case)
    out = stepped(columns, actions, until=lambda *_: moment(columns))
    assert moment(columns), "no such moment"
    stop, state = columns.row, columns.state()
    expected, ages = out.obs[stop].copy(), stop - columns.started
    taken = [
        None if columns.ended[i] else actions[stop - ages[i] : stop, i] for i in range(COLUMNS)
    ]
    rows, valid = np.arange(stop)[:, None] >= stop - ages, out.valid[:stop]
    returns = (out.reward[:stop] * (rows & valid)).sum(0, dtype=np.float64)
    twin.restore(state)
    assert twin.replay(taken, expected, returns) == []
    for name, array in twin.state().items():
        np.testing.assert_array_equal(array, state[name], err_msg=name)
    later = drawn(case, 80, seed=4)
    assert same(stepped(columns, later, expected), stepped(twin, later, expected))
    columns.close()
    twin.close()


def check_game(case, game):
    """In its fourth episode."""
    with columns_of(case, 1, env_id=f"atari:{game}") as columns:
        action = ("discrete", columns.act_spec.size)
    case = replace(case, env_id=f"atari:{game}", action=action, options={"time_limit": 60})
    check_replay(case, lambda columns: columns.episode.min() == 3 and columns.row % 61 == 40)


@pytest.mark.parametrize("case", cases("atari Pong"))
def test_an_episode_follows_from_its_seed_where_a_reset_keeps_something_of_the_last(case):
    """As ALE's plain reset does in TimePilot; all other games are below."""
    check_game(case, "TimePilot")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", cases("atari Pong"))
def test_every_game_there_is_can_be_played_and_replayed(case):
    """Each in a process of its own, which a game without a single player would end."""
    bad = []
    for game in atari.names():
        child = os.fork()
        if not child:
            try:
                check_game(case, game)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            bad.append(game)
    assert bad == []


@pytest.mark.parametrize("case", cases(*EVALUATED, "atari Pong", slow=("atari Pong",)))
def test_an_evaluation_counts_each_episode_of_the_suite_once(case, monkeypatch):
    """Five, in two columns: the first has three of them, whichever end first."""
    monkeypatch.setattr(evaluation, "MAX_COLUMNS", 2)
    agent, info = agent_of(case.env_id, seed=4, **case.options)
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
    """A policy that always walks up, in an environment without a time limit."""
    if env_id.startswith("envpool"):
        pytest.importorskip("envpool")
    monkeypatch.setattr(evaluation, "NO_LIMIT", 30)
    agent, _ = agent_of(env_id, hidden=())
    for weight in agent.weights.values():
        weight[...] = 0
    found = paceline.evaluate(agent, env_id, 40)
    assert found.returns == [-30.0] * 40 and found.length_mean == 30
