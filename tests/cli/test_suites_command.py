"""The suites on the command line: runs, evaluations, and refusals."""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from suites import missing

import paceline

pytestmark = pytest.mark.timeout(120)

COMMON = shlex.split(
    "--preset none --num-envs 4 --rollout-steps 32 --minibatches 2 --epochs 1 --hidden 16 "
    "--total-steps 300 --eval-episodes 2 --threads 1 --compile off --device cpu"
)

# env_id → its package, and flags that keep it short.
SUITES = {
    "CartPole-v1": ("gymnasium", ""),
    "LunarLander-v3": ("Box2D", "--env.time-limit 40"),
    "HalfCheetah-v5": ("mujoco", "--env.time-limit 40"),
    "atari:Pong": ("ale_py", "--env.time-limit 25 --encoder mlp --num-envs 2"),
    "procgen:coinrun": ("procgen", "--encoder mlp"),
    "procgen:fruitbot": (
        "procgen",
        """--encoder small --env.kwargs '{"num_levels": 3, "distribution_mode": "easy"}'""",
    ),
    "envpool:CartPole-v1": ("envpool", ""),
    "envpool:Pong-v5": ("envpool", "--env.time-limit 30 --encoder mlp --num-envs 2"),
    "envpool:MiniGrid-DoorKey-5x5-v0": ("envpool", "--env.time-limit 40"),
    "minigrid:DoorKey-5x5": ("minigrid", """--env.kwargs '{"max_steps": 40}'"""),
}
LONG = ("procgen:coinrun",)
"""Whose episodes take a thousand steps."""


def flags_of(env_id):
    return ["--env-id", env_id, *COMMON, *shlex.split(SUITES[env_id][1])]


def suite(env_id, *more, slow=False):
    """A parameter of a test, left out where the package is missing."""
    marks = [missing(SUITES[env_id][0]), *([pytest.mark.slow] if slow else [])]
    return pytest.param(env_id, *more, marks=marks)


def refused(ended, *words):
    """Exit 2, and a short sentence on stderr with all of `words`."""
    lines = ended.err.strip().splitlines()
    assert ended.code == 2 and "Traceback" not in ended.err, ended
    assert any(line.startswith("paceline: ") for line in lines), ended.err
    assert len(lines) <= 4 and len(lines[-1]) < 700, ended.err
    for word in words:
        assert word.lower() in ended.err.lower(), f"{word!r} is not in: {ended.err}"


@pytest.mark.parametrize("env_id", [suite(name, slow=name in LONG) for name in SUITES])
def test_every_suite_is_trained_in_and_evaluated(command, shell, env_id):
    flags = ("--output-dir", "run", "--track", "none", "--eval-every", "150")
    ended = command("train", *flags_of(env_id), *flags)
    assert ended.code == 0, ended
    run = shell.run("run")
    steps = [line["steps"] for line in run.metrics()]
    assert steps[-1] >= 300 and steps == sorted(steps)
    assert all(line["loss"] == line["loss"] for line in run.metrics())
    found = run.json("eval.json")
    assert found["episodes"] == 2 == len(found["returns"])
    # Each episode has a seed of its own where it is a single environment's.
    repeatable = not env_id.startswith(("procgen", "envpool"))
    assert len(found["seeds"]) == (2 if repeatable and not env_id.startswith("atari") else 0)
    again = command("eval", "run", "--episodes", "3")
    assert again.code == 0, again
    assert f"{env_id}: mean" in again.out and "over 3 episodes" in again.out
    later = run.json("eval.json")
    if repeatable:
        assert later["returns"][:2] == found["returns"]
    if env_id != "procgen:fruitbot":
        assert found["elsewhere"] == {}
        return
    all_levels = {"distribution_mode": "easy", "num_levels": 0}
    agent = paceline.load(shell.folder / "run")
    for one, number in ((found, 2), (later, 3)):
        assert list(one["elsewhere"]) == ["all_levels"]
        elsewhere = one["elsewhere"]["all_levels"]
        expected = paceline.evaluate(agent, env_id, number, kwargs=all_levels)
        assert elsewhere["returns"] == expected.returns and elsewhere["episodes"] == number
    assert "all levels" in again.out.replace("_", " ")


WAYS = {
    "workers": "--algo ppo --num-workers 2 --num-envs 4",
    "stream": "--algo impala --num-workers 2 --num-envs 4",
    "ranks": "--algo ppo --ranks 2",
    "a3c": "--algo a3c --num-workers 2 --minibatches 1",
}
USUALLY = [("atari:Pong", "stream")]
"""The others take `make test-all`."""


