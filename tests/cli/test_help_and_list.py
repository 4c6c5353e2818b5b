"""Help and lists: complete, and without torch, whose import costs more than all the rest."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version

import pytest

from paceline.cli.commands import COMMANDS
from paceline.cli.listing import LISTS
from paceline.config.flags import fields_of
from paceline.config.help import START
from paceline.config.presets import MEMORY
from paceline.config.registry import ALGORITHMS, entry
from paceline.config.resolve import resolve
from paceline.learning.algorithms.a2c import A2C
from paceline.learning.algorithms.ppo import PPO


def options_of(text):
    """Each flag of a help text with the value it takes and its explanation, in one line."""
    entries = re.findall(r"^  (--[\w.-]+)(.*\n(?:   .*\n)*)", f"{text}\n", re.MULTILINE)
    assert len(dict(entries)) == len(entries), "an option is there twice"
    return {flag: " ".join(explanation.split()) for flag, explanation in entries}


def groups_of(text):
    """Each title of a help text, and its part."""
    return dict(re.findall(r"^(\S[^\n]*):\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL))


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


def test_train_help_has_every_option_once_with_its_text_and_general_default(command):
    seen = {}
    for algo in ALGORITHMS:
        options = options_of(command("train", "--algo", algo, "--help").out)
        assert {name.partition(".")[0][2:] for name in options if "." in name} == {"env", algo}
        seen |= options
    assert seen.keys() - {"--config", "--seeds"} == {field.flag for field in fields_of()}
    options = options_of(command("train", "--help").out)
    for field in fields_of(sections_of("ppo")):
        default = PPO.defaults.get(field.name, field.default)
        said = options[field.flag]
        assert field.text in said, field.name
        if field.is_bool and default is not None:
            assert said.endswith("[on]" if default else "[off]")
        elif default not in (None, (), {}):
            shown = f"{default:g}" if isinstance(default, float) else default
            assert said.endswith(f"[{shown}]"), field.name


def sections_of(algo):
    """Its own, as `fields_of` takes it."""
    return {algo: entry("algo", algo)}


def test_train_help_shows_the_defaults_of_the_chosen_algorithm(command):
    options = options_of(command("train", "--algo", "a2c", "--help").out)
    for name, value in A2C.defaults.items():
        shown = f"{value:g}" if isinstance(value, float) else value
        assert options["--" + name.replace("_", "-")].endswith(f"[{shown}]")


def test_train_help_lists_the_choices_of_every_option_that_has_some(command):
    options = options_of(command("train", "--help").out)
    assert options["--algo"].startswith("{ppo,a2c,impala,a3c,ddppo,module:Class} ")
    assert options["--optimizer"].startswith("{adam,rmsprop} ")
    assert options["--sync"].startswith("{auto,local,allreduce,hogwild,module:Class} ")
    for field in fields_of(sections_of("ppo")):
        for choice in field.choices:
            assert choice in options[field.flag], field.name


def test_train_help_begins_with_the_options_that_people_use_first(command):
    groups = groups_of(command("train", "--help").out)
    first, own, *others = groups
    assert (first, own) == ("Start here", "PPO") and len(others) >= 6
    assert [*options_of(groups[first])] == ["--" + name.replace("_", "-") for name in START]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_train_help_fits_the_terminal_and_breaks_no_word(command, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    _, _, text = command("train", "--help").out.partition("\n\n")
    words = max(len(word) for word in re.findall(r"\{\S+|--\S+ \{\S+", text))
    assert all(len(line) <= max(min(width, 100), 2 + words) for line in text.splitlines())
    assert not re.search(r"-\n", text) and not re.search(r" $", text, re.MULTILINE)
    assert not re.search(r"\w  +\S", re.sub(r"^  --\S+( \S+)?  +", "", text, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        ("--env-id CartPole-v1", "Set by the preset CartPole-v1 (--preset none leaves it out):"),
        ("--env-id Acrobot-v7", "Set by the preset Acrobot-v1 (--preset none leaves it out):"),
        ("--env-id toy:chain", "toy:chain has no preset of its own for ppo:"),
        ("--env-id CartPole-v1 --preset none", "For a2c and impala:"),
        ("", "For a2c and impala:"),
    ],
)
def test_train_help_shows_the_preset_of_a_given_environment_apart(command, arguments, end):
    ended = command("train", *arguments.split(), "--help")
    last = ended.out.strip().rpartition("\n\n")[2]
    assert last.startswith(end)
    if "CartPole-v1 (" in end:
        assert "\n  --ppo.gae-lambda 0.9\n" in last and "\n  --total-steps" in last
    assert options_of(ended.out.replace(last, ""))["--lr"].endswith("[0.0003]")


def test_list_has_one_line_for_each_entry(command):
    ended = command("list")
    lines = ended.out.splitlines()
    assert ended.code == 0 and {f"{kind}:" for kind in LISTS} <= set(lines)
    for name in ("ppo", "a2c", "impala", "a3c", "ddppo", "gym", "toy", "serial", "ppo CartPole-v1"):
        assert len([x for x in lines if re.match(rf"  {re.escape(name)}\s\s+\S", x)]) == 1, name


@pytest.mark.parametrize("kind", LISTS)
def test_list_of_one_kind_holds_that_kind_alone(command, kind):
    ended = command("list", kind)
    heading, *entries = ended.out.splitlines()
    assert (ended.code, heading) == (0, f"{kind}:")
    assert len(entries) == len(list(LISTS[kind]()))
    assert all(re.fullmatch(r"  \S.*\s\s\S.*", line) for line in entries)


def test_every_algorithm_and_preset_that_is_listed_can_be_configured():
    for name, text in LISTS["algorithms"]():
        config = resolve({"algo": name, "ranks": 2} if name == "ddppo" else {"algo": name})
        assert config.algo_name == name or name == "ddppo"
        assert name in ALGORITHMS or f"stands for --algo {config.algo} " in text
    for preset, _ in LISTS["presets"]():
        algo, name = preset.split(" ", 1)
        given = {"algo": algo, "env_id": name.removesuffix(MEMORY)}
        more = {} if given["env_id"] == name else {"memory": "lstm"}
        assert resolve(given | more).preset == name


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
