"""Numbers that an environment puts into `info` at an episode's end: in episodes, reports, files."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from environments import stepped
from sampling import turns
from saved_runs import left_after, metrics_of, small_config, warnings
from suites import missing

import paceline
from paceline.envs.info import MOST_FOUND, found_numbers, info_reader
from paceline.envs.native import NativeColumns
from paceline.envs.source import make_columns
from paceline.envs.suites.gym_vector import GymBatch
from paceline.errors import BadInput
from paceline.rollout import FEW_NUMBERS
from paceline.run.build import build
from paceline.run.info_means import InfoMeans

pytestmark = pytest.mark.timeout(120)
TIMING = ("time", "fps", "memory_mb", "cpu_percent", "t_")


class Goals(gym.Env):
    """Ends now and then, or at its time limit; its last info tells the episode's length.

    more: further numbers in `info`
    taken: whether some have the names of metrics
    rare: whether `success` is there only in long episodes
    dies: a file, which is written before the process that makes step 20 of all ends
    """

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def __init__(self, more=0, taken=False, rare=False, dies=None):
        self.more, self.taken, self.rare, self.dies = more, taken, rare, dies

    def look(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = 0
        return self.look(), {"success": -1.0}

    def step(self, action):
        Goals.steps += 1
        if self.dies and Goals.steps == 20 and not Path(self.dies).exists():
            Path(self.dies).touch()
            os._exit(1)
        self.length += 1
        info = {"length": self.length, "nan": math.nan, "text": "no", "stats": {"half": 0.5}}
        info |= {f"number {n}": n for n in range(self.more)}
        info |= {"loss": 7, "episodes": np.float32(0.25)} if self.taken else {}
        if not self.rare or self.length > 5:
            info["success"] = np.bool_(self.length > 5)
        return self.look(), 1.0, bool(self.np_random.random() < 0.1), False, info


LIMIT = {"env": {"time_limit": 12}}
WAYS = {
    "serial": {},
    "workers": {"num_workers": 2},
    "stream": {"algo": "impala", "num_workers": 2},
}


def learned(run):
    """The lines of its metrics, without times."""
    return [
        {name: value for name, value in line.items() if not name.startswith(TIMING)}
        for line in metrics_of(run)
    ]


@pytest.mark.parametrize("way", WAYS)
def test_every_episode_has_the_numbers_of_its_own_last_step(way):
    """Also one that a time limit cut off, which the environment knows nothing of."""
    ends = set()
    with build(small_config(Goals, **WAYS[way], **LIMIT)) as parts:
        for rollout, _ in turns(parts, 8):
            for episode in rollout.episodes:
                success = float(episode.length > 5)
                assert episode.info == {"length": episode.length, "success": success}
                ends.add(episode.length == 12)
    assert ends == {True, False}


@pytest.mark.parametrize("way", ["serial", pytest.param("workers", marks=pytest.mark.slow)])
def test_resumed_metrics_are_those_of_a_run_that_was_not_left(way, tmp_path):
    """A rare name makes them too many, which has to be remembered."""
    options = {"rollout_steps": 4, "total_iters": 8, "save_every": 1, "eval_episodes": 1}
    kwargs = {"rare": True, "more": FEW_NUMBERS - 1}
    config = small_config(Goals, **options, **WAYS[way], env={"kwargs": kwargs})
    list(paceline.train(config.replace(output_dir=str(tmp_path / "whole"))))
    left_after(config.replace(output_dir=str(tmp_path / "parts")), 4)
    list(paceline.resume(tmp_path / "parts", env_id=Goals))
    lines = learned(tmp_path / "whole")
    assert learned(tmp_path / "parts") == lines
    assert "length" in lines[0] and "length" not in lines[3] and "length" not in lines[-1]


def test_a_worker_that_is_replaced_loses_and_doubles_no_number(tmp_path):
    runs = {}
    for name, dies in (("whole", None), ("died", str(tmp_path / "dead"))):
        given = {"env": {"kwargs": {"dies": dies}}, "output_dir": str(tmp_path / name)}
        options = {"num_workers": 2, "total_iters": 4, "eval_episodes": 1}
        list(paceline.train(small_config(Goals, **options, **given)))
        runs[name] = [line | {"restarts": 0} for line in learned(tmp_path / name)]
    assert (tmp_path / "dead").is_file() and runs["died"] == runs["whole"]


def test_reports_have_means_under_their_own_names_or_with_a_prefix(tmp_path):
    """Null where no episode ended; what is not finite is no number."""
    config = small_config(
        Goals, num_envs=1, rollout_steps=4, total_iters=20, env={"kwargs": {"taken": True}}
    )
    reports = list(paceline.train(config.replace(output_dir=str(tmp_path))))
    for report, line in zip(reports, metrics_of(tmp_path), strict=True):
        if report.iter >= 19:
            assert report.length == line["length"] == report.episode_length
            numbers = (7, 0.25) if report.episodes else (None, None)
            assert (line["info_loss"], line["info_episodes"]) == numbers
            assert report.loss not in numbers and line["episodes"] == report.episodes
        assert not {"nan", "text", "stats"} & line.keys()
    assert any(report.episodes == 0 for report in reports)


def test_a_dotted_key_leads_into_info_and_a_key_that_is_nowhere_is_warned_of(tmp_path, caplog):
    config = small_config(Goals, log_info="stats.half,sucess", total_iters=4)
    list(paceline.train(config.replace(output_dir=str(tmp_path))))
    lines = metrics_of(tmp_path)
    assert {line["stats.half"] for line in lines if line["episodes"]} == {0.5}
    assert all(line["sucess"] is None and "length" not in line for line in lines)
    assert [text for text in warnings(caplog) if "'sucess'" in text] != []
    assert "'stats.half'" not in caplog.text


def test_more_numbers_than_a_few_are_listed_once_and_not_logged(tmp_path, caplog):
    config = small_config(Goals, env={"kwargs": {"more": FEW_NUMBERS}}, total_iters=4)
    with caplog.at_level("INFO", "paceline"):
        list(paceline.train(config.replace(output_dir=str(tmp_path))))
    (text,) = [r.getMessage() for r in caplog.records if "--log-info" in r.getMessage()]
    assert "length, number 0, number 1" in text and "success" in text
    assert "length" not in metrics_of(tmp_path)[-1]
    caplog.clear()
    list(paceline.resume(tmp_path, env_id=Goals, total_iters=6, log_info="number 3"))
    assert metrics_of(tmp_path)[-1]["number 3"] == 3


@pytest.mark.parametrize("log_info", ["none", ()])
def test_nothing_is_read_of_info_if_that_is_wished(log_info):
    with build(small_config(Goals, log_info=log_info)) as parts:
        assert not any(e.info for rollout, _ in turns(parts, 3) for e in rollout.episodes)


def test_which_values_are_numbers():
    good = {"a": True, "b": 2, "c": 2.5, "d": np.int8(3), "e": np.array([[4.0]]), "f": np.array(5)}
    bad = {
        "text": "1",
        "none": None,
        "list": [1],
        "two": np.ones(2),
        "complex": 1j,
        "huge": 10**400,
    }
    bad |= {"inf": math.inf, "nan": np.float32("nan"), "words": np.array(["x"]), "nested": {"a": 1}}
    names = {"_a": 1, "final_info": 1, "episode": 1, "TimeLimit.truncated": True, 7: 1, "seed": 1}
    found = found_numbers(good | bad | names)
    assert found == {"a": 1, "b": 2, "c": 2.5, "d": 3, "e": 4, "f": 5}
    assert {type(number) for number in found.values()} == {float}
    assert len(found_numbers({str(n): n for n in range(1000)})) == MOST_FOUND
    assert found_numbers(None) == found_numbers([1]) == {}


def test_chosen_numbers_may_be_anywhere_and_have_any_name():
    read = info_reader(("seed", "episode.r", "a.b", "a.c", "x.y.z"))
    info = {"seed": 3, "episode": {"r": np.float32(1.5)}, "a.b": 1, "a": {"b": 2}, "x": {"y": 4}}
    assert read(info) == {"seed": 3, "episode.r": 1.5, "a.b": 1}
    assert read(None) == {} and info_reader(()) is None


def test_each_mean_is_over_the_episodes_that_have_the_number():
    means = InfoMeans("auto", taken={"loss"})
    for info in ({"a": 1.0, "loss": 2.0}, {"a": 3.0}, {}):
        means.add(info)
    assert means.take() == {"a": 2.0, "info_loss": 2.0}
    assert means.take() == {"a": None, "info_loss": None}


def test_a3c_takes_few_chosen_numbers():
    keys = tuple(f"key{n}" for n in range(FEW_NUMBERS + 1))
    with pytest.raises(BadInput, match=f"log_info has 9 keys, .* room for {FEW_NUMBERS}"):
        paceline.Config(algo="a3c", num_workers=2, log_info=keys)
    assert paceline.Config(algo="a3c", num_workers=2, log_info=keys[1:]).log_info == keys[1:]


@pytest.mark.parametrize("given", ["a,,b", "auto,a", "none,a", 3, [1]])
def test_what_is_no_list_of_keys_is_refused(given):
    with pytest.raises(BadInput, match=r"log_info is .* such as success,score"):
        paceline.Config(log_info=given)


class Counting(gym.vector.VectorEnv):
    """Environment i ends after 3 + i steps, with a score; the second never has one."""

    single_observation_space = gym.spaces.Box(-1, 99, (1,), np.float32)
    single_action_space = gym.spaces.Discrete(2)

    def __init__(self, num_envs=1, max_episode_steps=None, render_mode=None):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.time = np.zeros(num_envs, np.int64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time[:] = 0
        return np.float32(self.time)[:, None], {}

    def step(self, action):
        lengths, infos = 3 + np.arange(self.num_envs), {}
        self.time = np.where(self.time >= lengths, 0, self.time + 1)
        ends, none = self.time >= lengths, np.zeros(self.num_envs, bool)
        for i in range(self.num_envs):
            score = {} if i == 1 else {"score": float(10 * i + self.time[i])}
            infos = self._add_info(infos, {**score, "stats": {"time": int(self.time[i])}}, i)
        return np.float32(self.time)[:, None], np.ones(self.num_envs), ends, none, infos


@pytest.mark.parametrize("log_info", ["auto", ("score", "stats.time")])
def test_a_vector_environments_arrays_are_taken_apart(monkeypatch, log_info):
    spec = gym.envs.registration.EnvSpec("Vector-v0", Goals, vector_entry_point=Counting)
    monkeypatch.setitem(gym.registry, "Vector-v0", spec)
    with NativeColumns(partial(GymBatch, "Vector-v0", {}), 3) as columns:
        columns.read_info = info_reader(log_info)
        found = stepped(columns, np.zeros((9, 3), np.int64)).final_info
    scores = {(2, 0): 3, (6, 0): 3, (4, 2): 25}
    times = {(2, 0): 3, (6, 0): 3, (4, 2): 5, (3, 1): 4, (8, 1): 4}
    expected = {place: {"score": score} for place, score in scores.items()}
    if log_info != "auto":
        expected = {at: expected.get(at, {}) | {"stats.time": times[at]} for at in times}
    assert found == expected


SUITES = {
    "atari:Pong": ("ale_py", {"time_limit": 20}, {"lives"}),
    "envpool:HalfCheetah-v5": (
        "envpool",
        {"time_limit": 10},
        {"reward_run", "reward_ctrl", "x_position", "x_velocity"},
    ),
    "procgen:bossfight": ("procgen", {}, {"prev_level_complete"}),
}


@pytest.mark.parametrize(
    "env_id", [pytest.param(name, marks=missing(SUITES[name][0])) for name in SUITES]
)
def test_suites_of_batches_tell_how_an_episode_ended(env_id):
    _, options, names = SUITES[env_id]
    with make_columns(env_id, 2, **options) as columns:
        columns.read_info = info_reader("auto")
        shape, dtype = columns.act_spec.stored
        actions = np.zeros((400, 2, *shape), dtype)
        out = stepped(columns, actions, until=lambda t, out: len(out.final_info) > 2)
    ended = {(int(t), int(i)) for t, i in np.argwhere(out.done)}
    assert out.final_info.keys() == ended
    assert all(info.keys() == names for info in out.final_info.values())


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["--ranks 2", "--algo a3c --num-workers 2"])
def test_learners_in_several_processes_report_the_numbers_of_all(shell, flags):
    """FrozenLake tells the probability of what happened, which is one third."""
    small = "--preset none --num-envs 4 --total-iters 12 --eval-episodes 1 --log-info prob"
    run = shell.train("run", "--env-id", "FrozenLake-v1", *small.split(), *flags.split())
    ended = [line["prob"] for line in run.metrics() if line["episodes"]]
    assert ended and set(ended) == {0.333333}


def test_the_evaluation_and_the_table_of_episodes_have_the_numbers_too(tmp_path):
    config = small_config(Goals, total_iters=3, eval_episodes=5, output_dir=str(tmp_path / "run"))
    run = paceline.train(config)
    finished = [one.episode for report in run for one in report.finished]
    header, *rows = (run.directory / "episodes.csv").read_text().splitlines()
    names = header.split(",")[5:]
    assert set(names) == set(finished[0].info)
    for row, episode in zip(rows, finished, strict=True):
        numbers = dict(zip(names, map(float, row.split(",")[5:]), strict=True))
        assert numbers == pytest.approx(dict(episode.info), rel=1e-5)
    result = run.evaluate(5)
    assert set(result.info) == set(names)
    assert any("success" in line for line in result.lines())
