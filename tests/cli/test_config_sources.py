"""Where a configuration comes from: defaults, algorithm, preset, file, flags; later wins."""

from __future__ import annotations

import dataclasses
import json
import shlex
from contextlib import nullcontext

import pytest
import yaml

from paceline import Config
from paceline.config.files import load_file
from paceline.config.flags import parse_config
from paceline.config.presets import presets
from paceline.config.resolve import fit_to_spaces, resolve
from paceline.config.schema import Config as Schema
from paceline.config.schema import EnvConfig
from paceline.config.values import seconds
from paceline.envs.source import make_columns
from paceline.errors import BadInput
from paceline.learning.algorithms.a2c import A2C
from paceline.learning.algorithms.ppo import PPO
from paceline.tools.bench.bench_plan import parse_bench
from paceline.tools.bench.scale_plan import parse_scale
from paceline.tools.bench.tune_plan import parse_tune

PRESET = yaml.safe_load(presets("ppo")["CartPole-v1"].read_text())
"""Of the default environment."""


def from_flags(*arguments):
    """What `paceline train` makes of its arguments."""
    return parse_config([str(argument) for argument in arguments])


@pytest.fixture
def file(tmp_path):
    """Writes a configuration file; its path."""

    def write(text, name="c.yaml"):
        (tmp_path / name).write_text(text if isinstance(text, str) else json.dumps(text))
        return tmp_path / name

    return write


def test_the_algorithms_default_wins_over_the_fields_own():
    config = Config(algo="a2c", preset="none")
    for name, value in A2C.defaults.items():
        assert getattr(config, name) == value
        assert value != getattr(Schema, name, None), f"{name} would prove nothing"


def test_the_preset_wins_over_the_algorithms_default_and_over_a_sections():
    plain, config = Config(preset="none"), Config()
    assert plain.minibatches == PPO.defaults["minibatches"] != PRESET["minibatches"]
    assert config.minibatches == PRESET["minibatches"]
    assert config.ppo.gae_lambda == PRESET["ppo"]["gae_lambda"] != plain.ppo.gae_lambda


def test_the_file_wins_over_the_preset_and_the_flag_over_the_file_in_any_order(file):
    path = file("gamma: 0.5\nlr: 0.25\n")
    config = from_flags("--config", path, "--lr", "0.125")
    assert (config.gamma, config.lr) == (0.5, 0.125)
    assert PRESET["gamma"] != 0.5
    assert config.rollout_steps == PRESET["rollout_steps"]
    assert from_flags("--lr", "0.125", "--config", path) == config


def test_a_preset_can_be_named_for_another_environment():
    config = Config(env_id="toy:chain", preset="CartPole-v1")
    assert (config.env_id, config.rollout_steps) == ("toy:chain", PRESET["rollout_steps"])


def test_an_environment_without_a_preset_waits_for_its_spaces():
    config = Config(env_id="toy:chain")
    assert config.preset == "auto"
    none = dataclasses.replace(config, env_id="CartPole-v1", preset="none")
    assert none == Config(preset="none")


def test_minibatches_of_a_preset_give_way_and_given_ones_do_not():
    odd = {"preset": "continuous", "num_envs": 4, "rollout_steps": 100}
    assert Config(**odd).minibatches == 25
    with pytest.raises(BadInput, match="minibatches 32"):
        Config(**odd, minibatches=32)


def test_replace_resolves_again_from_what_was_given():
    config = Config(env_id="Nothing-v0", lr=0.5).replace(env_id="CartPole-v1", seed=3)
    assert (config.preset, config.lr, config.gamma, config.seed) == ("CartPole-v1", 0.5, 0.98, 3)
    config = dataclasses.replace(Config(env_id="Nothing-v0"), seed=3).replace(gamma=0.5)
    assert (config.seed, config.gamma) == (3, 0.5)  # dataclasses.replace counts as given too
    assert Config(preset="CartPole-v1").replace(batch_size=64).minibatches is None


@pytest.mark.parametrize(
    ("env_id", "kwargs", "preset", "normalized"),
    [
        ("MountainCarContinuous-v0", {}, "continuous", True),
        ("toy:chain", {}, "discrete", False),
        ("toy:identity", {"image": True}, "images", False),
    ],
)
def test_general_defaults_follow_the_spaces_and_give_way_to_given_options(
    env_id, kwargs, preset, normalized
):
    with make_columns(env_id, 1, kwargs=kwargs) as columns:
        specs = columns.obs_spec, columns.act_spec
    config = fit_to_spaces(resolve({"env_id": lambda: None, "lr": 0.5}), *specs)
    assert (config.preset, config.normalize_obs, config.lr) == (preset, normalized, 0.5)
    for name, value in load_file(presets("ppo")[preset]).items():
        if name not in ("lr", "ppo"):
            assert getattr(config, name) == value
    untouched = resolve({"env_id": env_id, "preset": "none"})
    assert fit_to_spaces(untouched, *specs) == untouched


