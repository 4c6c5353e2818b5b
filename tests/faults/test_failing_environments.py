"""Runs whose environments raise, exit or return nonsense; and learning that diverges."""

from __future__ import annotations

import json
import re
import shlex
import sys
from contextlib import nullcontext
from functools import partial
from itertools import count

import gymnasium as gym
import numpy as np
import pytest
from environments import agent_of, stepped
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv

import paceline
from paceline.envs.columns import episode_seed
from paceline.envs.native import NativeColumns
from paceline.envs.suites.gym_vector import GymBatch
from paceline.errors import Diverged, EnvironmentFailed, PacelineError
from paceline.run import evaluation
from paceline.storage import checkpoint

MISHAPS = """
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Mishap(gym.Env):
    '''Ten steps an episode; `what` goes wrong at step `at`, once all have taken `after` steps.'''

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)
    made = taken = 0
    '''of all instances together'''

    def __init__(self, what="nothing", at=None, after=0, how="raise"):
        Mishap.made += 1
        self.what, self.at, self.after, self.how = what, at, after, how
        self.in_evaluation, self.steps = Mishap.made > 5, 0
        self.fail_if(what == "init")

    def fail_if(self, condition):
        if condition and self.how == "exit":
            sys.exit(0)
        if condition and self.how == "generator":
            raise GeneratorExit
        if condition:
            raise RuntimeError("the rope broke")

    def close(self):
        self.fail_if(self.what == "close")

    def observe(self):
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, late = 0, Mishap.taken >= self.after
        self.fail_if(self.what == "reset" and late)
        return self.observe() if self.what == "reset alone" and late else (self.observe(), {})

    def step(self, action):
        now = Mishap.taken >= self.after and self.at in (None, self.time)
        Mishap.taken += 1
        self.steps += 1
        self.time += 1
        obs, reward, over, broken = self.observe(), float(action), self.time >= 10, Path("broken")
        self.fail_if(self.what == "raise" and now)
        self.fail_if(self.what == "rarely" and self.steps == 150)
        if self.in_evaluation and broken.exists() and self.what.startswith("evaluation"):
            if self.what == "evaluation once":
                broken.unlink()
            self.fail_if(True)
        if self.what == "evaluation reward" and self.in_evaluation:
            reward = float("nan")
        if now and self.what == "unprintable":
            raise Unprintable
        wrong = {
            "nan reward": (obs, np.nan, False, over, {}),
            "inf reward": (obs, np.inf, False, over, {}),
            "huge": (obs, 1e30, False, over, {}),
            "text reward": (obs, "many", False, over, {}),
            "array reward": (obs, np.ones(1), False, over, {}),
            "no reward": (obs, None, False, over, {}),
            "nan obs": (obs * np.float32([1, np.nan, 1, 1]), reward, False, over, {}),
            "inf obs": (obs.astype(np.float64) * 1e300, reward, False, over, {}),
            "shape": (obs[:3], reward, False, over, {}),
            "scalar": (0.5, reward, False, over, {}),
            "nothing returned": None,
            "old step": (obs, reward, False, {}),
            "text end": (obs, reward, "False", False, {}),
            "nan end": (obs, reward, np.nan, False, {}),
            "two ends": (obs, reward, np.array([True, False]), False, {}),
        }
        right = (obs, reward, False, over, {})
        return wrong.get(self.what, right) if now else right


gym.register("Mishap-v0", Mishap)
"""
CAUSES = {
    "raise": "RuntimeError: the rope broke",
    "exit": "SystemExit: 0",
    "generator": "GeneratorExit",
}
"""What each way of failing is called."""
FLAGS = shlex.split(
    "--env-id mishaps:Mishap-v0 --preset none --num-envs 4 --rollout-steps 20 --total-iters 12 "
    "--eval-episodes 2 --save-every 1 --hidden 16"
)


