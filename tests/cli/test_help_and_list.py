"""Help and lists: complete, and without torch, whose import costs more than all the rest."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from operator import attrgetter

import pytest

from paceline.cli.commands import COMMANDS
from paceline.cli.listing import LISTS
from paceline.config.flags import fields_of
from paceline.config.registry import ALGORITHMS
from paceline.config.resolve import field_names, resolve
from paceline.learning.algorithms.ppo import PPO


def options_of(text):
    """Each flag of a help text with its explanation, in one line."""
    entries = re.findall(r"^  (--[\w.-]+)\n((?:      .*\n?)+)", text, re.MULTILINE)
    return {flag: " ".join(explanation.split()) for flag, explanation in entries}


def shown(value):
    return f"[{','.join(map(str, value)) if isinstance(value, tuple) else value}]"


@pytest.mark.parametrize("arguments", ["--help", "-h", "help", ""])
def test_help_names_every_command(command, arguments):
    ended = command(*arguments.split())
    assert (ended.code, ended.err) == (0, "")
    assert all(f"paceline {name}" in ended.out for name in COMMANDS)


@pytest.mark.parametrize("arguments", [*COMMANDS, "resume run", "eval run", "scale --ranks 1,2"])
def test_every_command_has_a_help_also_after_other_arguments(command, arguments):
    ended = command(*arguments.split(), "-h")
    assert (ended.code, ended.err) == (0, "")
    assert f"paceline {arguments.split()[0]}" in ended.out


def test_version_is_printed(command):
    ended = command("--version")
    assert (ended.code, ended.out.split()) == (0, ["paceline", version("paceline")])


def test_train_help_documents_every_option_with_its_value(command):
    options = options_of(command("train", "--preset", "none", "--help").out)
    assert options.keys() - {"--config"} == {field.flag for field in fields_of()}
    assert {field.name for field in fields_of()} == set(field_names()) - {"env", *ALGORITHMS}
    assert "a3c" in options["--algo"] and "ddppo" in options["--algo"]
    config = resolve({"preset": "none"})
    filled_in = {*PPO.defaults, "preset", "total_steps"}
    for field in fields_of():
        text, _, default = options[field.flag].rpartition(" [")
        assert len(text) > 3, f"{field.name} has no text"
        assert f"[{default}" == shown(attrgetter(field.name)(config)), field.name
        assert field.name in filled_in or f"[{default}" == shown(field.default), field.name


def test_train_help_shows_the_values_of_the_chosen_algorithm(command):
    options = options_of(command("train", "--algo", "a2c", "--help").out)
    config = resolve({"algo": "a2c"})
    for name in ("rollout_steps", "epochs", "minibatches", "lr", "optimizer", "log_every"):
        flag = "--" + name.replace("_", "-")
        assert options[flag].endswith(shown(getattr(config, name)))


def test_list_has_one_line_for_each_entry(command):
    ended = command("list")
    lines = ended.out.splitlines()
    assert ended.code == 0 and {f"{kind}:" for kind in LISTS} <= set(lines)
    for entry in ("ppo", "a2c", "impala", "gym", "toy", "serial", "ppo CartPole-v1"):
        assert len([x for x in lines if re.match(rf"  {re.escape(entry)}\s\s+\S", x)]) == 1, entry


@pytest.mark.parametrize("kind", LISTS)
def test_list_of_one_kind_holds_that_kind_alone(command, kind):
    ended = command("list", kind)
    heading, *entries = ended.out.splitlines()
    assert (ended.code, heading) == (0, f"{kind}:")
    assert len(entries) == len(list(LISTS[kind]()))
    assert all(re.fullmatch(r"  \S.*\s\s\S.*", line) for line in entries)


def test_every_algorithm_and_preset_that_is_listed_can_be_configured():
    for name, _ in LISTS["algorithms"]():
        assert resolve({"algo": name}).algo == name
    for entry, _ in LISTS["presets"]():
        algo, env_id = entry.split(" ", 1)
        assert resolve({"algo": algo, "env_id": env_id}).preset == env_id


TORCHLESS = """--help; --version; list; train --help; train --lr much; train --mispelt 1;
train --env-id Cartpole-v1; resume --help; eval --help; compare nowhere; bench --algos sarsa;
doctor; doctor --jsn"""


@pytest.mark.parametrize("arguments", [line.strip() for line in TORCHLESS.split(";")])
def test_help_lists_and_refusals_never_import_torch(shell, arguments):
    ended = shell.execute(sys.executable, "-X", "importtime", "-m", "paceline", *arguments.split())
    imported = [line.rpartition("|")[2].strip() for line in ended.err.splitlines()]
    assert "paceline.cli.commands" in imported  # the trace is there
    assert not [name for name in imported if name.partition(".")[0] in ("torch", "tensorboard")]


@pytest.mark.parametrize("arguments", ["trian", "list planets", "list envs planets"])
def test_an_unknown_command_or_list_is_refused_by_name(command, arguments):
    ended = command(*arguments.split())
    assert ended.code == 2
    assert arguments.split()[-1] in ended.err
