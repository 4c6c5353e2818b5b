"""Where a configuration comes from: defaults, algorithm, preset, file, flags; later wins."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest
import yaml

from paceline import Config
from paceline.config.files import load_file
from paceline.config.flags import config_parser, nested
from paceline.config.presets import presets
from paceline.config.resolve import fit_to_spaces, resolve
from paceline.config.schema import Config as Schema
from paceline.config.values import parse_steps, seconds
from paceline.envs.source import make_columns
from paceline.errors import BadInput
from paceline.learning.algorithms.a2c import A2C
from paceline.learning.algorithms.ppo import PPO
from paceline.tools.bench.bench_plan import parse_bench
from paceline.tools.bench.scale_plan import parse_scale
from paceline.tools.bench.tune_plan import parse_tune


def from_flags(*arguments):
    """What `paceline train` makes of its arguments."""
    parser = config_parser()
    given = parser.parse([str(argument) for argument in arguments])
    given.pop("config", None)
    return resolve(parser.file, nested(given))


def preset(algo="ppo", env_id="CartPole-v1"):
    return yaml.safe_load(presets(algo)[env_id].read_text())


def test_the_algorithms_default_wins_over_the_fields_own():
    values = A2C.defaults
    config = Config(algo="a2c", preset="none")
    for name, value in values.items():
        assert getattr(config, name) == value
        assert value != getattr(Schema, name, None), f"{name} would prove nothing"


def test_the_preset_wins_over_the_algorithms_default():
    values = preset("ppo")
    assert values["minibatches"] != PPO.defaults["minibatches"]
    assert Config(algo="ppo").minibatches == values["minibatches"]
    assert Config(algo="ppo", preset="none").minibatches == PPO.defaults["minibatches"]


def test_the_preset_wins_over_the_default_of_a_section():
    assert Config().ppo.gae_lambda == preset()["ppo"]["gae_lambda"]
    assert Config().ppo.gae_lambda != Config(preset="none").ppo.gae_lambda


def test_the_file_wins_over_the_preset_and_the_flag_over_the_file(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("gamma: 0.5\nlr: 0.25\n")
    assert preset()["gamma"] != 0.5
    config = from_flags("--config", file, "--lr", "0.125")
    assert (config.gamma, config.lr) == (0.5, 0.125)
    assert config.rollout_steps == preset()["rollout_steps"]


def test_the_order_of_flags_and_file_on_the_command_line_does_not_matter(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("lr: 0.25\n")
    assert from_flags("--lr", "0.125", "--config", file) == from_flags(
        "--config", file, "--lr", "0.125"
    )


def test_a_preset_can_be_named_for_another_environment():
    config = Config(env_id="toy:chain", preset="CartPole-v1")
    assert (config.env_id, config.rollout_steps) == ("toy:chain", preset()["rollout_steps"])


def test_an_environment_without_a_preset_waits_for_its_spaces():
    assert Config(env_id="toy:chain").preset == "auto"
    assert dataclasses.replace(Config(env_id="toy:chain"), env_id="CartPole-v1", preset="none") == (
        Config(preset="none")
    )


def test_nobodys_number_of_minibatches_gives_way_and_a_given_one_does_not():
    assert Config(preset="continuous", num_envs=4, rollout_steps=100).minibatches == 25
    with pytest.raises(BadInput, match="does not divide"):
        Config(preset="continuous", num_envs=4, rollout_steps=100, minibatches=32)


def test_a_changed_request_is_filled_in_anew():
    config = Config(env_id="Nothing-v0", lr=0.5).replace(env_id="CartPole-v1", seed=3)
    assert (config.preset, config.lr, config.gamma, config.seed) == ("CartPole-v1", 0.5, 0.98, 3)
    config = dataclasses.replace(Config(env_id="Nothing-v0"), seed=3).replace(gamma=0.5)
    assert (config.seed, config.gamma) == (3, 0.5)  # what was replaced was asked for too
    assert Config(preset="CartPole-v1").replace(batch_size=64).minibatches is None


@pytest.mark.parametrize(
    ("env_id", "kwargs", "preset", "normalized"),
    [
        ("MountainCarContinuous-v0", {}, "continuous", True),
        ("toy:chain", {}, "discrete", False),
        ("toy:identity", {"image": True}, "images", False),
    ],
)
def test_general_defaults_follow_the_spaces_and_give_way_to_what_is_asked(
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
AS_PYTHON = """
from paceline import Config
config = Config(
    algo="ppo", env_id="toy:identity", seed=7, total_steps=5000, hidden=(32, 16),
    normalize_obs=False, lr=0.01, env={"kwargs": {"size": 3}, "time_limit": 9},
    ppo={"clip": 0.3, "target_kl": 0.02},
)
"""
AS_FLAGS = shlex.split(
    "--algo ppo --env-id toy:identity --seed 7 --total-steps 5k --hidden 32,16 "
    "--no-normalize-obs --lr 1e-2 --env.time-limit 9 --env.kwargs '{\"size\": 3}' "
    "--ppo.clip 0.3 --ppo.target-kl .02"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", yaml.safe_dump(VALUES)),
        ("c.yml", yaml.safe_dump(VALUES)),
        ("c.json", json.dumps(VALUES)),
        ("c.toml", AS_TOML),
        ("c.py", AS_PYTHON),
    ],
)
def test_every_kind_of_file_gives_the_configuration_that_python_gives(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert resolve(load_file(tmp_path / name)) == Config(**VALUES)


def test_flags_give_the_configuration_that_python_gives():
    assert from_flags(*AS_FLAGS) == Config(**VALUES)


def test_sections_may_be_given_as_dataclasses_in_python():
    from paceline.config.schema import EnvConfig

    made = Config(preset="none", ppo=PPO(clip=0.3), env=EnvConfig(time_limit=9))
    assert made == Config(preset="none", ppo={"clip": 0.3}, env={"time_limit": 9})


def test_sections_merge_value_by_value(tmp_path):
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"ppo": {"clip": 0.3}, "env": {"time_limit": 50}}))
    config = from_flags("--config", file, "--ppo.entropy-coef", "0.01", "--env.frame-stack", "2")
    assert (config.ppo.clip, config.ppo.entropy_coef) == (0.3, 0.01)
    assert config.ppo.gae_lambda == preset()["ppo"]["gae_lambda"]
    assert (config.env.time_limit, config.env.frame_stack) == (50, 2)


def test_keyword_arguments_of_an_environment_are_replaced_as_a_whole(tmp_path):
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"env": {"kwargs": {"size": 3, "length": 5}}}))
    config = from_flags("--config", file, "--env.kwargs", '{"size": 4}')
    assert config.env.kwargs == {"size": 4}


def test_an_empty_file_changes_nothing(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("# nothing yet\n")
    assert from_flags("--config", file) == Config()


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (("--anneal-lr",), True),
        (("--anneal-lr", "true"), True),
        (("--anneal-lr", "false"), False),
        (("--no-anneal-lr",), False),
        (("--anneal-lr=no",), False),
    ],
)
def test_a_switch_can_be_written_in_the_usual_ways(given, value):
    assert from_flags("--preset", "none", *given).anneal_lr is value


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("300_000", 300_000),
        ("1e6", 1_000_000),
        ("1M", 1_000_000),
        ("50k", 50_000),
        ("1.5M", 1_500_000),
        ("2.5e3", 2_500),
        ("17", 17),
        (17, 17),
        (1e6, 1_000_000),
    ],
)
def test_steps_can_be_written_in_the_usual_ways(text, steps):
    assert parse_steps(text) == steps
    assert Config(total_steps=text).total_steps == steps


@pytest.mark.parametrize("text", ["", "k", "1G", "-5", "0", "1.5", "ten", "1e-3", "5 k", "1e999"])
def test_what_is_no_number_of_steps_is_refused(text):
    with pytest.raises(BadInput, match="total_steps"):
        Config(total_steps=text)


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("30m", 1800), ("0.5h", 1800), ("1.5s", 1.5), ("2h", 7200)]
)
def test_durations_can_be_written_in_the_usual_ways(text, expected):
    assert seconds(Config(duration=text).duration) == expected


@pytest.mark.parametrize("value", ["30", 30, 0.5, "half", "5 min", "-3s", "", "1h30m", True])
def test_a_duration_without_a_unit_is_refused_with_an_example(value):
    with pytest.raises(BadInput, match=r"duration is .*0\.5h"):
        Config(duration=value)


@pytest.mark.parametrize("text", ["0s", "0m", "0.0h"])
def test_a_duration_of_nothing_is_refused_or_ends_at_once(text):
    """Zero is as good as no limit to a careless `if`; then the run would never end."""
    from paceline.run.budget import Budget, Progress

    try:
        config = Config(duration=text)
    except BadInput:
        return
    assert Budget.of(config).fraction(Progress(1, 1, 0.001)) == 1.0


def test_a_given_budget_replaces_that_of_the_preset():
    assert Config().total_steps == preset()["total_steps"]
    for name, value in (("total_iters", 5), ("duration", "30m")):
        config = Config(**{name: value})
        assert (getattr(config, name), config.total_steps) == (value, None)


def test_several_given_budgets_all_hold():
    config = Config(total_steps=1000, total_iters=5, duration="30m")
    assert (config.total_steps, config.total_iters, config.duration) == (1000, 5, "30m")


def test_without_any_budget_there_is_one_of_a_million_steps():
    assert Config(env_id="toy:chain").total_steps == 1_000_000


def test_batch_size_replaces_the_number_of_minibatches_of_preset_and_algorithm():
    config = Config(batch_size=64)
    assert config.minibatch_count == config.num_envs * config.rollout_steps // 64
    assert config.minibatches is None


def test_a_flag_for_the_batch_size_wins_over_minibatches_in_a_file(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("num_envs: 8\nrollout_steps: 64\nminibatches: 4\n")
    assert from_flags("--config", file, "--batch-size", "64").minibatch_count == 8


def test_a_flag_for_the_batch_size_wins_over_a_python_file(tmp_path):
    file = tmp_path / "c.py"
    file.write_text("from paceline import Config\nconfig = Config(num_envs=8, rollout_steps=64)\n")
    assert from_flags("--config", file, "--batch-size", "64").minibatch_count == 8


@pytest.mark.parametrize("algo", ["ppo", "a2c", "impala"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"preset": "none"},
        {"total_iters": 3},
        {"num_envs": 8, "rollout_steps": 5, "batch_size": 40, "epochs": 1},
    ],
    ids=["preset", "no preset", "iterations", "batch size"],
)
def test_a_configuration_survives_being_written_and_read(tmp_path, algo, more):
    config = Config(algo=algo, env={"kwargs": {"sutton_barto_reward": True}}, **more)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.as_dict(), sort_keys=False))
    assert resolve(load_file(file)) == dataclasses.replace(config, preset="none")


def test_replacing_one_field_keeps_all_others():
    config = Config(algo="a2c", gamma=0.5)
    other = dataclasses.replace(config, seed=3)
    assert other.seed == 3
    assert dataclasses.replace(other, seed=config.seed) == config


def test_a_configuration_can_not_be_changed_afterwards():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().lr = 1.0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gama": 0.9}, "gamma"),
        ({"ppo": {"clp": 0.1}}, "ppo.clip"),
        ({"env": {"time_limt": 5}}, "env.time_limit"),
        ({"rollout_stesp": 5}, "rollout_steps"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_nearest_that_exists(given, expected):
    with pytest.raises(BadInput, match=rf"did you mean {expected}\?"):
        Config(**given)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--gama", "--gamma"),
        ("--ppo.clp", "--ppo.clip"),
        ("--total_steps", "--total-steps"),
        ("--totalsteps=5", "--total-steps"),
    ],
)
def test_a_misspelt_flag_is_refused_with_the_nearest_that_exists(flag, expected):
    with pytest.raises(BadInput, match=rf"did you mean {expected}\?"):
        from_flags(flag, *([] if "=" in flag else ["1"]))


def test_a_flag_may_not_be_shortened():
    """Else a flag added later would change what an old command means."""
    with pytest.raises(BadInput, match="--total-step"):
        from_flags("--total-step", "5")


def test_several_mistakes_are_reported_together():
    with pytest.raises(BadInput) as caught:
        Config(lr="much", gamma=3, ppo={"clip": -1})
    for name in ("lr", "gamma", "ppo.clip"):
        assert name in str(caught.value)


READERS = {
    "train": from_flags,
    "bench": lambda *arguments: parse_bench(list(arguments)),
    "scale": lambda *arguments: parse_scale([*arguments, "--ranks", "1,2"]),
    "tune": lambda *arguments: parse_tune(list(arguments)),
}


@pytest.mark.parametrize("command", READERS)
def test_a_python_file_is_executed_once(tmp_path, monkeypatch, capsys, command):
    """Flags are read twice: first those that choose algorithms and the like, then their options."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "c.py"
    file.write_text("import paceline\nprint('executed')\nconfig = paceline.Config(lr=0.5)\n")
    READERS[command]("--config", str(file))
    assert capsys.readouterr().out.count("executed") == 1


def test_a_python_file_that_raises_is_executed_once(command, shell):
    file = shell.folder / "c.py"
    file.write_text("print('executed')\nraise ValueError('no')\n")
    ended = command("train", "--config", file)
    assert (ended.code, ended.out.count("executed")) == (2, 1)
