"""Options of other libraries: the message names the right one here, or says that there is none.

`python tests/cli/test_known_names.py` prints what is said of each flag below.
"""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from paceline import Config
from paceline.config.flags import fields_of, parse_config
from paceline.config.help import COMMAND
from paceline.config.known_names import LIBRARIES, expanded, rows, values
from paceline.config.registry import ENTRIES
from paceline.config.resolve import field_names
from paceline.errors import BadInput

NONE, YET = "there is no such option:", "there is no such option yet:"
SB3 = """
--n-steps 2048                       --rollout-steps
--n-envs 8                           --num-envs
--learning-rate 3e-4                 --lr
--total-timesteps 1e6                --total-steps
--n-timesteps 1e6                    --total-steps
--n-epochs 10                        --epochs
--clip-range 0.2                     --ppo.clip
--clip-range-vf 0.2                  --ppo.value-clip
--ent-coef 0.01                      --ppo.entropy-coef
--algo=a2c --ent-coef 0.01           --a2c.entropy-coef
--algo=a3c --ent-coef 0.01           --a2c.entropy-coef
--vf-coef 0.5                        --ppo.vf-coef
--gae-lambda 0.95                    --ppo.gae-lambda
--algo=impala --gae-lambda 1         --impala.vtrace-lambda
--target-kl 0.01                     --ppo.target-kl
--algo=a2c --use-rms-prop true       --optimizer
--net-arch 64,64                     --hidden
--policy MlpPolicy                   none
--env CartPole-v1                    --env-id
--tensorboard-log logs               --track
--progress-bar                       none
--verbose 1                          none
--eval-freq 1000                     --eval-every
--n-eval-episodes 5                  --eval-episodes
--save-freq 1000                     --save-every
--normalize-advantage true           --ppo.normalize-advantage
--env-kwargs size:3                  --env.kwargs
--use-sde                            none
"""
CLEANRL = """
--num-steps 128                      --rollout-steps
--num-minibatches 4                  --minibatches
--update-epochs 4                    --epochs
--clip-coef 0.2                      --ppo.clip
--algo=a2c --clip-coef 0.2           --ppo.clip
--norm-adv                           --ppo.normalize-advantage
--clip-vloss                         --ppo.value-clip
--no-cuda                            --device
--torch-deterministic                none
--capture-video                      planned
--wandb-project-name x               planned
--exp-name x                         --output-dir
--gym-id CartPole-v1                 --env-id
"""
SAMPLE_FACTORY = """
--train_for_env_steps=1000000        --total-steps
--train_for_seconds=60               --duration
--rollout=32                         --rollout-steps
--num_epochs=1                       --epochs
--num_batches_per_epoch=2            --minibatches
--num_workers=4                      --num-workers
--num_envs_per_worker=2              --num-envs-per-worker
--ppo_clip_ratio=0.1                 --ppo.clip
--value_loss_coeff=0.5               --ppo.vf-coef
--exploration_loss_coeff=0.003       --ppo.entropy-coef
--normalize_input=True               --normalize-obs
--reward_scale=1                     none
--async_rl=True                      none
--serial_mode=True                   none
--with_vtrace=True                   --impala.correction
--use_rnn=True                       --memory
--rnn_size=512                       --memory-size
--num_policies=1                     none
--experiment=x                       --output-dir
--train_dir=x                        --output-dir
"""
PUFFERLIB = """
--train.learning-rate 0.01           --lr
--train.bptt-horizon 64              --rollout-steps
--train.minibatch-size 1024          --batch-size
--train.ent-coef 0.001               --ppo.entropy-coef
--vec.num-envs 4                     --num-envs
--train.adam-beta1 0.9               none
"""
RLLIB = """
--num-env-runners 2                  --num-workers
--num-envs-per-env-runner 2          --num-envs-per-worker
--train-batch-size 4000              none
--sgd-minibatch-size 128             --batch-size
--num-sgd-iter 30                    --epochs
--lambda 0.95                        --ppo.gae-lambda
--clip-param 0.3                     --ppo.clip
--vf-clip-param 10                   --ppo.value-clip
--vf-loss-coeff 1                    --ppo.vf-coef
--entropy-coeff 0.01                 --ppo.entropy-coef
--kl-coeff 0.2                       none
--grad-clip 0.5                      --max-grad-norm
--fcnet-hiddens 64,64                --hidden
--use-lstm                           --memory
"""
OTHERS = """
--hidden-dim 64                      --hidden
--hidden-size 64                     --hidden
--num-batches 4                      --minibatches
--nproc 2                            --ranks
--nproc-per-node 2                   --ranks
--log-dir x                          --output-dir
--save-dir x                         --output-dir
--resume runs/x                      none
--rnn gru                            --memory
--video-every 10                     planned
--opponent random                    planned
"""
FLAGS = [
    (shlex.split(line)[:-1], line.split()[-1])
    for table in (SB3, CLEANRL, SAMPLE_FACTORY, PUFFERLIB, RLLIB, OTHERS)
    for line in table.strip().splitlines()
]
"""What people would type, and the option that it is here: or none, or planned."""


