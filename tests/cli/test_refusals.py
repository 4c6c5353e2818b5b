"""What can't be used is refused before training: exit 2 and a sentence, never a traceback."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from corrupt import yaml_bomb

import paceline
from paceline.errors import BadInput

SOON = 5.0
"""Seconds of CPU time that a refusal takes at most."""
SPACES = """
import gymnasium as gym
import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-1, 1, (3,), np.float32)


class Odd(gym.Env):
    def __init__(self, obs, act):
        self.observation_space, self.action_space = obs, act

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


for name, obs, act in (
    ("Text", spaces.Text(5), spaces.Discrete(2)),
    ("Mission", spaces.Dict({"a": BOX, "mission": spaces.Text(5)}), spaces.Discrete(2)),
    ("Graph", spaces.Graph(BOX, None), spaces.Discrete(2)),
    ("Sequence", spaces.Sequence(BOX), spaces.Discrete(2)),
    ("Say", BOX, spaces.Text(5)),
    ("DictAction", BOX, spaces.Dict({"a": spaces.Discrete(2)})),
    ("Nothing", spaces.Dict({}), spaces.Discrete(2)),
):
    gym.register(f"{name}-v0", lambda obs=obs, act=act: Odd(obs, act))
"""


def refused(ended, words="", lines=4):
    """Exit code 2 and a short message on stderr that has all of `words`, separated by spaces."""
    assert ended.code == 2, ended
    assert ended.err.startswith("paceline: "), ended.err
    assert "Traceback" not in ended.err, ended.err
    assert len(ended.err.splitlines()) <= lines, ended.err
    says(ended.err, words)


def says(text, words):
    for word in words.split():
        assert word.lower() in text.lower(), f"{word!r} is not in: {text}"


@pytest.mark.parametrize("arguments", ["--lr much", "--gama 1", "--config lr.yaml", "--lr"])
def test_a_user_sees_one_line_and_the_exit_code_2(shell, command, arguments):
    ended = shell("train", *arguments.split())
    refused(ended, "gama" if "gama" in arguments else "lr", lines=1)
    there = command("train", *arguments.split())
    assert (ended.code, ended.out, ended.err) == (there.code, there.out, there.err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--num-envs 8 --rollout-steps 5 --minibatches 3", "minibatches 3 40 nearest"),
        ("--num-envs 8 --rollout-steps 8 --batch-size 48", "batch_size 48 64 nearest"),
        ("--batch-size 64 --minibatches 4", "batch_size 64 minibatches 4"),
        ("--num-envs 100000 --rollout-steps 100000", "num_envs 100000 10,000,000,000 rows"),
        ("--ppo.gae-lambda 3", "ppo.gae_lambda 3 less 1"),
        ("--gamma -1", "gamma -1 greater 0"),
        ("--lr nan", "lr nan finite"),
        ("--lr much", "lr much number"),
        ("--num-envs 0", "num_envs 0 greater 1"),
        ("--num-envs 2.5", "num_envs 2.5 integer"),
        ("--seed -3", "seed -3"),
        ("--total-steps lots", "total_steps lots 300_000"),
        ("--init-method nowhere", "init_method nowhere env:// tcp://"),
        ("--algo a2c --epochs 3", "a2c epochs 3 ppo"),
        ("--algo a2c --minibatches 2", "a2c minibatches 2"),
        ("--algo impala --epochs 2", "impala epochs 2 ppo"),
        ("--algo impala --impala.c-bar 2", "c_bar 2 rho_bar 1 --impala.rho-bar"),
        (
            "--num-envs 1 --rollout-steps 1",
            "ppo.normalize_advantage rollout single --ppo.normalize-advantage none",
        ),
        (
            "--num-envs 2 --rollout-steps 4 --minibatches 8 --ppo.normalize-advantage minibatch",
            "'minibatch' minibatches 8 --ppo.normalize-advantage rollout",
        ),
        (
            "--ranks 2 --num-envs 1 --rollout-steps 4 --batch-size 2 "
            "--ppo.normalize-advantage minibatch",
            "'minibatch' minibatches 4 single row",
        ),
        (
            "--algo a3c --num-workers 2 --num-envs 1 --rollout-steps 1 "
            "--a2c.normalize-advantage rollout",
            "a2c.normalize_advantage --a2c.normalize-advantage none",
        ),
        ("--algo dqn", "algo dqn ppo"),
        ("--preset Cartpole-v1", "preset Cartpole-v1 mean CartPole-v1?"),
        ("--activation sine", "activation sine tanh"),
        ("--hidden 64,x", "hidden integer"),
        ("--hidden 64,-1", "hidden -1"),
        ("--normalize-obs maybe", "normalize_obs maybe bool"),
        (
            "--lr-schedule exponential",
            "lr_schedule exponential linear:1e-5 warmup:0.05+linear",
        ),
        ("--lr-schedule linear:low", "lr_schedule linear:low linear:1e-5"),
        ("--lr-schedule constant:1e-5", "lr_schedule constant:1e-5 linear:1e-5"),
        ("--lr-schedule warmup:5", "lr_schedule warmup:5 share warmup:0.05"),
        ("--ppo.clip-schedule cosine:-1", "ppo.clip_schedule cosine:-1 or more"),
        ("--ppo.entropy-schedule linear:0.1", "ppo.entropy_coef 0 linear:0.1 --ppo.entropy-coef"),
        ("--lr-schedule no_such:rate", "lr_schedule no_such:rate imported"),
        ("--schedule-budget 1M", "schedule_budget 1M total_steps=1M duration=30m"),
        ("--schedule-budget keep", "schedule_budget keep resumed total_steps=1M"),
        ("--anneal-lr", "--anneal-lr option --lr-schedule linear"),
        ("--no-anneal-lr", "--no-anneal-lr option --lr-schedule constant"),
        ("--ppo.anneal-clip true", "--ppo.anneal-clip --ppo.clip-schedule linear"),
        ("--env.kwargs {size", "env.kwargs {size"),
        ("--env.kwargs 5", "env.kwargs 5 dictionary"),
        ("CartPole-v1", "CartPole-v1 argument"),
        ("--config nothing.yaml", "nothing.yaml no file"),
        ("--config nothing.py", "nothing.py no file"),
        ("--config nothing", "nothing .yaml .toml"),
        ("--env-id toy:chain --normalize-obs", "normalize_obs discrete"),
        ("--env-id toy:chain --env.frame-stack 2", "frame_stack Discrete"),
        (
            '--env-id toy:identity --env.kwargs {"image":true} --normalize-obs',
            "obs image",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_the_value_and_a_remedy(command, arguments, words):
    refused(command("train", *arguments.split()), words)


@pytest.fixture
def here(shell, monkeypatch):
    """The refusal of an environment within this process, which saves the import of torch."""
    (shell.folder / "oddities.py").write_text(SPACES)
    monkeypatch.syspath_prepend(shell.folder)

    def refusal(env_id="CartPole-v1", **options):
        with pytest.raises(BadInput) as caught, paceline.make_vec(env_id, 1, **options):
            pass
        return str(caught.value)

    yield refusal
    for module in ("oddities", "broken"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("Cartpole-v1", "env_id Cartpole-v1 mean CartPole-v1"),
        ("CartPole-v77", "env_id CartPole-v77 CartPole-v1"),
        ("no_such_module:Thing-v0", "env_id no_such_module PYTHONPATH"),
        ("toy:idenity", "toy:idenity toy:identity"),
        ("toy:", "toy: toy:identity"),
        ("oddities:Absent-v0", "env_id oddities:Absent-v0 registered"),
        ("oddities:Text-v0", "observation Text wrap"),
        ("oddities:Mission-v0", "observation 'mission' Text wrap"),
        ("oddities:Graph-v0", "observation Graph wrap"),
        ("oddities:Sequence-v0", "observation Sequence wrap"),
        ("oddities:Say-v0", "action Text wrap"),
        ("oddities:DictAction-v0", "action Dict wrap"),
        ("oddities:Nothing-v0", "observation nothing"),
        ("", "env_id"),
        ("x" * 300, "env_id registered"),
    ],
)
def test_an_environment_that_can_not_be_used_is_refused_by_name(here, env_id, words):
    says(here(env_id), words)


@pytest.mark.parametrize(
    "wrapper", ["nowhere:Wrapper", "gymnasium.wrappers:Absent", "oddities", ":"]
)
def test_a_wrapper_that_can_not_be_imported_is_refused_by_name(here, wrapper):
    says(here(wrappers=(wrapper,)), f"env.wrappers {wrapper} module:Class")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("import nothing_of_the_kind", "nothing_of_the_kind"),
        ("1 / 0", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
        ("raise OSError", "OSError"),
    ],
)
def test_a_module_that_fails_to_import_is_named_with_its_error(shell, here, body, error):
    (shell.folder / "broken.py").write_text(body + "\n")
    says(here("broken:Thing-v0"), f"env_id broken {error}")
    sys.modules.pop("broken", None)
    says(here(wrappers=("broken:Thing",)), f"env.wrappers broken:Thing {error}")


@pytest.mark.parametrize("env_id", ["Cartpole-v1", "oddities:Mission-v0"])
def test_the_command_refuses_such_environments_and_makes_no_run(shell, here, env_id):
    """`here` has written the module oddities."""
    refused(shell("train", "--env-id", env_id))
    assert not (shell.folder / "runs").exists()


def test_a_gpu_that_is_not_there_is_refused(command):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    refused(command("train", "--device", "cuda"), "device cuda cpu")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("c.yaml", b"lr: [1, 2\ngamma: }", "c.yaml read yaml"),
        ("c.json", b'{"lr": 1,}', "c.json read json"),
        ("c.toml", b"lr = = 1", "c.toml read toml"),
        ("c.yaml", b"just words", "c.yaml names values words"),
        ("c.yaml", b"1: 2\n", "c.yaml names values"),
        ("c.json", b"[" * 60_000, "c.json deeply"),
        ("c.yaml", b"[" * 60_000, "c.yaml deeply"),
        ("c.toml", b"x = " + b"[" * 60_000, "c.toml deeply"),
        ("c.yaml", b"ppo: {clap: 0.1}\n", "ppo.clap mean ppo.clip?"),
        ("c.yaml", b"ppo: hard\n", "ppo hard"),
        ("c.toml", b"lr = 2026-01-01\n", "lr 2026-01-01 number"),
        ("c.py", b"lr = 1\n", "c.py config paceline.Config"),
        ("c.py", b"1 / 0\n", "c.py ZeroDivisionError"),
        ("c.py", b"import paceline\nconfig = paceline.Config(lr=-1)\n", "lr -1"),
        ("c.YAML", b"lr: 1\n", "c.YAML .yaml"),
        ("c.json", b'{"output_dir": "a\\u0000b"}', "output_dir"),  # no file system takes these
        ("c.json", b'{"output_dir": "a\\ud800b"}', "output_dir"),
    ],
)
def test_a_file_that_can_not_be_used_is_refused_with_cause(shell, command, name, content, words):
    """Whether every kind of wrong file is refused, test_config_fuzz asks."""
    (shell.folder / name).write_bytes(content)
    refused(command("train", "--config", name), words)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("c.json", '{"lr": "' + "x" * 10_000_000 + '"}', "larger"),
        ("c.yaml", yaml_bomb("[x, x, x]", "[{}]") + "seed: *i\n", "values"),
    ],
    ids=["ten megabytes", "references that multiply"],
)
def test_a_file_that_would_fill_the_memory_is_refused_soon(shell, name, content, word):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))

    (shell.folder / name).write_text(content)
    ended = shell("train", "--config", name, preexec_fn=limit)
    refused(ended, f"{name} {word}")
    assert len(ended.err) < 1000
    assert ended.cpu < SOON


@pytest.mark.parametrize(
    "text",
    [
        "lr: !!python/object/apply:os.system ['touch canary']\n",
        "lr: !!python/object/new:os.system ['touch canary']\n",
        "!!python/object/apply:subprocess.call [['touch', 'canary']]\n",
        "env: {kwargs: {x: !!python/object/apply:os.mkdir ['canary']}}\n",
        "lr: !!python/module:canary\n",
        "{\"lr\": \"__import__('os').mkdir('canary')\"}\n",
    ],
)
def test_nothing_in_a_yaml_file_is_executed(shell, command, monkeypatch, text):
    monkeypatch.syspath_prepend(shell.folder)
    (shell.folder / "evil.yaml").write_text(text)
    (shell.folder / "canary.py").write_text("open('canary', 'w')\n")
    refused(command("train", "--config", "evil.yaml"))
    assert not (shell.folder / "canary").exists()


@pytest.mark.parametrize(
    ("option", "path"),
    [
        ("output_dir", "file/run"),
        ("output_dir", "/proc/paceline/run"),
        ("log_jsonl", "file/metrics.jsonl"),
        ("log_jsonl", "tmp"),
    ],
)
def test_a_place_that_can_not_be_written_is_refused_before_training(shell, command, option, path):
    (shell.folder / "file").write_text("precious")
    flags = ["--output-dir", "run", f"--{option.replace('_', '-')}", path]
    ended = command("train", "--total-iters", "1", "--overwrite", *flags)
    refused(ended, f"{option} {path}")
    assert "steps/s" not in ended.out
    assert (shell.folder / "file").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("eval nowhere", "nowhere neither run nor checkpoint"),
        ("eval --checkpoint nowhere", "nowhere"),
        ("eval a --checkpoint b", "not both"),
        ("eval --episodes 5", "name a run"),
        *((f"eval run --episodes={number}", "") for number in ("0", "-1", "ten", "1.5", "²", "")),
        ("eval tmp --episode 5", "--episode --episodes"),
        ("resume nowhere", "nowhere no run"),
        ("resume tmp", "tmp no run"),
        ("resume tmp --lrr 1", "--lrr mean --lr?"),
    ],
)
def test_a_run_that_is_none_is_refused_by_name(command, arguments, words):
    refused(command(*arguments.split()), words)


def test_the_installed_command_is_the_module(shell):
    """`paceline` and `python -m paceline` are the same program."""
    script = [sys.executable.rpartition("/")[0] + "/paceline", "train", "--lr", "much"]
    ended = subprocess.run(script, capture_output=True, text=True, cwd=shell.folder)
    assert (ended.returncode, ended.stderr) == (2, shell("train", "--lr", "much").err)
