"""A user's own algorithm, bonus or memory: by name on the command line, as a class from Python."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import paceline
from paceline.cli import commands as cli
from paceline.config.flags import parse_config
from paceline.config.help import help_text
from paceline.config.registry import ENTRIES
from paceline.config.resolve import resolve
from paceline.errors import BadInput
from paceline.learning.algorithms.a2c import A2C
from paceline.learning.algorithms.ppo import PPO

MODULE = '''
from dataclasses import dataclass

from paceline import BadInput
from paceline.learning.algorithms.a2c import A2C


@dataclass(frozen=True, kw_only=True)
class Reinforce(A2C):
    defaults = A2C.defaults | {"rollout_steps": 8}
    baseline_coef: float = 0.5
    """weight of the baseline"""


class Novelty:
    name = "novel"

    @dataclass(frozen=True)
    class Options:
        weight: float = 1.0
        """of the bonus"""

    @staticmethod
    def refuse(config):
        if config.novel.weight > 5:
            raise BadInput(f"novel.weight is {config.novel.weight}; write 5 or less")
'''
SHORT = shlex.split(
    "--env-id CartPole-v1 --num-envs 2 --total-iters 4 --log-every 1 --eval-episodes 1"
)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's; its name."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_the_options_of_an_own_algorithm_are_flags_with_help_defaults_and_suggestions(own):
    algo = ["--algo", f"{own}:Reinforce"]
    config = parse_config([*algo, "--reinforce.baseline-coef", "0.3"])
    assert (config.reinforce.baseline_coef, config.rollout_steps) == (0.3, 8)
    assert config.algorithm is config.reinforce and config.algo_name == "reinforce"
    text = " ".join(help_text(config).split())
    assert "weight of the baseline [0.5]" in text
    assert "n-step returns [1]" in text  # inherited
    with pytest.raises(BadInput, match=r"did you mean --reinforce\.baseline-coef"):
        parse_config([*algo, "--reinforce.baselin-coef", "0.3"])
    with pytest.raises(BadInput, match="no such option"):
        parse_config(["--reinforce.baseline-coef", "0.3"])


@pytest.mark.parametrize("suffix", ["yaml", "py"])
def test_a_file_may_choose_the_entry_whose_options_are_flags(own, tmp_path, suffix):
    file = tmp_path / f"c.{suffix}"
    python = f"import paceline\nconfig = paceline.Config(bonus='{own}:Novelty')\n"
    file.write_text(python if suffix == "py" else f"bonus: {own}:Novelty\n")
    assert parse_config(["--config", str(file), "--novel.weight", "2"]).novel.weight == 2
    with pytest.raises(BadInput, match=r"novel\.weight is 7\.0"):
        paceline.Config(bonus=f"{own}:Novelty", novel={"weight": 7})


def test_a_class_or_an_instance_from_python_is_what_its_name_is(own):
    module = __import__(own)
    named = paceline.Config(algo=f"{own}:Reinforce", reinforce={"baseline_coef": 0.3})
    assert paceline.Config(algo=module.Reinforce(baseline_coef=0.3)) == named
    assert paceline.Config(algo=module.Reinforce, reinforce={"baseline_coef": 0.3}) == named
    assert paceline.Config(algo=PPO(clip=0.1)) == paceline.Config(ppo=vars(PPO(clip=0.1)))
    assert resolve(yaml.safe_load(yaml.safe_dump(named.as_dict()))).options == named.options


@pytest.mark.parametrize("option", ENTRIES)
@pytest.mark.parametrize("value", ["unheard_of", "no_such_module:Thing", "json:dumps", 5, [1]])
def test_what_is_no_entry_is_refused_by_the_name_of_the_option(option, value):
    if option in ("memory", "bonus", "pool") and value == "json:dumps":
        pytest.skip("what these have to be is for whoever calls them to say")
    with pytest.raises(BadInput, match=f"^{option}"):
        paceline.Config(**{option: value})


def test_a_segment_of_a_memory_divides_the_rollout(own):
    memory = {"memory": f"{own}:Novelty", "preset": "none"}
    assert paceline.Config(**memory, rollout_steps=24).memory_segment == 24
    assert paceline.Config(**memory, rollout_steps=24, memory_segment=8).memory_segment == 8
    assert paceline.Config(rollout_steps=24).memory_segment is None
    with pytest.raises(BadInput, match="memory_segment 7"):
        paceline.Config(**memory, rollout_steps=24, memory_segment=7)


def test_a_run_of_an_own_algorithm_is_resumed_and_compared_without_importing_it(own, shell):
    """The comparison does not find the module, and does not look for it."""
    flags = ["--algo", f"{own}:Reinforce", "--reinforce.baseline-coef", "0.3", *SHORT]
    run = shell.train("run", *flags, "--compile", "off")
    assert run.config()["reinforce"]["baseline_coef"] == 0.3
    assert run.json("run.json")["algo_is_callable"] is False
    shell.resume("run", "--total-iters", 6)
    Path(shell.folder, f"{own}.py").unlink()
    compared = shell("compare", "run")
    assert compared.code == 0 and "REINFORCE" in compared.out, compared


def test_an_algorithm_that_only_python_has_is_given_again_on_resume(tmp_path):
    class Here(A2C):
        pass

    run = tmp_path / "run"
    options = {"num_envs": 2, "total_iters": 3, "compile": "off", "eval_episodes": 1}
    here = dataclass(frozen=True, kw_only=True)(Here)
    config = paceline.Config(algo=here, output_dir=str(run), track="none", **options)
    assert len(list(paceline.train(config))) == 1
    with pytest.raises(BadInput, match="algo="):
        list(paceline.resume(run, total_iters=5))
    assert cli.run(["eval", str(run), "--episodes", "1"]) == 0
    assert [report.iter for report in paceline.resume(run, total_iters=5, algo=here)] == [5]
