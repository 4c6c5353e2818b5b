"""paceline.train and paceline.resume in Python: leaving the loop ends everything cleanly."""

from __future__ import annotations

import functools
import gc
import sys
import threading

import gymnasium as gym
import psutil
import pytest
from environments import agent_of
from saved_runs import assert_refused

import paceline
from paceline.envs.suites.toy import Identity
from paceline.errors import BadInput

SMALL = {"preset": "none", "num_envs": 4, "rollout_steps": 32, "hidden": [16], "eval_episodes": 2}


class Watched(Identity):
    """Counts how many are open."""

    open = 0

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        Watched.open += 1

    def close(self):
        Watched.open -= 1


@pytest.fixture
def config(tmp_path):
    def make(name="run", **more):
        values = {**SMALL, "total_iters": 8, "track": "none", **more}
        return paceline.Config(output_dir=str(tmp_path / name), **values)

    return make


@pytest.fixture(autouse=True)
def nothing_stays_open():
    """No file, no thread, no environment."""
    Watched.open = 0
    paceline.train  # noqa: B018 - what is loaded once, and stays, is loaded now
    process = psutil.Process()
    gc.collect()
    files, threads = {file.path for file in process.open_files()}, threading.active_count()
    yield
    gc.collect()
    assert {file.path for file in process.open_files()} <= files
    assert threading.active_count() <= threads
    assert Watched.open == 0


def finished(shell, name, config):
    list(paceline.train(config))
    return shell.run(name)


def stopped(config, at=1):
    """Leave the loop after this iteration."""
    for report in paceline.train(config):
        if report.iter == at:
            break


def test_breaking_out_leaves_a_checkpoint_that_resumes_exactly(shell, config):
    stopped(config(env_id="CartPole-v1"), at=3)
    run = shell.run("run")
    assert [path.name for path in run.checkpoints()] == ["00000003"]
    assert [report.iter for report in paceline.resume(run.path)] == [4, 5, 6, 7, 8]
    straight = finished(shell, "straight", config("straight", env_id="CartPole-v1"))
    assert run.result() == straight.result()


@pytest.mark.parametrize("track", ["none", "tensorboard"])
def test_breaking_out_closes_environments_files_and_threads(shell, config, track):
    for _ in paceline.train(config(env_id=Watched, track=track)):
        assert Watched.open == 4
        break
    assert Watched.open == 0
    assert shell.run("run").checkpoints()


def test_an_error_in_the_callers_loop_ends_the_run_cleanly(shell, config):
    def body():
        for _ in paceline.train(config(env_id=Watched)):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    gc.collect()
    assert Watched.open == 0
    assert [path.name for path in shell.run("run").checkpoints()] == ["00000001"]


def test_reports_that_are_never_iterated_write_nothing(shell, config):
    reports = paceline.train(config(env_id=Watched))
    del reports
    assert not (shell.folder / "run").exists()


def test_reports_equal_the_lines_of_metrics_jsonl(shell, config):
    reports = list(paceline.train(config(env_id="CartPole-v1")))
    assert [report.as_dict() for report in reports] == shell.run("run").metrics()


def test_two_interleaved_runs_are_independent(shell, config):
    """No global seed, no shared buffer."""
    alone = [finished(shell, f"alone{seed}", config(f"alone{seed}", seed=seed)) for seed in (1, 2)]
    both = [paceline.train(config(f"both{seed}", seed=seed)) for seed in (1, 2)]
    for _ in zip(*both, strict=True):
        pass
    for seed, run in zip((1, 2), alone, strict=True):
        assert shell.run(f"both{seed}").result() == run.result()


def a_function(**kwargs):
    return Identity(**kwargs)


class Maker:
    """A callable without a name of its own."""

    def __call__(self, **kwargs):
        return Identity(**kwargs)


