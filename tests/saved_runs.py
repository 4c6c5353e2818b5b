"""Small runs in this process, and what their directories hold at the end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

PLAIN = {"preset": "none", "track": "none", "device": "cpu", "threads": 1, "compile": "off"}
"""Options of a run that is the same wherever it is made."""


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
