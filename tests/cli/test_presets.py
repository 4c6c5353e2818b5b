"""Presets: each says where it comes from, fits its environment, and can be found."""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
from pathlib import Path

import pytest

import paceline
from paceline.config.files import load_file
from paceline.config.presets import FOLDER, MEMORY, presets
from paceline.config.registry import ALGORITHMS
from paceline.config.resolve import fit_to_spaces
from paceline.envs.source import inspect_env
from paceline.run.build import build
from paceline.run.training import GENERAL

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FILES = [(path.parent.name, path.stem) for path in sorted(FOLDER.glob("*/*.yaml"))]
TUNED = [(algo, name) for algo, name in FILES if name not in GENERAL]
NEEDED = """CartPole-v1 Acrobot-v1 MountainCar-v0 MountainCarContinuous-v0 LunarLander-v3
BipedalWalker-v3 Pendulum-v1 Taxi-v4 FrozenLake-v1 HalfCheetah-v5 Hopper-v5 Walker2d-v5 Reacher-v5
Pusher-v5 Ant-v5 InvertedPendulum-v5"""


def test_the_environments_people_start_with_have_one():
    assert set(NEEDED.split()) <= set(presets("ppo"))
    assert {algo for algo, _ in FILES} == set(ALGORITHMS)


@pytest.mark.parametrize(("algo", "name"), FILES)
def test_it_says_in_one_line_what_it_is_and_then_its_source(algo, name):
    lines = presets(algo)[name].read_text().splitlines()
    assert lines[0].startswith("# ") and len(lines[0]) < 110
    assert any(line.startswith("# Source: ") for line in lines)


def scores():
    """Means of the seeds of every recorded run, by algorithm and environment."""
    found = {}
    for path in sorted(RESULTS.glob("learning-*.json")):
        recorded = json.loads(path.read_text())
        memory = MEMORY if "--memory" in recorded.get("others", []) else ""
        key = recorded["options"]["algo"], recorded["options"]["env_id"] + memory
        found.setdefault(key, []).append([run["mean"] for run in recorded["runs"]])
    return found


SCORES = scores()


@pytest.mark.parametrize(("algo", "name"), [preset for preset in TUNED if preset in SCORES])
def test_its_score_is_that_of_the_recorded_runs(algo, name):
    """docs/figures.md shows these."""
    line = presets(algo)[name].read_text().splitlines()[0].replace(",", "").replace("−", "-")
    score, *worst = re.findall(r"^# (-?[\d.]+)|worst (-?[\d.]+)", line)
    runs = [seeds for seeds in SCORES[algo, name] if agrees(score[0], statistics.fmean(seeds))]
    assert runs
    assert all(agrees(text, min(runs[0])) for _, text in worst)


def agrees(text, value):
    """Whether the text is the value, rounded."""
    decimals = len(text.partition(".")[2])
    return abs(float(text) - value) <= 0.5001 * 10**-decimals


OF_SUITES = {
    "atari": ("ale_py", "atari:Pong"),
    "procgen": ("procgen", "procgen:coinrun"),
    "minigrid": ("minigrid", "minigrid:DoorKey-5x5"),
    "popgym": ("popgym", "popgym:RepeatPreviousEasy"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("algo", "name"), TUNED)
def test_it_is_found_by_its_environment_and_fits_it(algo, name):
    plain = name.removesuffix(MEMORY)
    package, env_id = OF_SUITES.get(plain, (None, plain))
    more = {} if name == plain else {"memory": "lstm"}
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    config = paceline.Config(algo=algo, env_id=env_id, compile="off", threads=1, **more)
    assert config.preset == name and config.total_steps
    for option, value in load_file(presets(algo)[name]).items():
        if not isinstance(value, dict):
            found = getattr(config, option)
            assert (list(found) if isinstance(found, tuple) else found) == value
    with build(config) as parts:
        rows = config.num_envs * config.rollout_steps
        assert rows % config.minibatch_count == 0
        assert parts.network.normalize_obs == config.normalize_obs


SERVED = {
    "envpool:HalfCheetah-v5": "HalfCheetah-v5",
    "envpool:CartPole-v1": "CartPole-v1",
    "envpool:MiniGrid-DoorKey-5x5-v0": "minigrid",
    "envpool:BabyAI-GoToObj-v0": "minigrid",
    "envpool:Humanoid-v5": "auto",
    "toy:identity": "auto",
    "HalfCheetah-v4": "HalfCheetah-v5",
    "CartPole-v0": "CartPole-v1",
}


def test_it_serves_whoever_steps_its_environment_and_other_versions_of_it():
    assert {env_id: paceline.Config(env_id=env_id).preset for env_id in SERVED} == SERVED
    assert paceline.Config(env_id="Toy-v0", preset="CartPole-v0").gamma == 0.98


def test_a_policy_with_memory_gets_the_preset_for_one_where_there_is_one():
    assert paceline.Config(env_id="CartPole-v1", lstm=32).preset == f"CartPole-v1{MEMORY}"
    assert paceline.Config(env_id="CartPole-v1", memory="gru").preset == f"CartPole-v1{MEMORY}"
    assert paceline.Config(env_id="Acrobot-v1", memory="gru").preset == "Acrobot-v1"
    asked = paceline.Config(env_id="CartPole-v1", memory="gru", preset="CartPole-v1")
    assert asked.preset == "CartPole-v1"


def test_statistics_that_a_preset_asks_for_are_left_out_where_there_are_no_numbers():
    """MiniGrid's preset is for symbols; a larger view is taken for an image."""
    pytest.importorskip("minigrid")
    env = {"wrappers": ["minigrid.wrappers:RGBImgPartialObsWrapper"]}
    config = paceline.Config(env_id="minigrid:Empty-5x5", env=env, compile="off", threads=1)
    assert config.preset == "minigrid" and config.normalize_obs
    info = inspect_env(config.env_id, **vars(config.env))
    assert not fit_to_spaces(config, info.obs_spec, info.act_spec).normalize_obs
    asked = paceline.Config(env_id="minigrid:Empty-5x5", env=env, normalize_obs=True)
    assert fit_to_spaces(asked, info.obs_spec, info.act_spec).normalize_obs  # and is refused


@pytest.mark.parametrize(
    "env_id",
    [name for algo, name in TUNED if algo == "a2c" and name not in OF_SUITES]
    + [env_id for name, (_, env_id) in OF_SUITES.items() if name in presets("a2c")],
)
def test_a3c_takes_every_preset_of_a2c_without_its_statistics(env_id):
    """Its learners have none in common; who asks for them is refused."""
    config = paceline.Config(algo="a3c", env_id=env_id, num_workers=2)
    assert config.preset != "auto" and not (config.normalize_obs or config.normalize_return)
    with pytest.raises(paceline.errors.BadInput, match="normalize_return"):
        paceline.Config(algo="a3c", env_id=env_id, num_workers=2, normalize_return=True)


def test_the_lander_is_the_same_preset_in_both_forms():
    config = paceline.Config(
        env_id="LunarLander-v3", env={"kwargs": {"continuous": True}}, compile="off"
    )
    with build(config) as parts:
        assert parts.network.act.kind == "box"