VALUES = {
    "algo": "ppo",
    "env_id": "toy:identity",
    "seed": 7,
    "total_steps": 5000,
    "hidden": [32, 16],
    "normalize_obs": False,
    "lr": 0.01,
    "env": {"kwargs": {"size": 3}, "time_limit": 9},
    "ppo": {"clip": 0.3, "target_kl": 0.02},
}
AS_TOML = """
algo = "ppo"
env_id = "toy:identity"
seed = 7
total_steps = 5_000
hidden = [32, 16]
normalize_obs = false
lr = 0.01
[env]
time_limit = 9
kwargs = { size = 3 }
[ppo]
clip = 0.3
target_kl = 0.02
"""
AS_PYTHON = f"import paceline\nconfig = paceline.Config(**{VALUES})\n"
AS_FLAGS = shlex.split(
    "--algo ppo --env-id toy:identity --seed 7 --total-steps 5k --hidden 32,16 "
    "--no-normalize-obs --lr 1e-2 --env.time-limit 9 --env.kwargs '{\"size\": 3}' "
    "--ppo.clip 0.3 --ppo.target-kl .02"
)


FILES = {"c.yaml": yaml.safe_dump(VALUES), "c.yml": yaml.safe_dump(VALUES)}
FILES |= {"c.json": json.dumps(VALUES), "c.toml": AS_TOML, "c.py": AS_PYTHON}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_the_configuration_that_python_gives(file, name):
    assert resolve(load_file(file(FILES[name], name))) == Config(**VALUES)


def test_flags_give_the_configuration_that_python_gives():
    assert from_flags(*AS_FLAGS) == Config(**VALUES)


def test_sections_may_be_given_as_dataclasses_in_python():
    made = Config(preset="none", ppo=PPO(clip=0.3), env=EnvConfig(time_limit=9))
    assert made == Config(preset="none", ppo={"clip": 0.3}, env={"time_limit": 9})


def test_sections_merge_value_by_value_and_kwargs_are_replaced_as_a_whole(file):
    env = {"time_limit": 50, "kwargs": {"size": 3, "length": 5}}
    path = file({"ppo": {"clip": 0.3}, "env": env})
    flags = ("--ppo.entropy-coef", "0.01", "--env.frame-stack", "2", "--env.kwargs", '{"size": 4}')
    config = from_flags("--config", path, *flags)
    assert (config.ppo.clip, config.ppo.entropy_coef) == (0.3, 0.01)
    assert config.ppo.gae_lambda == PRESET["ppo"]["gae_lambda"]
    assert (config.env.time_limit, config.env.frame_stack) == (50, 2)
    assert config.env.kwargs == {"size": 4}


def test_an_empty_file_changes_nothing(file):
    assert from_flags("--config", file("# nothing yet\n")) == Config()


def test_a_switch_can_be_written_in_the_usual_ways():
    for flags in ("--normalize-obs", "--normalize-obs true"):
        assert from_flags("--preset", "none", *flags.split()).normalize_obs is True
    for flags in ("--no-normalize-obs", "--normalize-obs false", "--normalize-obs=no"):
        assert from_flags("--preset", "none", *flags.split()).normalize_obs is False


STEPS = {"300_000": 300_000, "1e6": 10**6, "1M": 10**6, "50k": 50_000, "1.5M": 1_500_000}
STEPS |= {"2.5e3": 2_500, "17": 17, 17: 17, 1e6: 10**6}
DURATIONS = {"90s": 90, "30m": 1800, "0.5h": 1800, "1.5s": 1.5, "2h": 7200}


def test_steps_and_durations_can_be_written_in_the_usual_ways():
    assert {text: Config(total_steps=text).total_steps for text in STEPS} == STEPS
    assert {text: seconds(Config(duration=text).duration) for text in DURATIONS} == DURATIONS