def said_of(arguments):
    """The message about flags that `paceline train` does not know."""
    with pytest.raises(BadInput) as caught:
        parse_config(arguments)
    return str(caught.value)


def is_right(message, expected):
    if expected in ("none", "planned"):
        return (NONE if expected == "none" else YET) in message
    return re.search(rf"(here it is|did you mean) {re.escape(expected)}(?![\w.-])", message)


@pytest.mark.parametrize(("arguments", "expected"), FLAGS, ids=lambda x: str(x))
def test_a_flag_of_another_library_is_answered_with_ours_or_that_there_is_none(arguments, expected):
    message = said_of(arguments)
    assert is_right(message, expected), message


@pytest.mark.parametrize("index", [0, 20])
def test_the_command_says_the_same(shell, index):
    arguments, expected = FLAGS[index]
    ended = shell("train", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"paceline: {said_of(arguments)}\n"
    assert is_right(ended.err, expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"n_steps": 5}, "n_steps: there is no such option; here it is rollout_steps"),
        ({"clip_range": 0.1}, "here it is ppo: {clip: …}"),
        (
            {"ppo": {"clip_range": 0.1}},
            "ppo.clip_range: there is no such option; here it is ppo.clip",
        ),
        ({"algo": "a2c", "clip_range": 0.1}, "here it is ppo: {clip: …}, and a2c has none"),
        ({"ppo": {"learning_rate": 0.1}}, "here it is lr"),
        ({"ppo.clip": 0.1}, "did you mean ppo: {clip: …}?"),
        ({"env_config": {"size": 3}}, "here it is env: {kwargs: …}"),
        ({"progress_bar": True}, f"{NONE} progress is shown"),
        ({"policy_kwargs": {"net_arch": [64]}}, "written without it: hidden for net_arch"),
        (
            {"training": {"learning_rate": 0.1, "gamma": 0.9, "ent_coef": 0.1}},
            "training: there is no such section; its options are written without it: "
            "lr for learning_rate, gamma, ppo: {entropy_coef: …} for ent_coef",
        ),
        ({"processes": {"num_workers": 2, "nproc": 2}}, "without it: num_workers, ranks for nproc"),
        ({"parallel": {"num_workers": 2}}, "should be auto, or a number of CPUs"),
        ({"env": "Acrobot-v1"}, "the environment is env_id"),
    ],
    ids=str,
)
def test_a_name_in_python_or_in_a_file_is_answered_as_it_is_written_there(
    tmp_path, given, expected
):
    with pytest.raises(BadInput, match=re.escape(expected)):
        Config(**given)
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(given, sort_keys=False))
    assert expected in said_of(["--config", str(path)])


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option, texts in values().items() for value in texts],
)
def test_a_value_that_others_have_is_refused_with_what_there_is(option, value):
    assert f"; {value} is " in said_of([f"--{option}", value])


def test_an_option_without_its_value_is_refused_with_its_choices():
    assert said_of(["--track", "--seed", "1"]) == (
        "--track: write a value after it, one of tensorboard, none"
    )
    assert said_of(["--lr"]) == "--lr: write a value after it"


@pytest.mark.parametrize(
    "flag", ["--clip-reach", "--some-bar", "--hides", "--zork", "--normalize-inputs-too", "-x"]
)
def test_a_name_that_is_like_none_of_ours_gets_no_suggestion(flag):
    assert said_of([flag, "1"]) == f"{flag}: there is no such option"


def test_the_table_names_only_options_that_there_are_and_each_name_once():
    known = {*field_names(), *(field.name for field in COMMAND)}
    seen = {}
    for row in rows():
        assert bool(row.options) + bool(row.none) + bool(row.planned) == 1, row
        assert row.names.keys() <= LIBRARIES.keys(), row
        assert all(expanded(option, known) for option in row.options), row
        assert {one for option in row.options for one in expanded(option, known)} <= known
        assert set(re.findall(r"\{([a-z_.]+)\}", row.texts())) <= known, row
        for name in {name for names in row.names.values() for name in names}:
            assert seen.setdefault(name, row) is row, name
            if name in known - {"env", "seeds"}:  # never looked up: it has to mean the same
                assert name in row.options, name
    assert values().keys() <= {field.name for field in fields_of() if field.choices}
    for option, texts in values().items():
        assert not texts.keys() & ENTRIES.get(option, {}).keys()


if __name__ == "__main__":
    for typed, _ in FLAGS:
        print(said_of(typed))