@pytest.mark.parametrize(
    ("env_id", "way"),
    [
        suite(env_id, way, slow=(env_id, way) not in USUALLY)
        for env_id in SUITES
        if ":" in env_id and env_id not in LONG
        for way in WAYS
    ],
)
def test_every_suite_is_trained_in_every_way(shell, env_id, way):
    """And a run that is resumed goes on where it was, in steps at least."""
    run = shell.train("run", *flags_of(env_id), *WAYS[way].split())
    assert run.metrics()[-1]["steps"] >= 300 and len(run.json("eval.json")["returns"]) == 2
    shell.resume("run", "--total-steps", "600")
    steps = [line["steps"] for line in run.metrics()]
    assert steps[-1] >= 600 and steps == sorted(steps)
    assert len(run.json("eval.json")["returns"]) == 2


@missing("envpool")
def test_a_run_that_can_not_be_resumed_exactly_says_so_at_its_start(command):
    flags = (*flags_of("envpool:CartPole-v1"), "--output-dir", "run", "--track", "none")
    ended = command("train", *flags)
    text = (ended.err + ended.out).replace("\n", " ")
    assert ended.code == 0 and "envpool:CartPole-v1 can't be saved" in text


@pytest.mark.parametrize(
    "env_id", [suite(name, slow=True) for name in ("atari:Pong", "minigrid:DoorKey-5x5")]
)
def test_workers_add_nothing_to_what_a_run_says(shell, env_id):
    """Nor does a suite that registers its environments in each of them."""
    flags = (*flags_of(env_id), "--output-dir", "run", "--track", "none", "--num-workers", "2")
    ended = shell("train", *flags)
    assert ended.code == 0, ended
    assert "WARN" not in ended.err and "Warning" not in ended.err, ended.err[:400]


PACKAGES = {
    "atari:Pong": ("ale_py", ("pip install 'paceline[atari]'",)),
    "envpool:CartPole-v1": ("envpool", ("pip install 'paceline[envpool]'",)),
    "minigrid:DoorKey-5x5": ("minigrid", ("pip install 'paceline[minigrid]'",)),
    "procgen:coinrun": ("procgen", ("make extras", "procgen-mirror==", "gym3==", "--no-deps")),
    "procgen:bigfish": ("gym3", ("make extras", "procgen-mirror==", "gym3==", "--no-deps")),
    "LunarLander-v3": ("Box2D", ("pip install", "box2d")),
    "HalfCheetah-v5": ("mujoco", ("pip install", "mujoco")),
}


@pytest.mark.parametrize("env_id", PACKAGES)
def test_a_suite_whose_package_is_missing_says_what_to_install(command, monkeypatch, env_id):
    """As if it had never been there: nothing of it is imported yet, and no import finds it."""
    package, words = PACKAGES[env_id]
    for name in list(sys.modules):
        root = name.partition(".")[0]
        inner = name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco"))
        if root in (package, "procgen") or inner:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    ended = command("train", "--env-id", env_id, *COMMON, "--output-dir", "run")
    refused(ended, "not installed", *words)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["atari:Pong", "procgen:coinrun"])
def test_so_it_does_in_a_process_of_its_own(shell, env_id):
    package, words = PACKAGES[env_id]
    (shell.folder / f"{package}.py").write_text("raise ImportError('it is not here')\n")
    refused(shell("train", "--env-id", env_id), "not installed", *words)


@pytest.mark.parametrize(
    ("env_id", "package", "word"),
    [
        ("atari:Pomg", "ale_py", "did you mean atari:Pong"),
        ("atari:MsPakman", "ale_py", "MsPacman"),
        ("atari:", "ale_py", "atari"),
        ("procgen:coinrum", "procgen", "did you mean procgen:coinrun"),
        ("procgen:", "procgen", "paceline list envs procgen"),
        ("procgen:Coinrun", "procgen", "did you mean procgen:coinrun"),
        ("envpool:Nope-v9", "envpool", "envpool"),
        ("envpool:Cartpole-v1", "envpool", "did you mean envpool:CartPole-v1"),
        ("envpool:HalfCheeta-v5", "envpool", "HalfCheetah-v5"),
        ("minigrid:Doorkey", "minigrid", "did you mean minigrid:DoorKey"),
        ("minigrid:DoorKey-5x6", "minigrid", "DoorKey-5x5"),
        ("minigrid:CartPole-v1", "minigrid", "not a registered"),
    ],
)
def test_a_name_that_no_suite_has_is_refused_with_what_is_near(command, env_id, package, word):
    if package != "procgen":
        pytest.importorskip(package)
    refused(command("train", "--env-id", env_id, *COMMON), env_id, word)


