"""An algorithm of one's own, `--algo module:Class`: its options are flags, its metrics are written.
Nothing in the package knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest
from annotated_types import Ge

import paceline
from paceline.learning.batch import Targets
from paceline.learning.returns import gae

NAME = "test_own_algorithm:Reinforce"
pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True, kw_only=True)
class Reinforce:
    """REINFORCE with a baseline (Williams 1992): whole returns, minus what was expected."""

    baseline_coef: Annotated[float, Ge(0)] = 0.5
    """weight of the baseline's error"""

    defaults: ClassVar[Mapping[str, Any]] = {"epochs": 1, "minibatches": 1, "rollout_steps": 32}
    name: ClassVar[str] = "reinforce"
    metrics: ClassVar[tuple[str, ...]] = ("policy_loss", "baseline_error")
    normalize_advantage: ClassVar[str] = "rollout"
    needs_log_ratio: ClassVar[bool] = False
    stop_above: ClassVar[Mapping[str, float]] = {}

    @staticmethod
    def refuse(config):
        if config.epochs != 1:
            raise paceline.BadInput(f"reinforce makes one pass, and epochs is {config.epochs}")

    def targets(self, signals, value):
        advantage = gae(signals.reward, signals.discount, signals.trace, value, signals.lam(1.0))
        return Targets(signals.weighted(advantage), advantage + value[:-1])

    def loss(self, prediction, rows, progress_remaining):
        policy = -prediction.logp * rows.advantage
        error = (prediction.value - rows.returns).square().sum(-1)
        return policy + self.baseline_coef * error, [policy, error]


TRAIN = ("train", "--algo", NAME, "--output-dir", "run", "--track", "none", "--preset", "none")


def test_it_learns_from_the_command_line_with_an_option_and_a_metric_of_its_own(shell, command):
    flags = "--env-id toy:identity --lr 3e-3 --total-steps 60k --reinforce.baseline-coef 0.3"
    ended = command(*TRAIN, *flags.split())
    assert ended.code == 0, ended
    run = shell.run("run")
    config = run.config()
    assert config["algo"] == NAME and config["reinforce"] == {"baseline_coef": 0.3}
    assert config["rollout_steps"] == 32
    for line in run.metrics():
        assert line["baseline_error"] > 0 and line["entropy"] is None
        total = line["policy_loss"] + 0.3 * line["baseline_error"]
        assert line["loss"] == pytest.approx(total, abs=1e-4)
    assert run.json("eval.json")["mean"] > 9


@dataclass(frozen=True, kw_only=True)
class Fading(Reinforce):
    """With a schedule of the baseline's weight."""

    name: ClassVar[str] = "fading"
    baseline_schedule: str = "constant"

    @property
    def schedules(self):
        return {"baseline_coef": (self.baseline_coef, self.baseline_schedule)}

    def loss(self, prediction, rows, progress_remaining, **factors):
        _, (policy, error) = super().loss(prediction, rows, progress_remaining)
        weight = self.baseline_coef * factors["baseline_coef"]
        return policy + weight * error, [policy, error]


def test_its_options_can_have_schedules(tmp_path):
    options = {"algo": Fading, "fading": {"baseline_schedule": "linear:0.1"}, "total_iters": 4}
    place = {"output_dir": str(tmp_path / "run"), "track": "none", "eval_episodes": 1}
    config = paceline.Config(env_id="toy:identity", preset="none", **place, **options)
    for number, report in enumerate(paceline.train(config)):
        line, weight = report.as_dict(), 0.5 - 0.4 * number / 4
        total = line["policy_loss"] + weight * line["baseline_error"]
        assert line["loss"] == pytest.approx(total, abs=1e-5)
    with pytest.raises(paceline.BadInput, match=r"fading\.baseline_coef is 'slow': it should be"):
        config.replace(fading={"baseline_schedule": "slow"})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--epochs", "2"], "reinforce makes one pass"),
        (["--reinforce.baseline-coef", "-1"], "reinforce.baseline_coef"),
    ],
)
def test_its_refusals_are_sentences(command, tmp_path, flags, words):
    """Flags, help and what Python may give instead of a name: tests/cli/test_own_entries.py."""
    ended = command(*TRAIN, *flags)
    assert ended.code == 2
    assert words in ended.err and "Traceback" not in ended.err
    assert not (tmp_path / "run").exists()