@pytest.fixture
def mishap(shell):
    """Train in an environment with a mishap, by the command: (what ended, run)."""
    (shell.folder / "mishaps.py").write_text(MISHAPS)

    def train(*more, **kwargs):
        flags = [*FLAGS, "--env.kwargs", json.dumps(kwargs), "--track", "none"]
        return shell("train", *flags, "--output-dir", "run", *more), shell.run("run")

    return train


@pytest.fixture
def mishap_here(shell, monkeypatch):
    """The same within this process, which saves the import of torch: (the error, run)."""
    (shell.folder / "mishaps.py").write_text(MISHAPS)
    monkeypatch.chdir(shell.folder)
    monkeypatch.syspath_prepend(shell.folder)
    monkeypatch.delitem(sys.modules, "mishaps", raising=False)

    def train(*more, code=3, **kwargs):
        with pytest.raises(PacelineError) as caught:
            shell.train_here("run", *FLAGS, "--env.kwargs", json.dumps(kwargs), *more)
        assert caught.value.exit_code == code
        return str(caught.value), shell.run("run")

    yield train
    sys.modules.pop("mishaps", None)


def sound(run, at_least=0):
    """The newest checkpoint is whole, and everything in it is finite."""
    path, found, problems = checkpoint.load_newest(run.path / "checkpoints")
    assert problems == []
    assert found.facts["iter"] == int(path.name) >= at_least
    for name, array in (found.weights | found.arrays).items():
        assert np.isfinite(array).all(), name
    return path


def failed(ended, code, *words):
    """The code, and a message with all of `words` that is no traceback."""
    assert ended.code == code, ended
    last = ended.err[ended.err.index("paceline: ") :]
    assert "Traceback" not in last, ended.err
    says(last, *words)


def says(text, *words):
    assert len(text.splitlines()) <= 4, text
    for word in words:
        assert re.search(word, text), f"{word} is not in: {text}"


def test_an_environment_that_always_raises_ends_the_run_with_its_cause_and_place(mishap):
    ended, run = mishap(what="raise", at=3, after=180)
    failed(ended, 3, "RuntimeError: the rope broke", r"mishaps\.py:\d+", r"env \d, step [34]:")
    failed(ended, 3, "last good state")
    assert str(sound(run, at_least=1).name) in ended.err
    # At its first failure the user was shown where: it is their code to mend.
    assert "Traceback" in ended.out
    assert 'raise RuntimeError("the rope broke")' in ended.out


@pytest.mark.parametrize(("how", "cause"), CAUSES.items())
@pytest.mark.parametrize(
    ("what", "after"), [("raise", 0), ("reset", 0), ("reset", 180), ("init", 0)]
)
def test_an_environment_that_always_fails_ends_the_run_and_is_named(
    mishap_here, what, after, how, cause
):
    error, run = mishap_here(what=what, after=after, how=how)
    says(error, cause, r"mishaps\.py:\d+")
    if what == "init":
        assert not run.path.exists()
        return
    says(error, "env 0" if what == "raise" else r"env \d")
    if what == "raise" or after:
        says(error, "last good state")
        sound(run, at_least=1 if after else 0)


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_an_environment_that_fails_rarely_is_rebuilt_and_the_run_completes(mishap, how):
    ended, run = mishap("--total-iters", "40", what="rarely", how=how)
    assert ended.code == 0, ended
    assert CAUSES[how] in ended.out and "rebuilt" in ended.out
    restarts = run.metrics()[-1]["env_restarts"]
    assert f"environments raised and were rebuilt {restarts} times in this session" in ended.out
    assert run.metrics()[-1]["iter"] == 40
    lengths = [line["episode_length"] for line in run.metrics() if line["episodes"]]
    assert max(lengths) == 10
    assert run.json("eval.json")["episodes"] == 2
    sound(run, at_least=40)


def test_an_environment_that_exits_when_it_is_closed_spoils_nothing(mishap):
    ended, run = mishap(what="close", how="exit")
    assert ended.code == 0, ended
    assert "failed to close" in ended.out
    assert run.json("eval.json")["episodes"] == 2


