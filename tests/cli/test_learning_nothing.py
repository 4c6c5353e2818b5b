"""A run that has learned nothing ends with a warning."""

from __future__ import annotations

import json

import pytest

SHORT = ("--output-dir", "run", "--track", "none", "--eval-episodes", 1, "--total-iters", 3)


@pytest.mark.parametrize("algo", ["ppo", "a2c", "impala"])
@pytest.mark.parametrize(
    ("options", "warned"),
    [((), False), (("--lr", 0), True), (("--max-grad-norm", 1e-30), True)],
    ids=["learns", "lr", "max_grad_norm"],
)
def test_an_unchanged_policy_is_warned_of_and_no_other(command, algo, options, warned):
    ended = command("train", "--algo", algo, *SHORT, *options)
    assert ended.code == 0
    assert ("nothing was learned" in " ".join(ended.out.split())) == warned


def test_a_resumed_run_keeps_its_first_episodes(shell):
    given = ("--preset", "none", "--eval-episodes", 1, "--total-iters")
    whole = shell.train_here("whole", *given, 6)
    shell.train_here("parts", *given, 2)
    parts = shell.resume_here("parts", total_iters=6)
    facts, resumed = (json.loads(run.last("state.json")) for run in (whole, parts))
    assert facts["episodes"] > len(facts["recent"]) == len(facts["first"]) == 100
    for name in ("first", "recent", "episodes"):
        assert resumed[name] == facts[name]
