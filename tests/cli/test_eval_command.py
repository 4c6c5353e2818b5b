"""Evaluation: N seeds are N episodes, each counted once, and reproducible."""

from __future__ import annotations

import re
import shutil

import gymnasium as gym
import numpy as np
import pytest

import paceline
from paceline.cli import commands as cli
from paceline.run.evaluation import Evaluation, evaluate_policy
from paceline.session import evaluate_saved


@pytest.fixture(scope="module")
def trained(shell_in, tmp_path_factory):
    """A CartPole policy that is neither bad nor perfect, so that episodes differ in length."""
    shell = shell_in(tmp_path_factory.mktemp("trained"))
    shell.train("run", "--total-steps", "5000", "--save-every", "1500", "--eval-episodes", "2")
    return shell


def shown(ended):
    """The numbers that `paceline eval` printed."""
    assert ended.code == 0, ended
    found = re.search(r"(\S+): mean (\S+) ± (\S+) over (\d+) episodes", ended.out)
    return found[1], float(found[2]), float(found[3]), int(found[4])


def episode(act, seed, env_id="CartPole-v1", **kwargs):
    """One episode in plain Gymnasium: (return, length)."""
    env = gym.make(env_id, **kwargs)
    obs, _ = env.reset(seed=seed)
    total, length, ended = 0.0, 0, False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(act(obs))
        total, length, ended = total + float(reward), length + 1, terminated or truncated
    env.close()
    return total, length


def test_a_run_is_evaluated_with_its_newest_checkpoint(trained):
    ended = trained("eval", "run", "--episodes", "5")
    env_id, mean, std, episodes = shown(ended)
    result = paceline.evaluate(paceline.load(trained.folder / "run"), "CartPole-v1", 5)
    assert (env_id, episodes) == ("CartPole-v1", 5)
    assert (mean, std) == pytest.approx((result.mean, result.std), abs=0.006)
    assert trained.run("run").checkpoints()[-1].name in ended.out


def test_sampled_evaluation_is_reproducible_and_writes_only_its_own_file(trained):
    def files():
        paths = (p for p in (trained.folder / "run").rglob("*") if p.is_file())
        return {p: p.stat().st_mtime_ns for p in paths if p.name != "eval-sampled.json"}

    before = files()
    _, mean, std, _ = shown(trained("eval", "run", "--episodes", "5", "--sampled"))
    again = evaluate_saved(trained.folder / "run", Evaluation(episodes=5, sample=True))
    assert (mean, std) == pytest.approx((again.mean, again.std), abs=0.006)
    assert again == evaluate_saved(trained.folder / "run", Evaluation(episodes=5, sample=True))
    assert files() == before
    assert trained.run("run").json("eval-sampled.json")["returns"] == again.returns


def test_another_seed_gives_other_episodes_and_the_same_one_the_same(trained):
    def seeds(seed):
        trained("eval", "run", "--episodes", "2", "--sampled", "--seed", seed)
        return trained.run("run").json("eval-sampled.json")["seeds"]

    assert seeds("4") == seeds("4") != seeds("5")
    agent = paceline.load(trained.folder / "run")
    assert paceline.evaluate(agent, "CartPole-v1", 2, seed=4).seeds == seeds("4")
    ended = trained("eval", "run", "--seed", "x")
    assert ended.code == 2
    assert "seed is 'x': write a whole number" in ended.err


def test_no_interval_is_given_over_one_episode(trained):
    agent = paceline.load(trained.folder / "run")
    result = paceline.evaluate(agent, "CartPole-v1", 1)
    assert (result.ci_low, result.ci_high) == (None, None)
    assert list(result.lines()) == [f"mean {result.mean:.2f} over 1 episode"]


def test_an_evaluation_that_is_stopped_returns_what_it_has_marked_as_cut_short(trained):
    agent = paceline.load(trained.folder / "run")
    whole = paceline.evaluate(agent, "CartPole-v1", 20)
    evaluation = Evaluation(episodes=20)
    evaluation.stopping = lambda: evaluation.done >= 7
    result = evaluate_policy(agent, "CartPole-v1", {}, evaluation)
    assert result.cut_short
    assert 7 <= result.episodes == len(result.returns) == len(result.seeds) < 20
    same = dict(zip(whole.seeds, whole.returns, strict=True))
    assert result.returns == [same[seed] for seed in result.seeds]
    stopped = Evaluation(episodes=20, stopping=lambda: True)
    assert evaluate_policy(agent, "CartPole-v1", {}, stopped) is None


def test_a_single_checkpoint_is_evaluated(trained):
    first, *_, last = trained.run("run").checkpoints()
    result = evaluate_saved(first, Evaluation(episodes=5))
    expected = paceline.evaluate(paceline.load(first), "CartPole-v1", 5)
    assert result.returns == expected.returns
    assert result.checkpoint == str(first)
    assert expected.returns != paceline.evaluate(paceline.load(last), "CartPole-v1", 5).returns


