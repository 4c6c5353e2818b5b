"""Small runs, and what their directories and logs hold at the end."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np

import paceline

PLAIN = {"preset": "none", "track": "none", "device": "cpu", "threads": 1, "compile": "off"}
"""Options of a run that is the same wherever it is made."""
TINY = {"num_envs": 2, "rollout_steps": 8, "epochs": 1, "minibatches": 1, "eval_episodes": 1}
"""Options of a run whose iterations take milliseconds."""
TINY_FLAGS = shlex.split(
    "--preset none --num-envs 2 --rollout-steps 8 --epochs 1 --minibatches 1 --hidden 8 "
    "--eval-episodes 1 --track none --compile off --total-iters 4"
)


def small_config(env_id="CartPole-v1", **options):
    """Four environments of 16 steps; its budget is far off unless `options` have one."""
    small = {"num_envs": 4, "rollout_steps": 16, "hidden": (16,), "total_iters": 1000}
    return paceline.Config(env_id=env_id, **(PLAIN | small | options))


def metrics_of(run):
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def assert_same(one, other):
    """Two states, as mappings of arrays, to the bit."""
    assert one.keys() == other.keys()
    for name in one:
        assert np.asarray(one[name]).tobytes() == np.asarray(other[name]).tobytes(), name


def last_state(run):
    """Weights and state of the newest checkpoint, as bytes."""
    newest = sorted(Path(run, "checkpoints").glob("[0-9]*"))[-1]
    return [(newest / name).read_bytes() for name in ("weights.safetensors", "state.safetensors")]


def left_after(config, iteration):
    """Train, and leave the loop after this iteration."""
    for report in paceline.train(config):
        if report.iter == iteration:
            return


def assert_resumes_to_the_byte(config, folder, iteration=2, **changes):
    """A run that is left after `iteration`, and resumed, ends like one that was not left."""
    list(paceline.train(config.replace(output_dir=str(folder / "whole"))))
    left_after(config.replace(output_dir=str(folder / "parts")), iteration)
    assert list(paceline.resume(folder / "parts", **changes))
    assert last_state(folder / "whole") == last_state(folder / "parts")


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def iterations(run):
    return [line["iter"] for line in run.metrics()]


def assert_refused(ended, words):
    """A command that ended with exit code 2 and a short message with all of `words`."""
    assert ended.code == 2 and "Traceback" not in ended.err, ended
    assert ended.err.startswith("paceline: ") and len(ended.err.splitlines()) <= 3, ended.err
    for word in words:
        assert word in ended.err, f"{word!r} is not in: {ended.err}"