@pytest.mark.parametrize("flag", ["--env-id=leaving:Leaving-v0", "--env.wrappers=leaving:Wrapper"])
def test_a_module_that_exits_when_it_is_imported_is_refused(shell, command, flag, monkeypatch):
    (shell.folder / "leaving.py").write_text("import sys\n\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(shell.folder)
    ended = command("train", flag, "--total-iters", "1")
    assert ended.code == 2, ended
    says(ended.err, "leaving", "can't be imported", "SystemExit: 0")


class Leaving(CartPoleVectorEnv):
    """A vector environment that exits."""

    def __init__(self, num_envs=1, where="step", **options):
        super().__init__(num_envs, **options)
        self.where, self.taken = where, 0
        self._leave("init")

    def _leave(self, where):
        if where == self.where:
            sys.exit(0)

    def reset(self, *, seed=None, options=None):
        self._leave("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.taken += 1
        if self.taken > 100:
            self._leave("step")
        return super().step(action)

    def close(self, **options):
        self._leave("close")


def vector_columns(monkeypatch, vector_class, num_envs, **kwargs):
    entry = gym.envs.registration.EnvSpec("Vector-v0", CartPoleEnv, vector_entry_point=vector_class)
    monkeypatch.setitem(gym.registry, "Vector-v0", entry)
    return NativeColumns(partial(GymBatch, "Vector-v0", kwargs), num_envs)


@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
def test_a_vector_environment_that_exits_ends_the_run_as_failed(monkeypatch, caplog, where):
    """Unless it is only being closed."""
    failure = pytest.raises(EnvironmentFailed, match=r"the vector environment .*SystemExit: 0")
    with failure if where != "close" else nullcontext():
        with vector_columns(monkeypatch, Leaving, 2, where=where) as columns:
            stepped(columns, np.zeros((150, 2), np.int64))
        assert "failed to close" in caplog.text


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("nan obs", "observation.*nan.*finite"),
        ("inf obs", "observation.*inf.*finite"),
        ("nan reward", "reward nan.*finite"),
        ("inf reward", "reward inf.*finite"),
        ("no reward", r"reward nan \(or None\) is not a finite number; try `paceline check"),
        ("array reward", r"reward array\(\[1\.\]\) is not a number; try `paceline check"),
        ("text reward", "reward 'many' is not a number"),
        ("shape", r"Error.*\(3,\).*\(4,\)"),
        ("scalar", "Error"),
        ("nothing returned", "truncated, info\\), and returned None; try `paceline check"),
        ("old step", "truncated, info\\), and returned a tuple of 4; try `paceline check"),
        ("text end", "terminated or truncated is 'False', neither true nor false"),
        ("nan end", "terminated or truncated is nan, neither"),
        ("two ends", "truth value of an array"),
        ("reset alone", r"return \(obs, info\), and returned one ndarray; try `paceline check"),
        ("unprintable", r"Unprintable \(.*mishaps\.py:\d+"),
    ],
)
def test_what_an_environment_returns_wrongly_ends_the_run_and_is_named(mishap_here, what, words):
    """What is not finite is found when a rollout is full, and named with its very step."""
    infinite = what.startswith(("nan obs", "inf", "nan reward"))
    error, run = mishap_here(what=what, at=None if what == "reset alone" else 3, after=180)
    step = "4" if infinite else r"\d+" if what == "reset alone" else "[34]"
    says(error, words, rf"env \d, step {step}: ", "last good state")
    sound(run, at_least=2 if infinite else 1)


class Overwriting(CartPoleVectorEnv):
    """Uses its actions up."""

    def step(self, action):
        found = super().step(action)
        action[...] = 0
        return found


def test_a_vector_environment_that_overwrites_its_actions_changes_no_rollout(monkeypatch):
    taken = np.ones((1, 3), np.int64)
    with vector_columns(monkeypatch, Overwriting, 3) as columns:
        stepped(columns, taken)
    assert taken.tolist() == [[1, 1, 1]]


