"""A run that begins with another's weights, and one that ends when it is good enough."""

from __future__ import annotations

import numpy as np
import pytest
from saved_runs import assert_same

import paceline
from paceline.errors import BadInput
from paceline.storage import checkpoint

ALONE = {"threads": 1, "compile": "off", "track": "none"}


def config_of(folder, **options):
    rollouts = {"num_envs": 4, "rollout_steps": 32, "minibatches": 4, "total_steps": 1000}
    normalized = {"normalize_obs": True, "normalize_return": True}
    defaults = ALONE | {"eval_episodes": 2} | rollouts | normalized
    return paceline.Config(output_dir=str(folder), **(defaults | options))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "run"
    list(paceline.train(config_of(folder)))
    return folder


@pytest.mark.parametrize("whole_run", [True, False])
def test_a_run_begins_with_the_others_weights_and_fresh_counters(source, tmp_path, whole_run):
    place = source if whole_run else sorted(source.glob("checkpoints/0*"))[-1]
    config = config_of(tmp_path / "run", init_from=str(place), lr=0.0, total_steps=100)
    reports = list(paceline.train(config))
    assert reports[0].iter == 1 and 100 <= reports[0].steps <= 128
    ours, theirs = (paceline.load(run).weights for run in (tmp_path / "run", source))
    for name in theirs:
        if not name.startswith("obs_"):  # the statistics go on from where they stood
            np.testing.assert_array_equal(ours[name], theirs[name])
    assert np.abs(ours["obs_mean"] - theirs["obs_mean"]).max() < 0.5


def test_statistics_are_taken_over_with_their_weight(source, tmp_path):
    config = config_of(tmp_path / "run", init_from=str(source), total_iters=1, total_steps=None)
    list(paceline.train(config))
    found = [checkpoint.load_newest(run / "checkpoints")[1] for run in (source, tmp_path / "run")]
    for key in ("learner.obs.count", "learner.return.count"):
        before, after = (float(content.arrays[key]) for content in found)
        assert before > 900 and 100 < after - before <= 128


def test_such_a_run_resumes_to_the_byte(source, tmp_path):
    list(paceline.train(config_of(tmp_path / "whole", init_from=str(source))))
    for report in paceline.train(config_of(tmp_path / "parts", init_from=str(source))):
        if report.iter == 3:
            break
    list(paceline.resume(tmp_path / "parts"))
    assert_same(*(paceline.load(tmp_path / name).weights for name in ("whole", "parts")))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden": (32,)}, r"hidden is \(?\[?64"),
        ({"activation": "relu"}, "activation"),
        ({"env_id": "Acrobot-v1"}, r"takes observations of Box\(4,\) .* shows Box\(6,\)"),
        ({"normalize_obs": False}, "normalize_obs"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_with_both(source, tmp_path, options, words):
    with pytest.raises(BadInput, match=words):
        list(paceline.train(config_of(tmp_path / "run", init_from=str(source), **options)))
    assert not (tmp_path / "run").exists()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(BadInput, match="neither a run nor a checkpoint"):
        list(paceline.train(config_of(tmp_path / "run", init_from=str(tmp_path / "nothing"))))


@pytest.mark.slow
def test_a_run_ends_when_its_last_hundred_episodes_are_good_enough(tmp_path):
    config = config_of(
        tmp_path / "run", total_steps=50_000, stop_at_return=20.0, save_every=1000, lr=1e-3
    )
    reports = list(paceline.train(config))
    last, episodes = reports[-1], np.cumsum([report.episodes for report in reports])
    assert last.recent_return >= 20.0 and last.steps < 50_000 and last.fraction == 1.0
    for report, count in zip(reports[:-1], episodes[:-1], strict=True):
        assert count < 100 or report.recent_return < 20.0


def test_a_score_that_is_out_of_reach_leaves_the_budget_to_end_the_run(tmp_path):
    config = config_of(tmp_path / "run", stop_at_return=1e9)
    assert list(paceline.train(config))[-1].steps >= 1000


@pytest.mark.slow
def test_a_run_that_was_good_enough_goes_on_with_a_higher_score(tmp_path):
    config = config_of(tmp_path / "run", total_steps=20_000, stop_at_return=15.0)
    first = list(paceline.train(config))[-1]
    assert list(paceline.resume(tmp_path / "run")) == []
    longer = {"stop_at_return": 1e9, "total_steps": first.steps + 500}
    assert list(paceline.resume(tmp_path / "run", **longer))[-1].steps >= first.steps + 500