CALLABLES = {
    "class": Identity,
    "function": a_function,
    "lambda": lambda **kwargs: Identity(**kwargs),
    "partial": functools.partial(Identity, size=3),
    "object": Maker(),
    "method": Maker().__call__,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", CALLABLES)
def test_any_callable_can_make_the_environment(shell, config, kind):
    make = CALLABLES[kind]
    run = finished(shell, "run", config(env_id=make, total_iters=2))
    assert run.metrics()[-1]["iter"] == 2
    assert run.json("run.json")["env_is_callable"] is True
    agent = paceline.load(run.path)
    assert paceline.evaluate(agent, make, 3).episodes == 3


def test_a_callable_gets_the_keyword_arguments(shell, config):
    run = finished(shell, "run", config(env_id=a_function, env={"kwargs": {"length": 5}}))
    lengths = {line["episode_length"] for line in run.metrics() if line["episodes"]}
    assert lengths == {5.0}


def test_a_run_with_a_callable_is_resumed_with_the_callable(shell, config):
    stopped(config(env_id=a_function), at=3)
    run = shell.run("run")
    with pytest.raises(BadInput, match=r"callable.*paceline\.resume\(run, env_id="):
        next(paceline.resume(run.path))
    list(paceline.resume(run.path, env_id=a_function))
    straight = finished(shell, "straight", config("straight", env_id=a_function))
    assert run.result() == straight.result()


def test_a_run_with_a_schedule_of_its_own_is_resumed_with_it(shell, config):
    """Called with progress_remaining, which falls from 1; what it returns is the rate."""

    def rate(progress_remaining):
        return 0.01 * progress_remaining**2

    stopped(config(lr_schedule=rate), at=3)
    run = shell.run("run")
    assert run.json("run.json")["lr_schedule_is_callable"] is True
    with pytest.raises(BadInput, match=r"callable.*paceline\.resume\(run, lr_schedule="):
        next(paceline.resume(run.path))
    with pytest.raises(BadInput, match=r"lr_schedule is .* and was .*rate"):
        next(paceline.resume(run.path, lr_schedule=lambda progress_remaining: 1e-3))
    list(paceline.resume(run.path, lr_schedule=rate))
    expected = [0.01 * (1 - i / 8) ** 2 for i in range(8)]
    assert [line["lr"] for line in run.metrics()] == pytest.approx(expected)
    straight = finished(shell, "straight", config("straight", lr_schedule=rate))
    assert run.result() == straight.result()


def falling(progress_remaining):
    return 0.001 + 0.1 * progress_remaining


def test_a_schedule_that_can_be_imported_is_recorded_by_its_name(shell, config):
    """So a resume needs nothing; options of an algorithm take no other functions."""
    ppo = {"clip_schedule": falling, "entropy_coef": 0.01, "entropy_schedule": falling}
    stopped(config(lr_schedule=falling, ppo=ppo), at=3)
    run, name = shell.run("run"), "test_python_sessions:falling"
    stored = run.config()
    assert stored["lr_schedule"] == stored["ppo"]["clip_schedule"] == name
    list(paceline.resume(run.path))
    assert run.metrics()[-1]["lr"] == pytest.approx(0.001 + 0.1 / 8)
    with pytest.raises(BadInput, match=r"ppo\.clip_schedule.*define it in a module"):
        config(ppo={"clip_schedule": lambda progress_remaining: 0.2})


def test_the_command_refuses_a_run_with_a_callable_and_names_the_python_call(shell, config):
    stopped(config(env_id=a_function))
    assert_refused(shell("resume", "run"), ("callable", "env_id="))


def test_a_run_with_a_registered_environment_is_not_resumed_with_a_callable(shell, config):
    """It would be another environment under the same name."""
    stopped(config(env_id="toy:identity"))
    with pytest.raises(BadInput, match=r"^env_id "):
        next(paceline.resume(shell.folder / "run", env_id=a_function))


@pytest.mark.parametrize(
    "make",
    [lambda: gym.make("CartPole-v1"), Identity, lambda: gym.make_vec("CartPole-v1", 2)],
    ids=["gymnasium", "own", "vector"],
)
def test_an_environment_in_place_of_what_makes_it_is_refused(make):
    """Every column needs one of its own."""
    env = make()
    agent, _ = agent_of("toy:identity")
    for use in (
        lambda: paceline.Config(env_id=env),
        lambda: paceline.make_vec(env, 2),
        lambda: paceline.evaluate(agent, env),
    ):
        with pytest.raises(BadInput, match=r"^env_id is .*env_id=lambda: (gym.make|Identity)\("):
            use()
    env.close()


class Doubled(gym.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


def halved(env):
    return gym.wrappers.TransformReward(env, lambda reward: reward / 2)


def test_wrappers_that_can_be_imported_are_recorded_by_name_and_resume_by_themselves(shell, config):
    wrappers = [gym.wrappers.FlattenObservation, Doubled, halved, f"{__name__}:Doubled"]
    made = config(env_id="toy:identity", env={"wrappers": wrappers}, total_iters=2)
    run = finished(shell, "run", made)
    names = [f"{__name__}:{name}" for name in ("Doubled", "halved", "Doubled")]
    assert run.config()["env"]["wrappers"][1:] == names
    assert run.json("run.json")["wrappers_are_callable"] is False
    assert [report.iter for report in paceline.resume(run.path, total_iters=3)] == [3]


HERE = (Doubled, lambda env: gym.wrappers.TransformReward(env, lambda reward: 5 * reward))


def test_wrappers_that_only_python_has_are_given_again_on_resume(shell, config):
    made = config(env_id="toy:identity", env={"wrappers": HERE, "kwargs": {"length": 4}})
    stopped(made, at=3)
    run = shell.run("run")
    assert run.config()["env"]["wrappers"] == [f"{__name__}:Doubled", f"{__name__}:<lambda>"]
    with pytest.raises(BadInput, match=r'env\.wrappers .*resume\(run, env={"wrappers":'):
        next(paceline.resume(run.path))
    with pytest.raises(BadInput, match=r"env is .* affects learning"):
        next(paceline.resume(run.path, env={"wrappers": HERE[1:]}))
    with pytest.raises(BadInput, match="env can't change"):
        next(paceline.resume(run.path, env={"wrappers": HERE, "kwargs": {"length": 5}}))
    list(paceline.resume(run.path, env={"wrappers": HERE}))
    given = {"env": {"wrappers": HERE, "kwargs": {"length": 4}}, "env_id": "toy:identity"}
    straight = finished(shell, "straight", config("straight", **given))
    assert run.result() == straight.result()
    found = paceline.evaluate(
        paceline.load(run.path), "toy:identity", 2, kwargs={"length": 4}, wrappers=HERE
    )
    assert found.returns == run.json("eval.json")["returns"]
    assert_refused(shell("eval", "run"), ("env.wrappers", "wrappers=those_objects"))


@pytest.mark.parametrize(
    "way", [{"num_workers": 2}, pytest.param({"ranks": 2}, marks=pytest.mark.slow)], ids=str
)
def test_wrappers_that_only_python_has_reach_workers_and_ranks(shell, config, way):
    options = {"env_id": "toy:constant", "env": {"kwargs": {"length": 4}}, "total_iters": 2}
    options |= {"seed": 1} | way
    plain = finished(shell, "plain", config("plain", **options))
    options["env"] = options["env"] | {"wrappers": HERE}
    wrapped = finished(shell, "wrapped", config("wrapped", **options))
    returns = [[line["episode_return"] for line in run.metrics()[:1]] for run in (plain, wrapped)]
    assert returns[1] == [pytest.approx(10 * returns[0][0])]


def test_a_wrapper_that_does_not_wrap_is_refused_by_name(config):
    for wrapper, words in (
        (gym.wrappers.TransformReward, r"TransformReward .*alone .*'func'.*lambda env:"),
        (lambda env: None, r"<lambda> returns 'None', which is no environment"),
        (5, r"env\.wrappers is '\(5,\)': should be a list of wrappers"),
    ):
        with pytest.raises(BadInput, match=words):
            next(paceline.train(config(env={"wrappers": (wrapper,)})))


def test_a_callable_that_fails_is_reported_as_the_environments_failure(config):
    def broken():
        raise ZeroDivisionError("oh")

    with pytest.raises(paceline.EnvironmentFailed, match="ZeroDivisionError: oh"):
        next(paceline.train(config(env_id=broken)))


def test_a_callable_that_makes_no_environment_is_an_error_for_the_user(config):
    for make in (lambda: 5, lambda: None, lambda: gym.make, lambda: gym.make_vec("CartPole-v1", 2)):
        with pytest.raises(BadInput, match=r"env_id: .*<lambda> makes .*(no|vector) environment"):
            next(paceline.train(config(env_id=make)))


LEFT = """
import sys, paceline

if __name__ == "__main__":
    how = {how}
    config = paceline.Config(total_iters=1000, compile="off", track="none", output_dir="run", **how)
    reports = paceline.train(config)
    for report in reports:
        break
"""


@pytest.mark.parametrize(
    "how",
    [
        {},
        pytest.param({"num_workers": 2}, marks=pytest.mark.slow),
        pytest.param({"ranks": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_run_that_a_script_leaves_open_is_saved_when_the_script_ends(shell, how):
    """The generator is still alive when the interpreter shuts down."""
    (shell.folder / "left.py").write_text(LEFT.format(how=how))
    ended = shell.execute(sys.executable, "left.py")
    assert (ended.code, ended.err) == (0, "")
    run = shell.run("run")
    assert run.checkpoints()[-1].name == f"{run.metrics()[-1]['iter']:08d}"