@pytest.mark.slow
def test_after_its_environment_is_mended_a_failed_run_goes_on(shell, mishap):
    ended, _ = mishap(what="raise", at=3, after=180)
    assert ended.code == 3
    text = MISHAPS.replace('self.fail_if(self.what == "raise" and now)', "")
    (shell.folder / "mishaps.py").write_text(text)
    resumed = shell.resume("run")
    assert [line["iter"] for line in resumed.metrics()] == list(range(1, 13))
    assert not resumed.leftovers()


def test_a_failure_in_an_evaluation_leaves_a_checkpoint_that_resumes_exactly(shell, mishap_here):
    """The learner is past the rollout by then, and so must the sampler be."""
    (shell.folder / "broken").touch()
    error, run = mishap_here("--eval-every", "300", "--save-every", "1M", what="evaluation")
    says(error, "evaluation")
    sound(run, at_least=1)
    (shell.folder / "broken").unlink()
    resumed = shell.resume_here("run")
    other = [*FLAGS, "--env.kwargs", '{"what": "evaluation"}', "--eval-every", "300"]
    straight = shell.train_here("straight", *other)
    ours, theirs = (
        [{k: v for k, v in line.items() if k != "eval_return"} for line in run.learned()]
        for run in (resumed, straight)
    )
    assert ours == theirs
    assert resumed.last() == straight.last()


def test_a_failure_in_the_last_evaluation_does_not_lose_what_was_learnt(shell, mishap_here, caplog):
    (shell.folder / "broken").touch()
    error, run = mishap_here(what="evaluation")
    says(error, "evaluation")
    assert "the rope broke" in caplog.text + error
    sound(run, at_least=12)


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_one_failure_in_an_evaluation_is_healed_and_told(shell, mishap, how):
    (shell.folder / "broken").touch()
    ended, run = mishap(what="evaluation once", how=how)
    assert ended.code == 0, ended
    assert not (shell.folder / "broken").exists()
    assert ended.out.count("failed 1 time during evaluation") == 1
    assert run.json("eval.json")["episodes"] == 2
    assert run.json("eval.json")["length_mean"] == 10


class FailingSeeds(CartPoleEnv):
    """Episodes whose seed `fails` raise in step number `at`; 0 is the reset."""

    at, fails = 4, staticmethod(lambda seed: seed % 3 == 0)

    def reset(self, *, seed=None, options=None):
        self.time, self.failing = 0, self.fails(seed)
        self._go_on()
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.time += 1
        self._go_on()
        return super().step(action)

    def _go_on(self):
        if self.failing and self.time == self.at:
            raise RuntimeError("this seed fails")


@pytest.fixture
def agent():
    return agent_of("CartPole-v1")[0]


@pytest.mark.parametrize("at", [0, 1, 4])
def test_episodes_that_fail_in_an_evaluation_are_replaced_by_the_next_of_their_column(
    agent, monkeypatch, caplog, at
):
    monkeypatch.setattr(FailingSeeds, "at", at)
    monkeypatch.setattr(evaluation, "MAX_COLUMNS", 3)
    found = paceline.evaluate(agent, FailingSeeds, 12, time_limit=50)
    expected, skipped = [0] * 12, 0
    for column in range(3):
        seeds = (episode_seed(evaluation.EVALUATION_SEED, column, k) for k in count())
        for number in range(column, 12, 3):
            while FailingSeeds.fails(seed := next(seeds)):
                skipped += 1
            expected[number] = seed
    assert skipped > 0
    assert found.seeds == expected
    for seed, total in zip(found.seeds, found.returns, strict=True):
        assert total == played(agent, seed)
    told = [r.getMessage() for r in caplog.records if "during evaluation" in r.getMessage()]
    assert len(told) == 1
    assert int(re.search(r"failed (\d+) time", told[0])[1]) >= skipped


