"""Help and lists: complete, and without torch, whose import costs more than all the rest."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from paceline.cli import listing
from paceline.config.registry import sections
from paceline.config.resolve import resolve
from paceline.config.schema import option_fields
from paceline.learning.algorithms.ppo import PPO


def leaves():
    """Every option that holds a value, by its dotted name: (name, default)."""
    found = [("", field) for field in option_fields()]
    found += [(f"{name}.", one) for name, kind in sections({}).items() for one in fields(kind)]
    for prefix, field in found:
        section = field.default_factory
        if dataclasses.is_dataclass(section):
            yield from ((f"{field.name}.{one.name}", _default(one)) for one in fields(section))
        else:
            yield prefix + field.name, _default(field)


def _default(field):
    section = field.default_factory
    return field.default if section is dataclasses.MISSING else section()


def value_of(config, name):
    for part in name.split("."):
        config = getattr(config, part)
    return config


def options_of(text):
    """Each flag of a help text with what is said about it, in one line."""
    entries = re.findall(r"^  (--[\w.-]+)\n((?:      .*\n?)+)", text, re.MULTILINE)
    return {flag: " ".join(said.split()) for flag, said in entries}


def flag_of(name):
    return "--" + name.replace("_", "-")


def shown(value):
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("flag", ["--help", "-h", "help", None])
def test_help_names_every_command(shell, flag):
    ended = shell(*([flag] if flag else []))
    assert ended.code == 0
    assert not ended.err
    for command in ("train", "resume", "eval", "list"):
        assert f"paceline {command}" in ended.out


@pytest.mark.parametrize("command", ["train", "resume", "eval", "list"])
def test_every_command_answers_a_question_for_help(shell, command):
    ended = shell(command, "--help")
    assert ended.code == 0, ended.err
    assert command in ended.out
    assert not ended.err


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_help_is_also_understood_after_other_arguments(shell, command):
    ended = shell(command, "runs/x", "--help")
    assert ended.code == 0, ended.err
    assert command in ended.out


def test_version_is_printed(shell):
    from importlib.metadata import version

    ended = shell("--version")
    assert (ended.code, ended.out.split()) == (0, ["paceline", version("paceline")])


def test_train_help_documents_every_field_with_its_default(shell):
    options = options_of(shell("train", "--preset", "none", "--help").out)
    config = resolve({"preset": "none"})
    for name, _ in leaves():
        said = options.get(flag_of(name))
        assert said is not None, f"{name} is not documented"
        text, _, default = said.rpartition(" [")
        assert len(text) > 3, f"{name} has no text"
        assert default == f"{shown(value_of(config, name))}]", f"{name}: {said}"
    assert set(options) - {flag_of(name) for name, _ in leaves()} <= {"--config"}


def test_the_defaults_that_help_shows_are_the_fields_own_where_nothing_replaces_them(shell):
    """Without a preset only the algorithm's few own defaults, and the budget, may differ."""
    options = options_of(shell("train", "--preset=none", "--help").out)
    replaced = {*PPO.defaults, "preset", "total_steps"}
    for name, default in leaves():
        if name not in replaced:
            assert options[flag_of(name)].endswith(f"[{shown(default)}]"), name


def test_train_help_shows_the_values_of_the_chosen_algorithm(shell):
    options = options_of(shell("train", "--algo", "a2c", "--help").out)
    config = resolve({"algo": "a2c"})
    for name in ("rollout_steps", "epochs", "minibatches", "lr", "optimizer", "log_every"):
        assert options[flag_of(name)].endswith(f"[{shown(value_of(config, name))}]")


def test_list_gives_one_line_to_each_thing(shell):
    ended = shell("list")
    assert ended.code == 0
    for kind in ("algorithms", "envs", "samplers", "presets"):
        assert f"{kind}:" in ended.out.splitlines()
    for entry in (
        "ppo",
        "a2c",
        "impala",
        "gym",
        "toy",
        "serial",
        "ppo CartPole-v1",
        "a2c CartPole-v1",
        "impala CartPole-v1",
    ):
        lines = [x for x in ended.out.splitlines() if re.match(rf"  {re.escape(entry)}\s\s+\S", x)]
        assert len(lines) == 1, f"{entry}: {lines}"


@pytest.mark.parametrize("kind", ["algorithms", "envs", "samplers", "presets"])
def test_list_of_one_kind_holds_that_kind_alone(shell, kind):
    ended = shell("list", kind)
    assert ended.code == 0
    heading, *entries = ended.out.splitlines()
    assert heading == f"{kind}:"
    assert len(entries) == len(list(listing.LISTS[kind]()))
    assert all(re.fullmatch(r"  \S.*\s\s\S.*", line) for line in entries)


def test_every_algorithm_that_is_listed_can_be_configured(shell):
    for name, _ in listing.LISTS["algorithms"]():
        assert resolve({"algo": name}).algo == name


def test_every_preset_that_is_listed_is_valid():
    for entry, _ in listing.LISTS["presets"]():
        algo, env_id = entry.split(" ", 1)
        assert resolve({"algo": algo, "env_id": env_id}).preset == env_id


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("list",),
        ("train", "--help"),
        ("train", "--lr", "much"),
        ("train", "--mispelt", "1"),
        ("train", "--env-id", "Cartpole-v1"),
        ("resume", "--help"),
        ("eval", "--help"),
        ("compare", "nowhere"),
        ("bench", "--algos", "sarsa"),
        ("doctor",),
        ("doctor", "--jsn"),
    ],
    ids=" ".join,
)
def test_help_lists_and_refusals_never_import_torch(shell, arguments):
    command = [sys.executable, "-X", "importtime", "-m", "paceline", *arguments]
    ended = subprocess.run(
        command, cwd=shell.folder, env=shell.environment(), capture_output=True, text=True
    )
    imported = [line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()]
    assert "paceline.cli.commands" in imported  # the trace is there
    assert not [name for name in imported if name.partition(".")[0] in ("torch", "tensorboard")]


def test_importing_the_package_imports_neither_torch_nor_gymnasium(shell):
    program = "import sys, paceline; print(sorted({'torch', 'gymnasium'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout.strip() == "[]", ended


def test_an_unknown_command_or_list_is_refused_by_name(shell):
    for arguments, word in ((("trian",), "trian"), (("list", "planets"), "planets")):
        ended = shell(*arguments)
        assert ended.code == 2
        assert word in ended.err
        assert "Traceback" not in ended.err