@pytest.mark.parametrize("text", ["", "k", "1G", "-5", "0", "1.5", "ten", "1e-3", "5 k", "1e999"])
def test_what_is_no_number_of_steps_is_refused(text):
    with pytest.raises(BadInput, match="total_steps"):
        Config(total_steps=text)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (r"0\.5h", ["30", 30, 0.5, "half", "5 min", "-3s", "", "1h30m", True]),
        ("above 0 and below ten years", ["0s", "0m", "0.0h", "88000h"]),
    ],
)
def test_a_duration_without_a_unit_or_of_nothing_or_of_decades_is_refused(words, values):
    """A careless `if config.duration` would take 0 for no limit."""
    for value in values:
        with pytest.raises(BadInput, match=f"duration.*{value}.*{words}"):
            Config(duration=value)


def test_given_budgets_replace_that_of_the_preset_and_all_of_them_hold():
    assert Config().total_steps == PRESET["total_steps"]
    for name, value in (("total_iters", 5), ("duration", "30m")):
        config = Config(**{name: value})
        assert (getattr(config, name), config.total_steps) == (value, None)
    config = Config(total_steps=1000, total_iters=5, duration="30m")
    assert (config.total_steps, config.total_iters, config.duration) == (1000, 5, "30m")
    assert Config(env_id="toy:chain").total_steps == 1_000_000  # if there is none at all


def test_batch_size_replaces_minibatches_of_preset_algorithm_and_file(file):
    config = Config(batch_size=64)
    assert config.minibatch_count == config.num_envs * config.rollout_steps // 64
    assert config.minibatches is None
    python = "import paceline\nconfig = paceline.Config(num_envs=8, rollout_steps=64)\n"
    yaml_text = "num_envs: 8\nrollout_steps: 64\nminibatches: 4\n"
    for path in (file(yaml_text), file(python, "c.py")):
        assert from_flags("--config", path, "--batch-size", "64").minibatch_count == 8


@pytest.mark.parametrize("algo", ["ppo", "a2c", "impala"])
def test_a_configuration_survives_being_written_and_read(file, algo):
    one_batch = {"num_envs": 8, "rollout_steps": 5, "batch_size": 40, "epochs": 1}
    for more in ({}, {"preset": "none"}, {"total_iters": 3}, one_batch):
        config = Config(algo=algo, env={"kwargs": {"sutton_barto_reward": True}}, **more)
        path = file(yaml.safe_dump(config.as_dict(), sort_keys=False))
        assert resolve(load_file(path)) == dataclasses.replace(config, preset="none")


def test_a_configuration_can_not_be_changed_and_dataclasses_replace_keeps_all_else():
    config = Config(algo="a2c", gamma=0.5)
    other = dataclasses.replace(config, seed=3)
    assert other.seed == 3
    assert dataclasses.replace(other, seed=config.seed) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 1.0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gama": 0.9}, "gamma"),
        ({"ppo": {"clp": 0.1}}, "ppo.clip"),
        ({"env": {"time_limt": 5}}, "env.time_limit"),
        (["--gama", "1"], "--gamma"),
        (["--ppo.clp", "1"], "--ppo.clip"),
        (["--total_steps", "1"], "--total-steps"),
        (["--totalsteps=5"], "--total-steps"),
        (["--total-step", "5"], "--total-steps"),  # not shortened: a later flag may begin so too
    ],
    ids=str,
)
def test_a_misspelt_or_shortened_name_is_refused_with_the_nearest(given, expected):
    with pytest.raises(BadInput, match=rf"no such option; did you mean {expected}\?"):
        Config(**given) if isinstance(given, dict) else from_flags(*given)


def test_several_mistakes_are_reported_together():
    with pytest.raises(BadInput) as caught:
        Config(lr="much", gamma=3, ppo={"clip": -1})
    for name in ("lr", "gamma", "ppo.clip"):
        assert name in str(caught.value)


READERS = [
    parse_config,
    parse_bench,
    lambda arguments: parse_scale([*arguments, "--ranks", "1,2"]),
    parse_tune,
]


@pytest.mark.parametrize("parse", READERS, ids=["train", "bench", "scale", "tune"])
@pytest.mark.parametrize("last", ["config = paceline.Config(lr=0.5)", "raise ValueError('no')"])
def test_a_python_file_is_executed_once(file, tmp_path, monkeypatch, capsys, parse, last):
    """Flags are parsed twice: first those that choose entries, then the entries' options."""
    monkeypatch.chdir(tmp_path)
    path = file(f"import paceline\nprint('executed')\n{last}\n", "c.py")
    with pytest.raises(BadInput) if "raise" in last else nullcontext():
        parse(["--config", str(path)])
    assert capsys.readouterr().out.count("executed") == 1