def played(agent, seed):
    """The return of one episode, as anybody would play it."""
    env = gym.make("CartPole-v1", max_episode_steps=50)
    (obs, _), total, over = env.reset(seed=seed), 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
        total, over = total + reward, terminated or truncated
    return total


@pytest.mark.timeout(60)
def test_an_evaluation_ends_where_no_episode_ever_does_for_failing_late(agent, monkeypatch):
    """Failures further apart than those that count as in a row would otherwise go on for ever."""
    monkeypatch.setattr(FailingSeeds, "fails", staticmethod(lambda seed: True))
    monkeypatch.setattr(FailingSeeds, "at", 30)
    monkeypatch.setattr(
        CartPoleEnv, "step", lambda self, action: (np.zeros(4), 0, False, False, {})
    )
    with pytest.raises(EnvironmentFailed, match=r"during evaluation .* 10 episodes in a row"):
        paceline.evaluate(agent, FailingSeeds, 2)


def test_a_reward_that_is_no_number_in_an_evaluation_is_never_written(mishap_here):
    error, run = mishap_here(what="evaluation reward")
    says(error, "reward nan")
    assert not (run.path / "eval.json").exists() or "NaN" not in run.text("eval.json")
    sound(run, at_least=12)


def test_rewards_too_large_to_learn_from_end_the_run_as_diverged(mishap_here):
    error, run = mishap_here(what="huge", after=180, code=4)
    says(error, "(loss|norm|variance) became (inf|nan)", "lower lr", "last good state")
    sound(run, at_least=1)


ABSURD = ("--total-iters", "300", "--compile", "off", "--lr")


def test_a_learning_rate_that_is_absurd_ends_the_command_as_diverged(shell):
    ended = shell("train", *ABSURD, "1e30", "--track", "none", "--output-dir", "run")
    failed(ended, 4, "became (inf|nan)", "lower lr", "last good state")
    sound(shell.run("run"))


@pytest.mark.parametrize(
    "flags",
    [
        "1e38 --algo a2c --log-every 1 --save-every 1",
        "1e37 --algo a2c --env-id Pendulum-v1",
        "1e30 --env-id Pendulum-v1 --num-envs 2",
        "1e38 --env-id toy:identity --normalize-return",
    ],
)
def test_learning_that_blows_up_is_diverged_and_what_is_kept_is_finite(shell, flags):
    """Also where one step is all it takes, or a NaN reaches the environment and looks its fault."""
    with pytest.raises(Diverged) as caught:
        shell.train_here("run", *ABSURD, *flags.split())
    assert caught.value.exit_code == 4
    says(str(caught.value), "became (inf|nan)", "lower lr", "last good state")
    sound(shell.run("run"))


FORKING = """
import os
import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Forking(CartPoleEnv):
    taken = 0

    def __init__(self, raises=False):
        super().__init__()
        self._raises = raises

    def step(self, action):
        Forking.taken += 1
        if Forking.taken == 100 and os.fork() == 0 and self._raises:
            raise RuntimeError("in the child")
        return super().step(action)


gym.register("Forking-v0", Forking, max_episode_steps=500)
"""


@pytest.mark.parametrize("raises", ["true", "false"])
def test_a_child_that_an_environment_forks_and_lets_return_does_not_train_too(shell, raises):
    (shell.folder / "forking.py").write_text(FORKING)
    flags = ("--env-id", "forking:Forking-v0", "--env.kwargs", f'{{"raises": {raises}}}')
    run = shell.train("run", *flags, "--total-iters", 3, "--compile", "off", "--eval-episodes", 1)
    assert [line["iter"] for line in run.metrics()] == [1, 2, 3]


def test_a_configuration_that_ends_the_program_is_refused(shell, command):
    (shell.folder / "ends.py").write_text("import sys\nsys.exit()\n")
    ended = command("train", "--config", "ends.py")
    assert ended.code == 2 and "ends.py raised SystemExit" in ended.err