def test_sampled_actions_are_not_the_greedy_ones(trained):
    agent = paceline.load(trained.folder / "run")
    greedy = paceline.evaluate(agent, "CartPole-v1", 5)
    sampled = paceline.evaluate(agent, "CartPole-v1", 5, sample=True)
    assert greedy.seeds == sampled.seeds
    assert greedy.returns != sampled.returns
    again = paceline.evaluate(agent, "CartPole-v1", 5, sample=True)
    assert sampled == again


def test_an_environment_with_other_spaces_is_refused(trained, capsys):
    assert cli.run(["eval", str(trained.folder / "run"), "--env-id", "Acrobot-v1"]) == 2
    said = capsys.readouterr().err
    assert "observations" in said
    assert len(said.splitlines()) <= 4
    agent = paceline.load(trained.folder / "run")
    for env_id in ("toy:chain", "Pendulum-v1", "MountainCar-v0"):
        with pytest.raises(paceline.BadInput, match=r"observations|actions"):
            paceline.evaluate(agent, env_id, 1)


def test_another_environment_with_the_same_spaces_is_accepted(trained):
    (trained.folder / "heavy.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Short-v0', 'gymnasium.envs.classic_control:CartPoleEnv',"
        " max_episode_steps=7)\n"
    )
    env_id, mean, std, _ = shown(trained("eval", "run", "--env-id", "heavy:Short-v0"))
    assert (env_id, mean, std) == ("heavy:Short-v0", 7.0, 0.0)


def test_a_checkpoint_outside_a_run_needs_env_id(trained):
    last = trained.run("run").checkpoints()[-1]
    shutil.copytree(last, trained.folder / "policy")
    with pytest.raises(paceline.BadInput, match="--env-id"):
        evaluate_saved(trained.folder / "policy", Evaluation(episodes=3))
    there = trained("eval", "--checkpoint", "policy", "--episodes", "3", "--env-id", "CartPole-v1")
    inside = paceline.evaluate(paceline.load(last), "CartPole-v1", 3)
    assert shown(there)[1] == pytest.approx(inside.mean, abs=0.006)


def test_evaluation_uses_the_environment_options_of_the_run(shell):
    flags = ("--total-iters", "1", "--eval-episodes", "2", "--env.time-limit", "6")
    shell.train_here("run", *flags, "--env-id", "toy:constant", "--env.kwargs", '{"length": 50}')
    assert shown(shell("eval", "run", "--episodes", "3"))[1] == 6.0


@pytest.mark.parametrize("episodes", [1, 3, 16, 17, 40])
def test_each_seed_is_one_episode_that_counts_once(trained, episodes):
    """Against plain Gymnasium; a short episode must not let its column add another to the mean."""
    agent = paceline.load(trained.folder / "run")
    result = evaluate_policy(agent, "CartPole-v1", {}, Evaluation(episodes=episodes))
    played = [episode(agent.act, seed) for seed in result.seeds]
    assert len(set(result.seeds)) == len(result.seeds) == episodes
    assert result.returns == [total for total, _ in played]
    assert result.length_mean == pytest.approx(np.mean([length for _, length in played]))
    assert result.mean == pytest.approx(np.mean([total for total, _ in played]))
    if episodes >= 16:
        assert len(set(result.returns)) > 3  # else it would prove little


class Countdown(gym.Env):
    """Lasts as many steps as its seed says, 1 to 9, and pays one point for each."""

    played: list[int]

    def __init__(self):
        self.observation_space = gym.spaces.Box(0, 10, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        assert seed is not None
        Countdown.played.append(seed)
        self.left = seed % 9 + 1
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {}


def agent_for(env_id, shell):
    """A policy that has made one iteration."""
    options = {"total_iters": 1, "eval_episodes": 1, "track": "none"}
    folder = str(shell.folder / "run")
    list(paceline.train(paceline.Config(env_id=env_id, output_dir=folder, **options)))
    return paceline.load(folder)


@pytest.mark.parametrize("episodes", [1, 5, 16, 33, 100])
def test_short_episodes_are_not_counted_more_often_than_long_ones(shell, episodes):
    Countdown.played = []
    agent = agent_for(Countdown, shell)
    Countdown.played = []
    result = paceline.evaluate(agent, Countdown, episodes)
    assert result.returns == [seed % 9 + 1 for seed in result.seeds]
    assert set(result.seeds) <= set(Countdown.played)
    assert len(set(result.seeds)) == episodes


def test_an_episode_without_an_end_is_cut_off(shell, monkeypatch):
    """The limit is lowered here to save time."""

    class Endless(Countdown):
        def step(self, action):
            return np.zeros(1, np.float32), 1.0, False, False, {}

    monkeypatch.setattr("paceline.run.evaluation.NO_LIMIT", 300)
    Countdown.played = []
    assert paceline.evaluate(agent_for(Endless, shell), Endless, 2).returns == [300.0, 300.0]