WRONG = {
    "atari:Pong": [
        {"nope": 1},
        {"frameskip": "four"},
        {"frameskip": 0},
        {"repeat_action_probability": "often"},
        {"autoreset_mode": "SameStep"},
        {"num_envs": 3},
        {"batch_size": 1},
        {"num_threads": "many"},
    ],
    "procgen:coinrun": [
        {"nope": 1},
        {"distribution_mode": "nope"},
        {"distribution_mode": "memory"},
        {"distribution_mode": "extreme"},
        {"num_levels": -1},
        {"num_levels": "all"},
        {"num_levels": 1.5},
        {"num_levels": 10**12},
        {"start_level": -3},
        {"num": 3},
        {"rand_seed": 3},
        {"render_mode": "nope"},
        {"debug_mode": "x"},
        {"distribution_mode": ["easy"]},
    ],
    "envpool:CartPole-v1": [
        {"nope": 1},
        {"num_envs": 3},
        {"batch_size": 1},
        {"num_threads": -1},
        {"seed": 3},
        {"max_episode_steps": "long"},
    ],
    "minigrid:DoorKey-5x5": [{"nope": 1}, {"agent_view_size": "x"}],
    "CartPole-v1": [{"nope": 1}],
    "HalfCheetah-v5": [{"nope": 1}],
    "LunarLander-v3": [{"nope": 1}],
}


TRIES = """
import json
import sys

from paceline.envs.source import inspect_env

for kwargs in json.loads(sys.argv[2]):
    try:
        inspect_env(sys.argv[1], kwargs=kwargs)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)
    else:
        print(json.dumps(["accepted", str(kwargs)]), flush=True)
"""


def tried(shell, env_id, choices):
    """What making an environment with each of `choices` raised: (type, message).

    In one process, which would end with a library that knows no other way to complain.
    """
    ended = shell.execute(sys.executable, "-c", TRIES, env_id, json.dumps(choices))
    assert ended.code == 0, (ended.out[-200:], ended.err[-400:])
    return [json.loads(line) for line in ended.out.splitlines()]


@pytest.mark.parametrize("env_id", [suite(env_id) for env_id in WRONG])
def test_arguments_that_a_suite_does_not_take_are_refused_with_a_sentence(shell, env_id):
    answers = tried(shell, env_id, WRONG[env_id])
    for kwargs, (kind, message) in zip(WRONG[env_id], answers, strict=True):
        assert kind == "BadInput" and len(message) <= 600, (kwargs, message)
        assert next(iter(kwargs)) in message and "\n" not in message


@missing("ale_py")
def test_games_for_two_players_are_neither_offered_nor_tried(command, shell):
    """ALE ships their ROMs and can't play them: it would end the process."""
    offered = command("list", "envs", "atari").out.split()
    for game in ("Combat", "Joust", "MazeCraze", "Warlords"):
        assert f"atari:{game}" not in offered
    ((kind, _),) = tried(shell, "atari:Combat", [{}])
    assert kind == "BadInput"


@pytest.mark.parametrize(
    ("env_id", "flags", "words"),
    [
        ("procgen:coinrun", ["--env.time-limit", "50"], ("time_limit is 50", "leave it out")),
        *(
            (
                env_id,
                ["--env.wrappers", "gymnasium.wrappers:FlattenObservation"],
                ("env.wrappers", "leave it out"),
            )
            for env_id in ("atari:Pong", "procgen:coinrun", "envpool:CartPole-v1")
        ),
        ("minigrid:DoorKey-5x5", ["--env.frame-stack", "4"], ("frame_stack is 4", "parts")),
        ("minigrid:DoorKey-5x5", ["--encoder", "impala"], ("encoder is 'impala'", "images")),
        ("procgen:coinrun", ["--normalize-obs"], ("normalize_obs", "image")),
        (
            "atari:Pong",
            ["--env.kwargs", '{"life_loss_info": true}'],
            ("life_loss_info", "episodic_life"),
        ),
        (
            "atari:Pong",
            ["--env.time-limit", "5", "--env.kwargs", '{"frameskip": null}'],
            ("frameskip", "refuses"),
        ),
        ("atari:Pong", ["--env.frame-stack", "1000000000"], ("env.frame_stack", "1024")),
        ("minigrid:DoorKey-5x5", ["--env.kwargs", '{"max_episode_steps": -7}'], ("-7", "or -1")),
        ("minigrid:DoorKey-5x5", ["--env.kwargs", '{"max_episode_steps": 2.5}'], ("2.5", "or -1")),
    ],
)
def test_options_that_make_no_sense_in_a_suite_are_refused(command, env_id, flags, words):
    package = SUITES[env_id][0]
    if package != "procgen":
        pytest.importorskip(package)
    refused(command("train", "--env-id", env_id, *COMMON, *flags), *words)


def test_a_list_of_every_suite_can_be_had(command):
    for suite, name in (
        ("atari", "Breakout"),
        ("procgen", "coinrun"),
        ("envpool", "HalfCheetah-v5"),
        ("minigrid", "DoorKey-5x5"),
    ):
        ended = command("list", "envs", suite)
        assert ended.code == 0 and name in ended.out, (suite, ended.err)
